//! Operations, their completions, and what a raw result means: finished, or go on.
//!
//! A result is what happened (R8): reads and writes at an offset are continued until every byte
//! is moved or are an error, sends likewise, and a receive says how much came. This file decides
//! that for both drivers; they only carry out single calls.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use crate::buf::Buf;
use crate::driver::Call;
use crate::files::FileIndex;

/// A source's own name for an operation, given back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// An operation in flight; names it for [`crate::Core::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) u64);

/// A piece of a vectored send.
#[derive(Debug)]
pub enum Part {
    /// A few bytes: headers.
    Bytes(Vec<u8>),
    /// A buffer.
    Buf(Buf),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Buf(buf) => buf,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}

/// What is asked of the reactor.
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
        parts: Vec<Part>,
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

/// The end of an operation. Everything it owned comes back.
#[derive(Debug)]
pub enum Completion {
    /// A connection came.
    Accepted(io::Result<OwnedFd>),
    /// Bytes came: how many, zero for the peer's end. An exact receive reports all or an error.
    Received(Buf, io::Result<usize>),
    /// Everything was handed to the socket.
    Sent(Vec<Part>, io::Result<()>),
    /// The buffer was filled.
    Read(Buf, io::Result<()>),
    /// The buffer was written.
    Wrote(Buf, io::Result<()>),
    /// The file is durable, or must be taken for damaged: a failed sync is never retried.
    Synced(io::Result<()>),
    /// These events are there.
    Polled(io::Result<u32>),
    /// The time is over, or the operation was cancelled.
    Elapsed(io::Result<()>),
    /// A buffer that was waited for.
    Buffer(Buf),
}

/// A vectored send under way: the kernel reads `msg`, `iov` and the parts until it is done.
pub(crate) struct Sending {
    parts: Vec<Part>,
    iov: Vec<libc::iovec>,
    /// First vector with something left.
    next: usize,
    msg: libc::msghdr,
}

/// Vectors per call; the kernel's own limit.
const IOV_MAX: usize = 1024;

impl Sending {
    fn new(parts: Vec<Part>) -> Box<Sending> {
        let iov = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| libc::iovec {
                iov_base: part.bytes().as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        // SAFETY: a `msghdr` of zeroes is valid: no name, no vectors, no control data.
        let msg = unsafe { std::mem::zeroed() };
        Box::new(Sending {
            parts,
            iov,
            next: 0,
            msg,
        })
    }

    fn finished(&self) -> bool {
        self.next == self.iov.len()
    }

    fn message(&mut self) -> *const libc::msghdr {
        let rest = &mut self.iov[self.next..];
        self.msg.msg_iov = rest.as_mut_ptr();
        // Both libcs take another integer type here.
        self.msg.msg_iovlen = rest.len().min(IOV_MAX) as _;
        &raw const self.msg
    }

    /// Leaves out the first `sent` bytes.
    fn advance(&mut self, mut sent: usize) {
        while let Some(head) = self.iov.get_mut(self.next) {
            if sent < head.iov_len {
                head.iov_base = head.iov_base.cast::<u8>().wrapping_add(sent).cast();
                head.iov_len -= sent;
                return;
            }
            sent -= head.iov_len;
            self.next += 1;
        }
    }
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
    Send(Box<Sending>),
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
    Sync {
        data_only: bool,
    },
    Poll {
        events: u32,
    },
    Timeout,
}

/// What a raw result led to.
pub(crate) enum Verdict {
    Again(Work),
    Done(Completion),
}

impl Work {
    /// The operation's file and its state at the start.
    pub(crate) fn new(op: Op) -> (Option<FileIndex>, Work) {
        match op {
            Op::Accept { file } => (Some(file), Work::Accept),
            Op::Recv {
                file,
                buf,
                at,
                exact,
            } => (
                Some(file),
                Work::Recv {
                    buf,
                    filled: at,
                    exact,
                    received: 0,
                },
            ),
            Op::Send { file, parts } => (Some(file), Work::Send(Sending::new(parts))),
            Op::Read { file, offset, buf } => (
                Some(file),
                Work::Read {
                    buf,
                    offset,
                    done: 0,
                },
            ),
            Op::Write { file, offset, buf } => (
                Some(file),
                Work::Write {
                    buf,
                    offset,
                    done: 0,
                },
            ),
            Op::Sync { file, data_only } => (Some(file), Work::Sync { data_only }),
            Op::Poll { file, events } => (Some(file), Work::Poll { events }),
            Op::Timeout { .. } => (None, Work::Timeout),
        }
    }

    /// Whether there is nothing to do at all: no call is made for it.
    pub(crate) fn empty(&self) -> bool {
        match self {
            Work::Recv { buf, filled, .. } => *filled >= buf.len(),
            Work::Send(sending) => sending.finished(),
            Work::Read { buf, .. } | Work::Write { buf, .. } => buf.is_empty(),
            _ => false,
        }
    }

    /// The next single call; its pointers are good as long as `self` is neither used nor freed.
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
            Work::Sync { data_only } => Call::Sync {
                data_only: *data_only,
            },
            Work::Poll { events } => Call::Poll { events: *events },
            Work::Timeout => unreachable!("timeouts are kept by the core"),
        }
    }

    /// The end of it, without or with an error.
    pub(crate) fn end(self, result: io::Result<()>) -> Completion {
        match self {
            Work::Accept => Completion::Accepted(Err(result.err().unwrap_or_else(cancelled))),
            Work::Recv { buf, received, .. } => {
                Completion::Received(buf, result.map(|()| received))
            }
            Work::Send(sending) => Completion::Sent(sending.parts, result),
            Work::Read { buf, .. } => Completion::Read(buf, result),
            Work::Write { buf, .. } => Completion::Wrote(buf, result),
            Work::Sync { .. } => Completion::Synced(result),
            Work::Poll { .. } => Completion::Polled(result.map(|()| 0)),
            Work::Timeout => Completion::Elapsed(result),
        }
    }

    /// Judges the raw result of the last call: a count, or a negated errno.
    pub(crate) fn judge(mut self, raw: i32, stop: bool) -> Verdict {
        if raw == -libc::EINTR || raw == -libc::EAGAIN {
            return if stop {
                self.ended(Err(cancelled()))
            } else {
                Verdict::Again(self)
            };
        }
        if raw < 0 {
            return self.ended(Err(io::Error::from_raw_os_error(-raw)));
        }
        let count = raw as usize;
        match &mut self {
            Work::Accept => {
                // SAFETY: a successful accept returned this new descriptor, owned by nobody yet.
                let socket = unsafe { OwnedFd::from_raw_fd(raw) };
                return Verdict::Done(Completion::Accepted(Ok(socket)));
            }
            Work::Poll { .. } => return Verdict::Done(Completion::Polled(Ok(raw as u32))),
            Work::Sync { .. } | Work::Timeout => return self.ended(Ok(())),
            Work::Recv {
                buf,
                filled,
                exact,
                received,
            } => {
                *filled += count;
                *received += count;
                if !*exact || *filled >= buf.len() {
                    return self.ended(Ok(()));
                }
                if count == 0 {
                    return self.ended(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Work::Send(sending) => {
                sending.advance(count);
                if sending.finished() {
                    return self.ended(Ok(()));
                }
                if count == 0 {
                    return self.ended(Err(io::ErrorKind::WriteZero.into()));
                }
            }
            Work::Read { buf, done, .. } => {
                *done += count;
                if *done >= buf.len() {
                    return self.ended(Ok(()));
                }
                if count == 0 {
                    return self.ended(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Work::Write { buf, done, .. } => {
                *done += count;
                if *done >= buf.len() {
                    return self.ended(Ok(()));
                }
                if count == 0 {
                    return self.ended(Err(io::ErrorKind::WriteZero.into()));
                }
            }
        }
        if stop {
            self.ended(Err(cancelled()))
        } else {
            Verdict::Again(self)
        }
    }

    fn ended(self, result: io::Result<()>) -> Verdict {
        Verdict::Done(self.end(result))
    }
}

/// The error of an operation that was cancelled.
pub(crate) fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(len: usize) -> Work {
        Work::Read {
            buf: Buf::allocate(len).unwrap(),
            offset: 100,
            done: 0,
        }
    }

    #[test]
    fn a_short_read_is_continued_where_it_stopped() {
        let Verdict::Again(mut work) = read_of(1000).judge(300, false) else {
            panic!("finished early")
        };
        let Call::Read { len, offset, .. } = work.call() else {
            panic!("another call")
        };
        assert_eq!((len, offset), (700, 400));
        assert!(matches!(
            work.judge(700, false),
            Verdict::Done(Completion::Read(_, Ok(())))
        ));
    }

    #[test]
    fn the_end_of_a_file_inside_a_read_is_an_error() {
        let Verdict::Done(Completion::Read(_, Err(error))) = read_of(10).judge(0, false) else {
            panic!("taken for success")
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_cancelled_operation_is_not_continued() {
        for raw in [300, -libc::EINTR] {
            let verdict = read_of(1000).judge(raw, true);
            let Verdict::Done(Completion::Read(_, Err(error))) = verdict else {
                panic!("continued after cancel")
            };
            assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        }
    }

    #[test]
    fn a_short_send_leaves_out_what_was_sent() {
        let parts = vec![
            Part::Bytes(vec![1; 10]),
            Part::Bytes(vec![]),
            Part::Buf(Buf::allocate(100).unwrap()),
        ];
        let work = Work::Send(Sending::new(parts));
        let Verdict::Again(Work::Send(mut sending)) = work.judge(40, false) else {
            panic!("finished early")
        };
        assert_eq!((sending.next, sending.iov[1].iov_len), (1, 70));
        sending.message();
        assert_eq!(sending.msg.msg_iovlen, 1);
        let Verdict::Done(Completion::Sent(parts, Ok(()))) = Work::Send(sending).judge(70, false)
        else {
            panic!("not finished")
        };
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn a_receive_says_how_much_came_and_an_exact_one_fills_up() {
        let recv = |exact| Work::Recv {
            buf: Buf::allocate(100).unwrap(),
            filled: 20,
            exact,
            received: 0,
        };
        let Verdict::Done(Completion::Received(_, Ok(30))) = recv(false).judge(30, false) else {
            panic!("another count")
        };
        let Verdict::Again(rest) = recv(true).judge(30, false) else {
            panic!("cut short")
        };
        assert!(matches!(
            rest.judge(50, false),
            Verdict::Done(Completion::Received(_, Ok(80)))
        ));
    }
}
