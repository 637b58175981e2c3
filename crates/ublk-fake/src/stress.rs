//! A stress run of one device over the fake driver, from ADD to DEL: clients submit random
//! requests; servers inject faults, exit in order or are killed at any step, and others take over.
//! The choices come from outside: a seed, or the input of a fuzzer.
//!
//! It checks that every request completes exactly once, that every byte read may be there, that
//! nothing fails but by an injected fault, that the driver refuses no command of the library, and
//! that the device can be stopped and deleted at the end.

mod servers;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::bounded_pool::BoundedPool;
use crate::client_oracle::ClientOracle;
use crate::control::Outcome;
use crate::deliver::ClientRequest;
use crate::device::ClientOp;
use crate::driver::Driver;
use crate::faulty_handler::{FileHandler, HandlerFaults};
use crate::profile::Profile;
use crate::ring::{Ring, RingFaults, SourceKey};
use ublk::queue::{Counters, QueueSource};
use ublk::sys::{self, ControlCommand, DeviceInfo, Params};

/// Sectors of the disk: few, so that requests meet.
const SECTORS: u64 = 256;
/// The largest request.
pub const IO_BYTES: u32 = 16 << 10;
const PID: i32 = 4711;
/// Turns of all rings after which a request that has not ended is lost.
const TURNS_MAX: u32 = 5_000;

/// What a stress run does.
#[derive(Clone, Copy, Debug)]
pub struct StressConfig {
    /// The kernel that the driver simulates.
    pub profile: Profile,
    /// The flags that are asked for.
    pub flags: u64,
    /// Queues, each with a ring of its own, or all on one.
    pub queues: u16,
    /// Whether all queues are on one ring.
    pub one_ring: bool,
    /// Tags of a queue.
    pub depth: u16,
    /// Sources that share the tags of a queue, each on a ring of its own where queues are: 6.16.
    pub shares: u16,
    /// Buffer slots of a ring: at least two for each share of a queue.
    pub slots: u16,
    /// Bytes of buffers of a ring.
    pub pool_bytes: usize,
    /// Bytes of a pool of the server's own for get-data writes, at least as many as the largest
    /// request has; the rings' pools where there is none.
    pub own_pool: Option<usize>,
    /// Faults of the handler.
    pub handler_faults: HandlerFaults,
    /// Faults of the rings.
    pub ring_faults: RingFaults,
    /// Kills of the server, in so many of 256 steps; some in the middle of a recovery.
    pub kills: u8,
    /// Handovers by QUIESCE_DEV, in so many of 256 steps.
    pub handovers: u8,
    /// Orderly exits, in so many of 256 steps, each followed by a successor.
    pub exits: u8,
    /// Steps.
    pub steps: u32,
}

/// A source: its ring, and what it is called there.
type SourcePlace = (usize, SourceKey);

struct Server {
    rings: Vec<Ring>,
    sources: BTreeMap<SourcePlace, QueueSource<FileHandler>>,
    counters: Vec<Arc<Counters>>,
    own_pool: Option<BoundedPool>,
}

/// What a run counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests that completed.
    pub completed: u64,
    /// Of those, the ones that failed.
    pub failed: u64,
    /// Servers that were killed.
    pub kills: u64,
    /// Servers that handed over to another.
    pub handovers: u64,
    /// Servers that exited in order.
    pub exits: u64,
    /// Commands that the driver refused.
    pub refused: u64,
    /// Requests that were served without a buffer slot.
    pub fallbacks: u64,
    /// How often the server's own pool was exhausted.
    pub pool_exhausted: u64,
}

struct StressRun<'a> {
    config: StressConfig,
    choose: &'a mut dyn FnMut(u64) -> u64,
    driver: Driver,
    device: u32,
    flags: u64,
    descriptor_bytes: u16,
    disk: Arc<OwnedFd>,
    server: Option<Server>,
    tasks: u32,
    oracle: ClientOracle,
    report: Report,
}

/// Executes a run; the error says which promise was broken. `choose` returns a number below its
/// argument.
pub fn run(config: StressConfig, choose: &mut dyn FnMut(u64) -> u64) -> Result<Report, String> {
    let driver = Driver::new(config.profile);
    driver.set_release_delay(2);
    let disk = rustix::fs::memfd_create("ublk-stress", rustix::fs::MemfdFlags::CLOEXEC)
        .and_then(|file| rustix::fs::ftruncate(&file, SECTORS * 512).map(|()| file))
        .map_err(|errno| format!("no memory file: {errno}"))?;
    let mut run = StressRun {
        config,
        choose,
        driver,
        device: 0,
        flags: 0,
        descriptor_bytes: 0,
        disk: Arc::new(disk),
        server: None,
        tasks: 0,
        oracle: ClientOracle::new(SECTORS),
        report: Report::default(),
    };
    run.start_device()?;
    for _ in 0..config.steps {
        run.step()?;
    }
    run.stop_device()?;
    Ok(run.report)
}

impl StressRun<'_> {
    fn chance(&mut self, share: u8) -> bool {
        share > 0 && (self.choose)(256) < u64::from(share)
    }

    fn control(&self, opcode: u32, data: u64, argument: &mut [u8]) -> Outcome {
        let command = ControlCommand {
            device: self.device,
            queue: sys::NO_QUEUE,
            data,
            ..ControlCommand::default()
        };
        self.driver.control(opcode, command, argument)
    }

    fn control_ok(
        &self,
        what: &str,
        opcode: u32,
        data: u64,
        argument: &mut [u8],
    ) -> Result<(), String> {
        match self.control(opcode, data, argument) {
            Outcome::Done(0) => Ok(()),
            other => Err(format!("{what}: {other:?}")),
        }
    }

    fn start_device(&mut self) -> Result<(), String> {
        let mut info = DeviceInfo {
            queues: self.config.queues,
            depth: self.config.depth,
            io_bytes_max: IO_BYTES,
            flags: self.config.flags,
            ..DeviceInfo::default()
        };
        self.control_ok("ADD", sys::ADD_DEVICE, 0, info.as_mut_bytes())?;
        let info = DeviceInfo::read_from_bytes(info.as_bytes()).expect("as long as one");
        (self.flags, self.descriptor_bytes) = (info.flags, info.descriptor_bytes);
        let mut params = Params {
            len: size_of::<Params>() as u32,
            types: sys::PARAM_BASIC | sys::PARAM_DISCARD,
            ..Params::default()
        };
        params.basic.attributes = sys::ATTR_VOLATILE_CACHE | sys::ATTR_FUA;
        params.basic.logical_shift = 9;
        params.basic.physical_shift = 12;
        params.basic.sectors_max = IO_BYTES >> 9;
        params.basic.sectors = SECTORS;
        params.discard.granularity = 512;
        params.discard.segments_max = 1;
        self.control_ok("SET_PARAMS", sys::SET_PARAMS, 0, params.as_mut_bytes())?;
        self.start_server()?;
        self.wait_for("START", sys::START_DEVICE)
    }

    fn check_answers(&mut self) -> Result<(), String> {
        for (id, answer) in self.driver.answers() {
            self.oracle.on_complete(id, &answer)?;
            self.report.completed += 1;
            let Err(errno) = answer else { continue };
            self.report.failed += 1;
            let handler = self.config.handler_faults;
            let faults = [
                handler.errors,
                handler.drops,
                handler.panics,
                self.config.ring_faults.errors,
            ];
            let reissued = self.flags & sys::F_RECOVERY_REISSUE != 0;
            let killed = self.report.kills + self.report.exits > 0 && !reissued;
            if faults == [0; 4] && !killed {
                return Err(format!(
                    "{id:?} failed with {errno} and no fault was injected"
                ));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        match (self.choose)(8) {
            0..=3 => self.submit_request(),
            _ => {
                self.turn()?;
            }
        }
        if self.chance(self.config.kills) {
            self.kill_server()?;
            self.recover()?;
        }
        if self.chance(self.config.handovers) {
            self.hand_over()?;
            self.recover()?;
        }
        if self.chance(self.config.exits) {
            self.exit_server()?;
            self.recover()?;
        }
        Ok(())
    }

    /// A client submits a random request.
    fn submit_request(&mut self) {
        let most = u64::from(self.config.depth) * u64::from(self.config.queues) * 2;
        if self.oracle.in_flight() as u64 >= most {
            return;
        }
        let kind = (self.choose)(10);
        let count = 1 + (self.choose)(u64::from(IO_BYTES >> 9));
        let sector = (self.choose)(SECTORS - count + 1);
        let bytes = count as u32 * 512;
        let op = match kind {
            0 => ClientOp::Flush,
            1..=4 => ClientOp::Read(bytes),
            // The order of two writes to one place at once is not defined.
            _ if self.oracle.overlaps(&(sector..sector + count)) => return,
            5 => ClientOp::Discard(bytes),
            6 => ClientOp::WriteZeroes(bytes),
            _ => self.oracle.begin_write(sector..sector + count),
        };
        let request = ClientRequest {
            op,
            sector,
            fua: kind == 9,
        };
        let queue = (self.choose)(u64::from(self.config.queues)) as u16;
        let id = self.driver.submit(self.device, queue, request.clone());
        self.oracle.on_submit(id, &request);
    }

    /// Runs a control command that waits for the server.
    fn wait_for(&mut self, what: &str, opcode: u32) -> Result<(), String> {
        let id = match self.control(opcode, PID as u64, &mut []) {
            Outcome::Done(0) => return Ok(()),
            Outcome::Done(errno) => return Err(format!("{what}: errno {}", -errno)),
            Outcome::Pending(id) => id,
        };
        for _ in 0..TURNS_MAX {
            self.turn()?;
            match self.driver.control_result(id) {
                Some(0) => return Ok(()),
                Some(errno) => return Err(format!("{what}: errno {}", -errno)),
                None => {}
            }
        }
        Err(format!("{what} never ended"))
    }

    fn stop_device(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            if self.oracle.in_flight() == 0 {
                break;
            }
            self.turn()?;
        }
        if self.oracle.in_flight() > 0 {
            return Err(format!("{} requests were lost", self.oracle.in_flight()));
        }
        self.wait_for("STOP_DEV", sys::STOP_DEVICE)?;
        self.finish_exit()?;
        // Effects of the exit that the driver delays show after some control commands.
        for _ in 0..50 {
            self.control(sys::GET_FEATURES, 0, &mut [0; 8]);
        }
        self.control_ok("DEL_DEV", sys::DELETE_DEVICE, 0, &mut [])?;
        let stats = self.driver.stats();
        self.report.refused = stats.refused;
        let errors = stats.refused
            + stats.zero_results
            + stats.oversized_results
            + stats.slot_failures
            + stats.warnings
            + stats.uncancelled;
        if errors > 0 {
            return Err(format!("the driver counted errors: {stats:?}"));
        }
        Ok(())
    }
}
