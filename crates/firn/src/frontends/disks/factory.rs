//! Creates, recovers and removes the ublk devices that volumes are attached as.
//!
//! Everything here waits for the driver, so it runs on threads that may wait. It must never touch a
//! device of another program: a device's server flags say which volume it belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blkmq::DeviceOptions;
use reactor::Handle;
use transports::DiskBackend;
use ublk::control::ControlDevice;
use ublk::device::{self, DeviceState, LiveDevice};
use ublk::error::ErrorKind;
use ublk::spec::Discard;
use ublk::{BackendFile, Capability, DeviceSpec, Want};

use super::attached_file::DiskRecord;
use super::disk::{Disk, REMOVE_TIMEOUT};
use super::options::{DiskOptions, ParkTimeout, mode_choice};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::OpenVolume;
use crate::model::DataMode;

/// How long a new device may take to come alive.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long recovering a dead server's device may take, and how much longer for each device that
/// the dead server had: the driver may recover them one after the other.
const RECOVER_TIMEOUT: Duration = Duration::from_secs(60);
const RECOVER_TIMEOUT_PER_DEVICE: Duration = Duration::from_millis(100);

/// Largest request. The kernel splits larger ones.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Largest discard and largest zeroing: the engine commits one at once, whatever its size.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// Before Linux 6.15 the driver notices a server's death by its idle tags alone: it takes half a
/// minute to miss a queue whose tags are all inside the dead server. So a request may not park for
/// longer than this there.
const PARK_TIMEOUT_BEFORE_6_15: Duration = Duration::from_secs(20);

/// What the server serves its disks with.
#[derive(Clone, Debug)]
pub(super) struct ServeContext {
    pub(super) reactors: Vec<Handle>,
    /// Whether all of them use io_uring, without which no disk can be served.
    pub(super) has_io_uring: bool,
    /// The names of their threads.
    pub(super) reactor_names: Vec<String>,
    pub(super) files: Vec<BackendFile>,
    /// Alignment of a request's memory that direct I/O on the log needs, in bytes.
    pub(super) dma_alignment: u32,
}

/// Makes disks: the driver's control device and what disks are served with.
#[derive(Debug)]
pub(crate) struct DiskFactory {
    control: ControlDevice,
    context: ServeContext,
    /// Index of the reactor for the next disk's first queue: disks go round the reactors.
    next_reactor: AtomicUsize,
}

/// Why a disk could not be created.
pub(super) enum CreateError {
    /// The device of this number belongs to another volume or program.
    IdTaken,
    Failed(Failure),
}

impl From<ublk::Error> for CreateError {
    fn from(error: ublk::Error) -> Self {
        match error.kind() {
            ErrorKind::InUse => CreateError::IdTaken,
            _ => CreateError::Failed(error.into()),
        }
    }
}

/// The server flags of a volume's device: they tell it from a device of another volume or program.
fn server_flags(open: &OpenVolume) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&open.info.id.0[..8]);
    u64::from_le_bytes(first)
}

/// The device for a volume of this geometry.
fn device_spec(
    geometry: &blkmq::io::Geometry,
    options: &DiskOptions,
    dma_alignment: u32,
) -> DeviceSpec {
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
    spec.queues = options.queues;
    spec.depth = options.depth;
    spec.io_bytes_max = IO_BYTES_MAX;
    spec.mode = mode_choice(options.data_mode);
    // The disk outlives its server, and loses no request with it (S1).
    spec.wants = spec
        .wants
        .with(Capability::Recovery, Want::Require)
        .with(Capability::Reissue, Want::Require);
    if !options.part_scan {
        spec.wants = spec.wants.with(Capability::NoPartScan, Want::Require);
    }
    spec
}

impl DiskFactory {
    pub(super) fn new(control: ControlDevice, context: ServeContext) -> DiskFactory {
        DiskFactory {
            control,
            context,
            next_reactor: AtomicUsize::new(0),
        }
    }

    pub(super) fn control(&self) -> &ControlDevice {
        &self.control
    }

    fn park_timeout(&self, options: &DiskOptions) -> Option<Duration> {
        match options.park_timeout {
            ParkTimeout::Wait => None,
            ParkTimeout::AtMostMs(limit) => Some(Duration::from_millis(limit)),
            ParkTimeout::Default if self.control.features().has(ublk::sys::F_ZERO_COPY) => None,
            ParkTimeout::Default => Some(PARK_TIMEOUT_BEFORE_6_15),
        }
    }

    /// Creates a device of this number.
    pub(super) fn create(
        &self,
        open: &OpenVolume,
        id: u32,
        options: &DiskOptions,
    ) -> std::result::Result<Disk, CreateError> {
        let pending = self.prepare(open, options);
        let mut spec = DeviceSpec {
            id: Some(id),
            server_flags: server_flags(open),
            ..device_spec(
                &pending.backend.geometry(),
                options,
                self.context.dma_alignment,
            )
        };
        if options.data_mode == DataMode::Auto {
            spec = spec.with_environment()?;
        }
        let (backend, reactors) = (&pending.backend, &pending.reactors);
        let live = backend.add(&self.control, &spec, reactors, START_TIMEOUT)?;
        Ok(pending.into_disk(live, options))
    }

    /// Recovers the device of a record, in whatever state a dead server left it, or creates it anew.
    /// The dead server had this many devices.
    pub(super) fn recover(
        &self,
        open: &OpenVolume,
        record: &DiskRecord,
        devices: usize,
    ) -> std::result::Result<Disk, CreateError> {
        let id = record.id;
        let depth = match self.control.info(id) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.create(open, id, &record.options);
            }
            Ok(info) if info.server_flags != server_flags(open) => {
                return Err(CreateError::IdTaken);
            }
            // Recovery adds a dead device anew, with the recorded options.
            Ok(info) if DeviceState::of(&info) == DeviceState::Dead => record.options.depth,
            Ok(info) => info.depth,
            Err(error) => return Err(error.into()),
        };
        let options = &record.options;
        let pending = self.prepare(open, options);
        let spec = DeviceSpec {
            server_flags: server_flags(open),
            ..device_spec(
                &pending.backend.geometry(),
                options,
                self.context.dma_alignment,
            )
        };
        let request = device::OpenRequest {
            control: &self.control,
            id,
            spec: &spec,
            reactors: &pending.reactors,
            options: &device::QueueOptions::default(),
            within: RECOVER_TIMEOUT
                + RECOVER_TIMEOUT_PER_DEVICE
                    .saturating_mul(u32::try_from(devices).unwrap_or(u32::MAX)),
        };
        let (live, how) = pending
            .backend
            .open_or_recover(request, depth)
            // The device belongs to this volume, so its number is not to be given up.
            .map_err(|error| CreateError::Failed(error.into()))?;
        tracing::info!(volume = %open.info.name, device = id, ?how, "the disk is recovered");
        if let Err(error) = self.grow_to(&live, pending.backend.geometry().bytes) {
            tracing::warn!(%error, "the disk stays smaller than its volume");
        }
        Ok(pending.into_disk(live, options))
    }

    /// Grows the device to the volume's size: the server may have died between the two.
    fn grow_to(&self, live: &LiveDevice, bytes: u64) -> std::result::Result<(), ublk::Error> {
        let disk = self.control.params(live.id())?.basic.sectors * blkmq::io::SECTOR_BYTES;
        if disk < bytes && live.grant().has(Capability::Resize) {
            live.resize(bytes)?;
        }
        Ok(())
    }

    /// Removes this volume's device, which nobody serves. A device of another owner stays.
    pub(super) fn remove(&self, volume_id: &str, id: u32) -> Result<()> {
        match self.control.info(id) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Ok(info) if !volume_id.starts_with(&to_hex(info.server_flags)) => Ok(()),
            Ok(_) => device::remove(&self.control, id, REMOVE_TIMEOUT).map_err(Failure::from),
            Err(error) => Err(error.into()),
        }
    }

    /// The lowest number that is neither in use nor in `reserved`.
    pub(super) fn free_id(&self, reserved: &[u32]) -> Result<u32> {
        let taken = self.control.devices().map_err(Failure::from)?;
        let free = (0..).find(|id| !taken.contains(id) && !reserved.contains(id));
        free.ok_or_else(|| Failure::new(FailureCode::UblkLimit, "no device number is free"))
    }

    fn prepare(&self, open: &OpenVolume, options: &DiskOptions) -> PendingDisk {
        let first = self.next_reactor.fetch_add(1, Ordering::Relaxed) % self.context.reactors.len();
        let mut reactors = self.context.reactors.clone();
        let mut threads = self.context.reactor_names.clone();
        reactors.rotate_left(first);
        threads.rotate_left(first);
        let park_timeout = self.park_timeout(options);
        let mq_options = DeviceOptions {
            park_timeout,
            ..DeviceOptions::default()
        };
        let mq_device = blkmq::Device::new(&open.info.name, mq_options);
        PendingDisk {
            backend: DiskBackend::new(
                open.volume.clone(),
                options.read_only,
                Arc::clone(&mq_device),
                self.context.files.clone(),
                Arc::clone(&open.export.latencies),
            ),
            mq_device,
            reactors,
            threads,
            park_timeout,
        }
    }
}

/// The hexadecimal digits that the id of the volume with these server flags begins with.
fn to_hex(server_flags: u64) -> String {
    let digits = server_flags.to_le_bytes().map(|byte| format!("{byte:02x}"));
    digits.concat()
}

/// A disk that is being created or recovered, with the reactors that will serve it.
struct PendingDisk {
    backend: DiskBackend,
    mq_device: Arc<blkmq::Device>,
    reactors: Vec<Handle>,
    threads: Vec<String>,
    park_timeout: Option<Duration>,
}

impl PendingDisk {
    fn into_disk(self, live: LiveDevice, options: &DiskOptions) -> Disk {
        let queues = live.grant().queues.into();
        let threads = self.threads.into_iter().cycle().take(queues).collect();
        Disk::new(
            live,
            options.clone(),
            threads,
            self.park_timeout,
            self.mq_device,
        )
    }
}
