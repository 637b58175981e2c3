//! A directory store on NFS, with a real server and a real client in one guest: refused where two
//! hosts might write, and across a restart of its server where one host vouches for itself.
//!
//! For guests, as `guest_volume.rs` says; the programs are those of Debian's nfs-kernel-server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::guest::{Guest, Mounted, run_tool, text, tool};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline};

const BLOCK: usize = 4096;

/// Where NFS's programs keep what they know.
const STATE: &str = "/var/lib/nfs";

/// How long a server that started anew takes no new files, in seconds: the least that the kernel takes.
const GRACE: &str = "10";

/// An NFS server of this guest that exports one directory.
struct NfsServer {
    mountd: Child,
    exported: PathBuf,
    _state: Mounted,
    _control: Mounted,
}

impl NfsServer {
    /// `None` where its programs or modules are missing.
    fn start(guest: &Guest) -> Option<NfsServer> {
        for program in ["rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs4"] {
            let found = tool("sh", &["-c", &format!("command -v {program}")]);
            if !found.status.success() {
                println!("skipped: no {program} (Debian's nfs-kernel-server)");
                return None;
            }
        }
        for module in ["nfsd", "nfsv4"] {
            if !tool("modprobe", &[module]).status.success() {
                println!("skipped: this kernel has no {module}");
                return None;
            }
        }
        let state = Mounted::at(Path::new(STATE), Path::new("tmpfs"), "tmpfs", "defaults");
        for folder in ["v4recovery", "rpc_pipefs"] {
            fs::create_dir(state.0.join(folder)).unwrap();
        }
        for file in ["etab", "rmtab"] {
            fs::write(state.0.join(file), "").unwrap();
        }
        let control = Path::new("/proc/fs/nfsd");
        let control = Mounted::at(control, Path::new("nfsd"), "nfsd", "defaults");
        for file in ["nfsv4leasetime", "nfsv4gracetime"] {
            fs::write(control.0.join(file), GRACE).unwrap();
        }
        let exported = guest.world.path("exported");
        fs::create_dir(&exported).unwrap();
        let whom = format!("*:{}", exported.display());
        let options = "rw,fsid=0,no_root_squash,insecure,no_subtree_check";
        run_tool("exportfs", &["-i", "-o", options, &whom]);
        let mut mountd = Command::new("rpc.mountd");
        let mountd = mountd.args(["-F", "-N", "3", "--no-udp"]);
        // It complains that nobody takes registrations, which only older versions need.
        let mountd = mountd.stderr(Stdio::null()).spawn().unwrap();
        let server = NfsServer {
            mountd,
            exported,
            _state: state,
            _control: control,
        };
        server.run();
        // Nobody was there before.
        let _ = fs::write("/proc/fs/nfsd/v4_end_grace", "Y");
        Some(server)
    }

    fn run(&self) {
        run_tool("rpc.nfsd", &["-N", "3", "-V", "4.2", "-U", "2"]);
    }

    /// It answers nobody any more, and forgets who had which file open.
    fn stop(&self) {
        run_tool("rpc.nfsd", &["0"]);
    }

    /// What it exports, mounted.
    fn mount(&self, guest: &Guest, options: &str) -> Mounted {
        let at = guest.world.path("nfs");
        Mounted::at(&at, Path::new("127.0.0.1:/"), "nfs4", options)
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        tool("rpc.nfsd", &["0"]);
        let _ = self.mountd.kill();
        let _ = self.mountd.wait();
        tool(
            "exportfs",
            &["-u", &format!("*:{}", self.exported.display())],
        );
    }
}

#[test]
fn a_store_on_nfs_is_refused_with_the_reason_and_the_remedy() {
    let Some(guest) = Guest::new() else { return };
    let Some(nfs) = NfsServer::start(&guest) else {
        return;
    };
    let mounted = nfs.mount(&guest, "vers=4.2");
    let store = mounted.0.join("store");
    let said = guest
        .world
        .expect_refusal("cache", &["--store", text(&store)]);
    for word in ["nfs4", "lock", "--single-writer"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    drop(mounted);
    // Locks that another host cannot see are named as such.
    let mounted = nfs.mount(&guest, "vers=4.2,local_lock=all");
    let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if options.contains("local_lock=all") {
        let store = mounted.0.join("store");
        let said = guest
            .world
            .expect_refusal("cache", &["--store", text(&store)]);
        assert!(said.contains("kept on this host"), "{said}");
    }
}

fn block(at: u64, round: u8) -> Vec<u8> {
    let mut block = vec![round; BLOCK];
    block[..8].copy_from_slice(&at.to_le_bytes());
    block
}

fn write_all(server: &Server, round: u8) {
    let mut client = server.connect("demo");
    for at in 0..64 {
        client.write(at * BLOCK as u64, &block(at, round)).unwrap();
    }
    client.flush().unwrap();
}

fn check_all(server: &Server, round: u8) {
    let mut client = server.connect("demo");
    for at in 0..64 {
        let found = client.read(at * BLOCK as u64, BLOCK).unwrap();
        assert!(
            found == block(at, round),
            "block {at} is not of round {round}"
        );
    }
}

/// S10 and S3: what NFS does while it is away is to let requests wait, for as long as it takes.
#[test]
fn with_one_writer_a_store_on_nfs_keeps_what_was_synced_across_a_restart_of_its_server() {
    let Some(guest) = Guest::new() else { return };
    let Some(nfs) = NfsServer::start(&guest) else {
        return;
    };
    let _watchdog = Watchdog::new("a store on NFS", 2 * deadline());
    let mounted = nfs.mount(&guest, "vers=4.2");
    let store = mounted.0.join("store");
    let args = ["--store", text(&store), "--single-writer", "--rpo", "1h"];
    let server = guest.serve(&[&args[..], &["--volume", "demo=64MiB"]].concat());
    guest
        .world
        .expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    write_all(&server, 1);
    guest.world.expect_success(&server, &["sync", "demo"]);
    nfs.stop();
    write_all(&server, 2);
    check_all(&server, 2);
    std::thread::scope(|scope| {
        let (sender, synced) = mpsc::channel();
        let (world, server) = (&guest.world, &server);
        scope.spawn(move || sender.send(world.expect_success(server, &["sync", "demo"])));
        let early = synced.recv_timeout(Duration::from_secs(2));
        assert!(early.is_err(), "stored while the store was away: {early:?}");
        nfs.run();
        synced.recv_timeout(deadline()).unwrap();
    });
    assert!(server.stop().success());
    // Another cache directory: all that is read comes from the store.
    let server = guest.world.serve("other", &args);
    guest
        .world
        .expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    check_all(&server, 2);
    assert!(server.stop().success());
}
