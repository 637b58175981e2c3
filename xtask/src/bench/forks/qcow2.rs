//! What users know instead: an overlay in QEMU's own format over a raw image, through qemu-nbd.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::many::once;
use super::{Arguments, median_ms};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::StoreRig;

const IMAGE_BYTES: u64 = 1 << 40;
const FILLED_BYTES: u64 = 256 << 20;
/// Overlays that are served, one after the other.
const SERVED: usize = 32;
const START_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn measure(rig: &StoreRig, arguments: &Arguments) -> Result<(), Failure> {
    println!("\n## Overlays of qcow2 on a raw image of 1 TiB\n");
    let missing = ["qemu-img", "qemu-nbd"].into_iter().find(|program| {
        let asked = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        !asked.is_ok_and(|status| status.success())
    });
    if let Some(missing) = missing {
        println!("skipped: {missing} is not installed");
        return Ok(());
    }
    let dir = rig.scratch().join("qcow2");
    std::fs::create_dir(&dir)?;
    let base = dir.join("base");
    std::fs::File::create(&base)?.set_len(IMAGE_BYTES)?;
    {
        let server = QemuNbd::start(&dir, &base, "raw")?;
        let fill = Load {
            writes: true,
            random: false,
            block: 1 << 20,
            depth: 8,
            span: FILLED_BYTES,
        };
        server.connect()?.run(fill, LoadEnd::Bytes(FILLED_BYTES))?;
    }
    let began = Instant::now();
    let overlay = |nth: usize| dir.join(format!("overlay-{nth}"));
    for nth in 0..arguments.forks {
        create(&base, &overlay(nth))?;
    }
    let created = began.elapsed();
    println!(
        "{} overlays made by qemu-img in {:.2} s\n\n\
         | first 4k request | overlay, us | base, us | ratio |\n|---|---:|---:|---:|",
        arguments.forks,
        created.as_secs_f64()
    );
    let served = arguments.forks.min(SERVED);
    for (name, writes, range) in [
        ("read", false, 0..served / 2),
        ("write", true, served / 2..served),
    ] {
        let mut of_overlays = Vec::new();
        for nth in range {
            let server = QemuNbd::start(&dir, &overlay(nth), "qcow2")?;
            of_overlays.push(once(&mut server.connect()?, writes)?);
        }
        let server = QemuNbd::start(&dir, &base, "raw")?;
        let of_base: Vec<Duration> = (0..of_overlays.len())
            .map(|_| once(&mut server.connect()?, writes))
            .collect::<Result<_, _>>()?;
        let (overlay, base) = (median_ms(&of_overlays), median_ms(&of_base));
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} |",
            overlay * 1e3,
            base * 1e3,
            overlay / base
        );
    }
    Ok(())
}

fn create(base: &Path, overlay: &Path) -> Result<(), Failure> {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
    let status = command.arg(base).arg(overlay).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("qemu-img create: {status}").into()),
    }
}

/// A qemu-nbd of one image; ended when dropped.
struct QemuNbd {
    child: Child,
    socket: PathBuf,
}

impl QemuNbd {
    fn start(dir: &Path, image: &Path, format: &str) -> Result<QemuNbd, Failure> {
        let socket = dir.join("socket");
        // The one before it may have left it.
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--format", format, "--cache", "none"]);
        command.args(["--aio", "io_uring"]);
        command.arg("--socket").arg(&socket).arg(image);
        let child = command.stdout(Stdio::null()).spawn()?;
        let server = QemuNbd { child, socket };
        let until = Instant::now() + START_TIMEOUT;
        // The socket is there before anybody listens.
        while let Err(error) = UnixStream::connect(&server.socket) {
            if Instant::now() > until {
                return Err(format!("qemu-nbd does not come up: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(&self.socket, "")
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
