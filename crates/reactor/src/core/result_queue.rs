//! Raw results that the driver brought and that are not delivered yet.
//!
//! A list that is read from the front and filled at the back, so that the driver appends to plain
//! memory and taking one moves nothing.

/// Raw results by key, in the order in which the driver brought them.
#[derive(Default)]
pub(super) struct ResultQueue {
    raw: Vec<(u64, i32)>,
    /// How many at the front were taken.
    taken: usize,
}

impl ResultQueue {
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, i32)> {
        self.raw.get(self.taken).copied()
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.taken += 1;
    }

    /// The list for the driver to append to, without what was taken.
    pub(super) fn append_to(&mut self) -> &mut Vec<(u64, i32)> {
        self.raw.drain(..self.taken);
        self.taken = 0;
        &mut self.raw
    }
}
