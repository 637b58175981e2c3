//! What the tests of lifecycles have in common: a world that cleans up after itself, a handler
//! that completes everything, a reader that must never see an error.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

pub mod memory;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reactor::{Config, Handle, Port, Reactor};
use ublk::control::ControlDevice;
use ublk::device::{
    self, DeviceState, LiveDevice, OpenRequest, Origin, QueueOptions, open_or_recover,
};
use ublk::exit::ExitTimeouts;
use ublk::queue::{Handler, QueueCx};
use ublk::{DataMode, DeviceSpec, Disk, Modes, Request, sys};

/// How long anything may take: the guest may be emulated, on a machine that is busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Limits of an exit that is to be confirmed, however long the kernel takes.
pub const PATIENT: ExitTimeouts = ExitTimeouts {
    drain: DEADLINE,
    quiesce: Some(DEADLINE),
    probe: Duration::from_secs(1),
    confirm: DEADLINE,
};

/// One test at a time: each looks at all devices there are.
static ALONE: Mutex<()> = Mutex::new(());

/// Completes everything, and moves no data.
pub struct Null;

impl Handler for Null {
    const MODES: Modes = Modes::NONE.and(DataMode::ZeroCopy).and(DataMode::UserCopy);

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        queue.complete(request);
    }
}

pub struct World {
    pub control: ControlDevice,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    pub fn new() -> Option<World> {
        if !Path::new(sys::CONTROL_PATH).exists() {
            println!("skipped: no {}", sys::CONTROL_PATH);
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(World {
            control: ControlDevice::open().unwrap(),
            _alone: alone,
        })
    }

    pub fn has(&self, flag: u64) -> bool {
        self.control.features().has(flag)
    }

    pub fn serve(&self, spec: &DeviceSpec, reactors: &[Handle]) -> LiveDevice {
        let added = device::add(&self.control, spec, Null::MODES).unwrap();
        let armed = added
            .attach(reactors, &QueueOptions::default(), |_| Null)
            .unwrap();
        armed.start(DEADLINE).unwrap()
    }

    pub fn open(&self, id: u32, reactors: &[Handle]) -> (LiveDevice, Origin) {
        let (spec, options) = (spec(), QueueOptions::default());
        open_or_recover(
            OpenRequest {
                control: &self.control,
                id,
                spec: &spec,
                reactors,
                options: &options,
                within: DEADLINE,
            },
            |_| Null,
        )
        .unwrap()
    }

    pub fn state(&self, id: u32) -> DeviceState {
        DeviceState::of(&self.control.info(id).unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for device in self.control.devices().unwrap_or_default() {
            let _ = self.control.stop(device, DEADLINE);
            let _ = self.control.delete_async(device, DEADLINE);
        }
    }
}

pub fn spec() -> DeviceSpec {
    DeviceSpec {
        queues: 2,
        depth: 16,
        io_bytes_max: 128 << 10,
        ..DeviceSpec::new(Disk::new(64 << 20))
    }
}

pub fn ring(name: &str) -> Reactor {
    Reactor::start(Config {
        name: name.to_owned(),
        pool_bytes: 8 << 20,
        reserve_bytes: 1 << 20,
        ..Config::default()
    })
    .unwrap()
}

#[repr(align(4096))]
struct Page([u8; 4096]);

pub fn disk(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_DIRECT);
    options.open(path).unwrap()
}

pub fn path_of(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

pub fn read(disk: &File, at: u64) -> std::io::Result<()> {
    let mut page = Page([0; 4096]);
    disk.read_exact_at(&mut page.0, at)
}

/// Reads a disk until it is dropped, and says then that no read failed.
pub struct Reader {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Reader {
    pub fn start(path: &Path) -> Reader {
        let disk = disk(path);
        let (stop, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&reads));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let at = counted.fetch_add(1, Ordering::Relaxed) % 1024;
                read(&disk, at * 4096)?;
            }
            Ok(())
        });
        let thread = Some(thread);
        Reader {
            stop,
            reads,
            thread,
        }
    }

    pub fn wait_for_progress(&self) {
        let before = self.reads.load(Ordering::Relaxed);
        let deadline = Instant::now() + DEADLINE;
        while self.reads.load(Ordering::Relaxed) < before + 3 {
            assert!(Instant::now() < deadline, "no read is answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap().unwrap();
        self.reads.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
