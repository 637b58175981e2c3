//! What a disk in memory does as a real engine may, beside serving well. The tests choose it; the disk carries it
//! out.

/// What the disk does besides serving. Each number means "every n-th time"; zero never.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A request is parked for space, and woken by [`wake_all`](super::MemoryDisk::wake_all).
    pub park_space: u64,
    /// A request is parked for a fetch.
    pub park_fetch: u64,
    /// The first plan of a write cannot be carried out.
    pub fail_move: u64,
    /// Durability is waited for ([`make_durable`](super::MemoryDisk::make_durable)).
    pub slow_sync: bool,
    /// Sectors per piece at most; zero for no limit.
    pub piece_sectors: u64,
    /// Plans of reads name a place behind the end of the file.
    pub short_read: bool,
    /// Plans of reads leave the request's first sector out.
    pub plan_gap: bool,
}

impl Faults {
    /// It serves, and does nothing else.
    pub const NONE: Faults = Faults {
        park_space: 0,
        park_fetch: 0,
        fail_move: 0,
        slow_sync: false,
        piece_sectors: 0,
        short_read: false,
        plan_gap: false,
    };
    /// Every request is parked for space.
    pub const NO_SPACE: Faults = Faults {
        park_space: 1,
        ..Faults::NONE
    };
    /// Every request is parked for a fetch.
    pub const EVERY_FETCH_PARKS: Faults = Faults {
        park_fetch: 1,
        ..Faults::NONE
    };
    /// Durability is waited for.
    pub const SLOW_SYNC: Faults = Faults {
        slow_sync: true,
        ..Faults::NONE
    };
}
