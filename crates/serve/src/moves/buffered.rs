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

use std::ops::Range;

use blkmq::io::{Direction, MoveError, MoveResult, Piece, Place, covers};
use reactor::{Buf, BufferPurpose, Completion, DioAlign, Op, Port};

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
    /// The request's tag.
    tag: u16,
    parts: Vec<Option<Buf>>,
    /// The first piece that was not begun.
    next: usize,
    in_flight: u32,
    bounce: Bounce,
    /// The first error stands.
    result: MoveResult,
}

/// A piece and the place of its bytes.
#[derive(Clone, Copy)]
struct Target<'a> {
    /// Its index in the plan.
    at: usize,
    piece: &'a Piece,
    file: &'a OpenFile,
    offset: u64,
}

impl Target<'_> {
    /// The range around the piece that direct I/O takes.
    fn aligned_range(&self) -> Range<u64> {
        aligned_range(self.piece, self.offset, self.file.align)
    }
}

fn round_down(value: u64, align: u32) -> u64 {
    value & !(u64::from(align) - 1)
}

fn round_up(value: u64, align: u32) -> u64 {
    value.next_multiple_of(u64::from(align))
}

impl BufferedMove {
    /// Splits `buf` along the pieces. A plan that does not cover it moves nothing and fails.
    pub(crate) fn new(
        direction: Direction,
        tag: u16,
        mut buf: Buf,
        pieces: &[Piece],
    ) -> BufferedMove {
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
            tag,
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
    ) -> bool {
        while self.result.is_ok() && self.in_flight < OPS_IN_FLIGHT_MAX {
            let Some(piece) = pieces.get(self.next) else {
                break;
            };
            match piece.place {
                Place::Hole if self.direction == Direction::Read => {
                    if let Some(part) = &mut self.parts[self.next] {
                        part.fill(0);
                    }
                }
                Place::Hole => self.fail(MoveError::of_plan(self.direction)),
                Place::At { file, offset } => {
                    let Some(file) = find(files, file) else {
                        self.fail(MoveError::of_piece(self.direction, piece, libc::EBADF));
                        break;
                    };
                    let target = Target {
                        at: self.next,
                        piece,
                        file,
                        offset,
                    };
                    if is_direct(piece, offset, file.align) {
                        self.begin_direct(port, target);
                    } else if !self.begin_bounced(port, target) {
                        break;
                    }
                }
            }
            self.next += 1;
        }
        let all_begun = self.result.is_err() || self.next == pieces.len();
        all_begun && self.in_flight == 0 && self.bounce == Bounce::Free
    }

    #[cold]
    fn fail(&mut self, error: MoveError) {
        self.result = self.result.and(Err(error));
    }

    fn begin_direct(&mut self, port: &mut impl Port, target: Target<'_>) {
        if let Some(buf) = self.parts[target.at].take() {
            self.submit(port, target, target.offset, buf);
        }
    }

    /// Begins the file operation of a piece, from `offset` on.
    fn submit(&mut self, port: &mut impl Port, target: Target<'_>, offset: u64, buf: Buf) {
        let file = target.file.index;
        let op = match self.direction {
            Direction::Read => Op::Read { file, offset, buf },
            Direction::Write => Op::Write { file, offset, buf },
        };
        port.submit(token::piece(self.tag, target.at as u32), op);
        self.in_flight += 1;
    }

    /// Begins a piece that direct I/O forbids; false where it must wait for the bounce buffer.
    fn begin_bounced(&mut self, port: &mut impl Port, target: Target<'_>) -> bool {
        if self.direction == Direction::Write && self.begin_padded(port, target) {
            return true;
        }
        if self.bounce != Bounce::Free {
            return false;
        }
        let range = target.aligned_range();
        let len = (range.end - range.start) as usize;
        if len > port.reserve_len() {
            // It could wait for ever. The reserve is made for the largest request.
            let error = MoveError::of_piece(self.direction, target.piece, libc::ENOBUFS);
            self.fail(error);
            return true;
        }
        // Begun as far as `pump` goes: where the buffer comes later, its arrival carries it on.
        match port.request_buffer(token::buffer(self.tag), len, BufferPurpose::Progress) {
            Some(buf) => self.begin_through(port, target, buf),
            None => self.bounce = Bounce::Wanted(target.at),
        }
        true
    }

    /// Writes a piece whose only fault is its length, where there is room behind it.
    fn begin_padded(&mut self, port: &mut impl Port, target: Target<'_>) -> bool {
        let align = target.file.align;
        let padded = round_up(u64::from(target.piece.len), align.offset) as usize;
        let aligned = Piece {
            len: padded as u32,
            ..*target.piece
        };
        let Some(part) = &mut self.parts[target.at] else {
            return false;
        };
        if part.capacity() < padded || !is_direct(&aligned, target.offset, align) {
            return false;
        }
        part.pad_to(padded);
        self.begin_direct(port, target);
        true
    }

    /// Begins a piece through the bounce buffer.
    fn begin_through(&mut self, port: &mut impl Port, target: Target<'_>, mut buf: Buf) {
        let start = target.aligned_range().start;
        if self.direction == Direction::Write {
            // Bytes before the piece may be another extent's: never written over.
            if start != target.offset {
                let error = MoveError::of_piece(self.direction, target.piece, libc::EINVAL);
                return self.fail(error);
            }
            let len = target.piece.len as usize;
            if let Some(part) = &self.parts[target.at] {
                buf[..len].copy_from_slice(part);
            }
            buf[len..].fill(0);
        }
        self.bounce = Bounce::Busy(target.at);
        self.submit(port, target, start, buf);
    }

    /// The bounce buffer that was waited for is here.
    pub(crate) fn on_bounce_buffer(
        &mut self,
        port: &mut impl Port,
        buf: Buf,
        pieces: &[Piece],
        files: &[OpenFile],
    ) {
        let Bounce::Wanted(at) = self.bounce else {
            return;
        };
        self.bounce = Bounce::Free;
        if self.result.is_ok()
            && let Some(target) = find_target(pieces, files, at)
        {
            self.begin_through(port, target, buf);
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
        if self.direction == Direction::Read
            && result.is_ok()
            && let (Some(target), Some(part)) = (find_target(pieces, files, at), part)
        {
            let skip = (target.offset - target.aligned_range().start) as usize;
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

/// A piece of the plan that lies in a file.
fn find_target<'a>(pieces: &'a [Piece], files: &'a [OpenFile], at: usize) -> Option<Target<'a>> {
    let piece = pieces.get(at)?;
    let Place::At { file, offset } = piece.place else {
        return None;
    };
    Some(Target {
        at,
        piece,
        file: find(files, file)?,
        offset,
    })
}

/// The aligned range around a piece.
fn aligned_range(piece: &Piece, offset: u64, align: DioAlign) -> Range<u64> {
    let start = round_down(offset, align.offset);
    start..round_up(offset + u64::from(piece.len), align.offset)
}

#[cfg(test)]
mod tests;
