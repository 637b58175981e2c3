//! Where the journal ends. Data only: the committer and checkpoints move it on.

/// Where the next frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journal {
    pub(crate) half: usize,
    /// Bytes used in the half.
    pub(crate) used: u64,
    pub(crate) lap: u64,
    pub(crate) number: u64,
}

impl Journal {
    /// A half that is the truth, to be followed by a checkpoint in the other one.
    pub(crate) fn before_checkpoint(half: usize, lap: u64) -> Journal {
        Journal {
            half,
            used: 0,
            lap,
            number: 0,
        }
    }
}
