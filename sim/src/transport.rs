//! Owns the simulated transport: it carries client requests through plan, move and commit as a
//! real one does, one step at a time.
//!
//! It does no I/O itself: it says which bytes are to be moved ([`Move`]) and is told when they
//! are. It also says what happened ([`TransportEvent`]): when a request took effect and how it was
//! answered. It must not know the engine, only [`Backend`], and it must not judge.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use blkmq::error::ErrorKind;
use blkmq::io::{
    self, Backend, FileId, MoveError, MoveResult, Op, Piece, Place, Plan, SECTOR_BYTES, Step,
    StepOf,
};

use crate::disk::IoError;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[cfg(test)]
mod tests;

/// Names a client request; unique in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReqId(pub u64);

/// Bytes to be moved for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The request.
    pub req: ReqId,
    /// Which attempt and which of its pieces; goes back with the result.
    pub piece: PieceId,
    /// The file.
    pub file: FileId,
    /// Offset in the file.
    pub offset: u64,
    /// Read this many bytes, or write these.
    pub what: Direction,
}

/// Names a piece of one attempt of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceId {
    attempt: u32,
    index: u32,
}

/// Which way the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read(u64),
    /// To the file.
    Write(Vec<u8>),
}

/// What an observer sees of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// It took effect in this step. The numbers are the sectors of its parts: an engine may
    /// record a large write in several, and a process that dies in the midst leaves a prefix.
    Committed(ReqId, Vec<u64>),
    /// It was answered; a read's bytes go with it.
    Done(ReqId, Result<Vec<u8>, ErrorKind>),
}

/// The requests whose wakers were woken, in order.
#[derive(Clone, Debug, Default)]
pub struct WakeQueue(Arc<Mutex<VecDeque<u64>>>);

struct QueueWaker {
    woken: WakeQueue,
    id: u64,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        self.woken.push(self.id);
    }
}

impl WakeQueue {
    /// A waker that enters `id` here.
    pub fn waker(&self, id: u64) -> Waker {
        Waker::from(Arc::new(QueueWaker {
            woken: self.clone(),
            id,
        }))
    }

    fn push(&self, id: u64) {
        self.0
            .lock()
            .expect("nobody panics while holding it")
            .push_back(id);
    }

    /// The oldest waking.
    pub fn pop(&self) -> Option<u64> {
        self.0
            .lock()
            .expect("nobody panics while holding it")
            .pop_front()
    }
}

enum State<B: Backend> {
    /// To begin (again) when it is woken or started.
    Parked,
    Reading {
        plan: B::Read,
        left: u32,
        result: MoveResult,
    },
    Writing {
        plan: B::Write,
        left: u32,
        result: MoveResult,
    },
    Syncing(B::Sync),
}

struct Request<B: Backend> {
    op: Op,
    /// One for the request's whole life, so that whoever keeps wakers can tell a duplicate.
    waker: Waker,
    /// A write's payload, or a read's buffer.
    bytes: Vec<u8>,
    attempt: u32,
    state: State<B>,
    committed: bool,
}

/// One volume's requests in flight.
pub struct Transport<B: Backend> {
    backend: Arc<B>,
    requests: BTreeMap<ReqId, Request<B>>,
    woken: WakeQueue,
    /// Bytes to be moved; the owner takes them after each call.
    pub moves: Vec<Move>,
    /// What happened; the owner takes it after each call.
    pub seen: Vec<TransportEvent>,
}

impl<B: Backend> std::fmt::Debug for Transport<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport")
            .field("requests", &self.requests.len())
            .finish()
    }
}

impl<B: Backend> Transport<B> {
    /// A transport in front of `backend`.
    pub fn new(backend: Arc<B>) -> Transport<B> {
        Transport {
            backend,
            requests: BTreeMap::new(),
            woken: WakeQueue::default(),
            moves: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// What it serves.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Pieces that a write in flight consists of.
    pub fn pieces(&self, id: ReqId) -> usize {
        match self.requests.get(&id).map(|request| &request.state) {
            Some(State::Writing { plan, .. }) => plan.pieces().len(),
            _ => 0,
        }
    }

    /// The requests in flight and where they stand, for reports.
    pub fn describe(&self) -> Vec<String> {
        let describe = |(id, request): (&ReqId, &Request<B>)| {
            let state = match &request.state {
                State::Parked => "parked".to_owned(),
                State::Reading { left, .. } => format!("reading, {left} pieces left"),
                State::Writing { left, .. } => format!("writing, {left} pieces left"),
                State::Syncing(sync) => format!("syncing {sync:?}"),
            };
            format!("request {} {:?}: {state}", id.0, request.op)
        };
        self.requests.iter().map(describe).collect()
    }

    /// A waking that nobody has handled yet: hand it to [`Transport::resume`].
    pub fn next_woken(&self) -> Option<ReqId> {
        self.woken.pop().map(ReqId)
    }

    /// Starts a request; `payload` is what a write writes.
    pub fn start(&mut self, id: ReqId, op: Op, payload: Vec<u8>) {
        let bytes = match op {
            Op::Read { sectors, .. } => vec![0; sectors as usize * SECTOR_BYTES as usize],
            _ => payload,
        };
        let waker = self.woken.waker(id.0);
        let request = Request {
            op,
            waker,
            bytes,
            attempt: 0,
            state: State::Parked,
            committed: false,
        };
        self.step(id, request);
    }

    /// Goes on with a request whose waker was woken; an idle waking is no error.
    pub fn resume(&mut self, id: ReqId) {
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        match request.state {
            State::Parked | State::Syncing(_) => self.step(id, request),
            State::Reading { .. } | State::Writing { .. } => {
                self.requests.insert(id, request);
            }
        }
    }

    /// Takes the next step of a parked or syncing request.
    fn step(&mut self, id: ReqId, mut request: Request<B>) {
        let waker = request.waker.clone();
        let step = match std::mem::replace(&mut request.state, State::Parked) {
            State::Syncing(sync) => self.backend.poll_sync(sync, &waker),
            _ => {
                let step = self.backend.begin(&request.op, &waker);
                let zeroing = matches!(request.op, Op::Discard { .. } | Op::WriteZeroes { .. });
                if zeroing && matches!(step, Step::Done(Ok(())) | Step::Sync(_)) {
                    let range = crate::workload::op_range(&request.op);
                    self.on_committed(id, &mut request, vec![range.end - range.start]);
                }
                step
            }
        };
        self.follow(id, request, step);
    }

    fn on_committed(&mut self, id: ReqId, request: &mut Request<B>, parts: Vec<u64>) {
        assert!(!request.committed, "request {} took effect twice", id.0);
        request.committed = true;
        self.seen.push(TransportEvent::Committed(id, parts));
    }

    /// Does what the backend said.
    fn follow(&mut self, id: ReqId, mut request: Request<B>, step: StepOf<B>) {
        match step {
            Step::Done(result) => {
                let read = matches!(request.op, Op::Read { .. });
                let bytes = if read { request.bytes } else { Vec::new() };
                self.seen
                    .push(TransportEvent::Done(id, result.map(|()| bytes)));
            }
            Step::Park(_) => {
                request.state = State::Parked;
                self.requests.insert(id, request);
            }
            Step::Sync(sync) => {
                request.state = State::Syncing(sync);
                self.requests.insert(id, request);
            }
            Step::Status(_) => self.seen.push(TransportEvent::Done(id, Ok(Vec::new()))),
            Step::Read(plan) => self.begin_read(id, request, plan),
            Step::Write(plan) => self.begin_write(id, request, plan),
        }
    }

    fn begin_read(&mut self, id: ReqId, mut request: Request<B>, plan: B::Read) {
        check_cover(&plan, request.bytes.len());
        request.attempt += 1;
        let mut left = 0;
        for (index, piece) in plan.pieces().iter().enumerate() {
            match piece.place {
                Place::Hole => {
                    request.bytes[piece.at as usize..(piece.at + piece.len) as usize].fill(0);
                }
                Place::At { file, offset } => {
                    left += 1;
                    let piece_id = PieceId {
                        attempt: request.attempt,
                        index: index as u32,
                    };
                    let what = Direction::Read(u64::from(piece.len));
                    self.moves.push(Move {
                        req: id,
                        piece: piece_id,
                        file,
                        offset,
                        what,
                    });
                }
            }
        }
        if left == 0 {
            let waker = request.waker.clone();
            let step = self.backend.read(plan, Ok(()), &waker);
            return self.follow(id, request, step);
        }
        request.state = State::Reading {
            plan,
            left,
            result: Ok(()),
        };
        self.requests.insert(id, request);
    }

    fn begin_write(&mut self, id: ReqId, mut request: Request<B>, plan: B::Write) {
        check_cover(&plan, request.bytes.len());
        request.attempt += 1;
        let mut left = 0;
        for (index, piece) in plan.pieces().iter().enumerate() {
            let Place::At { file, offset } = piece.place else {
                panic!("a write plan with a hole: {plan:?}");
            };
            left += 1;
            let data = request.bytes[piece.at as usize..(piece.at + piece.len) as usize].to_vec();
            let piece_id = PieceId {
                attempt: request.attempt,
                index: index as u32,
            };
            let what = Direction::Write(data);
            self.moves.push(Move {
                req: id,
                piece: piece_id,
                file,
                offset,
                what,
            });
        }
        request.state = State::Writing {
            plan,
            left,
            result: Ok(()),
        };
        self.requests.insert(id, request);
    }

    /// Bytes were moved, or could not be. A short write counts as failed: what a transport may
    /// do about it (go on with the rest) is done by whoever moves.
    pub fn on_moved(&mut self, id: ReqId, piece: PieceId, result: Result<Vec<u8>, IoError>) {
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        assert_eq!(
            piece.attempt, request.attempt,
            "a piece of an attempt that was over"
        );
        let errno = |error| match error {
            IoError::Full => ENOSPC,
            IoError::Eio | IoError::Short(_) => EIO,
        };
        let (left, outcome) = match &mut request.state {
            State::Reading {
                plan,
                left,
                result: outcome,
            } => {
                let range = plan.pieces()[piece.index as usize];
                match result {
                    Ok(bytes) => request.bytes[range.at as usize..(range.at + range.len) as usize]
                        .copy_from_slice(&bytes),
                    Err(error) => {
                        let direction = io::Direction::Read;
                        *outcome = Err(MoveError::of_piece(direction, &range, errno(error)));
                    }
                }
                (left, outcome)
            }
            State::Writing {
                plan,
                left,
                result: outcome,
            } => {
                if let Err(error) = result {
                    let (direction, range) =
                        (io::Direction::Write, &plan.pieces()[piece.index as usize]);
                    *outcome = Err(MoveError::of_piece(direction, range, errno(error)));
                }
                (left, outcome)
            }
            State::Parked | State::Syncing(_) => panic!("request {} moves nothing now", id.0),
        };
        *left -= 1;
        if *left > 0 {
            self.requests.insert(id, request);
            return;
        }
        let outcome = *outcome;
        self.on_all_moved(id, request, outcome);
    }

    fn on_all_moved(&mut self, id: ReqId, mut request: Request<B>, outcome: MoveResult) {
        let waker = request.waker.clone();
        let step = match std::mem::replace(&mut request.state, State::Parked) {
            State::Reading { plan, .. } => self.backend.read(plan, outcome, &waker),
            State::Writing { plan, .. } => {
                let sectors = |piece: &Piece| u64::from(piece.len) / SECTOR_BYTES;
                let parts = plan.pieces().iter().map(sectors).collect();
                let step = self.backend.written(plan, outcome, &waker);
                if matches!(step, Step::Done(Ok(())) | Step::Sync(_)) {
                    self.on_committed(id, &mut request, parts);
                }
                step
            }
            State::Parked | State::Syncing(_) => panic!("request {} was not moving", id.0),
        };
        self.follow(id, request, step);
    }
}

/// Pieces must cover the request without gap or overlap, in whole sectors.
fn check_cover(plan: &impl Plan, bytes: usize) {
    let in_sectors = |piece: &Piece| u64::from(piece.len).is_multiple_of(SECTOR_BYTES);
    assert!(
        plan.pieces().iter().all(in_sectors),
        "odd piece in {plan:?}"
    );
    assert!(
        io::covers(plan.pieces(), bytes),
        "{plan:?} does not cover its request"
    );
}
