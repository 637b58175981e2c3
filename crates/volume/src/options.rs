//! Limits and intervals of a host, with the reasons for their defaults.
//!
//! Tests and the simulator shrink all of them, so that every boundary is met often.

use crate::units::SECOND_NS;

/// How a host is set up. All sizes in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the log file. Segments and frames live in it.
    pub log_bytes: u64,
    /// Size of one log segment, a multiple of 4096. Larger ones make reclaiming coarse, smaller
    /// ones cost a header write and sync each.
    pub segment_bytes: u64,
    /// Entries of each volume's index ring, a power of two. A full ring forces a frame.
    pub ring_entries: u32,
    /// Bytes of the disk cache file; zero switches it off.
    pub cache_bytes: u64,
    /// Bytes of the memory file in which fetched chunks land. Exceeded only by reads that are
    /// waiting for more than fits, so that they always make progress.
    pub memory_bytes: u64,
    /// Uncompressed bytes of one chunk, the unit of compression and checksum in a pack.
    pub chunk_bytes: u32,
    /// A pack is closed when its stored bytes reach this.
    pub pack_bytes: u64,
    /// Deltas that a root may list before they are folded into base pages. Bounds the requests
    /// of an open.
    pub deltas_max: usize,
    /// Index extents in a volume's deltas before a fold. Bounds memory, 60 to 110 bytes for each, and the bytes of an
    /// open; a fold that brings more of them to a page costs less of the store. Several volumes share it, but for a
    /// quarter that each may have.
    pub delta_extents_max: usize,
    /// Bytes of index pages and nodes kept in memory, of all volumes. Without its page a read asks the
    /// cache disk, or the store, once more.
    pub index_bytes: u64,
    /// Records of the host's log between two looks which of them are not needed any more. Each look reads them
    /// once more if an earlier process wrote them, and roots of the volumes that they name, and gives new roots to
    /// those whose marks are older than the look before. A take-over may have to read as many records twice.
    pub low_mark_records: u64,
    /// Bytes of packs that records name between two such looks, and a pack more for each volume that they name: what
    /// a record names is not garbage before. A look costs each of the volumes a new root. A pack that waits as garbage
    /// costs a month what 144 roots cost, one in five hours, so waiting costs at most about what looking does.
    pub low_mark_bytes: u64,
    /// Time between two passes of the garbage collector, until [`crate::Host::set_gc_interval`] says otherwise; zero
    /// switches it off. Each reads the index of all volumes.
    pub gc_interval_ns: u64,
    /// Whether and how packs with much garbage, and scattered ranges, are written anew.
    pub compact: CompactOptions,
    /// Whether and how fast what lies on the local disk is proven by its checksums.
    pub scrub: ScrubOptions,
    /// Everything older than this is uploaded, until [`crate::Host::set_rpo`] says otherwise.
    pub rpo_ns: u64,
    /// A frame is written at least this often while there is something to put in it.
    pub frame_interval_ns: u64,
    /// First delay after a failed upload; doubles up to thirty times this.
    pub retry_ns: u64,
    /// Take over volumes whose last holder has not let go (a declared loss, S7).
    pub take_over: bool,
}

/// How a host compacts what volumes hold in the store: those that it has open, and those that nobody has.
#[derive(Clone, Debug)]
pub struct CompactOptions {
    /// Time between two looks at a volume, until [`crate::Host::set_compact_interval`] says otherwise; zero switches
    /// compaction off. A look costs nothing if the volume's pages
    /// have not changed since one that found nothing to do, and otherwise reads all of them.
    pub interval_ns: u64,
    /// Bytes that it reads and writes in a second. It is work that nobody waits for.
    pub bytes_per_s: u64,
    /// A pack is written anew when less than this part of it is alive. With a half, a byte of garbage costs at most
    /// one that is copied.
    pub live_percent: u64,
    /// Bytes of packs that one look chooses. Those with the most garbage for a byte that is copied go first, so the
    /// rest is chosen anew when these are done.
    pub pass_bytes: u64,
    /// Requests that a reader of 128 KiB may need before the range is written anew.
    pub runs_max: usize,
    /// Looks at open volumes for one walk over those that nobody has open; zero: they are left alone. A walk reads the root
    /// of each volume in the store.
    pub closed_looks: u64,
    /// A closed volume with more deltas than these is folded: what they hide is garbage only then.
    pub closed_deltas: usize,
}

/// How a host scrubs its cache disk and what of its log the store has, too.
#[derive(Clone, Debug)]
pub struct ScrubOptions {
    /// Time in which all of it is read once, until [`crate::Host::set_scrub_interval`] says otherwise; zero: it is not.
    pub interval_ns: u64,
    /// Bytes that are read in a second at most, however much there is.
    pub bytes_per_s: u64,
}

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions {
            interval_ns: 0,
            bytes_per_s: 8 << 20,
        }
    }
}

impl Default for CompactOptions {
    fn default() -> CompactOptions {
        CompactOptions {
            interval_ns: 0,
            bytes_per_s: 16 << 20,
            live_percent: 50,
            pass_bytes: 1 << 30,
            runs_max: 2,
            closed_looks: 6,
            closed_deltas: 3,
        }
    }
}

/// A slice of a large log is this part of it, so that the frozen layers stay few: those that writes fill have
/// this size, and of smaller ones the cleaner and checkpoints make one.
const SLICES_PER_LOG: u64 = 64;
/// A small log has room for so many slices.
const SLICES_PER_LOG_MIN: u64 = 32;
/// Each volume may have this part of the extents in deltas, however many volumes there are.
const DELTA_SHARES_MAX: usize = 4;
/// This part of the log may be on its way to the store, of each volume.
const CUT_PER_LOG: u64 = 6;

impl Options {
    /// Content that a slice of a volume's history has: one pack's, more of a large log, less of a
    /// small one.
    pub(crate) fn slice_bytes(&self) -> u64 {
        let small = self.pack_bytes.min(self.log_bytes / SLICES_PER_LOG_MIN);
        small.max(self.log_bytes / SLICES_PER_LOG)
    }

    /// Content of one volume that slices on their way may have: nothing merges their layers, so what
    /// is written over keeps its place in the log until they are stored.
    pub(crate) fn cut_bytes(&self) -> u64 {
        self.log_bytes / CUT_PER_LOG
    }

    /// Extents that one of so many volumes may have in deltas.
    pub(crate) fn delta_extents_of(&self, volumes: usize) -> usize {
        let least = self.delta_extents_max / DELTA_SHARES_MAX;
        least.max(self.delta_extents_max / volumes.max(1))
    }

    /// Memory for content on its way to the store.
    pub(crate) fn upload_bytes(&self) -> u64 {
        8 * self.pack_bytes
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            log_bytes: 4 << 30,
            segment_bytes: 16 << 20,
            ring_entries: 4096,
            cache_bytes: 4 << 30,
            memory_bytes: 128 << 20,
            chunk_bytes: 64 << 10,
            pack_bytes: 32 << 20,
            deltas_max: 320,
            delta_extents_max: 1 << 20,
            index_bytes: 128 << 20,
            low_mark_records: 1024,
            low_mark_bytes: 1 << 30,
            gc_interval_ns: 0,
            compact: CompactOptions::default(),
            scrub: ScrubOptions::default(),
            rpo_ns: 30 * SECOND_NS,
            frame_interval_ns: SECOND_NS,
            retry_ns: SECOND_NS,
            take_over: false,
        }
    }
}
