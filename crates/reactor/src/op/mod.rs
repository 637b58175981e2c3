//! Operations, their completions, and what a raw result means: finished, or go on.
//!
//! A result is what happened (R8): reads and writes at an offset are continued until every byte is
//! moved, or are an error; sends likewise; a receive reports how much came; a device command returns
//! its raw result. This file decides that for all drivers; they only carry out single calls.
//!
//! An error of the kernel stays the kernel's errno ([`io::Error::raw_os_error`]) up to the source. An
//! end of file or a device that takes no more bytes has no errno: it is `UnexpectedEof` or `WriteZero`.

mod command;
mod fixed;
mod send;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use crate::buf::Buf;
use crate::call::Call;
use crate::ids::FileIndex;

pub use command::Command;
pub(crate) use fixed::FixedTransfer;
pub use send::SendPart;
use send::SendTransfer;

/// An operation to begin.
#[derive(Debug)]
pub enum Op {
    /// Take one connection from a listening socket.
    Accept {
        /// The listening socket.
        file: FileIndex,
    },
    /// Receive into `buf[at..]`.
    Recv {
        /// The socket.
        file: FileIndex,
        /// Where to.
        buf: Buf,
        /// First byte to fill.
        at: usize,
        /// Fill it to the end, however many packets that takes; the peer's end is an error then.
        exact: bool,
    },
    /// Send all of these, in order.
    Send {
        /// The socket.
        file: FileIndex,
        /// What.
        parts: Vec<SendPart>,
    },
    /// Read the whole of `buf` from a file.
    Read {
        /// The file.
        file: FileIndex,
        /// Byte offset.
        offset: u64,
        /// Where to.
        buf: Buf,
    },
    /// Write the whole of `buf` to a file.
    Write {
        /// The file.
        file: FileIndex,
        /// Byte offset.
        offset: u64,
        /// What.
        buf: Buf,
    },
    /// Read `len` bytes from a file into the memory of a buffer slot.
    ReadFixed {
        /// The file.
        file: FileIndex,
        /// Byte offset in the file.
        offset: u64,
        /// The buffer slot ([`crate::Core::take_buffer_slots`]).
        slot: u16,
        /// First byte within the slot's memory.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Write `len` bytes of a buffer slot's memory to a file.
    WriteFixed {
        /// The file.
        file: FileIndex,
        /// Byte offset in the file.
        offset: u64,
        /// The buffer slot.
        slot: u16,
        /// First byte within the slot's memory.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// A command for the device behind a file.
    Command(Command),
    /// Make a file's content durable.
    Sync {
        /// The file.
        file: FileIndex,
        /// Leave out metadata that reading the content back does not need (fdatasync).
        data_only: bool,
    },
    /// Wait until one of the `poll(2)` events is there.
    Poll {
        /// The descriptor.
        file: FileIndex,
        /// `POLLIN`, `POLLOUT`.
        events: u32,
    },
    /// Wait.
    Timeout {
        /// How long.
        after: Duration,
    },
}

/// The end of an operation, named after it. Everything it owned comes back.
#[derive(Debug)]
pub enum Completion {
    /// A connection was accepted.
    Accept(io::Result<OwnedFd>),
    /// Bytes were received: how many, zero for the peer's end. An exact receive reports all or an error.
    Recv(Buf, io::Result<usize>),
    /// All parts were handed to the socket.
    Send(Vec<SendPart>, io::Result<()>),
    /// The buffer was filled.
    Read(Buf, io::Result<()>),
    /// The buffer was written.
    Write(Buf, io::Result<()>),
    /// All bytes went between the file and the buffer slot.
    Fixed(io::Result<()>),
    /// The device's raw result, a count or a negated errno (`-EINTR` and `-EAGAIN` too; on a reactor
    /// without a ring always `-EOPNOTSUPP`).
    Command(i32),
    /// The number and the raw result of an armed command that its source did not take in
    /// [`crate::Source::on_armed_completions`].
    ArmedCommand(u32, i32),
    /// The file is durable, or must be treated as damaged: a failed sync is never retried.
    Sync(io::Result<()>),
    /// These events are there.
    Poll(io::Result<u32>),
    /// The time has elapsed, or the operation was cancelled.
    Timeout(io::Result<()>),
    /// A buffer that the source waited for.
    Buffer(Buf),
}

/// An operation in flight and how far it is.
pub(crate) enum Work {
    Accept,
    Recv {
        buf: Buf,
        filled: usize,
        exact: bool,
        received: usize,
    },
    Send(Box<SendTransfer>),
    Read {
        buf: Buf,
        offset: u64,
        done: usize,
    },
    Write {
        buf: Buf,
        offset: u64,
        done: usize,
    },
    Fixed(FixedTransfer),
    Command,
    Sync {
        data_only: bool,
    },
    Poll {
        events: u32,
    },
    Timeout,
}

impl Work {
    /// The operation's file and its state at the start, of those that are not on the way of every
    /// request.
    pub(crate) fn new(op: Op) -> (FileIndex, Work) {
        match op {
            Op::Accept { file } => (file, Work::Accept),
            Op::Recv {
                file,
                buf,
                at,
                exact,
            } => (
                file,
                Work::Recv {
                    buf,
                    filled: at,
                    exact,
                    received: 0,
                },
            ),
            Op::Send { file, parts } => (file, Work::Send(SendTransfer::new(parts))),
            Op::Read { file, offset, buf } => (
                file,
                Work::Read {
                    buf,
                    offset,
                    done: 0,
                },
            ),
            Op::Write { file, offset, buf } => (
                file,
                Work::Write {
                    buf,
                    offset,
                    done: 0,
                },
            ),
            Op::Sync { file, data_only } => (file, Work::Sync { data_only }),
            Op::Poll { file, events } => (file, Work::Poll { events }),
            Op::Command(_) | Op::ReadFixed { .. } | Op::WriteFixed { .. } | Op::Timeout { .. } => {
                unreachable!("`Core::submit` dispatches these before")
            }
        }
    }

    /// Whether there is nothing to do: no call is made for it.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Work::Recv { buf, filled, .. } => *filled >= buf.len(),
            Work::Send(sending) => sending.is_finished(),
            Work::Read { buf, .. } | Work::Write { buf, .. } => buf.is_empty(),
            Work::Fixed(fixed) => fixed.is_finished(),
            _ => false,
        }
    }

    /// The next single call; its pointers are good as long as `self` is neither used nor freed.
    #[inline]
    pub(crate) fn call(&mut self) -> Call {
        match self {
            Work::Accept => Call::Accept,
            Work::Recv {
                buf, filled, exact, ..
            } => {
                let rest = &mut buf[*filled..];
                Call::Recv {
                    to: rest.as_mut_ptr(),
                    len: rest.len(),
                    all: *exact,
                }
            }
            Work::Send(sending) => Call::Send {
                msg: sending.message(),
            },
            Work::Read { buf, offset, done } => Call::Read {
                to: buf.raw().wrapping_add(*done),
                len: buf.len() - *done,
                offset: *offset + *done as u64,
            },
            Work::Write { buf, offset, done } => Call::Write {
                from: buf.raw().wrapping_add(*done),
                len: buf.len() - *done,
                offset: *offset + *done as u64,
            },
            Work::Fixed(fixed) => fixed.call(),
            Work::Command => unreachable!("a command's only call was made"),
            Work::Sync { data_only } => Call::Sync {
                data_only: *data_only,
            },
            Work::Poll { events } => Call::Poll { events: *events },
            Work::Timeout => unreachable!("timeouts are kept by the core"),
        }
    }

    /// Its completion, without or with an error.
    pub(crate) fn into_completion(self, result: io::Result<()>) -> Completion {
        match self {
            Work::Accept => Completion::Accept(Err(result.err().unwrap_or_else(cancelled_error))),
            Work::Recv { buf, received, .. } => Completion::Recv(buf, result.map(|()| received)),
            Work::Send(sending) => Completion::Send(sending.into_parts(), result),
            Work::Read { buf, .. } => Completion::Read(buf, result),
            Work::Write { buf, .. } => Completion::Write(buf, result),
            Work::Fixed(_) => Completion::Fixed(result),
            Work::Command => Completion::Command(raw_of(&result)),
            Work::Sync { .. } => Completion::Sync(result),
            Work::Poll { .. } => Completion::Poll(result.map(|()| 0)),
            Work::Timeout => Completion::Timeout(result),
        }
    }

    /// Takes in the raw result of the last call, a count or a negated errno. Returns the completion,
    /// which takes what `self` owned, or `None` where another call is to be made. In place: every
    /// request passes here twice, with kinds of operations that own nothing to move.
    pub(crate) fn on_result(&mut self, raw: i32, cancelled: bool) -> Option<Completion> {
        if matches!(self, Work::Command) {
            return Some(Completion::Command(raw));
        }
        // A sync that failed is never made again (R10): the next one would succeed, although what
        // this one was for may be lost.
        let interrupted = raw == -libc::EINTR || raw == -libc::EAGAIN;
        if interrupted && !matches!(self, Work::Sync { .. }) {
            return cancelled.then(|| self.finish(Err(cancelled_error())));
        }
        if raw < 0 {
            return Some(self.finish(Err(io::Error::from_raw_os_error(-raw))));
        }
        match self {
            Work::Accept => {
                // SAFETY: a successful accept returned this new descriptor, which has no owner yet.
                let socket = unsafe { OwnedFd::from_raw_fd(raw) };
                return Some(Completion::Accept(Ok(socket)));
            }
            Work::Poll { .. } => return Some(Completion::Poll(Ok(raw as u32))),
            _ => {}
        }
        match self.advance(raw as usize) {
            Some(result) => Some(self.finish(result)),
            None if cancelled => Some(self.finish(Err(cancelled_error()))),
            None => None,
        }
    }

    /// Takes in how many bytes the last call moved. Returns the outcome, or `None` where there is more
    /// to do. A call that moved nothing is an error, as the next one would move nothing either.
    fn advance(&mut self, count: usize) -> Option<io::Result<()>> {
        let (finished, no_progress) = match self {
            Work::Fixed(fixed) => return fixed.advance(count),
            Work::Recv {
                buf,
                filled,
                exact,
                received,
            } => {
                *filled += count;
                *received += count;
                let full = *filled >= buf.len();
                (!*exact || full, io::ErrorKind::UnexpectedEof)
            }
            Work::Send(sending) => {
                sending.advance(count);
                (sending.is_finished(), io::ErrorKind::WriteZero)
            }
            Work::Read { buf, done, .. } => {
                *done += count;
                (*done >= buf.len(), io::ErrorKind::UnexpectedEof)
            }
            Work::Write { buf, done, .. } => {
                *done += count;
                (*done >= buf.len(), io::ErrorKind::WriteZero)
            }
            // One call is all of it.
            Work::Accept
            | Work::Poll { .. }
            | Work::Command
            | Work::Sync { .. }
            | Work::Timeout => return Some(Ok(())),
        };
        match count {
            _ if finished => Some(Ok(())),
            0 => Some(Err(no_progress.into())),
            _ => None,
        }
    }

    /// Its completion, in place; what is left owns nothing and is not called again.
    fn finish(&mut self, result: io::Result<()>) -> Completion {
        if let Work::Fixed(_) = self {
            return Completion::Fixed(result);
        }
        std::mem::replace(self, Work::Timeout).into_completion(result)
    }
}

/// The raw result of a command that no device was asked.
fn raw_of(result: &io::Result<()>) -> i32 {
    let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    result.as_ref().err().map_or(0, |error| -errno(error))
}

/// The error of an operation that was cancelled.
fn cancelled_error() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

#[cfg(test)]
mod tests;
