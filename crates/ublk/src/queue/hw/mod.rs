//! The driver's side of a queue: issues FETCH, takes requests, commits results. It knows neither
//! handlers nor what requests mean.
//!
//! Only -ENODEV (UBLK_IO_RES_ABORT) retires a tag. After every other refusal the server still has the
//! tag, so the command is issued again after a pause that grows; a result that is refused again and
//! again becomes EIO, because the driver must get some result: a tag that is lost hangs the removal of
//! its device.
//!
//! Commands are only queued here. The reactor submits all commands of a turn with one enter. `commit`
//! has the way of results and of refused commands, `detach` the ways out of the reactor.

mod commit;
mod detach;
mod phase;
mod prepare;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use blkmq::io::Op as RequestOp;
use reactor::op::Command;
use reactor::{Buf, FileIndex, Port};

use super::descriptors::{Descriptors, bytes_of};
use super::mode::driver::{CommandBuilder, Commit, DataAccess};
use super::mode::{Mode, ModeParts};
use super::parts::{QueueObserver, QueueParts};
use super::request::{Data, Request, RequestHeader, ReturnQueue};
use super::stats::Counters;
use super::tags::{LastCommand, Share, TagState, Tags};
use super::token::{self, CommandKind, KEY_RETURN_QUEUE};
use crate::sys::{self, IoDescriptor};
use phase::Phase;

/// A hardware queue, or a share of one, as the driver sees it.
pub(super) struct HwQueue {
    device: u32,
    queue: u16,
    depth: u16,
    share: Share,
    io_bytes_max: u32,
    /// Whether a driver that has no idle tag left misses the server's exit (before 6.16).
    exit_needs_idle_tag: bool,
    char_device: Arc<OwnedFd>,
    file: Option<FileIndex>,
    descriptors: Descriptors,
    mode: Mode,
    tags: Tags,
    phase: Phase,
    /// Requests that arrived while the queue drains, with the states of their tags.
    held: VecDeque<(u16, TagState)>,
    detached: bool,
    pub(super) return_queue: Arc<ReturnQueue>,
    waker: Waker,
    pub(super) counters: Arc<Counters>,
    pub(super) observer: Arc<dyn QueueObserver>,
}

impl HwQueue {
    pub(super) fn new(parts: QueueParts) -> HwQueue {
        let user_copy = parts.flags & sys::F_USER_COPY != 0;
        let mode = Mode::new(ModeParts {
            flags: parts.flags,
            depth: parts.depth,
            share: parts.share,
            io_bytes_max: parts.io_bytes_max,
            slots_max: parts.slots_max,
            pool: parts.pool,
        });
        HwQueue {
            device: parts.device,
            queue: parts.queue,
            depth: parts.depth,
            share: parts.share,
            io_bytes_max: parts.io_bytes_max,
            exit_needs_idle_tag: parts.flags & sys::F_PER_IO_TASK == 0,
            char_device: parts.char_device,
            file: None,
            descriptors: parts.descriptors,
            mode,
            tags: Tags::new(parts.depth, parts.share),
            phase: Phase::Serving,
            held: VecDeque::new(),
            detached: false,
            return_queue: ReturnQueue::new(
                Arc::clone(&parts.counters),
                user_copy.then_some(parts.queue),
            ),
            waker: Waker::noop().clone(),
            counters: parts.counters,
            observer: parts.observer,
        }
    }

    /// The handler panicked: its request was dropped with the call, and so fails.
    #[cold]
    pub(super) fn on_handler_panic(&self) {
        self.counters.panics.increment();
        tracing::error!(
            device = self.device,
            queue = self.queue,
            "ublk: a handler panicked; its request fails"
        );
    }

    /// Takes the memory that the driver's commands name.
    pub(super) fn take_driver_buffers(&mut self) -> Vec<Buf> {
        self.mode.take_driver_buffers()
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    /// The character device, once the queue is attached.
    pub(super) fn file(&self) -> FileIndex {
        self.file
            .expect("registered when the queue is attached, before any call of a handler")
    }

    fn commands(&self) -> CommandBuilder {
        CommandBuilder {
            file: self.file(),
            queue: self.queue,
        }
    }

    /// Registers the character device and slots, and issues FETCH for every tag.
    pub(super) fn start<P: Port>(&mut self, port: &mut P) {
        self.file = Some(port.register(Arc::clone(&self.char_device)));
        self.waker = port.waker(KEY_RETURN_QUEUE);
        self.return_queue.set_waker(self.waker.clone());
        if let Mode::ZeroCopy(zero_copy) = &mut self.mode {
            zero_copy.reserve_slots(port);
        }
        for tag in self.share.tags(self.depth) {
            self.reissue(port, tag);
        }
        self.observer.on_fetches_issued(self.queue);
    }

    /// Issues the tag's `last_command`, for the first time or again.
    fn reissue<P: Port>(&mut self, port: &mut P, tag: u16) {
        match self.tags.of(tag).last_command {
            LastCommand::Fetch => {
                let command = self.mode.fetch(self.commands(), tag);
                self.issue(port, tag, command);
            }
            LastCommand::Commit { result } => self.issue_commit(port, tag, result, None),
            LastCommand::Prepare => self.prepare(port, tag),
        }
    }

    #[inline(always)]
    fn issue_commit<P: Port>(&mut self, port: &mut P, tag: u16, result: i32, buf: Option<Buf>) {
        let commit = Commit {
            tag,
            result,
            op: self.tags.of(tag).op,
            buf,
        };
        let command = self.mode.commit(port, self.commands(), commit);
        self.issue(port, tag, command);
    }

    /// Gives a tag to the driver with this command.
    #[inline(always)]
    fn issue<P: Port>(&mut self, port: &mut P, tag: u16, command: Option<Command>) {
        let Some(command) = command else {
            // Memory is short, or a read's buffer is gone with the command that was refused.
            return self.on_refused(port, tag, -libc::ENOMEM);
        };
        self.tags.set(tag, TagState::WithDriver);
        port.arm(token::command_number(CommandKind::Fetch, tag), command);
    }

    /// FETCH, COMMIT_AND_FETCH or NEED_GET_DATA has completed. Returns the request for the handler.
    pub(super) fn on_command<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        match raw {
            sys::RESULT_OK => self.on_fetched(port, tag),
            sys::RESULT_NEED_GET_DATA => {
                self.on_get_data(port, tag);
                None
            }
            sys::RESULT_ABORT => {
                self.on_tag_aborted(port, tag);
                None
            }
            _ => {
                self.on_refused(port, tag, raw);
                None
            }
        }
    }

    /// FETCH completed with a request.
    fn on_fetched<P: Port>(&mut self, port: &mut P, tag: u16) -> Option<Request> {
        self.tags.on_fetched(tag, TagState::WithHandler);
        if self.abandons_new() {
            self.abandon_tag(port, tag);
            return None;
        }
        if self.hold_if_draining(tag) {
            return None;
        }
        self.accept(port, tag)
    }

    /// The same in [`Phase::Serving`], which is the hot path.
    #[inline(always)]
    pub(super) fn on_fetched_serving<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
    ) -> Option<Request> {
        self.tags.on_fetched(tag, TagState::WithHandler);
        self.accept(port, tag)
    }

    /// Whether a new request goes to the handler at once.
    #[inline(always)]
    pub(super) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    /// Makes a request of a tag that the driver handed over; `None` where it needs a slot first, or
    /// fails.
    #[inline(always)]
    fn accept<P: Port>(&mut self, port: &mut P, tag: u16) -> Option<Request> {
        let descriptor = self.descriptors.get(tag);
        let bytes = match bytes_of(&descriptor, self.io_bytes_max) {
            Ok(bytes) => bytes,
            Err(errno) => {
                self.record_op(tag, descriptor.op(), 0);
                self.reject(port, tag, errno);
                return None;
            }
        };
        self.record_op(tag, descriptor.op(), bytes);
        let data = match &mut self.mode {
            Mode::Copy(buffers) => buffers.take(tag, bytes),
            Mode::UserCopy if bytes > 0 => Data::Window,
            Mode::UserCopy | Mode::GetData(_) => Data::None,
            Mode::ZeroCopy(zero_copy) => {
                match zero_copy.data_access(tag, descriptor.op_flags, bytes) {
                    DataAccess::Ready(data) => data,
                    DataAccess::NeedsSlot => {
                        self.on_slot_missing(port, tag);
                        return None;
                    }
                    DataAccess::Unreachable => {
                        self.reject(port, tag, libc::EIO);
                        return None;
                    }
                }
            }
        };
        if matches!((&self.mode, &data), (Mode::ZeroCopy(_), Data::Window)) {
            self.counters.fallbacks.increment();
        }
        Some(self.request(tag, &descriptor, data))
    }

    /// The driver handed over a request whose pages are in no slot.
    #[cold]
    fn on_slot_missing<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.fallbacks.increment();
        self.tags.set(tag, TagState::Waiting);
        self.prepare(port, tag);
    }

    /// Keeps what the commit of the tag must know of its request.
    fn record_op(&mut self, tag: u16, op: u8, bytes: u32) {
        let of = self.tags.of(tag);
        (of.op, of.bytes) = (op, bytes);
    }

    #[inline(always)]
    fn request(&mut self, tag: u16, descriptor: &IoDescriptor, data: Data) -> Request {
        self.counters.requests.increment();
        let (sector, sectors) = (descriptor.sector, descriptor.sectors);
        let fua = descriptor.has(sys::IO_FUA);
        let wide = u64::from(sectors);
        let op = match descriptor.op() {
            sys::OP_READ => RequestOp::Read { sector, sectors },
            sys::OP_WRITE => RequestOp::Write {
                sector,
                sectors,
                fua,
            },
            sys::OP_DISCARD => RequestOp::Discard {
                sector,
                sectors: wide,
                fua,
            },
            sys::OP_WRITE_ZEROES => RequestOp::WriteZeroes {
                sector,
                sectors: wide,
                fua,
            },
            _ => RequestOp::Flush,
        };
        let header = RequestHeader { tag, op };
        Request::new(Arc::clone(&self.return_queue), header, data)
    }

    /// [`HwQueue::on_get_data`] in [`Phase::Serving`], which is the hot path.
    #[inline(always)]
    pub(super) fn on_get_data_serving<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.tags.on_fetched(tag, TagState::Waiting);
        self.prepare(port, tag);
    }

    /// FETCH completed with a write whose bytes are still to be copied (UBLK_IO_RES_NEED_GET_DATA).
    fn on_get_data<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.tags.on_fetched(tag, TagState::Waiting);
        if self.abandons_new() {
            return self.abandon_tag(port, tag);
        }
        if !self.hold_if_draining(tag) {
            self.prepare(port, tag);
        }
    }
}
