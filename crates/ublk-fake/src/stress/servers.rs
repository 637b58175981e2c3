//! The servers of a run: they start, serve, exit in order, hand over, are killed, and are followed by
//! others.

use std::collections::BTreeMap;
use std::sync::Arc;

use ublk::queue::{
    Counters, Descriptors, Pool, QueueObserver, QueueParts, QueueSource, QueueStats, Share,
};
use ublk::sys;

use super::{IO_BYTES, PID, Server, SourcePlace, StressRun, TURNS_MAX};
use crate::bounded_pool::BoundedPool;
use crate::control::Outcome;
use crate::device::TaskId;
use crate::faulty_handler::FileHandler;
use crate::ring::{Event, Ring};

struct IgnoreFetchErrors;

impl QueueObserver for IgnoreFetchErrors {
    fn on_fetch_failed(&self, _queue: u16, _: u16, _errno: i32) {}
}

impl StressRun<'_> {
    /// Starts a server: opens the device, attaches queues, fetches every tag.
    pub(super) fn start_server(&mut self) -> Result<(), String> {
        let opened = self.driver.open(self.device, PID);
        let char_device = opened.map_err(|error| format!("open: {error}"))?;
        let char_device = Arc::new(char_device);
        let mut server = Server {
            rings: Vec::new(),
            sources: BTreeMap::new(),
            counters: Vec::new(),
            own_pool: self.config.own_pool.map(BoundedPool::new),
        };
        let shares = self.config.shares;
        let shares_of_queues =
            (0..self.config.queues).flat_map(|queue| (0..shares).map(move |of| (queue, of)));
        for (queue, first) in shares_of_queues {
            if server.rings.is_empty() || !self.config.one_ring {
                self.tasks += 1;
                let seed = (self.choose)(u64::from(u32::MAX));
                let task = TaskId(self.tasks);
                let (slots, bytes) = (self.config.slots, self.config.pool_bytes);
                let mut ring = Ring::new(&self.driver, task, slots, bytes, seed);
                ring.set_faults(self.config.ring_faults);
                server.rings.push(ring);
            }
            let at = server.rings.len() - 1;
            let ring = &mut server.rings[at];
            let (depth, stride) = (self.config.depth, self.descriptor_bytes);
            let descriptors = Descriptors::map(&char_device, queue, depth, stride)
                .map_err(|error| format!("descriptors: {error}"))?;
            let counters = Arc::new(Counters::default());
            server.counters.push(Arc::clone(&counters));
            let parts = QueueParts {
                device: 0,
                queue,
                depth: self.config.depth,
                share: Share {
                    first,
                    step: shares,
                },
                char_device: Arc::clone(&char_device),
                descriptors,
                flags: self.flags,
                io_bytes_max: IO_BYTES,
                // One slot is left for a request that finds its own taken.
                slots_max: (self.config.slots / (self.config.queues * shares)).max(1) - 1,
                pool: (server.own_pool.clone()).map(|own| Box::new(own) as Box<dyn Pool>),
                counters,
                observer: Arc::new(IgnoreFetchErrors),
            };
            let seed = (self.choose)(u64::from(u32::MAX));
            let handler =
                FileHandler::new(Arc::clone(&self.disk), self.config.handler_faults, seed);
            let key = ring.attach();
            let mut source = QueueSource::new(parts, handler);
            source.on_attached(&mut ring.port(key));
            server.sources.insert((at, key), source);
        }
        self.server = Some(server);
        self.turn()?;
        Ok(())
    }

    /// One turn of every ring; whether anything happened.
    pub(super) fn turn(&mut self) -> Result<bool, String> {
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
                        Event::Completed(token, completion) => {
                            source.on_completion(port, token, completion)
                        }
                        Event::Wake(key) => source.on_wake(port, key),
                        Event::Turn => source.on_turn(port),
                    }
                }
            }
        }
        self.check_answers()?;
        Ok(happened)
    }

    /// The server exits as [`ublk::exit`] does: it finishes what it has, fetches nothing new and
    /// stops polling its rings; QUIESCE_DEV makes the driver hold requests back; then the rings and
    /// the character device are closed. Clients submit requests at any time.
    pub(super) fn exit_server(&mut self) -> Result<(), String> {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        for (&(at, key), source) in &mut server.sources {
            source.on_stop(&mut server.rings[at].port(key));
        }
        for _ in 0..(self.choose)(4) {
            self.submit_request();
            self.turn()?;
        }
        self.turn_until_idle()?;
        let server = self.server.take().expect("it was there");
        let gone = |&(at, key): &SourcePlace| server.rings[at].is_detached(key);
        if !server.sources.keys().all(gone) {
            return Err("a queue did not finish".into());
        }
        for _ in 0..(self.choose)(4) {
            self.submit_request();
        }
        if self.flags & sys::F_QUIESCE != 0 {
            match self.control(sys::QUIESCE_DEVICE, 1, &mut []) {
                Outcome::Done(0) => {}
                other => return Err(format!("QUIESCE_DEV: {other:?}")),
            }
        }
        for _ in 0..(self.choose)(4) {
            self.submit_request();
        }
        self.close(server);
        self.report.exits += 1;
        self.driver.on_request_timeout(self.device);
        self.check_answers()
    }

    /// QUIESCE_DEV asks the server to exit: it answers what it has, fetches nothing new, and
    /// detaches by itself.
    pub(super) fn hand_over(&mut self) -> Result<(), String> {
        self.control_ok("QUIESCE_DEV", sys::QUIESCE_DEVICE, 0, &mut [])?;
        self.turn_until_idle()?;
        // A queue whose tags the server owned all sees no abort.
        if let Some(server) = &mut self.server {
            for (&(at, key), source) in &mut server.sources {
                let ring = &mut server.rings[at];
                if !ring.is_detached(key) {
                    source.on_stop(&mut ring.port(key));
                }
            }
        }
        self.finish_exit()?;
        self.report.handovers += 1;
        Ok(())
    }

    /// Turns all rings until nothing happens. Delayed operations take some turns without events.
    fn turn_until_idle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            quiet = if self.turn()? { 0 } else { quiet + 1 };
            if quiet > 8 {
                return Ok(());
            }
        }
        Err("the server does not become idle".into())
    }

    /// Checks that every queue has detached, and closes rings and device.
    pub(super) fn finish_exit(&mut self) -> Result<(), String> {
        self.turn_until_idle()?;
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        let gone = |&(at, key): &SourcePlace| server.rings[at].is_detached(key);
        if !server.sources.keys().all(gone) {
            return Err("a queue did not detach after its tags were aborted".into());
        }
        self.close(server);
        Ok(())
    }

    /// Kills the server: its rings, its requests and its memory go.
    pub(super) fn kill_server(&mut self) -> Result<(), String> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        self.close(server);
        self.report.kills += 1;
        // Where no idle tag was cancelled the request timeout finds the dead server.
        self.driver.on_request_timeout(self.device);
        self.check_answers()
    }

    /// Closes a server's rings and its character device, and counts what its queues did.
    fn close(&mut self, server: Server) {
        for counters in &server.counters {
            let stats: QueueStats = counters.stats();
            self.report.fallbacks += stats.fallbacks;
        }
        self.report.pool_exhausted += server.own_pool.as_ref().map_or(0, BoundedPool::exhausted);
        // The driver gives up the memory of the commands before they are dropped.
        server.rings.into_iter().for_each(Ring::close);
        drop(server.sources);
        self.driver.on_char_close(self.device);
    }

    pub(super) fn recover(&mut self) -> Result<(), String> {
        for tries in 0.. {
            match self.control(sys::START_RECOVERY, 0, &mut []) {
                Outcome::Done(0) => break,
                Outcome::Done(errno) if errno == -libc::EBUSY && tries < 50 => {}
                other => return Err(format!("START_USER_RECOVERY: {other:?}")),
            }
        }
        self.start_server()?;
        if self.chance(self.config.kills) {
            self.kill_server()?;
            return self.recover();
        }
        self.wait_for("END_USER_RECOVERY", sys::END_RECOVERY)
    }
}
