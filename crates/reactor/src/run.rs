//! The reactor's thread and its turn.
//!
//! A turn: messages and wakes, results, timers, completions to their sources, requested turns,
//! arrivals and departures; then one enter that hands over all that was begun and waits. The
//! thread waits nowhere else, and it is marked so that what may block panics on it in debug
//! builds (R1).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::driver::{BackendKind, Driver, Epoll, Uring, wake_fd};
use crate::handle::{Handle, Message, Shared};
use crate::pool::BufferPool;
use crate::source::{Cx, Source, SourceId};
use joining::{Ended, join};
use park::Parked;
use sources::Sources;

pub(crate) use park::Parking;

mod delivering;
mod joining;
mod park;
mod sources;

/// How long after its deadline a stopping reactor waits for operations that cannot be cancelled
/// (disk I/O) before it gives up and leaves their memory behind.
const LINGER: Duration = Duration::from_secs(10);

/// How long the thread may take after that to come out of the kernel.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Which driver to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BackendChoice {
    /// The ring where the host allows one, epoll otherwise.
    #[default]
    Auto,
    /// This one or an error.
    Only(BackendKind),
}

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of its thread.
    pub name: String,
    /// Driver.
    pub backend: BackendChoice,
    /// Submission queue entries of the ring.
    pub entries: u32,
    /// Completion queue entries of the ring, at most 65,536: armed commands + operations in flight
    /// are a good number. What does not fit is kept by the kernel, at a price.
    pub completions: u32,
    /// Bytes that its pool lends at most, beside the reserve and the first buffers of those that
    /// may hold theirs for long ([`crate::Need::Held`]).
    pub pool_bytes: usize,
    /// Size of the pool's reserve: the largest buffer that a request in progress may need.
    pub reserve_bytes: usize,
    /// Threads for file calls where there is no ring.
    pub workers: usize,
    /// Mark the thread as one that frees memory by writing (`PR_SET_IO_FLUSHER`), so that it
    /// never waits for memory that only its own work can free: for disks that are mounted on this
    /// host. It needs CAP_SYS_RESOURCE; without it the reactor runs unmarked
    /// ([`Reactor::io_flusher`]).
    pub io_flusher: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: "reactor".to_owned(),
            backend: BackendChoice::Auto,
            entries: 256,
            completions: 2048,
            pool_bytes: 128 << 20,
            reserve_bytes: 64 << 20,
            workers: 4,
            io_flusher: true,
        }
    }
}

/// How a reactor ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Sources that had not detached at the deadline.
    pub sources_forced: usize,
    /// Operations that did not end even after being cancelled; their memory was left behind.
    pub ops_abandoned: usize,
    /// Armed commands that ended with the ring.
    pub ops_armed: usize,
    /// Sources that panicked while the reactor ran.
    pub panics: u64,
    /// From the request to stop until nothing was left but armed commands, or the deadline's end.
    pub drain_time: Duration,
    /// Closing the ring and dropping the sources, in the reactor's thread.
    pub close_time: Duration,
    /// From then until the thread had ended. What the ring still had, the kernel cancels after
    /// that by itself; files of armed commands are closed some milliseconds later.
    pub exit_time: Duration,
    /// The thread had not ended when the patience with it did; the kernel still has its ring.
    /// Nothing else in the report is known then.
    pub thread_stuck: bool,
}

/// A running reactor. Dropping it stops it with a deadline of five seconds.
#[derive(Debug)]
pub struct Reactor {
    handle: Handle,
    backend: BackendKind,
    io_flusher: bool,
    thread: Option<JoinHandle<Option<Ended>>>,
    parked: Option<Parked>,
}

// Whoever has it may look at it from any thread.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Reactor>();
};

impl Reactor {
    /// Starts a reactor's thread; an error says what the host refused.
    pub fn start(config: Config) -> io::Result<Reactor> {
        Reactor::start_on(config, build_driver)
    }

    /// The same, with commands given to a double of the files' driver that the reactor's thread makes.
    #[cfg(feature = "fake")]
    pub fn start_with_command_driver(
        config: Config,
        double: impl FnOnce() -> Box<dyn crate::driver::CommandDriver> + Send + 'static,
    ) -> io::Result<Reactor> {
        Reactor::start_on(config, |config, wake| {
            let rest = Epoll::new(config.workers, wake)?;
            let double = crate::driver::Double::new(double(), rest);
            Ok(Driver::Double(Box::new(double)))
        })
    }

    fn start_on(
        config: Config,
        driver: impl FnOnce(&Config, Arc<std::os::fd::OwnedFd>) -> io::Result<Driver> + Send + 'static,
    ) -> io::Result<Reactor> {
        let wake = wake_fd()?;
        let handle = Handle {
            shared: Arc::new(Shared::new(Arc::clone(&wake))),
        };
        let (started, starting) = mpsc::sync_channel(1);
        let thread_handle = handle.clone();
        let thread = std::thread::Builder::new()
            .name(config.name.clone())
            .spawn(move || {
                let io_flusher = config.io_flusher && become_io_flusher();
                let built = driver(&config, wake);
                let core = match built.and_then(|driver| build(&config, driver, thread_handle)) {
                    Ok(core) => core,
                    Err(error) => {
                        // The starter waits for exactly one answer.
                        let _ = started.send(Err(error));
                        return None;
                    }
                };
                let _ = started.send(Ok((core.backend(), io_flusher)));
                let reactor = Loop {
                    core,
                    sources: Sources::default(),
                    departing: Vec::new(),
                    every_turn: Vec::new(),
                };
                Some(reactor.run())
            })?;
        let granted = starting.recv().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the reactor's thread ended before it was ready",
            ))
        });
        match granted {
            Ok((backend, io_flusher)) => Ok(Reactor {
                handle,
                backend,
                io_flusher,
                thread: Some(thread),
                parked: None,
            }),
            Err(error) => {
                // It has sent its last word, so this does not wait.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// The reactor for other threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The driver that was granted.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Whether its thread is an I/O flusher ([`Config::io_flusher`]).
    pub fn io_flusher(&self) -> bool {
        self.io_flusher
    }

    /// Does the first half of [`Reactor::stop`]: asks all sources to finish, cuts off at the
    /// deadline what has not, and waits for that. Whatever was begun is with the kernel then, the
    /// thread begins nothing more, and the ring stays open with its armed commands until the
    /// reactor is stopped. False where the thread does not get there: then nothing is known of it.
    pub fn drain(&mut self, within: Duration) -> bool {
        blkmq::may_block("draining a reactor");
        if self.parked.is_none() {
            let (parking, arriving) = park::parking();
            self.ask_to_stop(within, Some(parking));
            self.parked = arriving.wait(within + LINGER + END_PATIENCE);
        }
        self.parked.is_some()
    }

    /// Asks all sources to finish, cuts off at the deadline what has not, and waits. The wait is
    /// bounded too: a thread that does not come out of the kernel is reported and left.
    pub fn stop(mut self, within: Duration) -> StopReport {
        self.stop_within(within).unwrap_or_default()
    }

    fn stop_within(&mut self, within: Duration) -> Option<StopReport> {
        let thread = self.thread.take()?;
        blkmq::may_block("stopping a reactor");
        if self.parked.take().is_none() {
            self.ask_to_stop(within, None);
        }
        join(thread, Instant::now() + within + LINGER + END_PATIENCE)
    }

    fn ask_to_stop(&self, within: Duration, parking: Option<Parking>) {
        let asked = Instant::now();
        // A reactor that has ended already needs no message.
        let _ = self.handle.post(move |core| {
            core.stop_asked = Some(asked);
            core.stop_by = Some(asked + within);
            core.parking = parking;
        });
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop_within(Duration::from_secs(5));
    }
}

/// Marks the calling thread; its workers, and those of its ring, take after it.
fn become_io_flusher() -> bool {
    let set = rustix::process::configure_io_flusher_behavior(true);
    if let Err(error) = set {
        tracing::debug!(%error, "the thread is no I/O flusher: it lacks CAP_SYS_RESOURCE");
    }
    set.is_ok()
}

fn build_driver(config: &Config, wake: Arc<std::os::fd::OwnedFd>) -> io::Result<Driver> {
    Ok(match config.backend {
        BackendChoice::Only(BackendKind::IoUring) => {
            Driver::Uring(Uring::new(config.entries, config.completions, wake)?)
        }
        BackendChoice::Only(BackendKind::Epoll) => Driver::Epoll(Epoll::new(config.workers, wake)?),
        BackendChoice::Auto => {
            match Uring::new(config.entries, config.completions, Arc::clone(&wake)) {
                Ok(ring) => Driver::Uring(ring),
                Err(error) => {
                    tracing::info!(%error, "io_uring is refused, falling back to epoll");
                    Driver::Epoll(Epoll::new(config.workers, wake)?)
                }
            }
        }
    })
}

fn build(config: &Config, driver: Driver, handle: Handle) -> io::Result<Core> {
    let pool = BufferPool::new(config.pool_bytes, config.reserve_bytes)
        .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    Ok(Core::new(driver, handle, pool))
}

struct Loop {
    core: Core,
    sources: Sources,
    /// Detached sources whose operations have not all ended.
    departing: Vec<SourceId>,
    /// Sources that want every turn.
    every_turn: Vec<SourceId>,
}

impl Loop {
    fn run(mut self) -> Ended {
        let ring_thread = blkmq::enter_ring_thread();
        let mut messages = Vec::new();
        let mut report = StopReport::default();
        let mut asked_to_stop = false;
        let mut cut_at = None;
        loop {
            self.core.watch_no_buffers();
            self.core.handle().shared.take(&mut messages);
            for message in messages.drain(..) {
                self.message(message);
            }
            self.core.fire_timers();
            self.deliver();
            self.turns();
            self.arrivals();
            if self.core.is_stopping() && !std::mem::replace(&mut asked_to_stop, true) {
                self.each_source(|source, cx| source.on_stop(cx));
            }
            self.departures();
            // Last: whatever was let go in this turn is there to be lent.
            self.core.grant_buffers();
            let stop_wait = match self.stop_progress(&mut report, &mut cut_at) {
                Some(wait) => wait,
                None => break,
            };
            let retry = self.core.retry_buffers();
            let wait = [self.wait(), stop_wait, retry].into_iter().flatten().min();
            if let Err(error) = self.core.drive(wait) {
                // Nothing can be submitted any more: whoever waits must not wait for ever.
                tracing::error!(%error, "the reactor cannot enter its ring and stops");
                self.core.stop_by.get_or_insert(Instant::now());
                std::thread::yield_now();
            }
            self.core.handle().shared.awake();
        }
        drop(ring_thread);
        report.drain_time = (self.core.stop_asked).map_or(Duration::ZERO, |asked| asked.elapsed());
        self.park();
        self.end(report)
    }

    /// Keeps the ring, done as it is, for as long as somebody wants that.
    fn park(&mut self) {
        if let Some(parking) = self.core.parking.take() {
            // What was begun last is with the kernel before anybody is told.
            let _ = self.core.drive(Some(Duration::ZERO));
            parking.wait();
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Run(work) => {
                let core = &mut self.core;
                if catch_unwind(AssertUnwindSafe(|| work(core))).is_err() {
                    core.panics += 1;
                }
            }
            Message::Wake(wake) => {
                wake.deliver();
                if self.core.is_live(wake.source) {
                    self.with_source(wake.source, |source, cx| source.on_wake(cx, wake.key));
                }
            }
            Message::Look => {}
        }
        // A message may attach sources and a later one may wake them.
        self.arrivals();
    }

    fn turns(&mut self) {
        if self.every_turn.is_empty() && self.core.turns.is_empty() {
            return;
        }
        let mut every = std::mem::take(&mut self.every_turn);
        every.retain(|&id| self.core.is_live(id));
        for &id in &every {
            self.with_source(id, |source, cx| source.on_turn(cx));
        }
        every.append(&mut self.every_turn);
        self.every_turn = every;
        for id in std::mem::take(&mut self.core.turns) {
            self.core.turn_begins(id);
            if self.core.is_live(id) {
                self.with_source(id, |source, cx| source.on_turn(cx));
            }
        }
    }

    fn arrivals(&mut self) {
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
                    self.with_source(id, |source, cx| source.on_attached(cx));
                }
            }
        }
    }

    fn departures(&mut self) {
        if self.departing.is_empty() && self.core.leaving.is_empty() {
            return;
        }
        self.departing.append(&mut self.core.take_leaving());
        let mut departing = std::mem::take(&mut self.departing);
        departing.retain(|&id| {
            if !self.core.release(id) {
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

    fn each_source(&mut self, mut call: impl FnMut(&mut dyn Source, &mut Cx<'_>)) {
        let ids: Vec<SourceId> = self.sources.0.iter().flatten().map(|(id, _)| *id).collect();
        for id in ids {
            if self.core.is_live(id) {
                self.with_source(id, &mut call);
            }
        }
    }

    fn with_source(&mut self, id: SourceId, call: impl FnOnce(&mut dyn Source, &mut Cx<'_>)) {
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
            self.core.panics += 1;
            self.core.detach(id);
        }
        self.sources.0[id.slot as usize] = Some((id, source));
    }

    /// How long the next wait may be: not at all while there is something to do.
    fn wait(&mut self) -> Option<Duration> {
        let core = &mut self.core;
        let busy = core.next_delivery().is_some()
            || !core.turns.is_empty()
            || !core.leaving.is_empty()
            || core.enter_frees()
            || !core.arrivals.is_empty();
        if busy || !core.handle().shared.prepare_sleep() {
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
        let Some(by) = self.core.stop_by else {
            return Some(None);
        };
        let stats = self.core.stats();
        // CommandDriver that only their driver or the end of the ring can end keep nobody.
        let detached = stats.sources == self.departing.len() && self.core.next_delivery().is_none();
        if detached && stats.ops == stats.armed {
            return None;
        }
        let now = Instant::now();
        if now < by {
            return Some(Some(by - now));
        }
        let cut = *cut_at.get_or_insert_with(|| {
            report.sources_forced = stats.sources - self.departing.len();
            self.each_source(|_, cx| cx.detach());
            self.core.cancel_all();
            now
        });
        let over = cut + LINGER;
        if now >= over {
            return None;
        }
        let busy = !self.core.leaving.is_empty() || self.core.next_delivery().is_some();
        Some(Some(if busy { Duration::ZERO } else { over - now }))
    }

    /// Closes the ring, then lets the sources go, then the files.
    fn end(self, mut report: StopReport) -> Ended {
        let Loop {
            mut core,
            mut sources,
            ..
        } = self;
        let late = core.handle().shared.close();
        // What was handed over last (closing descriptors) goes to the kernel before the ring
        // does.
        let _ = core.drive(Some(Duration::ZERO));
        core.judge_rest();
        let began = Instant::now();
        report.panics = core.panics;
        let stats = core.stats();
        report.ops_armed = stats.armed;
        report.ops_abandoned = stats.ops - stats.armed;
        let mut memory = sources.leave();
        let (last, files) = core.close_ring();
        memory.0.extend(last);
        if report.ops_abandoned > 0 {
            // Plans must not be given back while their I/O may land: left behind on purpose.
            tracing::error!(
                ops = report.ops_abandoned,
                "operations did not end; memory is left"
            );
            Box::leak(Box::new(sources));
        } else {
            drop(sources);
        }
        drop(late);
        drop(files);
        let at = Instant::now();
        report.close_time = at - began;
        Ended {
            report,
            at,
            _memory: memory,
        }
    }
}

#[cfg(test)]
mod tests;
