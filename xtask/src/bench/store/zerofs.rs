//! ZeroFS for `peers`: a file system in a bucket whose files can be NBD exports.
//!
//! Its exports are files of one directory, which are made through NFS; a client in user space does that, so no mount is
//! needed. It must never outlive the measurement.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::nbd_load::Connection;
use crate::bench::rig::StoreRig;
use crate::stores::programs::from_cargo;
use crate::{Failure, minio, process, vm};

const VERSION: &str = "0.19.1";
const EXPORT: &str = "disk";
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// It writes what it has in memory when it ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running ZeroFS; killed when dropped.
pub(super) struct Zerofs {
    child: Child,
    socket: PathBuf,
}

impl Drop for Zerofs {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a disk of so many MiB in the bucket.
pub(super) fn prepare(rig: &StoreRig, disk_mib: u64) -> Result<(), Failure> {
    let empty = rig.scratch().join("zerofs.empty");
    std::fs::File::create(&empty)?.set_len(disk_mib << 20)?;
    let port = free_port()?;
    let server = Zerofs::start(rig, "zerofs", port, false)?;
    let url = format!("nfs://127.0.0.1/.nbd/{EXPORT}?nfsport={port}&mountport={port}&uid=0&gid=0");
    process::run_quietly(Command::new("nfs-cp").arg(&empty).arg(url))
        .map_err(|error| format!("{error}; on Debian, apt-get install libnfs-utils"))?;
    server.finish()
}

impl Zerofs {
    /// Starts it with an empty cache of this name, and waits for its disk.
    pub(super) fn serve(rig: &StoreRig, cache: &str) -> Result<(Zerofs, String), Failure> {
        let server = Zerofs::start(rig, cache, free_port()?, true)?;
        let uri = format!("nbd+unix:///{EXPORT}?socket={}", server.socket.display());
        Ok((server, uri))
    }

    fn start(
        rig: &StoreRig,
        cache: &str,
        nfs_port: u16,
        has_disk: bool,
    ) -> Result<Zerofs, Failure> {
        let folder = vm::cache_of("peers").join(format!("zerofs-{VERSION}"));
        let program = from_cargo("zerofs", VERSION, &folder)?;
        let socket = rig.scratch().join(format!("{cache}.sock"));
        let settings = rig.scratch().join(format!("{cache}.toml"));
        std::fs::write(&settings, settings_of(rig, cache, &socket, nfs_port))?;
        let log = std::fs::File::create(rig.scratch().join(format!("{cache}.log")))?;
        let child = Command::new(program)
            .args(["run", "-c"])
            .arg(&settings)
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()?;
        let mut server = Zerofs { child, socket };
        let until = Instant::now() + START_TIMEOUT;
        loop {
            let is_up = match has_disk {
                true => Connection::open(&server.socket, EXPORT).is_ok(),
                false => std::net::TcpStream::connect(("127.0.0.1", nfs_port)).is_ok(),
            };
            if is_up {
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() || Instant::now() > until {
                let log = rig.scratch().join(format!("{cache}.log"));
                let said = std::fs::read_to_string(log)?;
                return Err(format!("ZeroFS does not come up: {said}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Brings everything to the store by a FLUSH, which is what that means there, and ends it.
    pub(super) fn flush_and_finish(self) -> Result<(), Failure> {
        Connection::open(&self.socket, EXPORT)?.flush()?;
        self.finish()
    }

    fn finish(mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let until = Instant::now() + STOP_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                return Err("ZeroFS does not end".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Its own defaults but for the sizes of its caches, which are those that others have here.
fn settings_of(rig: &StoreRig, cache: &str, socket: &Path, nfs_port: u16) -> String {
    format!(
        "[cache]\ndir = \"{}\"\ndisk_size_gb = 2.0\nmemory_size_gb = 0.25\n\
         [storage]\nurl = \"s3://firn/zerofs\"\nencryption_password = \"of-a-measurement\"\n\
         [servers.nfs]\naddresses = [\"127.0.0.1:{nfs_port}\"]\n\
         [servers.nbd]\nunix_socket = \"{}\"\n\
         [aws]\naccess_key_id = \"{}\"\nsecret_access_key = \"{}\"\nendpoint = \"http://{}\"\n\
         default_region = \"us-east-1\"\nallow_http = \"true\"\n",
        rig.scratch().join(format!("{cache}.cache")).display(),
        socket.display(),
        minio::ACCESS_KEY,
        minio::SECRET_KEY,
        rig.proxy.address,
    )
}

fn free_port() -> Result<u16, Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}
