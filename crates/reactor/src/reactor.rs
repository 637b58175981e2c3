//! A running reactor as its owner has it: started, drained, stopped.
//!
//! Starting reports what the host refused; stopping is bounded in time whatever the kernel does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{BackendChoice, Config};
use crate::core::{Core, Mailbox};
use crate::driver::{AnyDriver, BackendKind, Epoll, Uring, wake_fd};
use crate::error::{StartError, StartStep};
use crate::event_loop::EventLoop;
use crate::exit::{ThreadExit, join, stop_limit};
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::pool::BufferPool;
use crate::stop::{ParkGuard, ParkPoint, StopReport, StopRequest, park_point};

/// The deadline of a stop that comes from dropping the reactor.
const DROP_DEADLINE: Duration = Duration::from_secs(5);

/// A running reactor. Dropping it stops it with a deadline of five seconds.
#[derive(Debug)]
pub struct Reactor {
    handle: Handle,
    backend: BackendKind,
    io_flusher: bool,
    thread: Option<JoinHandle<Option<ThreadExit>>>,
    parked: Option<ParkGuard>,
}

// It may be used from any thread.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Reactor>();
};

impl Reactor {
    /// Starts a reactor's thread. The error is a [`StartError`] inside, which says what the host
    /// refused and what helps.
    pub fn start(config: Config) -> io::Result<Reactor> {
        Reactor::start_on(config, build_driver)
    }

    /// The same, with commands given to a double of the devices' driver that the reactor's thread makes.
    #[cfg(feature = "fake")]
    pub fn start_with_command_driver(
        config: Config,
        commands: impl FnOnce() -> Box<dyn crate::driver::CommandDriver> + Send + 'static,
    ) -> io::Result<Reactor> {
        Reactor::start_on(config, |config, wake| {
            let rest = Epoll::new(config.workers, wake)?;
            let fake = crate::driver::FakeDriver::new(commands(), rest);
            Ok(AnyDriver::Fake(Box::new(fake)))
        })
    }

    fn start_on(
        config: Config,
        driver: impl FnOnce(&Config, Arc<OwnedFd>) -> Result<AnyDriver, StartError> + Send + 'static,
    ) -> io::Result<Reactor> {
        let wake = wake_fd().map_err(|error| StartError::new(StartStep::WakeDescriptor, error))?;
        let mailbox = Arc::new(Inbox::new(Arc::clone(&wake)));
        let handle = Handle::new(Arc::clone(&mailbox));
        let (started, starting) = mpsc::sync_channel(1);
        let name = config.name.clone();
        let run = move || {
            let io_flusher = config.io_flusher && become_io_flusher();
            let built = driver(&config, wake).and_then(|driver| build(&config, driver, mailbox));
            let core = match built {
                Ok(core) => core,
                Err(error) => {
                    // The starter waits for exactly one answer.
                    let _ = started.send(Err(error));
                    return None;
                }
            };
            let _ = started.send(Ok((core.backend(), io_flusher)));
            Some(EventLoop::new(core).run())
        };
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|error| StartError::new(StartStep::Thread, error))?;
        let granted = starting.recv().unwrap_or_else(|_| {
            let panicked = io::Error::other("it panicked");
            Err(StartError::new(StartStep::ThreadEnded, panicked))
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
                // It has nothing left to do, so this does not wait.
                let _ = thread.join();
                Err(error.into())
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
    pub fn is_io_flusher(&self) -> bool {
        self.io_flusher
    }

    /// Does the first half of [`Reactor::stop`]: asks all sources to finish, cuts off at the
    /// deadline those that have not, and waits for that. Everything submitted is with the kernel
    /// then, the thread submits nothing more, and the ring stays open with its armed commands until
    /// the reactor is stopped. False where the thread does not get there: then nothing is known of it.
    pub fn drain(&mut self, within: Duration) -> bool {
        blkmq::may_block("draining a reactor");
        if self.parked.is_none() {
            let (park_point, waiter) = park_point();
            self.request_stop(within, Some(park_point));
            self.parked = waiter.wait(stop_limit(within));
        }
        self.parked.is_some()
    }

    /// Asks all sources to finish, cuts off at the deadline those that have not, and waits. The wait
    /// is bounded too: a thread that does not come out of the kernel is reported and left alone.
    pub fn stop(mut self, within: Duration) -> StopReport {
        self.stop_within(within).unwrap_or_default()
    }

    fn stop_within(&mut self, within: Duration) -> Option<StopReport> {
        let thread = self.thread.take()?;
        blkmq::may_block("stopping a reactor");
        if self.parked.take().is_none() {
            self.request_stop(within, None);
        }
        join(thread, Instant::now() + stop_limit(within))
    }

    fn request_stop(&self, within: Duration, park_point: Option<ParkPoint>) {
        let now = Instant::now();
        // A reactor that has ended already needs no message.
        let _ = self.handle.post(move |core| {
            core.stop = Some(StopRequest {
                deadline: now + within,
                requested_at: Some(now),
                park_point,
            });
        });
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop_within(DROP_DEADLINE);
    }
}

/// Marks the calling thread; its workers and those of its ring inherit the mark.
fn become_io_flusher() -> bool {
    let set = rustix::process::configure_io_flusher_behavior(true);
    if let Err(error) = set {
        tracing::debug!(
            %error,
            "prctl(PR_SET_IO_FLUSHER) refused for the reactor's thread; grant CAP_SYS_RESOURCE \
             where disks are mounted on this host"
        );
    }
    set.is_ok()
}

fn build_driver(config: &Config, wake: Arc<OwnedFd>) -> Result<AnyDriver, StartError> {
    let ring = |wake| Uring::new(config.entries, config.completions, wake);
    let epoll = |wake| Epoll::new(config.workers, wake).map(AnyDriver::Epoll);
    match config.backend {
        BackendChoice::Only(BackendKind::IoUring) => ring(wake).map(AnyDriver::Uring),
        BackendChoice::Only(BackendKind::Epoll) => epoll(wake),
        BackendChoice::Auto => match ring(Arc::clone(&wake)) {
            Ok(ring) => Ok(AnyDriver::Uring(ring)),
            Err(error) => {
                tracing::info!(%error, "falling back to epoll");
                epoll(wake)
            }
        },
    }
}

fn build(config: &Config, driver: AnyDriver, mailbox: Arc<Mailbox>) -> Result<Core, StartError> {
    let reserve_bytes = config.reserve_bytes;
    let pool = BufferPool::new(config.pool_bytes, reserve_bytes).ok_or_else(|| {
        let short = io::Error::from(io::ErrorKind::OutOfMemory);
        StartError::new(StartStep::Pool { reserve_bytes }, short)
    })?;
    Ok(Core::new(driver, mailbox, pool))
}

#[cfg(test)]
mod tests;
