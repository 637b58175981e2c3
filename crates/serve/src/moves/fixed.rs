//! Moving bytes between a buffer slot and the extents of a plan, without a copy.
//!
//! What a file's direct I/O forbids cannot be moved so, and is found out before: the request's
//! memory is aligned as the device's parameters say, its pieces may not be. Where a file refuses
//! all the same, the request is copied instead.

use blkmq::io::{Direction, MoveError, MoveResult, Piece, Place, covers};
use reactor::{Completion, FileIndex, Op, Port};

use super::OPS_IN_FLIGHT_MAX;
use crate::files::{OpenFile, find, is_direct};
use crate::token;

/// Whether every piece can be moved without a copy.
pub(crate) fn fits(pieces: &[Piece], files: &[OpenFile]) -> bool {
    pieces.iter().all(|piece| match piece.place {
        Place::Hole => true,
        Place::At { file, offset } => {
            find(files, file).is_some_and(|open| is_direct(piece, offset, open.align))
        }
    })
}

/// Whether a file did not take this memory or place.
pub(crate) fn is_refused(error: MoveError) -> bool {
    error.file.is_some() && matches!(error.errno, libc::EINVAL | libc::EOPNOTSUPP)
}

/// A request's bytes on their way between its slot and files.
#[derive(Debug)]
pub(crate) struct FixedMove {
    direction: Direction,
    slot: u16,
    next: usize,
    in_flight: u32,
    /// The first error stands.
    result: MoveResult,
}

impl FixedMove {
    /// A move of `len` bytes. A plan that does not cover them moves nothing and fails.
    pub(crate) fn new(direction: Direction, slot: u16, len: u32, pieces: &[Piece]) -> FixedMove {
        let result = match covers(pieces, len as usize) {
            true => Ok(()),
            false => Err(MoveError::of_plan(direction)),
        };
        FixedMove {
            direction,
            slot,
            next: 0,
            in_flight: 0,
            result,
        }
    }

    /// Begins what can begin. How it ended, once nothing is left to wait for.
    pub(crate) fn pump(
        &mut self,
        port: &mut impl Port,
        pieces: &[Piece],
        files: &[OpenFile],
        zeroes: Option<FileIndex>,
        tag: u16,
    ) -> Option<MoveResult> {
        while self.result.is_ok()
            && self.in_flight < OPS_IN_FLIGHT_MAX
            && let Some(piece) = pieces.get(self.next)
        {
            let Some(op) = self.op(piece, files, zeroes) else {
                self.result = Err(MoveError::of_piece(self.direction, piece, libc::EBADF));
                break;
            };
            port.submit(token::piece(tag, self.next as u32), op);
            self.in_flight += 1;
            self.next += 1;
        }
        (self.in_flight == 0).then_some(self.result)
    }

    fn op(&self, piece: &Piece, files: &[OpenFile], zeroes: Option<FileIndex>) -> Option<Op> {
        let (slot, at, len) = (self.slot, piece.at, piece.len);
        match (self.direction, piece.place) {
            (Direction::Read, Place::Hole) => Some(Op::ReadFixed {
                file: zeroes?,
                offset: 0,
                slot,
                at,
                len,
            }),
            (Direction::Write, Place::Hole) => None,
            (direction, Place::At { file, offset }) => {
                let file = find(files, file)?.index;
                Some(match direction {
                    Direction::Read => Op::ReadFixed {
                        file,
                        offset,
                        slot,
                        at,
                        len,
                    },
                    Direction::Write => Op::WriteFixed {
                        file,
                        offset,
                        slot,
                        at,
                        len,
                    },
                })
            }
        }
    }

    /// The file operation of piece `at` has ended.
    pub(crate) fn on_completion(&mut self, at: usize, completion: &Completion, pieces: &[Piece]) {
        self.in_flight -= 1;
        if let Completion::Fixed(Ok(())) = completion {
            return;
        }
        let error = match (completion, pieces.get(at)) {
            (Completion::Fixed(Err(error)), Some(piece)) => {
                MoveError::of_io(self.direction, piece, error)
            }
            _ => MoveError::of_plan(self.direction),
        };
        self.result = self.result.and(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use blkmq::io::FileId;
    use reactor::DioAlign;

    use super::*;

    fn piece(at: u32, len: u32, offset: u64) -> Piece {
        Piece {
            at,
            len,
            place: Place::At {
                file: FileId::LOG,
                offset,
            },
        }
    }

    #[test]
    fn a_plan_that_does_not_cover_the_request_moves_nothing() {
        let whole = [piece(0, 512, 0), piece(512, 512, 0)];
        let moving = FixedMove::new(Direction::Write, 0, 1024, &whole);
        assert_eq!(moving.result, Ok(()));
        for pieces in [
            vec![],
            vec![piece(0, 512, 0)],
            vec![piece(512, 512, 0)],
            vec![piece(0, 512, 0), piece(0, 512, 0)],
            vec![piece(0, 1024, 0), piece(1024, 0, 0)],
        ] {
            let moving = FixedMove::new(Direction::Write, 0, 1024, &pieces);
            assert!(moving.result.is_err(), "{pieces:?}");
        }
    }

    #[test]
    fn only_pieces_that_direct_io_allows_are_moved_without_a_copy() {
        let align = DioAlign {
            memory: 512,
            offset: 4096,
        };
        let files = [OpenFile {
            id: FileId::LOG,
            index: FileIndex::for_test(0),
            align,
        }];
        assert!(fits(&[piece(0, 4096, 8192), piece(4096, 4096, 0)], &files));
        let hole = Piece {
            at: 0,
            len: 512,
            place: Place::Hole,
        };
        assert!(fits(&[hole], &files));
        assert!(!fits(&[piece(0, 512, 0)], &files));
        assert!(!fits(&[piece(0, 4096, 512)], &files));
        assert!(!fits(&[piece(0, 4096, 0)], &[]), "an unknown file");
    }
}
