//! The reactor's thread and its turn.
//!
//! A turn: messages and wakes, results, timers, completions to their sources, requested turns,
//! arriving and departing sources; then one enter that submits all that was begun and waits. The
//! thread waits nowhere else, and it is marked so that what may block panics on it in debug
//! builds (R1).

mod dispatch;
mod sources;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::core::{Core, Cx, PostedWork, Source};
use crate::exit::{LINGER, ThreadExit};
use crate::ids::SourceId;
use crate::inbox::Message;
use crate::stop::{StopReport, StopRequest};
use sources::Sources;

/// The state of a reactor's thread.
pub(crate) struct EventLoop {
    core: Core,
    sources: Sources,
    /// Detached sources whose operations have not all ended.
    departing: Vec<SourceId>,
    /// Sources that want every turn.
    every_turn: Vec<SourceId>,
    /// Whether a failure of the driver was logged.
    driver_failed: bool,
    /// Turns so far, where they are counted: in debug builds.
    turns: u32,
}

impl EventLoop {
    pub(crate) fn new(core: Core) -> EventLoop {
        EventLoop {
            core,
            sources: Sources::default(),
            departing: Vec::new(),
            every_turn: Vec::new(),
            driver_failed: false,
            turns: 0,
        }
    }

    /// Runs until the reactor is stopped, then closes the ring.
    pub(crate) fn run(mut self) -> ThreadExit {
        let ring_thread = blkmq::enter_ring_thread();
        let mut messages = Vec::new();
        let mut report = StopReport::default();
        let mut stop_sent = false;
        let mut cut_at = None;
        loop {
            self.core.stop_buffer_watch();
            self.core.mailbox.take(&mut messages);
            for message in messages.drain(..) {
                self.on_message(message);
            }
            self.core.fire_timers();
            self.deliver();
            self.call_turns();
            self.insert_arrivals();
            if self.core.is_stopping() && !std::mem::replace(&mut stop_sent, true) {
                self.for_each_source(|source, cx| source.on_stop(cx));
            }
            self.drop_departed();
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
            // Last: buffers that were freed in this turn can be lent.
            self.core.grant_buffers();
            let stop_wait = match self.stop_progress(&mut report, &mut cut_at) {
                Some(wait) => wait,
                None => break,
            };
            let retry = self.core.buffer_retry_delay();
            let wait = [self.wait_limit(), stop_wait, retry]
                .into_iter()
                .flatten()
                .min();
            if let Err(error) = self.core.submit_and_wait(wait) {
                self.on_driver_failed(&error);
            }
            self.core.mailbox.end_sleep();
        }
        drop(ring_thread);
        let requested_at = self.core.stop.as_ref().and_then(|stop| stop.requested_at);
        report.drain_time = requested_at.map_or(Duration::ZERO, |at| at.elapsed());
        self.park();
        self.close(report)
    }

    /// Stops the reactor: nothing can be submitted any more, and sources must not wait for completions
    /// that cannot come.
    #[cold]
    fn on_driver_failed(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.driver_failed, true) {
            let backend = self.core.backend();
            tracing::error!(
                %error,
                ?backend,
                "the reactor cannot wait for completions and stops; restart the server"
            );
        }
        self.core.stop.get_or_insert_with(|| StopRequest {
            deadline: Instant::now(),
            requested_at: None,
            park_point: None,
        });
        std::thread::yield_now();
    }

    /// Counts a panic in work that was posted, or in a source, which is detached.
    #[cold]
    fn on_panic(&mut self, source: Option<SourceId>) {
        self.core.panics += 1;
        match source {
            Some(id) => {
                tracing::error!(
                    ?id,
                    "a source panicked (the message is on standard error); it is detached and \
                     what it has in flight is cancelled"
                );
                self.core.detach(id);
            }
            None => tracing::error!(
                "work that was posted to a reactor panicked (the message is on standard error); \
                 the reactor goes on"
            ),
        }
    }

    /// Checks the core's counts; those of a large reactor now and then.
    fn check_invariants(&mut self) {
        const OPS_SMALL: usize = 256;
        const TURNS_BETWEEN: u32 = 64;
        self.turns = self.turns.wrapping_add(1);
        if self.core.stats().ops_in_flight <= OPS_SMALL || self.turns.is_multiple_of(TURNS_BETWEEN)
        {
            self.core.assert_invariants();
        }
    }

    /// Keeps the ring open after the work is done, for as long as the owner wants that.
    fn park(&mut self) {
        let stop = self.core.stop.as_mut();
        if let Some(park_point) = stop.and_then(|stop| stop.park_point.take()) {
            // What was submitted last is with the kernel before the owner goes on.
            let _ = self.core.submit_and_wait(Some(Duration::ZERO));
            park_point.park();
        }
    }

    fn on_message(&mut self, message: Message<PostedWork>) {
        match message {
            Message::Run(work) => {
                let core = &mut self.core;
                if catch_unwind(AssertUnwindSafe(|| work(core))).is_err() {
                    self.on_panic(None);
                }
            }
            Message::Wake(wake) => {
                wake.clear_queued();
                if self.core.is_live(wake.source) {
                    self.call_source(wake.source, |source, cx| source.on_wake(cx, wake.key));
                }
            }
            Message::BufferReturned => {}
        }
        // A message may attach sources and a later one may wake them.
        self.insert_arrivals();
    }

    fn call_turns(&mut self) {
        if self.every_turn.is_empty() && self.core.turns.is_empty() {
            return;
        }
        let mut every = std::mem::take(&mut self.every_turn);
        every.retain(|&id| self.core.is_live(id));
        for &id in &every {
            self.call_source(id, |source, cx| source.on_turn(cx));
        }
        every.append(&mut self.every_turn);
        self.every_turn = every;
        for id in std::mem::take(&mut self.core.turns) {
            self.core.clear_turn_request(id);
            if self.core.is_live(id) {
                self.call_source(id, |source, cx| source.on_turn(cx));
            }
        }
    }

    fn insert_arrivals(&mut self) {
        while !self.core.arrivals.is_empty() {
            for (id, source) in std::mem::take(&mut self.core.arrivals) {
                let at = id.slot as usize;
                if self.sources.0.len() <= at {
                    self.sources.0.resize_with(at + 1, || None);
                }
                if source.wants_every_turn() {
                    self.every_turn.push(id);
                }
                self.sources.0[at] = Some((id, source));
                if self.core.is_live(id) {
                    self.call_source(id, |source, cx| source.on_attached(cx));
                }
            }
        }
    }

    fn drop_departed(&mut self) {
        if self.departing.is_empty() && self.core.detached.is_empty() {
            return;
        }
        self.departing.append(&mut self.core.take_detached());
        let mut departing = std::mem::take(&mut self.departing);
        departing.retain(|&id| {
            if !self.core.release_source(id) {
                return true;
            }
            let source = self
                .sources
                .0
                .get_mut(id.slot as usize)
                .and_then(Option::take);
            if catch_unwind(AssertUnwindSafe(|| drop(source))).is_err() {
                self.core.panics += 1;
            }
            false
        });
        self.departing.append(&mut departing);
    }

    fn for_each_source(&mut self, mut call: impl FnMut(&mut dyn Source, &mut Cx<'_>)) {
        let ids: Vec<SourceId> = self.sources.0.iter().flatten().map(|(id, _)| *id).collect();
        for id in ids {
            if self.core.is_live(id) {
                self.call_source(id, &mut call);
            }
        }
    }

    fn call_source(&mut self, id: SourceId, call: impl FnOnce(&mut dyn Source, &mut Cx<'_>)) {
        let Some(entry) = self.sources.0.get_mut(id.slot as usize) else {
            return;
        };
        let Some((_, mut source)) = entry.take_if(|(present, _)| *present == id) else {
            return;
        };
        let mut cx = Cx {
            core: &mut self.core,
            me: id,
        };
        if catch_unwind(AssertUnwindSafe(|| call(source.as_mut(), &mut cx))).is_err() {
            self.on_panic(Some(id));
        }
        self.sources.0[id.slot as usize] = Some((id, source));
    }

    /// How long the next wait may be: not at all while there is something to do.
    fn wait_limit(&mut self) -> Option<Duration> {
        let core = &mut self.core;
        let busy = core.next_recipient().is_some()
            || !core.turns.is_empty()
            || !core.detached.is_empty()
            || core.enter_frees_buffers()
            || !core.arrivals.is_empty();
        if busy || !core.mailbox.prepare_sleep() {
            return Some(Duration::ZERO);
        }
        self.core.next_timer()
    }

    /// Where a stop is under way: how long to wait at most. `None` once it is over.
    fn stop_progress(
        &mut self,
        report: &mut StopReport,
        cut_at: &mut Option<Instant>,
    ) -> Option<Option<Duration>> {
        let Some(by) = self.core.stop.as_ref().map(|stop| stop.deadline) else {
            return Some(None);
        };
        let stats = self.core.stats();
        // Armed commands end with the ring: a stop does not wait for them.
        let detached =
            stats.sources == self.departing.len() && self.core.next_recipient().is_none();
        if detached && stats.ops_in_flight == stats.armed_commands {
            return None;
        }
        let now = Instant::now();
        if now < by {
            return Some(Some(by - now));
        }
        let cut = *cut_at.get_or_insert_with(|| {
            report.sources_forced = stats.sources - self.departing.len();
            self.for_each_source(|_, cx| cx.detach());
            self.core.cancel_all();
            now
        });
        let over = cut + LINGER;
        if now >= over {
            return None;
        }
        let busy = !self.core.detached.is_empty() || self.core.next_recipient().is_some();
        Some(Some(if busy { Duration::ZERO } else { over - now }))
    }

    /// Closes the ring, then drops the sources, then the files.
    fn close(self, mut report: StopReport) -> ThreadExit {
        let EventLoop {
            mut core,
            mut sources,
            ..
        } = self;
        let late = core.mailbox.close();
        // What was handed over last (closing descriptors) goes to the kernel before the ring
        // does.
        let _ = core.submit_and_wait(Some(Duration::ZERO));
        core.discard_results();
        let began = Instant::now();
        report.panics = core.panics;
        let stats = core.stats();
        report.ops_armed = stats.armed_commands;
        report.ops_abandoned = stats.ops_in_flight - stats.armed_commands;
        let mut memory = sources.release_armed_memory();
        let (last, files) = core.close_ring();
        memory.0.extend(last);
        if report.ops_abandoned > 0 {
            // Plans must not be given back while their I/O may still write: leaked on purpose.
            tracing::error!(
                ops = report.ops_abandoned,
                "operations did not end after they were cancelled; their memory is leaked until \
                 the process ends (check the disk below the log and the cache)"
            );
            Box::leak(Box::new(sources));
        } else {
            drop(sources);
        }
        drop(late);
        drop(files);
        let finished_at = Instant::now();
        report.close_time = finished_at - began;
        ThreadExit {
            report,
            finished_at,
            _memory: memory,
        }
    }
}
