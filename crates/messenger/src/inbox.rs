//! The worker's inbox: a list of commands with a small lock of its own, and an event descriptor that
//! is written when the list stops being empty.
//!
//! It knows nothing of what the commands say.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::lock::{Lock, Site};

/// The commands that wait for the worker.
#[derive(Debug)]
pub(crate) struct Inbox<C> {
    commands: Lock<Commands<C>>,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Commands<C> {
    list: Vec<C>,
    /// The worker is gone; no command is accepted any more.
    closed: bool,
}

impl<C> Inbox<C> {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            commands: Lock::new(Commands {
                list: Vec::new(),
                closed: false,
            }),
            wake,
        })
    }

    /// Appends a command for the worker, or returns it if the worker is gone.
    pub(crate) fn post(&self, command: C) -> Result<(), C> {
        let mut commands = self.commands.lock(Site::Post);
        if commands.closed {
            return Err(command);
        }
        let first = commands.list.is_empty();
        commands.list.push(command);
        drop(commands);
        if first {
            // A full counter means that a wake-up is pending already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes all commands. The descriptor is cleared before the list: a command posted in
    /// between costs one needless wake-up, never a lost one.
    pub(crate) fn take(&self, into: &mut Vec<C>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::swap(&mut self.commands.lock(Site::Take).list, into);
    }

    /// Takes the last commands and refuses all later ones.
    pub(crate) fn close(&self) -> Vec<C> {
        let mut commands = self.commands.lock(Site::Take);
        commands.closed = true;
        std::mem::take(&mut commands.list)
    }

    /// What the lock has cost so far.
    #[cfg(feature = "meter")]
    pub(crate) fn lock_stats(&self) -> crate::lock::LockStats {
        self.commands.stats()
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
