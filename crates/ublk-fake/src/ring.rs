//! A reactor without a thread: sources submit to it; the test drives it and sees what completes,
//! in an order that a seed decides.
//!
//! Commands go to the [`Driver`]; reads and writes of its character devices to their window;
//! every other file is a real one (tests use memory files). Nothing is submitted before
//! [`Ring::turn`], as nothing is before a real ring is entered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use reactor::op::Command;
use reactor::{Buf, BufferPool, Completion, FileIndex, Need, Op, OpId, Port, Token};
use zerocopy::FromBytes;

use crate::device::{RingId, TaskId};
use crate::driver::Driver;
use ublk::sys::IoCommand;

/// Identifies a source on a ring.
pub type SourceKey = usize;

/// An event for a source.
#[derive(Debug)]
pub enum Event {
    /// An operation completed.
    Completed(Token, Completion),
    /// A waker was called, with its key.
    Wake(u64),
    /// The turn that was asked for.
    Turn,
}

/// Faults that a ring injects, each into so many of 256 operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingFaults {
    /// File operations that fail with EIO.
    pub errors: u8,
    /// Operations that complete some turns late.
    pub delayed: u8,
    /// Requests for a buffer that have to wait.
    pub pool_empty: u8,
}

#[derive(Debug)]
struct InFlight {
    source: SourceKey,
    token: Token,
    op: Option<Op>,
    /// Its number, if it is an armed command.
    armed: Option<u32>,
    /// Turns until it is begun.
    delay: u32,
}

#[derive(Debug, Default)]
struct SourceState {
    turn: bool,
    detached: bool,
    files: Vec<FileIndex>,
    slots: Vec<u16>,
}

type Wakes = Arc<Mutex<Vec<(SourceKey, u64)>>>;

struct WakeKey {
    wakes: Wakes,
    source: SourceKey,
    key: u64,
}

impl Wake for WakeKey {
    fn wake(self: Arc<Self>) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.push((self.source, self.key));
    }
}

/// A double of a reactor's ring.
#[derive(Debug)]
pub struct Ring {
    driver: Driver,
    id: RingId,
    faults: RingFaults,
    random: fastrand::Rng,
    files: Vec<Option<Arc<OwnedFd>>>,
    ops: BTreeMap<u64, InFlight>,
    next: u64,
    /// Submitted and not handed over yet, in order.
    queued: VecDeque<u64>,
    /// Buffers to keep until the queued operations are handed over.
    held_buffers: Vec<Buf>,
    timers: Vec<(Duration, u64)>,
    now: Duration,
    ready: Vec<(SourceKey, Token, Completion)>,
    pool: BufferPool,
    buffer_waiters: VecDeque<(SourceKey, Token, usize, Need)>,
    slots_free: Vec<u16>,
    sources: Vec<SourceState>,
    wakes: Wakes,
    enters: u64,
}

impl Ring {
    /// A ring of a task, with so many buffer slots and bytes of buffers.
    pub fn new(driver: &Driver, task: TaskId, slots: u16, pool_bytes: usize, seed: u64) -> Ring {
        Ring {
            driver: driver.clone(),
            id: driver.open_ring(task, slots),
            faults: RingFaults::default(),
            random: fastrand::Rng::with_seed(seed),
            files: Vec::new(),
            ops: BTreeMap::new(),
            next: 0,
            queued: VecDeque::new(),
            held_buffers: Vec::new(),
            timers: Vec::new(),
            now: Duration::ZERO,
            ready: Vec::new(),
            pool: BufferPool::new(pool_bytes, 64 << 10).expect("a pool's reserve is small"),
            buffer_waiters: VecDeque::new(),
            slots_free: (0..slots).rev().collect(),
            sources: Vec::new(),
            wakes: Wakes::default(),
            enters: 0,
        }
    }

    /// Sets the faults that it injects from now on.
    pub fn set_faults(&mut self, faults: RingFaults) {
        self.faults = faults;
    }

    /// Attaches a source.
    pub fn attach(&mut self) -> SourceKey {
        self.sources.push(SourceState::default());
        self.sources.len() - 1
    }

    /// A source's view of the ring.
    pub fn port(&mut self, source: SourceKey) -> RingPort<'_> {
        RingPort { ring: self, source }
    }

    /// Whether a source has detached.
    pub fn is_detached(&self, source: SourceKey) -> bool {
        self.sources[source].detached
    }

    /// Times that operations were handed over.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Operations in entry of a source that do not end by the driver's will only.
    pub fn in_flight(&self, source: SourceKey) -> usize {
        let own = |entry: &&InFlight| entry.source == source;
        self.ops
            .values()
            .filter(own)
            .filter(|entry| !entry.is_armed())
            .count()
    }

    /// Hands over what was submitted, and takes what ended. Empty where nothing can end any more
    /// without the driver's clients.
    pub fn turn(&mut self) -> Vec<(SourceKey, Event)> {
        self.enter();
        self.serve_buffer_waiters();
        for (key, raw) in self.driver.completions(self.id) {
            if let Some(entry) = self.ops.remove(&key)
                && let Some(Op::Command(_)) = entry.op
            {
                let end = match entry.armed {
                    Some(number) => Completion::ArmedCommand(number, raw),
                    None => Completion::Command(raw),
                };
                self.ready.push((entry.source, entry.token, end));
            }
        }
        self.close_files();
        let mut events = self.events();
        if events.is_empty() {
            self.fire_timer();
            events = self.events();
        }
        events
    }

    /// Closes the files of sources that left, once nothing uses them.
    fn close_files(&mut self) {
        for source in 0..self.sources.len() {
            let used = self.ops.values().any(|entry| entry.source == source);
            if !self.sources[source].detached || used {
                continue;
            }
            for file in std::mem::take(&mut self.sources[source].files) {
                self.port(source).close(file);
            }
        }
    }

    fn events(&mut self) -> Vec<(SourceKey, Event)> {
        let mut events = Vec::new();
        for (source, token, completion) in std::mem::take(&mut self.ready) {
            events.push((source, Event::Completed(token, completion)));
        }
        for at in (1..events.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            events.swap(at, other);
        }
        let woken = std::mem::take(&mut *self.wakes.lock().unwrap_or_else(PoisonError::into_inner));
        events.extend(
            woken
                .into_iter()
                .map(|(source, key)| (source, Event::Wake(key))),
        );
        for (source, state) in self.sources.iter_mut().enumerate() {
            if std::mem::take(&mut state.turn) {
                events.push((source, Event::Turn));
            }
        }
        events.retain(|(source, _)| !self.sources[*source].detached);
        events
    }

    /// Closes the ring, as at its thread's end: what is in entry is gone.
    pub fn close(self) {
        // The driver gives up the memory of the commands before they are dropped.
        self.driver.close_ring(self.id);
        drop(self.ops);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    fn chance(&mut self, share: u8) -> bool {
        share > 0 && self.below(256) < u64::from(share)
    }

    fn enter(&mut self) {
        let mut later = VecDeque::new();
        self.enters += u64::from(!self.queued.is_empty());
        while let Some(key) = self.queued.pop_front() {
            let Some(entry) = self.ops.get_mut(&key) else {
                continue;
            };
            if entry.delay > 0 {
                entry.delay -= 1;
                later.push_back(key);
                continue;
            }
            self.start_op(key);
        }
        self.queued = later;
        self.held_buffers.clear();
    }

    fn start_op(&mut self, key: u64) {
        let entry = self.ops.get_mut(&key).expect("it is in entry");
        if let Some(Op::Command(command)) = &entry.op {
            let file = command.file();
            let (parsed, armed) = (parse_command(command), entry.armed);
            let device = self.file(file).and_then(|file| self.driver.device_of(file));
            let Some(device) = device else {
                return match armed {
                    Some(number) => {
                        let end = Completion::ArmedCommand(number, -libc::EOPNOTSUPP);
                        self.complete_op(key, |_| end)
                    }
                    None => self.complete_op(key, |op| failed_completion(op, libc::EOPNOTSUPP)),
                };
            };
            let (opcode, sqe_addr, payload) = parsed;
            // SAFETY: whoever made the command promised that what it names is sound until it
            // ends, or until the ring is closed.
            unsafe {
                self.driver
                    .io(self.id, device, opcode, sqe_addr, payload, key);
            }
            return;
        }
        if let Some(Op::Timeout { after }) = entry.op {
            let due = self.now + after;
            return self.timers.push((due, key));
        }
        if self.chance(self.faults.errors) {
            return self.complete_op(key, |op| failed_completion(op, libc::EIO));
        }
        let entry = self.ops.remove(&key).expect("it is in entry");
        let op = entry.op.expect("only its end takes an operation away");
        let completion = self.execute(op);
        self.ready.push((entry.source, entry.token, completion));
    }

    fn complete_op(&mut self, key: u64, how: impl FnOnce(Op) -> Completion) {
        if let Some(entry) = self.ops.remove(&key)
            && let Some(op) = entry.op
        {
            self.ready.push((entry.source, entry.token, how(op)));
        }
    }

    fn file(&self, file: FileIndex) -> Option<&Arc<OwnedFd>> {
        let known = |at: &usize| FileIndex::for_test(*at as u32) == file;
        let at = (0..self.files.len()).find(known)?;
        self.files[at].as_ref()
    }

    fn execute(&mut self, op: Op) -> Completion {
        match op {
            Op::Read {
                file,
                offset,
                mut buf,
            } => {
                let result = self.read(file, offset, &mut buf);
                Completion::Read(buf, result)
            }
            Op::Write {
                file,
                offset,
                mut buf,
            } => {
                let result = self.write(file, offset, &mut buf);
                Completion::Write(buf, result)
            }
            Op::ReadFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => {
                let mut bytes = vec![0; len as usize];
                let read = self.read(file, offset, &mut bytes);
                let moved = read.and_then(|()| self.fixed(slot, at, true, &mut bytes));
                Completion::Fixed(moved)
            }
            Op::WriteFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => {
                let mut bytes = vec![0; len as usize];
                let moved = self.fixed(slot, at, false, &mut bytes);
                Completion::Fixed(moved.and_then(|()| self.write(file, offset, &mut bytes)))
            }
            Op::Sync { .. } => Completion::Sync(Ok(())),
            other => failed_completion(other, libc::EOPNOTSUPP),
        }
    }

    fn fixed(&self, slot: u16, at: u32, into: bool, bytes: &mut [u8]) -> io::Result<()> {
        let moved = self.driver.move_fixed(self.id, slot, at, into, bytes);
        moved.map_err(|errno| io::Error::from_raw_os_error(-errno))
    }

    fn read(&self, file: FileIndex, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file(file).ok_or_else(closed)?;
        let read = match self.driver.device_of(file) {
            Some(device) => self.driver.read_window(device, offset, bytes),
            None => return check_full(rustix::io::pread(file, &mut *bytes, offset)?, bytes.len()),
        };
        let read = read.map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        check_full(read, bytes.len())
    }

    fn write(&self, file: FileIndex, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file(file).ok_or_else(closed)?;
        let wrote = match self.driver.device_of(file) {
            Some(device) => self.driver.write_window(device, offset, bytes),
            None => return check_full(rustix::io::pwrite(file, bytes, offset)?, bytes.len()),
        };
        let wrote = wrote.map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        check_full(wrote, bytes.len())
    }

    /// Advances the time to the next timer, when nothing else can happen.
    fn fire_timer(&mut self) {
        let Some(&(due, key)) = self.timers.iter().min() else {
            return;
        };
        self.timers.retain(|timer| *timer != (due, key));
        self.now = self.now.max(due);
        self.complete_op(key, |_| Completion::Timeout(Ok(())));
    }

    /// Lends buffers to the sources that wait, in the order of each source.
    fn serve_buffer_waiters(&mut self) {
        let mut exhausted = BTreeSet::new();
        for (source, token, len, need) in std::mem::take(&mut self.buffer_waiters) {
            let lent = match exhausted.contains(&source) {
                true => None,
                false => self.pool.take_for(source as u64, len, need),
            };
            if let Some(buf) = lent {
                self.ready.push((source, token, Completion::Buffer(buf)));
            } else {
                exhausted.insert(source);
                self.buffer_waiters.push_back((source, token, len, need));
            }
        }
    }
}

impl InFlight {
    fn is_armed(&self) -> bool {
        self.armed.is_some()
    }
}

/// The command as the driver gets it: opcode, the entry's address, payload.
fn parse_command(command: &Command) -> (u32, u64, IoCommand) {
    let parsed =
        IoCommand::read_from_bytes(command.payload()).expect("a payload is as long as a command");
    (command.opcode(), command.addr().unwrap_or(0), parsed)
}

fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

fn check_full(moved: usize, len: usize) -> io::Result<()> {
    if moved == len {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// An operation that fails with this errno.
fn failed_completion(op: Op, errno: i32) -> Completion {
    let error = || io::Error::from_raw_os_error(errno);
    match op {
        Op::Accept { .. } => Completion::Accept(Err(error())),
        Op::Recv { buf, .. } => Completion::Recv(buf, Err(error())),
        Op::Send { parts, .. } => Completion::Send(parts, Err(error())),
        Op::Read { buf, .. } => Completion::Read(buf, Err(error())),
        Op::Write { buf, .. } => Completion::Write(buf, Err(error())),
        Op::ReadFixed { .. } | Op::WriteFixed { .. } => Completion::Fixed(Err(error())),
        Op::Command(_) => Completion::Command(-errno),
        Op::Sync { .. } => Completion::Sync(Err(error())),
        Op::Poll { .. } => Completion::Poll(Err(error())),
        Op::Timeout { .. } => Completion::Timeout(Err(error())),
    }
}

/// A [`Port`] of one source.
#[derive(Debug)]
pub struct RingPort<'a> {
    ring: &'a mut Ring,
    source: SourceKey,
}

impl RingPort<'_> {
    fn queue(&mut self, token: Token, op: Op, armed: Option<u32>) -> u64 {
        let ring = &mut *self.ring;
        let key = ring.next;
        ring.next += 1;
        // Commands keep their order: a slot is emptied before its request is committed.
        let ordered = matches!(op, Op::Command(_));
        let delay = if !ordered && ring.chance(ring.faults.delayed) {
            1 + ring.below(4) as u32
        } else {
            0
        };
        let entry = InFlight {
            source: self.source,
            token,
            op: Some(op),
            armed,
            delay,
        };
        ring.ops.insert(key, entry);
        ring.queued.push_back(key);
        key
    }
}

impl Port for RingPort<'_> {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        OpId::for_test(self.queue(token, op, None))
    }

    fn arm(&mut self, number: u32, command: Command) {
        let token = Token(u64::from(number));
        self.queue(token, Op::Command(command), Some(number));
    }

    fn hold_until_submitted(&mut self, buf: Buf) {
        self.ring.held_buffers.push(buf);
    }

    fn cancel(&mut self, op: OpId) {
        let key = self.ring.ops.keys().find(|key| OpId::for_test(**key) == op);
        let Some(&key) = key else { return };
        if !self.ring.ops[&key].is_armed() {
            self.ring
                .complete_op(key, |op| failed_completion(op, libc::ECANCELED));
        }
    }

    fn request_buffer(&mut self, token: Token, len: usize, need: Need) -> Option<Buf> {
        let ring = &mut *self.ring;
        let waits = ring.buffer_waiters.iter().any(|one| one.0 == self.source);
        let dry = waits || ring.chance(ring.faults.pool_empty);
        let lent = match dry {
            true => None,
            false => ring.pool.take_for(self.source as u64, len, need),
        };
        if lent.is_some() {
            return lent;
        }
        ring.buffer_waiters
            .push_back((self.source, token, len, need));
        None
    }

    fn reserve_len(&self) -> usize {
        self.ring.pool.reserve_len()
    }

    fn register(&mut self, fd: Arc<OwnedFd>) -> FileIndex {
        self.ring.files.push(Some(fd));
        let index = FileIndex::for_test(self.ring.files.len() as u32 - 1);
        self.ring.sources[self.source].files.push(index);
        index
    }

    fn close(&mut self, file: FileIndex) {
        let known = |at: &usize| FileIndex::for_test(*at as u32) == file;
        let at = (0..self.ring.files.len()).find(known);
        if let Some(at) = at {
            self.ring.files[at] = None;
        }
    }

    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        let ring = &mut *self.ring;
        let from = ring.slots_free.len().checked_sub(count)?;
        let taken = ring.slots_free.split_off(from);
        ring.sources[self.source].slots.extend(&taken);
        Some(taken)
    }

    fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.ring.slots_free.extend(slots);
        self.ring.sources[self.source]
            .slots
            .retain(|slot| !slots.contains(slot));
    }

    fn request_turn(&mut self) {
        self.ring.sources[self.source].turn = true;
    }

    fn waker(&self, key: u64) -> Waker {
        Waker::from(Arc::new(WakeKey {
            wakes: Arc::clone(&self.ring.wakes),
            source: self.source,
            key,
        }))
    }

    /// The source leaves: its slots are free, and what is in entry ends unseen. ArmedCommand commands
    /// stay until the driver or the ring ends them, those that were not handed over yet still
    /// are, and its files are closed after the last of them.
    fn detach(&mut self) {
        let source = self.source;
        let ring = &mut *self.ring;
        let state = &mut ring.sources[source];
        state.detached = true;
        let slots = std::mem::take(&mut state.slots);
        ring.slots_free.extend(slots);
        ring.ops
            .retain(|_, entry| entry.source != source || entry.is_armed());
        ring.buffer_waiters.retain(|waiting| waiting.0 != source);
    }
}
