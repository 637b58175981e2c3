//! A disk in memory: the least that a server needs.
//!
//!     cargo run --release -p ublk --example memory
//!
//! As root, after `modprobe ublk_drv`. It prints the path of the disk and serves until standard
//! input ends.

use std::error::Error;
use std::time::Duration;

use blkmq::io::{Op, SECTOR_BYTES};
use reactor::{Config, Port, Reactor};
use ublk::control::ControlDevice;
use ublk::device::{self, QueueOptions};
use ublk::queue::{Handler, QueueCx};
use ublk::{DataMode, DeviceSpec, Disk, Modes, Request};

const DISK_BYTES: usize = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(30);

/// Serves the one queue of the disk, on the thread of its reactor.
struct Memory(Vec<u8>);

impl Handler for Memory {
    /// The driver copies between its requests and buffers that the handler sees.
    const MODES: Modes = Modes::NONE.and(DataMode::Copy);

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        let (op, len) = (*request.op(), request.bytes() as usize);
        if let Op::Read { sector, .. } | Op::Write { sector, .. } = op {
            let at = (sector * SECTOR_BYTES) as usize;
            let bytes = &mut self.0[at..at + len];
            let Some(buffer) = request.buffer_mut() else {
                return queue.fail(request, libc::EIO);
            };
            match op {
                Op::Read { .. } => buffer[..len].copy_from_slice(bytes),
                _ => bytes.copy_from_slice(&buffer[..len]),
            }
        }
        // A FLUSH has nothing to make durable.
        queue.complete(request);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let control = ControlDevice::open()?;
    let reactor = Reactor::start(Config::default())?;
    let spec = DeviceSpec {
        queues: 1,
        ..DeviceSpec::new(Disk::new(DISK_BYTES as u64))
    };
    // ADD_DEV, then FETCH for every tag, then START_DEV.
    let added = device::add(&control, &spec, Memory::MODES)?;
    let build = |_queue| Memory(vec![0; DISK_BYTES]);
    let attached = added.attach(&[reactor.handle().clone()], &QueueOptions::default(), build)?;
    let live = attached.start(DEADLINE)?;
    println!("{}", live.path().display());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    let stopped = live.stop(DEADLINE).map_err(ublk::Error::from)?;
    Ok(stopped.delete(DEADLINE)?)
}
