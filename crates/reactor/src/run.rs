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
use crate::driver::{BackendKind, Drive, Epoll, Uring, wake_fd};
use crate::handle::{Handle, Message, Shared};
use crate::pool::Pool;
use crate::source::{Cx, Source, SourceId};

/// Completions delivered before the kernel is asked again, so that a source that produces its
/// own work cannot keep the others waiting.
const DELIVERIES_PER_TURN: usize = 1024;

/// How long after its deadline a stopping reactor waits for operations that cannot be cancelled
/// (disk I/O) before it gives up and leaves their memory behind.
const LINGER: Duration = Duration::from_secs(10);

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
    /// Bytes that its pool lends at most.
    pub pool_bytes: usize,
    /// Size of the pool's reserve: the largest buffer that a request in progress may need.
    pub reserve_bytes: usize,
    /// Threads for file calls where there is no ring.
    pub workers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: "reactor".to_owned(),
            backend: BackendChoice::Auto,
            entries: 256,
            pool_bytes: 128 << 20,
            reserve_bytes: 64 << 20,
            workers: 4,
        }
    }
}

/// How a reactor ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Sources that had not detached at the deadline.
    pub sources_cut: usize,
    /// Operations that did not end even after being cancelled; their memory was left behind.
    pub ops_abandoned: usize,
    /// Sources that panicked while the reactor ran.
    pub panics: u64,
}

/// A running reactor. Dropping it stops it with a deadline of five seconds.
#[derive(Debug)]
pub struct Reactor {
    handle: Handle,
    backend: BackendKind,
    thread: Option<JoinHandle<StopReport>>,
}

impl Reactor {
    /// Starts a reactor's thread; an error says what the host refused.
    pub fn start(config: Config) -> io::Result<Reactor> {
        let wake = wake_fd()?;
        let handle = Handle {
            shared: Arc::new(Shared::new(Arc::clone(&wake))),
        };
        let (started, starting) = mpsc::sync_channel(1);
        let thread_handle = handle.clone();
        let thread = std::thread::Builder::new()
            .name(config.name.clone())
            .spawn(move || {
                let core = match build(&config, wake, thread_handle) {
                    Ok(core) => core,
                    Err(error) => {
                        // The starter waits for exactly one answer.
                        let _ = started.send(Err(error));
                        return StopReport::default();
                    }
                };
                let _ = started.send(Ok(core.backend()));
                Loop {
                    core,
                    sources: Vec::new(),
                    departing: Vec::new(),
                    every_turn: Vec::new(),
                }
                .run()
            })?;
        let backend = starting.recv().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the reactor's thread ended before it was ready",
            ))
        });
        match backend {
            Ok(backend) => Ok(Reactor {
                handle,
                backend,
                thread: Some(thread),
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

    /// Asks all sources to finish, cuts off at the deadline what has not, and waits.
    pub fn stop(mut self, within: Duration) -> StopReport {
        self.stop_within(within).unwrap_or_default()
    }

    fn stop_within(&mut self, within: Duration) -> Option<StopReport> {
        let thread = self.thread.take()?;
        blkmq::may_block("stopping a reactor");
        let by = Instant::now() + within;
        // A reactor that has ended already needs no message.
        let _ = self.handle.post(move |core| core.stop_by = Some(by));
        thread.join().ok()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop_within(Duration::from_secs(5));
    }
}

fn build(config: &Config, wake: Arc<std::os::fd::OwnedFd>, handle: Handle) -> io::Result<Core> {
    // Write-back must not wait for memory that only write-back can free. It needs
    // CAP_SYS_RESOURCE; without it firn works, but not for disks mounted on the same host.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the reactor's thread is no I/O flusher");
    }
    let driver: Box<dyn Drive> = match config.backend {
        BackendChoice::Only(BackendKind::IoUring) => Box::new(Uring::new(config.entries, wake)?),
        BackendChoice::Only(BackendKind::Epoll) => Box::new(Epoll::new(config.workers, wake)?),
        BackendChoice::Auto => match Uring::new(config.entries, Arc::clone(&wake)) {
            Ok(ring) => Box::new(ring),
            Err(error) => {
                tracing::info!(%error, "io_uring is refused, falling back to epoll");
                Box::new(Epoll::new(config.workers, wake)?)
            }
        },
    };
    let pool = Pool::new(config.pool_bytes, config.reserve_bytes)
        .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    Ok(Core::new(driver, handle, pool))
}

struct Loop {
    core: Core,
    sources: Vec<Option<(SourceId, Box<dyn Source>)>>,
    /// Detached sources whose operations have not all ended.
    departing: Vec<SourceId>,
    /// Sources that want every turn.
    every_turn: Vec<SourceId>,
}

impl Loop {
    fn run(mut self) -> StopReport {
        let ring_thread = blkmq::enter_ring_thread();
        let mut messages = Vec::new();
        let mut report = StopReport::default();
        let mut asked_to_stop = false;
        let mut cut_at = None;
        loop {
            self.core.handle().shared.take(&mut messages);
            for message in messages.drain(..) {
                self.message(message);
            }
            self.core.fire_timers();
            self.deliver();
            self.turns();
            self.arrivals();
            if self.core.stopping() && !std::mem::replace(&mut asked_to_stop, true) {
                self.each_source(|source, cx| source.stop(cx));
            }
            self.departures();
            // Last: whatever was let go in this turn is there to be lent.
            self.core.grant_buffers();
            let stop_wait = match self.stop_progress(&mut report, &mut cut_at) {
                Some(wait) => wait,
                None => break,
            };
            let wait = [self.wait(), stop_wait].into_iter().flatten().min();
            if let Err(error) = self.core.drive(wait) {
                // Nothing can be submitted any more: whoever waits must not wait for ever.
                tracing::error!(%error, "the reactor cannot enter its ring and stops");
                self.core.stop_by.get_or_insert(Instant::now());
                std::thread::yield_now();
            }
            self.core.handle().shared.awake();
        }
        report.panics = self.core.panics;
        drop(ring_thread);
        self.end();
        report
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
                    self.with_source(wake.source, |source, cx| source.woken(cx, wake.key));
                }
            }
        }
        // A message may attach sources and a later one may wake them.
        self.arrivals();
    }

    fn deliver(&mut self) {
        for _ in 0..DELIVERIES_PER_TURN {
            let Some((source, token, completion)) = self.core.ready.pop_front() else {
                return;
            };
            if self.core.deliver(source) {
                self.with_source(source, |source, cx| source.completed(cx, token, completion));
            }
        }
    }

    fn turns(&mut self) {
        let mut every = std::mem::take(&mut self.every_turn);
        every.retain(|&id| self.core.is_live(id));
        for &id in &every {
            self.with_source(id, |source, cx| source.turn(cx));
        }
        every.append(&mut self.every_turn);
        self.every_turn = every;
        for id in std::mem::take(&mut self.core.turns) {
            self.core.turn_begins(id);
            if self.core.is_live(id) {
                self.with_source(id, |source, cx| source.turn(cx));
            }
        }
    }

    fn arrivals(&mut self) {
        while !self.core.arrivals.is_empty() {
            for (id, source) in std::mem::take(&mut self.core.arrivals) {
                let at = id.slot as usize;
                if self.sources.len() <= at {
                    self.sources.resize_with(at + 1, || None);
                }
                if source.every_turn() {
                    self.every_turn.push(id);
                }
                self.sources[at] = Some((id, source));
                if self.core.is_live(id) {
                    self.with_source(id, |source, cx| source.attached(cx));
                }
            }
        }
    }

    fn departures(&mut self) {
        self.departing.append(&mut self.core.leaving);
        let mut departing = std::mem::take(&mut self.departing);
        departing.retain(|&id| {
            if !self.core.release(id) {
                return true;
            }
            let source = self
                .sources
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
        let ids: Vec<SourceId> = self.sources.iter().flatten().map(|(id, _)| *id).collect();
        for id in ids {
            if self.core.is_live(id) {
                self.with_source(id, &mut call);
            }
        }
    }

    fn with_source(&mut self, id: SourceId, call: impl FnOnce(&mut dyn Source, &mut Cx<'_>)) {
        let Some(entry) = self.sources.get_mut(id.slot as usize) else {
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
        self.sources[id.slot as usize] = Some((id, source));
    }

    /// How long the next wait may be: not at all while there is something to do.
    fn wait(&mut self) -> Option<Duration> {
        let core = &self.core;
        let busy = !core.ready.is_empty()
            || !core.turns.is_empty()
            || !core.leaving.is_empty()
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
        if stats.sources == 0 && stats.ops == 0 {
            return None;
        }
        let now = Instant::now();
        if now < by {
            return Some(Some(by - now));
        }
        let cut = *cut_at.get_or_insert_with(|| {
            report.sources_cut = stats.sources - self.departing.len();
            self.each_source(|_, cx| cx.detach());
            self.core.cancel_all();
            now
        });
        let over = cut + LINGER;
        if now >= over {
            report.ops_abandoned = stats.ops;
            return None;
        }
        let busy = !self.core.leaving.is_empty() || !self.core.ready.is_empty();
        Some(Some(if busy { Duration::ZERO } else { over - now }))
    }

    fn end(self) {
        let Loop {
            mut core, sources, ..
        } = self;
        let late = core.handle().shared.close();
        if core.stats().ops > 0 {
            // The kernel may still touch that memory, and plans must not be given back while
            // their I/O may land: all of it is left behind on purpose.
            tracing::error!(
                ops = core.stats().ops,
                "operations did not end; memory is left"
            );
            Box::leak(Box::new((core, sources)));
            return;
        }
        // What was handed over last (closing descriptors) goes to the kernel before the ring
        // does.
        let _ = core.drive(Some(Duration::ZERO));
        drop(late);
        drop(sources);
        drop(core);
    }
}
