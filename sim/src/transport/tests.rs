//! The simulated transport moves bytes as a plan says, in pieces and out of order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blkmq::io::{Geometry, MoveError, MoveResult, Park, Piece};

use super::*;

/// Gives every write fresh space, remembers only whether it is open, parks while it is not.
#[derive(Debug, Default)]
struct Append {
    next: AtomicU64,
    open: AtomicBool,
    failures: AtomicU64,
}

#[derive(Debug)]
struct Pieces(Vec<Piece>);

impl Plan for Pieces {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

impl Append {
    fn plan(&self, sectors: u32) -> Pieces {
        let len = sectors * 512;
        let offset = self.next.fetch_add(u64::from(len), Ordering::Relaxed);
        let half = len / 2;
        let place = |offset| Place::At {
            file: FileId::LOG,
            offset,
        };
        Pieces(vec![
            Piece {
                at: 0,
                len: half,
                place: place(offset),
            },
            Piece {
                at: half,
                len: len - half,
                place: place(offset + u64::from(half)),
            },
        ])
    }
}

impl Backend for Append {
    type Read = Pieces;
    type Write = Pieces;
    type Sync = ();

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: 1 << 20,
            logical_block: 512,
            physical_block: 4096,
            read_only: false,
        }
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        if !self.open.load(Ordering::Relaxed) {
            waker.wake_by_ref();
            return Step::Park(Park::Space);
        }
        match *op {
            Op::Write { sectors, .. } => Step::Write(self.plan(sectors)),
            Op::Read { sectors, .. } => {
                let len = sectors * 512;
                Step::Read(Pieces(vec![Piece {
                    at: 0,
                    len,
                    place: Place::Hole,
                }]))
            }
            _ => Step::Sync(()),
        }
    }

    fn read(&self, _: Pieces, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, _: Pieces, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        if moved.is_err() && self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            return Step::Write(self.plan(16));
        }
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn poll_sync(&self, (): (), waker: &Waker) -> StepOf<Self> {
        if self.open.load(Ordering::Relaxed) {
            return Step::Done(Ok(()));
        }
        let _ = waker;
        Step::Sync(())
    }

    fn on_request_failed(&self, _: &MoveError) {}
}

fn transport(open: bool) -> Transport<Append> {
    let backend = Append::default();
    backend.open.store(open, Ordering::Relaxed);
    Transport::new(Arc::new(backend))
}

const WRITE: Op = Op::Write {
    sector: 0,
    sectors: 16,
    fua: false,
};

#[test]
fn a_write_takes_effect_when_its_last_piece_is_in_place() {
    let mut transport = transport(true);
    transport.start(ReqId(1), WRITE, vec![7; 16 * 512]);
    let moves = std::mem::take(&mut transport.moves);
    assert_eq!(moves.len(), 2);
    transport.on_moved(ReqId(1), moves[1].piece, Ok(Vec::new()));
    assert!(transport.seen.is_empty());
    transport.on_moved(ReqId(1), moves[0].piece, Ok(Vec::new()));
    let expected = vec![
        TransportEvent::Committed(ReqId(1), vec![8, 8]),
        TransportEvent::Done(ReqId(1), Ok(Vec::new())),
    ];
    assert_eq!(transport.seen, expected);
}

#[test]
fn a_failed_piece_fails_the_attempt_and_the_backend_may_give_another_place() {
    let mut transport = transport(true);
    transport.start(ReqId(1), WRITE, vec![7; 16 * 512]);
    let first = std::mem::take(&mut transport.moves);
    transport.on_moved(ReqId(1), first[0].piece, Err(IoError::Short(512)));
    transport.on_moved(ReqId(1), first[1].piece, Ok(Vec::new()));
    let second = std::mem::take(&mut transport.moves);
    assert_eq!(second.len(), 2);
    assert_ne!(first[0].offset, second[0].offset);
    assert!(transport.seen.is_empty());
}

#[test]
fn a_parked_request_begins_again_when_woken() {
    let mut transport = transport(false);
    transport.start(ReqId(4), WRITE, vec![7; 16 * 512]);
    assert!(transport.moves.is_empty());
    transport.backend().open.store(true, Ordering::Relaxed);
    let woken = transport.next_woken().expect("woken");
    transport.resume(woken);
    assert_eq!(transport.moves.len(), 2);
    assert_eq!(transport.next_woken(), None);
}

#[test]
fn holes_read_as_zeroes_without_any_io() {
    let mut transport = transport(true);
    transport.start(
        ReqId(1),
        Op::Read {
            sector: 0,
            sectors: 8,
        },
        Vec::new(),
    );
    assert_eq!(
        transport.seen,
        vec![TransportEvent::Done(ReqId(1), Ok(vec![0; 4096]))]
    );
}
