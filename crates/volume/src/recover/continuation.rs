//! What a stopped host tells the one that continues it in the same process, so that this one starts sooner.
//!
//! Nothing here is trusted: it says where to look first, and what is found there must agree with it.

/// Where the journal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalMark {
    /// The half in use.
    pub half: usize,
    /// Its lap.
    pub lap: u64,
    /// Frames of that lap.
    pub frames: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// All of them are durable.
    pub is_settled: bool,
}

/// This start continues a host that was stopped without closing its volumes, and whose clients wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// Where that host's journal ended, if it is known. Must be left out where another host may have written since.
    pub journal: Option<JournalMark>,
    /// What the cache file holds is told by [`Host::restore_cache`](crate::Host::restore_cache), or never
    /// ([`Host::release_cache`](crate::Host::release_cache)). Until then nothing is put there.
    pub cache_follows: bool,
}
