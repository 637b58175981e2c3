//! The names by which sources, descriptors and operations are known.
//!
//! They are plain numbers with a generation, so a name never comes to mean something else after its
//! slot has been used again. They are in a file of their own because every table here is keyed by
//! one of them, and no table may have to know another one for that.

/// Names an attached source; never names another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SourceId {
    /// Both halves as one number, the slot in the lower one.
    pub(crate) fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// A descriptor registered with one reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIndex {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A source's own name for an operation, given back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// An operation in flight; names it for [`crate::Core::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) u64);

#[cfg(any(test, feature = "fake"))]
impl FileIndex {
    /// A descriptor without a reactor, for test doubles of [`crate::Port`].
    pub fn for_test(number: u32) -> FileIndex {
        FileIndex {
            slot: number,
            generation: 0,
        }
    }
}

#[cfg(any(test, feature = "fake"))]
impl OpId {
    /// An operation without a reactor, for test doubles of [`crate::Port`].
    pub fn for_test(number: u64) -> OpId {
        OpId(number)
    }
}
