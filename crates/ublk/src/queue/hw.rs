//! The driver's side of a queue: hands tags to the driver, takes requests from it, gives results
//! back. It knows neither handlers nor what requests mean.
//!
//! Only -ENODEV retires a tag. Every other refusal leaves the tag ours, so its command is sent
//! again after a pause that grows; a result that is refused again and again becomes EIO, because
//! some result must be taken: a tag that is lost hangs the removal of its device.
//!
//! Commands are only queued here. The reactor hands over all of a turn with one enter. How results
//! go back, and what is refused comes again, is in `answering`; how a queue leaves in `leaving`.

mod answering;
mod leaving;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use blkmq::io::{Op as Ask, SECTOR_BYTES};
use reactor::op::Command;
use reactor::{Buf, FileIndex, Op, Port};

use super::descriptors::bytes_of;
use super::mode::zero_copy::NO_SLOT;
use super::mode::{Arrival, Commit, Driver, Mode};
use super::tags::{Sent, Share, State, Tags};
use super::token::{self, Armed, Kind};
use super::{Counters, Descriptors, KEY_RETURNED, QueueParts, Watch};
use crate::request::{Data, Home, Request, Told};
use crate::sys::{self, IoDescriptor};
use leaving::Leaving;

pub(super) struct Hw {
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
    leaving: Leaving,
    /// Requests that came to a queue that rests, and what their tags were.
    held: VecDeque<(u16, State)>,
    detached: bool,
    pub(super) home: Arc<Home>,
    waker: Waker,
    pub(super) counters: Arc<Counters>,
    pub(super) watch: Arc<dyn Watch>,
}

impl Hw {
    pub(super) fn new(parts: QueueParts) -> Hw {
        let user_copy = parts.flags & sys::F_USER_COPY != 0;
        let mode = Mode::new(
            parts.flags,
            (parts.depth, parts.share),
            parts.io_bytes_max,
            parts.slots_max,
            parts.pool,
        );
        Hw {
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
            leaving: Leaving::No,
            held: VecDeque::new(),
            detached: false,
            home: Home::new(
                Arc::clone(&parts.counters),
                user_copy.then_some(parts.queue),
            ),
            waker: Waker::noop().clone(),
            counters: parts.counters,
            watch: parts.watch,
        }
    }

    /// What it panicked over is its request, which was dropped with the call, and so fails.
    #[cold]
    pub(super) fn handler_panicked(&self) {
        self.counters.panics.one();
        tracing::error!(queue = self.queue, "a handler panicked");
    }

    /// The memory that commands name which the driver has.
    pub(super) fn leave(&mut self) -> Vec<Buf> {
        self.mode.leave()
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    /// The character device, once the queue has begun.
    pub(super) fn file(&self) -> FileIndex {
        self.file
            .expect("set when the queue begins, before any call of a handler")
    }

    fn driver(&self) -> Driver {
        Driver {
            file: self.file(),
            queue: self.queue,
        }
    }

    /// Registers what is needed and gives every tag to the driver.
    pub(super) fn begin<P: Port>(&mut self, port: &mut P) {
        self.file = Some(port.register(Arc::clone(&self.char_device)));
        self.waker = port.waker(KEY_RETURNED);
        self.home.settle(self.waker.clone());
        if let Mode::ZeroCopy(zero_copy) = &mut self.mode {
            zero_copy.begin(port);
        }
        for tag in self.share.tags(self.depth) {
            self.send(port, tag);
        }
        self.watch.armed(self.queue);
    }

    /// Sends what `sent` of the tag says, anew or for the first time.
    fn send<P: Port>(&mut self, port: &mut P, tag: u16) {
        match self.tags.of(tag).sent {
            Sent::Fetch => {
                let command = self.mode.fetch(self.driver(), tag);
                self.submit(port, tag, command);
            }
            Sent::Commit { result } => self.commit(port, tag, result, None),
            Sent::Prepare => self.prepare(port, tag),
        }
    }

    #[inline(always)]
    fn commit<P: Port>(&mut self, port: &mut P, tag: u16, result: i32, buf: Option<Buf>) {
        let commit = Commit {
            tag,
            result,
            op: self.tags.of(tag).op,
            buf,
        };
        let command = self.mode.commit(port, self.driver(), commit);
        self.submit(port, tag, command);
    }

    /// Gives a tag to the driver.
    #[inline(always)]
    fn submit<P: Port>(&mut self, port: &mut P, tag: u16, command: Option<Command>) {
        let Some(command) = command else {
            // Memory is short, or what a read brought is gone with the command that was refused.
            return self.refused(port, tag, -libc::ENOMEM);
        };
        self.tags.set(tag, State::Armed);
        port.arm(token::armed(Armed::Command, tag), command);
    }

    /// A fetch or commit has ended. A request that came of it.
    pub(super) fn commanded<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        match raw {
            sys::RESULT_OK => self.came(port, tag),
            sys::RESULT_NEED_GET_DATA => {
                self.owed(port, tag);
                None
            }
            sys::RESULT_ABORT => {
                self.retired(port, tag);
                None
            }
            _ => {
                self.refused(port, tag, raw);
                None
            }
        }
    }

    /// A request came, with its bytes where the mode has them before the server looks.
    fn came<P: Port>(&mut self, port: &mut P, tag: u16) -> Option<Request> {
        self.tags.came(tag, State::Served);
        if self.leaves_it() {
            self.leave_tag(port, tag);
            return None;
        }
        if self.held(tag) {
            return None;
        }
        self.arrived(port, tag)
    }

    /// The same where the driver says no more than that it came, and [`Hw::takes_all`]: what most of
    /// what happens is.
    #[inline(always)]
    pub(super) fn served<P: Port>(&mut self, port: &mut P, tag: u16) -> Option<Request> {
        self.tags.came(tag, State::Served);
        self.arrived(port, tag)
    }

    /// Whether what comes is handed out as it comes.
    #[inline(always)]
    pub(super) fn takes_all(&self) -> bool {
        matches!(self.leaving, Leaving::No)
    }

    /// What the handler gets of a tag that the driver handed over.
    #[inline(always)]
    fn arrived<P: Port>(&mut self, port: &mut P, tag: u16) -> Option<Request> {
        let descriptor = self.descriptors.get(tag);
        let bytes = match bytes_of(&descriptor, self.io_bytes_max) {
            Ok(bytes) => bytes,
            Err(errno) => {
                self.describe(tag, descriptor.op(), 0);
                self.refuse(port, tag, errno);
                return None;
            }
        };
        self.describe(tag, descriptor.op(), bytes);
        let data = match &mut self.mode {
            Mode::Copy(buffers) => buffers.arrived(tag, bytes),
            Mode::UserCopy if bytes > 0 => Data::Window,
            Mode::UserCopy | Mode::GetData(_) => Data::None,
            Mode::ZeroCopy(zero_copy) => match zero_copy.arrived(tag, descriptor.op_flags, bytes) {
                Arrival::Ready(data) => data,
                Arrival::Register => {
                    self.arrived_without_slot(port, tag);
                    return None;
                }
                Arrival::Unreachable => {
                    self.refuse(port, tag, libc::EIO);
                    return None;
                }
            },
        };
        if matches!((&self.mode, &data), (Mode::ZeroCopy(_), Data::Window)) {
            self.counters.fallbacks.one();
        }
        Some(self.request(tag, &descriptor, data))
    }

    /// The driver handed a tag over, and its pages are in no slot.
    #[cold]
    fn arrived_without_slot<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.counters.fallbacks.one();
        self.tags.set(tag, State::Owed);
        self.prepare(port, tag);
    }

    fn describe(&mut self, tag: u16, op: u8, bytes: u32) {
        let of = self.tags.of(tag);
        (of.op, of.bytes) = (op, bytes);
    }

    #[inline(always)]
    fn request(&mut self, tag: u16, descriptor: &IoDescriptor, data: Data) -> Request {
        self.counters.requests.one();
        let (sector, sectors) = (descriptor.sector, descriptor.sectors);
        let fua = descriptor.has(sys::IO_FUA);
        let wide = u64::from(sectors);
        let op = match descriptor.op() {
            sys::OP_READ => Ask::Read { sector, sectors },
            sys::OP_WRITE => Ask::Write {
                sector,
                sectors,
                fua,
            },
            sys::OP_DISCARD => Ask::Discard {
                sector,
                sectors: wide,
                fua,
            },
            sys::OP_WRITE_ZEROES => Ask::WriteZeroes {
                sector,
                sectors: wide,
                fua,
            },
            _ => Ask::Flush,
        };
        let told = Told {
            tag,
            op,
            keep_allocated: descriptor.has(sys::IO_NO_UNMAP),
        };
        Request::new(Arc::clone(&self.home), told, data)
    }

    /// A write was announced, and [`Hw::takes_all`].
    #[inline(always)]
    pub(super) fn announced<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.tags.came(tag, State::Owed);
        self.prepare(port, tag);
    }

    /// A write was announced: its bytes are owed.
    fn owed<P: Port>(&mut self, port: &mut P, tag: u16) {
        self.tags.came(tag, State::Owed);
        if self.leaves_it() {
            return self.leave_tag(port, tag);
        }
        if !self.held(tag) {
            self.prepare(port, tag);
        }
    }

    /// Gets an owed request what it needs before the handler may see it: a buffer with its bytes,
    /// or a slot with its pages.
    fn prepare<P: Port>(&mut self, port: &mut P, tag: u16) {
        let of = self.tags.of(tag);
        of.sent = Sent::Prepare;
        match &mut self.mode {
            Mode::GetData(get_data) => {
                let descriptor = self.descriptors.get(tag);
                let bytes = usize::try_from(u64::from(descriptor.sectors) * SECTOR_BYTES);
                let bytes = bytes.unwrap_or(usize::MAX).max(1);
                match get_data.take(port, (&self.waker, &self.counters), tag, bytes) {
                    Some(buf) => self.fetch_data(port, tag, buf),
                    None => self.wait(tag),
                }
            }
            Mode::ZeroCopy(zero_copy) => match zero_copy.take_own(tag) {
                Some(slot) => self.register(port, tag, slot),
                None => self.wait(tag),
            },
            Mode::UserCopy | Mode::Copy(_) => {
                // The driver announced what this mode does not know. Answering would be refused
                // as well: try as a plain request.
                self.counters.faults.one();
                self.refused(port, tag, -libc::EPROTO);
            }
        }
    }

    fn wait(&mut self, tag: u16) {
        self.counters.waits.one();
        self.tags.set(tag, State::Owed);
    }

    fn fetch_data<P: Port>(&mut self, port: &mut P, tag: u16, buf: Buf) {
        let driver = self.driver();
        if let Mode::GetData(get_data) = &mut self.mode {
            self.tags.set(tag, State::Fetching);
            let command = get_data.fetch(driver, tag, buf);
            port.arm(token::armed(Armed::GetData, tag), command);
        }
    }

    /// The buffer that a write waited for.
    pub(super) fn buffer_came<P: Port>(&mut self, port: &mut P, tag: u16, buf: Buf) {
        // A tag that was left meanwhile needs none.
        if self.tags.state(tag) == State::Owed {
            self.fetch_data(port, tag, buf);
        }
    }

    /// The pause of a pool that failed is over.
    pub(super) fn pool_paused<P: Port>(&mut self, port: &mut P) {
        if let Mode::GetData(get_data) = &mut self.mode {
            get_data.pause_over();
        }
        self.pool_woken(port);
    }

    /// A pool of the user's may have something.
    pub(super) fn pool_woken<P: Port>(&mut self, port: &mut P) {
        while let Mode::GetData(get_data) = &mut self.mode
            && let Some((tag, buf)) = get_data.next_waiting(port, (&self.waker, &self.counters))
        {
            self.buffer_came(port, tag, buf);
        }
    }

    /// A write's bytes came, or the driver said something else about its tag.
    #[inline]
    pub(super) fn data_came<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        let fetched = match &mut self.mode {
            Mode::GetData(get_data) => get_data.fetched(tag),
            _ => None,
        };
        let Some(mut buf) = fetched.filter(|_| raw == sys::RESULT_OK) else {
            return self.commanded(port, tag, raw);
        };
        self.tags.came(tag, State::Served);
        if self.leaves_it() {
            self.leave_tag(port, tag);
            return None;
        }
        // Anew: the driver shortens it where it could not copy all.
        let descriptor = self.descriptors.get(tag);
        let checked = bytes_of(&descriptor, self.io_bytes_max);
        let bytes = checked.unwrap_or(0);
        self.describe(tag, descriptor.op(), bytes);
        if bytes == 0 || bytes as usize > buf.len() {
            self.refuse(port, tag, libc::EIO);
            return None;
        }
        buf.truncate(bytes as usize);
        Some(self.request(tag, &descriptor, Data::Buffer(buf)))
    }

    fn register<P: Port>(&mut self, port: &mut P, tag: u16, slot: u16) {
        self.tags.set(tag, State::Fetching);
        self.tags.of(tag).slot = Some(slot);
        let command = self
            .driver()
            .plain(sys::IO_REGISTER_BUFFER, tag, 0, u64::from(slot));
        port.submit(token::own(Kind::Register, tag), Op::Command(command));
    }

    /// A request's pages are in its slot, or not.
    pub(super) fn registered<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        let slot = self.tags.of(tag).slot?;
        if raw < 0 {
            tracing::warn!(
                queue = self.queue,
                tag,
                slot,
                errno = -raw,
                "a buffer slot was refused"
            );
            self.tags.of(tag).slot = None;
            self.slot_free(port, slot);
            self.tags.set(tag, State::Served);
            self.give(port, tag, -libc::EIO, None);
            return None;
        }
        self.tags.set(tag, State::Served);
        let descriptor = self.descriptors.get(tag);
        Some(self.request(tag, &descriptor, Data::Fixed { slot }))
    }

    /// A slot was emptied: the next request in line gets it.
    pub(super) fn slot_free<P: Port>(&mut self, port: &mut P, slot: u16) {
        if slot == NO_SLOT {
            // One that the driver filled, and several tags have.
            return;
        }
        while let Mode::ZeroCopy(zero_copy) = &mut self.mode
            && let Some(next) = zero_copy.give_own(slot)
        {
            // A tag that was left meanwhile needs none.
            if self.tags.state(next) == State::Owed {
                return self.register(port, next, slot);
            }
        }
    }
}
