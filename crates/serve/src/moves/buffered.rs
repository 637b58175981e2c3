//! The *move* step: carrying bytes between a request's buffer and the extents of its plan.
//!
//! The buffer is split into the plan's pieces; each piece is owned by one file operation at a
//! time, and all are joined again at the end. What a file's direct I/O forbids goes through a
//! bounce buffer: reads fetch the aligned superset and take their slice, writes are padded with
//! zeroes up to the alignment (a write extent starts on a block of its own, so the padding falls
//! on bytes that belong to nobody).
//!
//! One bounce at a time per request, and none held while waiting for another: so one reserve
//! buffer keeps all requests going (R11).
//!
//! Whoever serves requests owns the plan and the tag; this only says which operations to begin,
//! on any [`Port`].

use blkmq::io::{Direction, MoveError, MoveResult, Piece, Place, covers};
use reactor::{Buf, Completion, DioAlign, FileIndex, Need, Op, Port};

use super::OPS_IN_FLIGHT_MAX;
use crate::files::{OpenFile, find, is_direct};
use crate::token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bounce {
    Free,
    /// Waiting for a buffer for this piece.
    Wanted(usize),
    /// In use for this piece.
    Busy(usize),
}

/// A request's bytes on their way.
#[derive(Debug)]
pub(crate) struct BufferedMove {
    direction: Direction,
    parts: Vec<Option<Buf>>,
    /// The first piece that was not begun.
    next: usize,
    in_flight: u32,
    bounce: Bounce,
    /// The first error stands.
    result: MoveResult,
}

fn round_down(value: u64, align: u32) -> u64 {
    value & !(u64::from(align) - 1)
}

fn round_up(value: u64, align: u32) -> u64 {
    value.next_multiple_of(u64::from(align))
}

impl BufferedMove {
    /// Splits `buf` along the pieces. A plan that does not cover it moves nothing and fails.
    pub(crate) fn new(direction: Direction, mut buf: Buf, pieces: &[Piece]) -> BufferedMove {
        let result = match covers(pieces, buf.len()) {
            true => Ok(()),
            false => Err(MoveError::of_plan(direction)),
        };
        let mut parts = Vec::with_capacity(pieces.len().max(1));
        if let (Ok(()), Some((_, but_last))) = (result, pieces.split_last()) {
            parts.extend(
                but_last
                    .iter()
                    .map(|piece| Some(buf.split_to(piece.len as usize))),
            );
        }
        // The last part keeps the room behind it, which padding may use.
        parts.push(Some(buf));
        BufferedMove {
            direction,
            parts,
            next: 0,
            in_flight: 0,
            bounce: Bounce::Free,
            result,
        }
    }

    /// Begins what can begin. True once nothing is left to wait for.
    pub(crate) fn pump(
        &mut self,
        port: &mut impl Port,
        pieces: &[Piece],
        files: &[OpenFile],
        tag: u16,
    ) -> bool {
        while self.result.is_ok() && self.next < pieces.len() && self.in_flight < OPS_IN_FLIGHT_MAX
        {
            let at = self.next;
            let piece = pieces[at];
            match piece.place {
                Place::Hole if self.direction == Direction::Read => {
                    if let Some(part) = &mut self.parts[at] {
                        part.fill(0);
                    }
                }
                Place::Hole => self.fail(MoveError::of_plan(self.direction)),
                Place::At { file, offset } => {
                    let Some(file) = find(files, file) else {
                        self.fail(MoveError::of_piece(self.direction, &piece, libc::EBADF));
                        break;
                    };
                    if is_direct(&piece, offset, file.align) {
                        self.begin_direct(port, at, file.index, offset, tag);
                    } else if !self.begin_bounced(port, at, &piece, offset, file, tag) {
                        break;
                    }
                }
            }
            self.next += 1;
        }
        self.is_finished(pieces)
    }

    #[cold]
    fn fail(&mut self, error: MoveError) {
        self.result = self.result.and(Err(error));
    }

    fn is_finished(&self, pieces: &[Piece]) -> bool {
        let all_begun = self.result.is_err() || self.next == pieces.len();
        all_begun && self.in_flight == 0 && self.bounce == Bounce::Free
    }

    fn begin_direct(
        &mut self,
        port: &mut impl Port,
        at: usize,
        file: FileIndex,
        offset: u64,
        tag: u16,
    ) {
        let Some(buf) = self.parts[at].take() else {
            return;
        };
        let token = token::piece(tag, at as u32);
        let op = match self.direction {
            Direction::Read => Op::Read { file, offset, buf },
            Direction::Write => Op::Write { file, offset, buf },
        };
        port.submit(token, op);
        self.in_flight += 1;
    }

    /// Begins a piece that direct I/O forbids; false where it must wait for the bounce buffer.
    fn begin_bounced(
        &mut self,
        port: &mut impl Port,
        at: usize,
        piece: &Piece,
        offset: u64,
        file: &OpenFile,
        tag: u16,
    ) -> bool {
        if self.direction == Direction::Write
            && self.begin_padded(port, at, piece, offset, file, tag)
        {
            return true;
        }
        if self.bounce != Bounce::Free {
            return false;
        }
        let (start, end) = superset(piece, offset, file.align);
        let len = (end - start) as usize;
        if len > port.reserve_len() {
            // It could wait for ever. The reserve is made for the largest request.
            self.fail(MoveError::of_piece(self.direction, piece, libc::ENOBUFS));
            return true;
        }
        // Begun as far as `pump` goes: where the buffer comes later, its arrival carries it on.
        match port.request_buffer(token::bounce(tag), len, Need::Progress) {
            Some(buf) => self.begin_through(port, at, buf, piece, offset, file, tag),
            None => self.bounce = Bounce::Wanted(at),
        }
        true
    }

    /// Writes a piece whose only fault is its length, where there is room behind it.
    fn begin_padded(
        &mut self,
        port: &mut impl Port,
        at: usize,
        piece: &Piece,
        offset: u64,
        file: &OpenFile,
        tag: u16,
    ) -> bool {
        let padded = round_up(u64::from(piece.len), file.align.offset) as usize;
        let fits = self.parts[at]
            .as_ref()
            .is_some_and(|part| part.capacity() >= padded);
        let aligned = Piece {
            len: padded as u32,
            ..*piece
        };
        if !fits || !is_direct(&aligned, offset, file.align) {
            return false;
        }
        if let Some(part) = &mut self.parts[at] {
            part.pad_to(padded);
        }
        self.begin_direct(port, at, file.index, offset, tag);
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one operation")]
    fn begin_through(
        &mut self,
        port: &mut impl Port,
        at: usize,
        mut buf: Buf,
        piece: &Piece,
        offset: u64,
        file: &OpenFile,
        tag: u16,
    ) {
        self.bounce = Bounce::Busy(at);
        self.in_flight += 1;
        let (start, _) = superset(piece, offset, file.align);
        let token = token::piece(tag, at as u32);
        let op = match self.direction {
            Direction::Read => Op::Read {
                file: file.index,
                offset: start,
                buf,
            },
            Direction::Write => {
                let len = piece.len as usize;
                if let Some(part) = &self.parts[at] {
                    buf[..len].copy_from_slice(part);
                }
                buf[len..].fill(0);
                // Bytes before the piece may be another extent's: never written over.
                if start != offset {
                    self.fail(MoveError::of_piece(self.direction, piece, libc::EINVAL));
                    self.bounce = Bounce::Free;
                    self.in_flight -= 1;
                    return;
                }
                Op::Write {
                    file: file.index,
                    offset,
                    buf,
                }
            }
        };
        port.submit(token, op);
    }

    /// The bounce buffer that was waited for is here.
    pub(crate) fn on_bounce_buffer(
        &mut self,
        port: &mut impl Port,
        buf: Buf,
        pieces: &[Piece],
        files: &[OpenFile],
        tag: u16,
    ) {
        let Bounce::Wanted(at) = self.bounce else {
            return;
        };
        self.bounce = Bounce::Free;
        let (Some(piece), false) = (pieces.get(at), self.result.is_err()) else {
            return;
        };
        let Place::At { file, offset } = piece.place else {
            return;
        };
        if let Some(file) = find(files, file) {
            self.begin_through(port, at, buf, piece, offset, file, tag);
        }
    }

    /// A file operation of piece `at` has ended.
    pub(crate) fn on_completion(
        &mut self,
        at: usize,
        completion: Completion,
        pieces: &[Piece],
        files: &[OpenFile],
    ) {
        let (Completion::Read(mut buf, result) | Completion::Write(mut buf, result)) = completion
        else {
            return;
        };
        self.in_flight -= 1;
        let (Some(piece), Some(part)) = (pieces.get(at), self.parts.get_mut(at)) else {
            return;
        };
        if let Err(error) = &result {
            let error = MoveError::of_io(self.direction, piece, error);
            self.result = self.result.and(Err(error));
        }
        if self.bounce != Bounce::Busy(at) {
            // Without the padding.
            buf.truncate(piece.len as usize);
            *part = Some(buf);
            return;
        }
        self.bounce = Bounce::Free;
        if self.direction == Direction::Write || result.is_err() {
            return;
        }
        let Place::At { file, offset } = piece.place else {
            return;
        };
        let open = find(files, file);
        if let (Some(open), Some(part)) = (open, part) {
            let (start, _) = superset(piece, offset, open.align);
            let skip = (offset - start) as usize;
            part.copy_from_slice(&buf[skip..skip + piece.len as usize]);
        }
    }

    /// Everything has ended: the whole buffer, and whether all bytes were moved.
    pub(crate) fn into_buffer(self) -> (Option<Buf>, MoveResult) {
        let mut parts = self.parts.into_iter().flatten();
        let first = parts.next();
        let whole = first.and_then(|first| parts.try_fold(first, |buf, next| buf.join(next).ok()));
        let result = match &whole {
            Some(_) => self.result,
            None => self.result.and(Err(MoveError::of_plan(self.direction))),
        };
        (whole, result)
    }
}

/// The aligned range around a piece.
fn superset(piece: &Piece, offset: u64, align: DioAlign) -> (u64, u64) {
    let start = round_down(offset, align.offset);
    (start, round_up(offset + u64::from(piece.len), align.offset))
}

#[cfg(test)]
mod tests;
