//! Bytes that are ready for the socket.
//!
//! A queue of refcounted pieces, so that a message's payload is not copied in crc mode. It belongs
//! to the connection's one owner; nobody else ever touches it.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Pieces that go to the peer in order.
#[derive(Debug, Default)]
pub struct TxBuf {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl TxBuf {
    /// Appends a piece; empty ones vanish.
    pub fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `slices` with the first pieces; how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut n = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(piece);
            n += 1;
        }
        n
    }

    /// Removes the first `n` bytes: the socket took them.
    pub fn advance(&mut self, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(head) = self.pieces.front_mut() else {
                return;
            };
            let step = left.min(head.len());
            head.advance(step);
            left -= step;
            if head.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Takes up to `n` bytes off the front, in one vector: for tests and simulators.
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let n = n.min(self.len);
        let mut out = Vec::with_capacity(n);
        for piece in &self.pieces {
            let left = n - out.len();
            out.extend_from_slice(&piece[..left.min(piece.len())]);
        }
        self.advance(n);
        out
    }

    /// All waiting bytes in one vector.
    pub fn take_all(&mut self) -> Vec<u8> {
        self.take(self.len)
    }

    /// Copies what was pushed after the first `from` bytes, for the handshake's transcript.
    pub(crate) fn copy_from(&self, from: usize, out: &mut Vec<u8>) {
        let mut skip = from;
        for piece in &self.pieces {
            let n = skip.min(piece.len());
            out.extend_from_slice(&piece[n..]);
            skip -= n;
        }
    }
}
