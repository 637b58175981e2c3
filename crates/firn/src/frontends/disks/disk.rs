//! One disk: a volume's device, from its spec to its end.
//!
//! Everything here waits for the driver, so it runs on threads that may. The requests themselves
//! never come here: the queues serve them on the reactors, straight from the engine's plans.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blkmq::DeviceOptions;
use blkmq::io::Backend;
use reactor::Handle;
use rustix::fs::{Mode, OFlags};
use ublk::control::Control;
use ublk::device::{self, Kept, Live, State};
use ublk::error::Kind;
use ublk::negotiate::Granted;
use ublk::spec::Discard;
use ublk::{BackendFile, BackendHandler};
use ublk::{Capability, DeviceSpec, ModeChoice, Want};

use super::attached_file::Remembered;
use super::backend::View;
use super::options::{Patience, Wanted};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::Open;
use crate::model::{self, DataMode};

/// How long a device may take to come alive.
const START: Duration = Duration::from_secs(30);
/// How long a dead server's device is waited for, until the driver lets go of it, and how much
/// longer for each device that the dead server had: the driver may see to one after the other.
const RECOVER: Duration = Duration::from_secs(60);
const RECOVER_EACH: Duration = Duration::from_millis(100);
/// How long requests may take to be answered before those that are parked fail.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the device may take to go after that.
const END: Duration = Duration::from_secs(30);

/// Largest request. The kernel splits what is larger.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Largest discard and largest zeroing: one commit in the engine, whatever its size.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// Until Linux 6.15 a server's death is noticed by its idle tags alone: a queue whose every tag
/// waits inside a dead server is missed for half a minute. So there no request waits for longer.
const PATIENCE_OF_OLD_KERNELS: Duration = Duration::from_secs(20);

/// What a server has for its disks.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    pub(super) reactors: Vec<Handle>,
    /// Whether all of them run on rings, without which no disk can be served.
    pub(super) rings: bool,
    /// Their threads' names.
    pub(super) threads: Vec<String>,
    pub(super) files: Vec<BackendFile>,
    /// What direct I/O on the log asks of a request's memory, in bytes.
    pub(super) dma_alignment: u32,
}

/// What all disks are made with.
#[derive(Debug)]
pub(crate) struct Maker {
    control: Control,
    seats: Seats,
    /// Where the next disk's first queue goes: disks are spread over the reactors in turn.
    next: AtomicUsize,
}

/// A live disk.
pub(crate) struct Disk {
    pub(crate) id: u32,
    wanted: Wanted,
    granted: Granted,
    /// By queue.
    threads: Vec<String>,
    patience: Option<Duration>,
    /// Through which its requests are admitted.
    gate: Arc<blkmq::Device>,
    /// Gone once it is stopped.
    live: Mutex<Option<Live>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.id)
    }
}

/// Why a disk was not made.
pub(super) enum NotMade {
    /// Its number belongs to somebody else.
    Taken,
    Failed(Failure),
}

impl From<ublk::Error> for NotMade {
    fn from(error: ublk::Error) -> Self {
        match error.kind() {
            Kind::Taken => NotMade::Taken,
            _ => NotMade::Failed(error.into()),
        }
    }
}

/// What the driver keeps of a device's volume: by it a device of another program is told apart.
fn mark(open: &Open) -> u64 {
    let mut mark = [0; 8];
    mark.copy_from_slice(&open.info.id.0[..8]);
    u64::from_le_bytes(mark)
}

fn mode_choice(mode: DataMode) -> ModeChoice {
    ModeChoice::Only(match mode {
        DataMode::Auto => return ModeChoice::Auto,
        DataMode::ZeroCopy => ublk::DataMode::ZeroCopy,
        DataMode::UserCopy => ublk::DataMode::UserCopy,
        DataMode::GetData => ublk::DataMode::GetData,
        DataMode::Copy => ublk::DataMode::Copy,
    })
}

/// In the API's words.
pub(crate) fn mode_shown(mode: ublk::DataMode) -> DataMode {
    match mode {
        ublk::DataMode::ZeroCopy => DataMode::ZeroCopy,
        ublk::DataMode::UserCopy => DataMode::UserCopy,
        ublk::DataMode::GetData => DataMode::GetData,
        ublk::DataMode::Copy => DataMode::Copy,
    }
}

/// A device for a volume of this geometry.
fn spec(geometry: &blkmq::io::Geometry, wanted: &Wanted, dma_alignment: u32) -> DeviceSpec {
    let mut spec = DeviceSpec::new(ublk::Disk {
        logical_block: geometry.logical_block,
        physical_block: geometry.physical_block,
        read_only: geometry.read_only,
        discard: Some(Discard {
            granularity: geometry.physical_block,
            bytes_max: DISCARD_BYTES_MAX,
            zeroes_bytes_max: DISCARD_BYTES_MAX,
        })
        .filter(|_| !geometry.read_only),
        dma_alignment: Some(dma_alignment),
        ..ublk::Disk::new(geometry.bytes)
    });
    spec.queues = wanted.queues;
    spec.depth = wanted.depth;
    spec.io_bytes_max = IO_BYTES_MAX;
    spec.mode = mode_choice(wanted.data_mode);
    // The disk outlives its server, and loses no request with it (S1).
    spec.wants = spec
        .wants
        .with(Capability::Recovery, Want::Require)
        .with(Capability::Reissue, Want::Require);
    if !wanted.part_scan {
        spec.wants = spec.wants.with(Capability::NoPartScan, Want::Require);
    }
    spec
}

impl Maker {
    pub(super) fn new(control: Control, seats: Seats) -> Maker {
        Maker {
            control,
            seats,
            next: AtomicUsize::new(0),
        }
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    fn patience(&self, wanted: &Wanted) -> Option<Duration> {
        match wanted.patience {
            Patience::Wait => None,
            Patience::AtMostMs(limit) => Some(Duration::from_millis(limit)),
            Patience::Default if self.control.features().has(ublk::sys::F_ZERO_COPY) => None,
            Patience::Default => Some(PATIENCE_OF_OLD_KERNELS),
        }
    }

    fn view(open: &Open, wanted: &Wanted) -> Arc<View> {
        Arc::new(View {
            volume: open.volume.clone(),
            read_only: wanted.read_only,
        })
    }

    /// A new device of this number.
    pub(super) fn add(
        &self,
        open: &Open,
        id: u32,
        wanted: &Wanted,
    ) -> std::result::Result<Disk, NotMade> {
        let site = self.site(open, wanted);
        let mut spec = DeviceSpec {
            id: Some(id),
            server_flags: mark(open),
            ..spec(&site.view.geometry(), wanted, self.seats.dma_alignment)
        };
        if wanted.data_mode == DataMode::Auto {
            spec = spec.with_environment()?;
        }
        let added = self.control.add(&spec, ublk::Modes::ALL)?;
        let depth = added.granted().depth;
        let options = device::Options::default();
        let armed = added.arm(&site.reactors, &options, |_| site.serve(depth))?;
        let live = armed.start(START)?;
        Ok(site.disk(live, wanted))
    }

    /// The device that was made before, one of so many, however it is now; or a new one of that
    /// number.
    pub(super) fn bring_back(
        &self,
        open: &Open,
        remembered: &Remembered,
        devices: usize,
    ) -> std::result::Result<Disk, NotMade> {
        let id = remembered.id;
        let depth = match self.control.info(id) {
            Err(error) if error.kind() == Kind::Gone => {
                return self.add(open, id, &remembered.wanted);
            }
            Ok(info) if info.server_flags != mark(open) => return Err(NotMade::Taken),
            // It is added anew, as it is wanted.
            Ok(info) if State::of(&info) == State::Dead => remembered.wanted.depth,
            Ok(info) => info.depth,
            Err(error) => return Err(error.into()),
        };
        let wanted = &remembered.wanted;
        let site = self.site(open, wanted);
        let spec = DeviceSpec {
            server_flags: mark(open),
            ..spec(&site.view.geometry(), wanted, self.seats.dma_alignment)
        };
        let (live, how) = device::open_or_recover(
            &self.control,
            (id, &spec),
            (&site.reactors, &device::Options::default()),
            |_| site.serve(depth),
            RECOVER + RECOVER_EACH.saturating_mul(u32::try_from(devices).unwrap_or(u32::MAX)),
        )
        // Somebody has it, and it is ours: not a number to be given up.
        .map_err(|error| NotMade::Failed(error.into()))?;
        tracing::info!(volume = %open.info.name, device = id, ?how, "the disk is back");
        if let Err(error) = self.catch_up(&live, site.view.geometry().bytes) {
            tracing::warn!(%error, "the disk stays smaller than its volume");
        }
        Ok(site.disk(live, wanted))
    }

    /// A volume may have grown, and its server have died before its disk did.
    fn catch_up(&self, live: &Live, bytes: u64) -> std::result::Result<(), ublk::Error> {
        let disk = self.control.params(live.id())?.basic.sectors * blkmq::io::SECTOR_BYTES;
        if disk < bytes && live.granted().has(Capability::Resize) {
            live.resize(bytes)?;
        }
        Ok(())
    }

    /// Takes away a device of this volume that nobody serves. One of somebody else stays.
    pub(super) fn remove(&self, volume_id: &str, id: u32) -> Result<()> {
        match self.control.info(id) {
            Err(error) if error.kind() == Kind::Gone => Ok(()),
            Ok(info) if !volume_id.starts_with(&hex(info.server_flags)) => Ok(()),
            Ok(_) => self.control.remove(id, END).map_err(Failure::from),
            Err(error) => Err(error.into()),
        }
    }

    /// The lowest number that nobody has and none of `reserved`.
    pub(super) fn free_id(&self, reserved: &[u32]) -> Result<u32> {
        let taken = self.control.devices().map_err(Failure::from)?;
        let free = (0..).find(|id| !taken.contains(id) && !reserved.contains(id));
        free.ok_or_else(|| Failure::new(FailureCode::UblkLimit, "no device number is free"))
    }

    fn site(&self, open: &Open, wanted: &Wanted) -> Site<'_> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.seats.reactors.len();
        let mut reactors = self.seats.reactors.clone();
        let mut threads = self.seats.threads.clone();
        reactors.rotate_left(first);
        threads.rotate_left(first);
        let patience = self.patience(wanted);
        let options = DeviceOptions {
            park_timeout: patience,
            ..DeviceOptions::default()
        };
        Site {
            maker: self,
            view: Self::view(open, wanted),
            gate: blkmq::Device::new(&open.info.name, options),
            reactors,
            threads,
            patience,
        }
    }
}

/// The hexadecimal digits with which a volume's id begins.
fn hex(mark: u64) -> String {
    let digits = mark.to_le_bytes().map(|byte| format!("{byte:02x}"));
    digits.concat()
}

/// Where a disk is being made.
struct Site<'a> {
    maker: &'a Maker,
    view: Arc<View>,
    gate: Arc<blkmq::Device>,
    reactors: Vec<Handle>,
    threads: Vec<String>,
    patience: Option<Duration>,
}

impl Site<'_> {
    fn serve(&self, depth: u16) -> BackendHandler<View> {
        let files = self.maker.seats.files.clone();
        BackendHandler::new(Arc::clone(&self.view), &self.gate, files, depth)
    }

    fn disk(self, live: Live, wanted: &Wanted) -> Disk {
        let granted = live.granted().clone();
        let threads = self.threads.iter().cycle().take(granted.queues.into());
        Disk {
            id: live.id(),
            wanted: wanted.clone(),
            threads: threads.cloned().collect(),
            patience: self.patience,
            gate: self.gate,
            live: Mutex::new(Some(live)),
            granted,
        }
    }
}

impl Disk {
    /// As programs open it.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// How it was asked to be.
    pub(super) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// As the API shows it.
    pub(crate) fn shown(&self) -> model::Disk {
        let dropped = self.granted.dropped.iter().map(|dropped| {
            let text = dropped.to_string();
            let (what, why) = text.split_once(": ").unwrap_or((&text, "not granted"));
            model::Dropped {
                what: what.to_owned(),
                why: why.to_owned(),
            }
        });
        model::Disk {
            device: self.path().display().to_string(),
            data_mode_asked: self.wanted.data_mode,
            data_mode: mode_shown(self.granted.mode),
            dropped: dropped.collect(),
            queues: self.granted.queues,
            depth: self.granted.depth,
            threads: self.threads.clone(),
            requests: self.requests(),
            read_only: self.wanted.read_only,
            part_scan: self.wanted.part_scan,
            park_timeout_seconds: self.patience.map(|limit| limit.as_secs_f64()),
        }
    }

    fn requests(&self) -> model::Requests {
        // Somebody who starts or ends the disk has it: then there is nothing to tell.
        let Ok(live) = self.live.try_lock() else {
            return model::Requests::default();
        };
        let queues = live.iter().flat_map(Live::stats);
        queues.fold(model::Requests::default(), |sum, one| model::Requests {
            taken: sum.taken + one.requests,
            uncopied: sum.uncopied + one.uncopied,
            copied: sum.copied + one.copied,
            faults: sum.faults + one.faults + one.panics + one.dropped + one.commits_lost,
        })
    }

    /// The device, for who leaves it to the next server.
    pub(super) fn leave(&self) -> Option<Live> {
        self.live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Takes the disk away and deletes the device. Unless `force`, only if nobody has it open,
    /// as far as this kernel tells. Where that fails the disk stays as it was.
    pub(super) fn end(&self, force: bool) -> Result<()> {
        let mut place = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(live) = place.take() else {
            return Ok(());
        };
        let stopped = if force {
            // What is parked is waited for a little, and then fails.
            live.stop(FAREWELL).or_else(|Kept { device, .. }| {
                self.gate.remove();
                device.stop(END)
            })
        } else if self.granted.has(Capability::SafeStop) {
            live.try_stop(END)
        } else if let Err(failure) = self.unused() {
            *place = Some(live);
            return Err(failure);
        } else {
            live.stop(END)
        };
        let stopped = stopped.map_err(|Kept { device, error }| {
            *place = Some(device);
            match error.kind() {
                Kind::Busy => self.in_use(),
                _ => error.into(),
            }
        })?;
        self.gate.remove();
        // It goes as soon as nobody has it open any more, whether that is waited for or not.
        stopped.delete(END).or_else(|error| match error.kind() {
            Kind::Late => {
                tracing::warn!(%error, "the device goes when the last one closes it");
                Ok(())
            }
            _ => Err(error.into()),
        })
    }

    fn in_use(&self) -> Failure {
        Failure::new(
            FailureCode::VolumeInUse,
            format!(
                "disk {} is mounted or open; unmount and close it first, or use --force and have \
                 its users see errors",
                self.path().display()
            ),
        )
    }

    /// Before Linux 7.0 the driver does not say whether a disk is in use. Whoever claims it for
    /// himself, as a mount does, is met by claiming it, too; a program that merely has it open is
    /// not.
    fn unused(&self) -> Result<()> {
        let path = self.path();
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(rustix::io::Errno::BUSY) => Err(self.in_use()),
            _ => Ok(()),
        }
    }

    /// Gives the disk another size. Clients see it at once.
    pub(super) fn resize(&self, bytes: u64) -> Result<()> {
        let place = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        match &*place {
            Some(live) => live.resize(bytes).map_err(Failure::from),
            None => Ok(()),
        }
    }

    /// Whether its size can change while it is there.
    pub(crate) fn can_grow(&self) -> bool {
        self.granted.has(Capability::Resize)
    }
}
