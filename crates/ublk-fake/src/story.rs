//! A whole life of a device over the fake driver: clients that ask at random, servers that serve,
//! misbehave, are stopped and die at any step, and successors. The choices come from outside: a
//! seed, or the bytes of a fuzzer.
//!
//! What is judged: every request ends exactly once; every byte read is one that may be there;
//! nothing fails but what was made to fail; the library gives the driver no command that it
//! refuses; at the end the device stops and goes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::client::Oracle;
use crate::control::Outcome;
use crate::deliver::ClientRequest;
use crate::device::ClientOp;
use crate::driver::Driver;
use crate::keeper::{Habits, Keeper};
use crate::kernel::TaskId;
use crate::profile::Profile;
use crate::purse::Purse;
use crate::ring::{Chaos, Event, Ring, SourceKey};
use ublk::queue::{
    Counters, Descriptors, Pool, QueueObserver, QueueParts, QueueSource, QueueStats, Share,
};
use ublk::sys::{self, ControlCommand, DeviceInfo, Params};

/// Sectors of the disk: few, so that requests meet.
const SECTORS: u64 = 256;
/// The largest request.
pub const IO_BYTES: u32 = 16 << 10;
const PID: i32 = 4711;
/// Turns of all rings after which a request that has not ended is lost.
const TURNS_MAX: u32 = 5_000;

/// What a story is about.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The kernel.
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
    /// How the server behaves.
    pub habits: Habits,
    /// What the ring does wrong.
    pub chaos: Chaos,
    /// Deaths of the server, each in so many of 256 steps; some in the middle of recovering.
    pub deaths: u8,
    /// Planned changes of the server by QUIESCE_DEV, each in so many of 256 steps.
    pub handovers: u8,
    /// Exits in good order, each in so many of 256 steps, and a successor after each.
    pub exits: u8,
    /// Steps.
    pub steps: u32,
}

struct Quiet;

impl QueueObserver for Quiet {
    fn on_fetch_failed(&self, _queue: u16, _: u16, _errno: i32) {}
}

struct Server {
    rings: Vec<Ring>,
    sources: BTreeMap<(usize, SourceKey), QueueSource<Keeper>>,
    counters: Vec<Arc<Counters>>,
    own_pool: Option<Purse>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Clients' requests that ended.
    pub ended: u64,
    /// Of those, failed ones.
    pub failed: u64,
    /// Servers that died.
    pub deaths: u64,
    /// Servers that left for another one.
    pub handovers: u64,
    /// Servers that left in good order.
    pub exits: u64,
    /// Commands that the driver refused.
    pub refused: u64,
    /// Requests whose bytes went another way than through a slot.
    pub fallbacks: u64,
    /// How often a pool of the server's own had nothing.
    pub dry: u64,
}

struct Story<'a> {
    plot: Plot,
    choose: &'a mut dyn FnMut(u64) -> u64,
    driver: Driver,
    device: u32,
    flags: u64,
    descriptor_bytes: u16,
    disk: Arc<OwnedFd>,
    server: Option<Server>,
    tasks: u32,
    oracle: Oracle,
    report: Report,
}

/// Lives a story through; the error says what was wrong. `choose` gives a number below its
/// argument.
pub fn live(plot: Plot, choose: &mut dyn FnMut(u64) -> u64) -> Result<Report, String> {
    let driver = Driver::new(plot.profile);
    driver.release_delay(2);
    let disk = rustix::fs::memfd_create("ublk-story", rustix::fs::MemfdFlags::CLOEXEC)
        .and_then(|file| rustix::fs::ftruncate(&file, SECTORS * 512).map(|()| file))
        .map_err(|errno| format!("no memory file: {errno}"))?;
    let mut story = Story {
        plot,
        choose,
        driver,
        device: 0,
        flags: 0,
        descriptor_bytes: 0,
        disk: Arc::new(disk),
        server: None,
        tasks: 0,
        oracle: Oracle::new(SECTORS as usize),
        report: Report::default(),
    };
    story.begin()?;
    for _ in 0..plot.steps {
        story.step()?;
    }
    story.end()?;
    Ok(story.report)
}

impl Story<'_> {
    fn strikes(&mut self, share: u8) -> bool {
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

    fn must(&self, what: &str, opcode: u32, data: u64, argument: &mut [u8]) -> Result<(), String> {
        match self.control(opcode, data, argument) {
            Outcome::Ended(0) => Ok(()),
            other => Err(format!("{what}: {other:?}")),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let mut info = DeviceInfo {
            queues: self.plot.queues,
            depth: self.plot.depth,
            io_bytes_max: IO_BYTES,
            flags: self.plot.flags,
            ..DeviceInfo::default()
        };
        self.must("ADD", sys::ADD_DEVICE, 0, info.as_mut_bytes())?;
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
        self.must("SET_PARAMS", sys::SET_PARAMS, 0, params.as_mut_bytes())?;
        self.serve()?;
        self.wait_for("START", sys::START_DEVICE)
    }

    /// A new server: opens, attaches, gives every tag to the driver.
    fn serve(&mut self) -> Result<(), String> {
        let opened = self.driver.open(self.device, PID);
        let char_device = opened.map_err(|error| format!("open: {error}"))?;
        let char_device = Arc::new(char_device);
        let mut server = Server {
            rings: Vec::new(),
            sources: BTreeMap::new(),
            counters: Vec::new(),
            own_pool: self.plot.own_pool.map(Purse::new),
        };
        let shares = self.plot.shares;
        let seats = (0..self.plot.queues).flat_map(|queue| (0..shares).map(move |of| (queue, of)));
        for (queue, first) in seats {
            if server.rings.is_empty() || !self.plot.one_ring {
                self.tasks += 1;
                let seed = (self.choose)(u64::from(u32::MAX));
                let task = TaskId(self.tasks);
                let (slots, bytes) = (self.plot.slots, self.plot.pool_bytes);
                let mut ring = Ring::new(&self.driver, task, slots, bytes, seed);
                ring.set_chaos(self.plot.chaos);
                server.rings.push(ring);
            }
            let at = server.rings.len() - 1;
            let ring = &mut server.rings[at];
            let (depth, stride) = (self.plot.depth, self.descriptor_bytes);
            let descriptors = Descriptors::map(&char_device, queue, depth, stride)
                .map_err(|error| format!("descriptors: {error}"))?;
            let counters = Arc::new(Counters::default());
            server.counters.push(Arc::clone(&counters));
            let parts = QueueParts {
                device: 0,
                queue,
                depth: self.plot.depth,
                share: Share {
                    first,
                    step: shares,
                },
                char_device: Arc::clone(&char_device),
                descriptors,
                flags: self.flags,
                io_bytes_max: IO_BYTES,
                // One is left for what finds its slot taken.
                slots_max: (self.plot.slots / (self.plot.queues * shares)).max(1) - 1,
                pool: (server.own_pool.clone()).map(|own| Box::new(own) as Box<dyn Pool>),
                counters,
                observer: Arc::new(Quiet),
            };
            let seed = (self.choose)(u64::from(u32::MAX));
            let keeper = Keeper::new(Arc::clone(&self.disk), self.plot.habits, seed);
            let key = ring.attach();
            let mut source = QueueSource::new(parts, keeper);
            source.on_attached(&mut ring.port(key));
            server.sources.insert((at, key), source);
        }
        self.server = Some(server);
        self.turn()?;
        Ok(())
    }

    /// One turn of every ring; whether anything happened.
    fn turn(&mut self) -> Result<bool, String> {
        let mut happened = false;
        if let Some(server) = &mut self.server {
            for (at, ring) in server.rings.iter_mut().enumerate() {
                for (key, event) in ring.turn() {
                    happened = true;
                    let source = server.sources.get_mut(&(at, key));
                    let Some(source) = source.filter(|_| !ring.is_detached(key)) else {
                        continue;
                    };
                    let port = &mut ring.port(key);
                    match event {
                        Event::Ended(token, completion) => {
                            source.on_completion(port, token, completion)
                        }
                        Event::Woken(key) => source.on_wake(port, key),
                        Event::Turn => source.on_turn(port),
                    }
                }
            }
        }
        self.answers()?;
        Ok(happened)
    }

    fn answers(&mut self) -> Result<(), String> {
        for (id, answer) in self.driver.answers() {
            self.oracle.ended_with(id, &answer)?;
            self.report.ended += 1;
            let Err(errno) = answer else { continue };
            self.report.failed += 1;
            let habits = self.plot.habits;
            let faults = [
                habits.failing,
                habits.drops,
                habits.panics,
                self.plot.chaos.errors,
            ];
            let reissued = self.flags & sys::F_RECOVERY_REISSUE != 0;
            let killed = self.report.deaths + self.report.exits > 0 && !reissued;
            if faults == [0; 4] && !killed {
                return Err(format!("{id:?} failed with {errno} and nothing was wrong"));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        match (self.choose)(8) {
            0..=3 => self.ask(),
            _ => {
                self.turn()?;
            }
        }
        if self.strikes(self.plot.deaths) {
            self.die()?;
            self.recover()?;
        }
        if self.strikes(self.plot.handovers) {
            self.hand_over()?;
            self.recover()?;
        }
        if self.strikes(self.plot.exits) {
            self.exit()?;
            self.recover()?;
        }
        Ok(())
    }

    /// The server leaves as [`ublk::exit`] has it: it finishes what it has, takes nothing new and
    /// looks at its rings no more; the driver is told to keep requests back; the rings are closed,
    /// and the character device. Clients ask at any time.
    fn exit(&mut self) -> Result<(), String> {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        for (&(at, key), source) in &mut server.sources {
            source.on_stop(&mut server.rings[at].port(key));
        }
        for _ in 0..(self.choose)(4) {
            self.ask();
            self.turn()?;
        }
        self.rest()?;
        let server = self.server.take().expect("it was there");
        let gone = |&(at, key): &(usize, SourceKey)| server.rings[at].is_detached(key);
        if !server.sources.keys().all(gone) {
            return Err("a queue did not finish".into());
        }
        for _ in 0..(self.choose)(4) {
            self.ask();
        }
        if self.flags & sys::F_QUIESCE != 0 {
            match self.control(sys::QUIESCE_DEVICE, 1, &mut []) {
                Outcome::Ended(0) => {}
                other => return Err(format!("QUIESCE_DEV: {other:?}")),
            }
        }
        for _ in 0..(self.choose)(4) {
            self.ask();
        }
        self.take_figures(&server);
        server.rings.into_iter().for_each(Ring::close);
        drop(server.sources);
        self.report.exits += 1;
        self.driver.closed(self.device);
        self.driver.time_out(self.device);
        self.answers()
    }

    /// The driver is told to let the server go: it answers what it has, takes nothing new, and
    /// leaves by itself.
    fn hand_over(&mut self) -> Result<(), String> {
        self.must("QUIESCE_DEV", sys::QUIESCE_DEVICE, 0, &mut [])?;
        self.rest()?;
        // A queue all of whose tags were with the server is not told by any abort.
        if let Some(server) = &mut self.server {
            for (&(at, key), source) in &mut server.sources {
                let ring = &mut server.rings[at];
                if !ring.is_detached(key) {
                    source.on_stop(&mut ring.port(key));
                }
            }
        }
        self.leave()?;
        self.report.handovers += 1;
        Ok(())
    }

    /// Turns until nothing happens any more. What is late takes some turns without events.
    fn rest(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            quiet = if self.turn()? { 0 } else { quiet + 1 };
            if quiet > 8 {
                return Ok(());
            }
        }
        Err("the server does not come to rest".into())
    }

    /// Sees every queue leave, and lets everything go.
    fn leave(&mut self) -> Result<(), String> {
        self.rest()?;
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        let left = |(&(ring, key), _): (&(usize, SourceKey), &QueueSource<Keeper>)| {
            server.rings[ring].is_detached(key)
        };
        if !server.sources.iter().all(left) {
            return Err("a queue did not leave after its tags were aborted".into());
        }
        self.take_figures(&server);
        // The driver lets go of the commands' memory first.
        server.rings.into_iter().for_each(Ring::close);
        drop(server.sources);
        self.driver.closed(self.device);
        Ok(())
    }

    /// A client asks something.
    fn ask(&mut self) {
        let most = u64::from(self.plot.depth) * u64::from(self.plot.queues) * 2;
        if self.oracle.running() as u64 >= most {
            return;
        }
        let kind = (self.choose)(10);
        let count = 1 + (self.choose)(u64::from(IO_BYTES >> 9));
        let sector = (self.choose)(SECTORS - count + 1);
        let bytes = count as u32 * 512;
        let op = match kind {
            0 => ClientOp::Flush,
            1..=4 => ClientOp::Read(bytes),
            // Of two writes of one place at once nobody can tell the order.
            _ if self.oracle.busy(sector, count) => return,
            5 => ClientOp::Discard(bytes),
            6 => ClientOp::Zeroes(bytes),
            _ => self.oracle.write(count as usize),
        };
        let request = ClientRequest {
            op,
            sector,
            fua: kind == 9,
        };
        let queue = (self.choose)(u64::from(self.plot.queues)) as u16;
        let id = self.driver.submit(self.device, queue, request.clone());
        self.oracle.began(id, request);
    }

    /// The server is killed: its rings, its requests and its memory go.
    fn die(&mut self) -> Result<(), String> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        self.take_figures(&server);
        for ring in server.rings {
            ring.close();
        }
        drop(server.sources);
        self.driver.closed(self.device);
        self.report.deaths += 1;
        // Where no idle tag told the driver, its timeout does.
        self.driver.time_out(self.device);
        self.answers()
    }

    fn take_figures(&mut self, server: &Server) {
        for counters in &server.counters {
            let stats: QueueStats = counters.stats();
            self.report.fallbacks += stats.fallbacks;
        }
        self.report.dry += server.own_pool.as_ref().map_or(0, Purse::dry);
    }

    fn recover(&mut self) -> Result<(), String> {
        for tries in 0.. {
            match self.control(sys::START_RECOVERY, 0, &mut []) {
                Outcome::Ended(0) => break,
                Outcome::Ended(errno) if errno == -libc::EBUSY && tries < 50 => {}
                other => return Err(format!("START_USER_RECOVERY: {other:?}")),
            }
        }
        self.serve()?;
        if self.strikes(self.plot.deaths) {
            self.die()?;
            return self.recover();
        }
        self.wait_for("END_USER_RECOVERY", sys::END_RECOVERY)
    }

    /// A control command that needs the server to go on.
    fn wait_for(&mut self, what: &str, opcode: u32) -> Result<(), String> {
        let id = match self.control(opcode, PID as u64, &mut []) {
            Outcome::Ended(0) => return Ok(()),
            Outcome::Ended(errno) => return Err(format!("{what}: errno {}", -errno)),
            Outcome::Waits(id) => id,
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

    fn end(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            if self.oracle.running() == 0 {
                break;
            }
            self.turn()?;
        }
        if self.oracle.running() > 0 {
            return Err(format!("{} requests were lost", self.oracle.running()));
        }
        self.wait_for("STOP_DEV", sys::STOP_DEVICE)?;
        self.leave()?;
        // What is late after the server's exit is seen by who asks again and again.
        for _ in 0..50 {
            self.control(sys::GET_FEATURES, 0, &mut [0; 8]);
        }
        self.must("DEL_DEV", sys::DELETE_DEVICE, 0, &mut [])?;
        let complaints = self.driver.complaints();
        self.report.refused = complaints.refused;
        let wrong = complaints.refused
            + complaints.zero_writes
            + complaints.excess
            + complaints.unseen
            + complaints.warnings
            + complaints.stuck;
        if wrong > 0 {
            return Err(format!("the driver complains: {complaints:?}"));
        }
        Ok(())
    }
}
