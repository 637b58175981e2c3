//! The index ring: the newest commits of one volume, in memory that outlives the process.
//!
//! A commit is complete once its entry stands here: no system call, no disk (S1). The region is
//! a mapped file on tmpfs, handed in by the driver. The slot of LSN `n` is
//! `n mod entries`; a slot is used again only when its entry is in a durable frame. After the
//! process died, the entries that follow the last frame without a gap are what was committed.
//!
//! Region format, in little-endian 64-bit words: docs/format.md "Index ring".
//!
//! | word | of the header |
//! |---|---|
//! | 0 | magic and version: `FIRNRNG` 1 |
//! | 1, 2 | volume id |
//! | 3 | `since` epoch of the tail |
//! | 4, 5 | host id |
//! | 6 | ring mount: a hash of boot id and mount id |
//! | 7 | CRC-64 of words 0..7; its complement once the log is poisoned |
//!
//! | word | of the entry |
//! |---|---|
//! | 0..5 | as in [`Entry`] |
//! | 5 | the header's word 7, so that an entry of another ring is void |
//! | 6 | zero |
//! | 7 | CRC-64 of words 0..7 |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use crate::codec::crc64;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// Words before the first entry, and words of an entry.
const SLOT_WORDS: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FIRNRNG\x01");

/// Shared memory that outlives the process, but not the host.
pub trait RingRegion: Send + Sync + fmt::Debug {
    /// The words; their number never changes.
    fn words(&self) -> &[AtomicU64];
}

/// A local tail of a volume: what this host holds since it took the volume in epoch `since`.
/// A volume that was lost to another host and opened again has a second tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TailId {
    /// The volume.
    pub volume: VolumeId,
    /// The epoch in which this host's unbroken hold of it began.
    pub since: Epoch,
}

/// Gives out ring regions by name. Called outside the hot path.
pub trait Rings: Send + Sync {
    /// The region of a tail as a dead process left it, if it is there.
    fn find(&self, tail: TailId) -> Option<Arc<dyn RingRegion>>;
    /// The region of a tail with this many words; an existing one of that size is kept as it is.
    ///
    /// # Errors
    /// A text that names the file and the cause.
    fn open(&self, tail: TailId, words: usize) -> Result<Arc<dyn RingRegion>, String>;
    /// The tail is empty and closed: its region is not needed any more.
    fn remove(&self, tail: TailId);
}

/// Words of a region for this many entries.
pub(crate) fn region_words(entries: u32) -> usize {
    SLOT_WORDS + entries as usize * SLOT_WORDS
}

/// Where rings live now: it changes with a reboot or a remount, and then their content is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingMount(pub(crate) u64);

impl RingMount {
    pub(crate) fn new(boot_id: &[u8; 16], mount_id: u64) -> RingMount {
        let boot = crc64(&[boot_id]) & !u64::from(u32::MAX);
        let place = crc64(&[boot_id, &mount_id.to_le_bytes()]) & u64::from(u32::MAX);
        RingMount(boot | place)
    }

    /// Whether the host ran without a restart between the two: then a missing ring is a loss.
    pub(crate) fn same_boot(self, other: RingMount) -> bool {
        self.0 >> 32 == other.0 >> 32
    }
}

/// One volume's ring. Entries are written under the volume's lock.
#[derive(Debug)]
pub(crate) struct Ring {
    region: Arc<dyn RingRegion>,
    entries: u64,
    header_crc: u64,
}

fn words_crc(words: &[u64; 7]) -> u64 {
    let mut bytes = [0; 56];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    crc64(&[&bytes])
}

fn halves(id: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&id[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    [word(0), word(8)]
}

fn header(tail: TailId, host: HostId, mount: RingMount) -> [u64; 7] {
    let [v0, v1] = halves(&tail.volume.0);
    let [h0, h1] = halves(&host.0);
    [MAGIC, v0, v1, tail.since.0, h0, h1, mount.0]
}

impl Ring {
    /// Makes a region this tail's empty ring. What stood in it is void from here on, so the
    /// caller has sealed it before.
    pub(crate) fn format(
        region: Arc<dyn RingRegion>,
        tail: TailId,
        host: HostId,
        mount: RingMount,
    ) -> Ring {
        let header = header(tail, host, mount);
        let header_crc = words_crc(&header);
        let words = region.words();
        let entries = (words.len() / SLOT_WORDS - 1) as u64;
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        for (word, value) in words.iter().zip(header) {
            word.store(value, Ordering::Relaxed);
        }
        words[SLOT_WORDS - 1].store(header_crc, Ordering::Release);
        Ring {
            region,
            entries,
            header_crc,
        }
    }

    /// A dead process's ring, if it is this tail's and stood in the same memory all the time.
    pub(crate) fn open_existing(
        region: Arc<dyn RingRegion>,
        tail: TailId,
        host: HostId,
        mount: RingMount,
    ) -> Option<Ring> {
        let words = region.words();
        if words.len() < 2 * SLOT_WORDS || !words.len().is_multiple_of(SLOT_WORDS) {
            return None;
        }
        let found: [u64; 7] = std::array::from_fn(|i| words[i].load(Ordering::Acquire));
        let mark = words[SLOT_WORDS - 1].load(Ordering::Acquire);
        let header_crc = words_crc(&found);
        let mut expected = header(tail, host, mount);
        if canary::active!("trust_ring_after_reboot") {
            expected[6] = found[6];
        }
        if found != expected || (mark != header_crc && mark != !header_crc) {
            return None;
        }
        let entries = (words.len() / SLOT_WORDS - 1) as u64;
        Some(Ring {
            region,
            entries,
            header_crc,
        })
    }

    /// Marks the log as poisoned, for the next process. One store, so that it is
    /// there whatever happens next; the mark in the superblock needs a disk that just failed.
    pub(crate) fn poison(&self) {
        self.region.words()[SLOT_WORDS - 1].store(!self.header_crc, Ordering::Release);
    }

    /// Whether the log was poisoned while this ring was in use.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.region.words()[SLOT_WORDS - 1].load(Ordering::Acquire) == !self.header_crc
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    fn slot(&self, lsn: Lsn) -> &[AtomicU64] {
        let at = SLOT_WORDS + (lsn.0 % self.entries) as usize * SLOT_WORDS;
        &self.region.words()[at..at + SLOT_WORDS]
    }

    /// Writes an entry. The caller holds the volume's lock, and the slot's former entry is in a
    /// durable frame. A process that dies in the midst leaves an entry that fails its CRC: it was
    /// never acknowledged.
    pub(crate) fn write(&self, entry: &Entry) {
        let [lsn, start, sectors, addr, generation] = entry.words();
        let words = [lsn, start, sectors, addr, generation, self.header_crc, 0];
        let slot = self.slot(entry.lsn);
        for (word, value) in slot.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        slot[SLOT_WORDS - 1].store(words_crc(&words), Ordering::Release);
    }

    /// The entry of `lsn`, if it is there and whole.
    pub(crate) fn read(&self, lsn: Lsn) -> Option<Entry> {
        let slot = self.slot(lsn);
        let crc = slot[SLOT_WORDS - 1].load(Ordering::Acquire);
        let words: [u64; 7] = std::array::from_fn(|i| slot[i].load(Ordering::Acquire));
        let whole = crc == words_crc(&words) && words[5] == self.header_crc && words[0] == lsn.0;
        let [lsn, start, sectors, addr, generation, ..] = words;
        whole
            .then(|| Entry::from_words([lsn, start, sectors, addr, generation]))
            .flatten()
    }
}

/// A region in ordinary memory, for tests and the simulator.
#[derive(Debug)]
pub struct HeapRegion(Vec<AtomicU64>);

impl HeapRegion {
    /// A region of zeroes.
    pub fn new(words: usize) -> HeapRegion {
        HeapRegion((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl RingRegion for HeapRegion {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::layers::LogAddr;
    use crate::units::Span;

    const TAIL: TailId = TailId {
        volume: VolumeId([1; 16]),
        since: Epoch(3),
    };
    const HOST: HostId = HostId([2; 16]);

    fn entry(lsn: u64) -> Entry {
        let addr = LogAddr::new(lsn * 8);
        Entry {
            lsn: Lsn(lsn),
            span: Span::new(lsn, 8),
            addr,
            generation: 1,
        }
    }

    #[test]
    fn entries_are_found_again_until_their_slot_is_used_again() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let ring = Ring::format(region.clone(), TAIL, HOST, RingMount(9));
        (1..=6).for_each(|lsn| ring.write(&entry(lsn)));
        let again = Ring::open_existing(region, TAIL, HOST, RingMount(9)).expect("the same ring");
        assert_eq!(again.read(Lsn(2)), None);
        assert_eq!(again.read(Lsn(3)), Some(entry(3)));
        assert_eq!(again.read(Lsn(6)), Some(entry(6)));
        assert_eq!(again.read(Lsn(7)), None);
    }

    #[test]
    fn a_ring_of_another_boot_host_or_tail_is_not_trusted() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        Ring::format(region.clone(), TAIL, HOST, RingMount(9));
        let other = TailId {
            since: Epoch(4),
            ..TAIL
        };
        assert!(Ring::open_existing(region.clone(), TAIL, HOST, RingMount(8)).is_none());
        assert!(Ring::open_existing(region.clone(), TAIL, HostId([3; 16]), RingMount(9)).is_none());
        assert!(Ring::open_existing(region, other, HOST, RingMount(9)).is_none());
    }

    #[test]
    fn a_poisoned_ring_is_still_this_tails_and_says_so() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let ring = Ring::format(region.clone(), TAIL, HOST, RingMount(9));
        ring.write(&entry(1));
        assert!(!ring.is_poisoned());
        ring.poison();
        ring.poison();
        let again =
            Ring::open_existing(region.clone(), TAIL, HOST, RingMount(9)).expect("the same ring");
        assert!(again.is_poisoned());
        assert_eq!(again.read(Lsn(1)), Some(entry(1)));
        assert!(Ring::open_existing(region, TAIL, HOST, RingMount(8)).is_none());
    }

    #[test]
    fn an_entry_with_any_flipped_bit_was_never_committed() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let ring = Ring::format(region.clone(), TAIL, HOST, RingMount(9));
        ring.write(&entry(1));
        for bit in 0..512 {
            let word = &region.words()[2 * SLOT_WORDS + bit / 64];
            word.fetch_xor(1 << (bit % 64), Ordering::Relaxed);
            assert_eq!(ring.read(Lsn(1)), None, "bit {bit}");
            word.fetch_xor(1 << (bit % 64), Ordering::Relaxed);
        }
        assert_eq!(ring.read(Lsn(1)), Some(entry(1)));
    }
}
