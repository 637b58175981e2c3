//! ublk passes the dispatch tests that every transport passes, in all four data modes, on the fake
//! driver.

use std::collections::HashMap;
use std::sync::Arc;

use blkmq::io::{FileId, Op, SECTOR_BYTES};
use blkmq::{Device, DeviceOptions};
use serve::testing::{Answer, MemoryDisk, Rig, RigSetup};
use ublk::queue::{Counters, Descriptors, QueueObserver, QueueParts, QueueSource, Share};
use ublk::sys::{self, ControlCommand, DeviceInfo, Params};
use ublk::{BackendFile, BackendHandler};
use ublk_fake::{
    ClientId, ClientOp, ClientRequest, Driver, Event, Outcome, Profile, Ring, SourceKey, TaskId,
};
use zerocopy::{FromBytes, IntoBytes};

const DEPTH: u16 = 16;
const IO_BYTES: u32 = 64 << 10;
const PID: i32 = 4711;

struct NoObserver;

impl QueueObserver for NoObserver {
    fn on_fetch_failed(&self, _: u16, _: u16, errno: i32) {
        panic!("a fetch failed with {errno}");
    }
}

/// One device of one queue.
struct UblkRig {
    disk: Arc<MemoryDisk>,
    core: Arc<Device>,
    driver: Driver,
    device: u32,
    ring: Ring,
    key: SourceKey,
    source: QueueSource<BackendHandler<MemoryDisk>>,
    sent: HashMap<ClientId, u64>,
}

fn control(driver: &Driver, device: u32, opcode: u32, data: u64, argument: &mut [u8]) -> Outcome {
    let command = ControlCommand {
        device,
        queue: sys::NO_QUEUE,
        data,
        ..ControlCommand::default()
    };
    driver.control(opcode, command, argument)
}

/// Adds a device of these flags; its number, and what the driver granted.
fn add_device(driver: &Driver, flags: u64) -> DeviceInfo {
    let mut info = DeviceInfo {
        queues: 1,
        depth: DEPTH,
        io_bytes_max: IO_BYTES,
        flags,
        ..DeviceInfo::default()
    };
    let added = control(driver, 0, sys::ADD_DEVICE, 0, info.as_mut_bytes());
    assert!(matches!(added, Outcome::Done(0)), "{added:?}");
    let mut params = Params {
        len: size_of::<Params>() as u32,
        types: sys::PARAM_BASIC | sys::PARAM_DISCARD,
        ..Params::default()
    };
    params.basic.attributes = sys::ATTR_VOLATILE_CACHE | sys::ATTR_FUA;
    params.basic.logical_shift = 9;
    params.basic.physical_shift = 12;
    params.basic.sectors_max = IO_BYTES >> 9;
    params.basic.sectors = RigSetup::DISK_BYTES / SECTOR_BYTES;
    params.discard.granularity = 512;
    params.discard.segments_max = 1;
    let set = control(driver, 0, sys::SET_PARAMS, 0, params.as_mut_bytes());
    assert!(matches!(set, Outcome::Done(0)), "{set:?}");
    DeviceInfo::read_from_bytes(info.as_bytes()).unwrap()
}

impl UblkRig {
    fn new(flags: u64, setup: RigSetup) -> UblkRig {
        let driver = Driver::new(Profile::V7_2);
        let info = add_device(&driver, flags);
        let (disk, fd) = MemoryDisk::new(RigSetup::DISK_BYTES, 512, setup.faults);
        let core = Device::new("disk", DeviceOptions::default());
        let (id, align) = (FileId::LOG, setup.align);
        let file = BackendFile { id, fd, align };
        let handler = BackendHandler::new(Arc::clone(&disk), &core, vec![file], DEPTH);
        let char_device = Arc::new(driver.open(0, PID).unwrap());
        let stride = info.descriptor_bytes;
        let parts = QueueParts {
            device: 0,
            queue: 0,
            depth: DEPTH,
            share: Share::WHOLE,
            descriptors: Descriptors::map(&char_device, 0, DEPTH, stride).unwrap(),
            char_device,
            flags: info.flags,
            io_bytes_max: IO_BYTES,
            slots_max: DEPTH,
            pool: None,
            counters: Arc::<Counters>::default(),
            observer: Arc::new(NoObserver),
        };
        let mut ring = Ring::new(&driver, TaskId(1), 2 * DEPTH, setup.pool_bytes, 1);
        let key = ring.attach();
        let mut source = QueueSource::new(parts, handler);
        source.on_attached(&mut ring.port(key));
        let sent = HashMap::new();
        let mut rig = UblkRig {
            disk,
            core,
            driver,
            device: 0,
            ring,
            key,
            source,
            sent,
        };
        let start = control(&rig.driver, 0, sys::START_DEVICE, PID as u64, &mut []);
        if let Outcome::Pending(id) = start {
            let started = (0..1000).any(|_| {
                rig.turn();
                rig.driver.control_result(id).is_some()
            });
            assert!(started, "START does not end");
        }
        rig
    }
}

impl Rig for UblkRig {
    fn disk(&self) -> &Arc<MemoryDisk> {
        &self.disk
    }

    fn device(&self) -> &Arc<Device> {
        &self.core
    }

    /// The kernel sends a FLUSH after a discard or zeroing that is to be durable.
    fn has_fua_on_zeroing(&self) -> bool {
        false
    }

    fn send(&mut self, id: u64, op: Op, payload: &[u8]) {
        let bytes = |sectors: u64| (sectors * SECTOR_BYTES) as u32;
        let (op, sector, fua) = match op {
            Op::Read { sector, sectors } => (ClientOp::Read(bytes(sectors.into())), sector, false),
            Op::Write { sector, fua, .. } => (ClientOp::Write(payload.to_vec()), sector, fua),
            Op::Flush => (ClientOp::Flush, 0, false),
            Op::Discard {
                sector,
                sectors,
                fua,
            } => (ClientOp::Discard(bytes(sectors)), sector, fua),
            Op::WriteZeroes {
                sector,
                sectors,
                fua,
            } => (ClientOp::WriteZeroes(bytes(sectors)), sector, fua),
            Op::Status { .. } | Op::Prefetch { .. } => unreachable!("disks are not asked this"),
        };
        let request = ClientRequest { op, sector, fua };
        let sent = self.driver.submit(self.device, 0, request);
        self.sent.insert(sent, id);
    }

    fn turn(&mut self) -> Vec<Answer> {
        for (key, event) in self.ring.turn() {
            let port = &mut self.ring.port(key);
            match event {
                Event::Completed(token, completion) => {
                    self.source.on_completion(port, token, completion);
                }
                Event::Wake(key) => self.source.on_wake(port, key),
                Event::Turn => self.source.on_turn(port),
            }
        }
        let answers = self.driver.answers().into_iter();
        answers
            .filter_map(|(client, answer)| {
                let id = self.sent.remove(&client)?;
                // The driver answers its clients with negated errnos.
                Some((id, answer.map_err(|errno| -errno)))
            })
            .collect()
    }

    fn retire(&mut self) {
        self.source.on_stop(&mut self.ring.port(self.key));
    }
}

macro_rules! in_mode {
    ($mode:ident, $flags:expr) => {
        mod $mode {
            use super::*;

            fn make(setup: RigSetup) -> UblkRig {
                UblkRig::new($flags, setup)
            }

            serve::dispatch_tests!(make);
        }
    };
}

in_mode!(copy, 0);
in_mode!(get_data, sys::F_NEED_GET_DATA);
in_mode!(user_copy, sys::F_USER_COPY);
in_mode!(
    zero_copy,
    sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY
);
