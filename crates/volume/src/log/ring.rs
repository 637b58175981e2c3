//! The index ring: the newest commits of one volume, in memory that outlives the process.
//!
//! A commit is complete once its entry stands here: no system call, no disk (S1). The region is
//! a mapped file on tmpfs, handed in by the driver. The slot of LSN `n` is
//! `n mod entries`; a slot is used again only when its entry is in a durable frame. After the
//! process died, the entries that follow the last frame without a gap are what was committed.
//!
//! Besides the rings of tails, each session has a region without entries: it says whether the log was
//! poisoned, also where no volume was open.
//!
//! Region format, in little-endian 64-bit words: docs/format.md "Index ring".
//!
//! | word | of the header |
//! |---|---|
//! | 0 | magic and version: `FIRNRNG` 3 |
//! | 1, 2 | volume id; zero for the session's own region |
//! | 3 | `since` epoch of the tail; zero for the session's own region |
//! | 4, 5 | host id |
//! | 6, 7 | session: number, random bits |
//! | 8 | boot: a hash of the boot id |
//! | 9..13 | zero |
//! | 13 | not zero once the store must be asked before the tail is served again; in no checksum |
//! | 14 | LSN up to which a durable frame has this tail's commits; in no checksum |
//! | 15 | CRC-64 of words 0..13; its complement once the log is poisoned |
//!
//! | word | of the entry |
//! |---|---|
//! | 0..5 | as in [`Entry`] |
//! | 5 | the CRC of the header's words, so that an entry of another ring is void |
//! | 6 | zero |
//! | 7 | CRC-32C of words 0..7: a commit computes it under the volume's lock, in a few instructions |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use super::session::BootId;
use crate::codec::crc64;
use crate::units::{Epoch, HostId, LogSession, Lsn, VolumeId};

/// Words before the first entry.
const HEADER_WORDS: usize = 16;
/// The header's word that holds its checksum.
const CRC_WORD: usize = 15;
/// The words that the header's checksum covers.
const FIXED_WORDS: usize = 13;
/// The header's word that says whether the store must be asked before the tail is served.
const CHECK_WORD: usize = 13;
/// The header's word that says how far frames are durable.
const DURABLE_WORD: usize = 14;
/// The header's word that names the boot.
const BOOT_WORD: usize = 8;
/// Words of an entry.
const SLOT_WORDS: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FIRNRNG\x03");
pub(super) const VERSION: u16 = u16::from_le_bytes([MAGIC.to_le_bytes()[7], 0]);

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

/// Names a ring: whose it is, and which start of a server made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId {
    /// The log.
    pub host: HostId,
    /// The start of a server on that log.
    pub session: LogSession,
    /// The tail; none for the session's own region.
    pub tail: Option<TailId>,
}

/// Rings that were put aside, and what they take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedRings {
    /// Where they are, for a message.
    pub place: String,
    /// How many are kept there.
    pub count: usize,
    /// The memory that they take.
    pub bytes: u64,
}

/// Gives out ring regions by name. Called outside the hot path.
pub trait Rings: Send + Sync {
    /// A region as a dead process left it, if it is there.
    ///
    /// # Errors
    /// A text that names the file, why it cannot be used, and the remedy: then it is not known
    /// what it holds.
    fn find(&self, ring: RingId) -> Result<Option<Arc<dyn RingRegion>>, String>;
    /// The region of this name with this many words; an existing one of that size is kept as it is.
    ///
    /// # Errors
    /// A text that names the file and the cause.
    fn open(&self, ring: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String>;
    /// Regions that were found are this process's own from now on, as if it had opened them.
    ///
    /// # Errors
    /// A text that names the file and the cause.
    fn keep(&self, rings: &[RingId]) -> Result<(), String> {
        let _ = rings;
        Ok(())
    }
    /// The region is not needed any more: the log has all that it held.
    fn remove(&self, ring: RingId);
    /// The same of many; they may be gone only later.
    fn remove_many(&self, rings: Vec<RingId>) {
        rings.into_iter().for_each(|ring| self.remove(ring));
    }
    /// Names of all regions of this host, whichever session made them, but for those put aside.
    fn list(&self, host: HostId) -> Vec<RingId>;
    /// Takes a region that will never be replayed out of the way, and keeps it for whoever wants to
    /// look into it. A bounded number is kept; the oldest go first.
    ///
    /// # Errors
    /// A text that names the file and the cause; the region is where it was.
    fn set_aside(&self, ring: RingId) -> Result<RetainedRings, String>;
}

/// Words of a region for this many entries.
pub(crate) fn region_words(entries: u32) -> usize {
    HEADER_WORDS + entries as usize * SLOT_WORDS
}

/// One volume's ring. Entries are written under the volume's lock.
#[derive(Debug)]
pub(crate) struct Ring {
    region: Arc<dyn RingRegion>,
    entries: u64,
    header_crc: u64,
}

fn words_crc(words: &[u64; FIXED_WORDS]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    crc64(&[&bytes])
}

/// The words of an entry before its checksum, as bytes. Aligned, because the checksum takes eight
/// bytes at a time only from such places.
#[repr(align(8))]
struct EntryBytes([u8; 56]);

/// On the path of every commit: allocates nothing.
fn entry_crc(words: &[u64; 7]) -> u64 {
    let mut bytes = EntryBytes([0; 56]);
    for (chunk, word) in bytes.0.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    u64::from(crc32c::crc32c(&bytes.0))
}

fn halves(id: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&id[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    [word(0), word(8)]
}

fn header(ring: &RingId, boot: BootId) -> [u64; FIXED_WORDS] {
    let (volume, since) = match ring.tail {
        Some(tail) => (halves(&tail.volume.0), tail.since.0),
        None => ([0; 2], 0),
    };
    let host = halves(&ring.host.0);
    let session = ring.session;
    let mut words = [0; FIXED_WORDS];
    words[0] = MAGIC;
    words[1..3].copy_from_slice(&volume);
    words[3] = since;
    words[4..6].copy_from_slice(&host);
    words[6..9].copy_from_slice(&[session.number, session.random, boot.0]);
    words
}

fn entries_in(words: usize) -> u64 {
    (words.saturating_sub(HEADER_WORDS) / SLOT_WORDS) as u64
}

impl Ring {
    /// Makes a region this empty ring. What stood in it is void from here on, so the caller has
    /// sealed it before.
    pub(crate) fn format(region: Arc<dyn RingRegion>, ring: &RingId, boot: BootId) -> Ring {
        let header = header(ring, boot);
        let header_crc = words_crc(&header);
        let words = region.words();
        let entries = entries_in(words.len());
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        for (word, value) in words.iter().zip(header) {
            word.store(value, Ordering::Relaxed);
        }
        words[CRC_WORD].store(header_crc, Ordering::Release);
        Ring {
            region,
            entries,
            header_crc,
        }
    }

    /// A dead process's ring, if it is exactly that one and stood in memory all the time.
    pub(crate) fn open_existing(
        region: Arc<dyn RingRegion>,
        ring: &RingId,
        boot: BootId,
    ) -> Option<Ring> {
        let words = region.words();
        if words.len() < HEADER_WORDS || !words.len().is_multiple_of(SLOT_WORDS) {
            return None;
        }
        let found: [u64; FIXED_WORDS] = std::array::from_fn(|i| words[i].load(Ordering::Acquire));
        let mark = words[CRC_WORD].load(Ordering::Acquire);
        let header_crc = words_crc(&found);
        let mut expected = header(ring, boot);
        if canary::active!("trust_ring_after_reboot") {
            expected[BOOT_WORD] = found[BOOT_WORD];
        }
        if found != expected || (mark != header_crc && mark != !header_crc) {
            return None;
        }
        let entries = entries_in(words.len());
        Some(Ring {
            region,
            entries,
            header_crc,
        })
    }

    /// Goes on in another region of the same size, with the same content: the name of the first is
    /// gone, and a successor would not find it. Nobody else uses the ring meanwhile.
    pub(crate) fn move_to(&mut self, region: Arc<dyn RingRegion>) {
        let copy = |at: usize, order| {
            if let (Some(from), Some(to)) = (self.region.words().get(at), region.words().get(at)) {
                to.store(from.load(Ordering::Acquire), order);
            }
        };
        // The header's checksum last: until then it is no ring.
        (0..CRC_WORD).for_each(|at| copy(at, Ordering::Relaxed));
        (HEADER_WORDS..self.region.words().len()).for_each(|at| copy(at, Ordering::Relaxed));
        copy(CRC_WORD, Ordering::Release);
        self.region = region;
    }

    /// The boot in whose memory a ring was made, if it is one.
    pub(crate) fn boot_of(region: &dyn RingRegion) -> BootId {
        let word = region.words().get(BOOT_WORD);
        BootId(word.map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// Marks the log as poisoned, for the next process. One store, so that it is
    /// there whatever happens next; the mark in the superblock needs a disk that just failed.
    pub(crate) fn poison(&self) {
        self.region.words()[CRC_WORD].store(!self.header_crc, Ordering::Release);
    }

    /// Whether the log was poisoned while this ring was in use.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.region.words()[CRC_WORD].load(Ordering::Acquire) == !self.header_crc
    }

    /// Says that a frame with all commits up to `lsn` is durable, before anybody is told: a successor
    /// that finds fewer in the journal knows that it is damaged.
    pub(crate) fn set_durable(&self, lsn: Lsn) {
        self.region.words()[DURABLE_WORD].fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// How far frames are durable.
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.region.words()[DURABLE_WORD].load(Ordering::Acquire))
    }

    /// Says for the next process that this tail is served only after its root was read: its service has ended, or
    /// something of it was told that no frame has. As long as the ring is believed, and until it serves anew.
    pub(crate) fn require_check(&self) {
        self.region.words()[CHECK_WORD].store(1, Ordering::Release);
    }

    /// The root was read, and the tail continues it: what is said from now on counts.
    pub(crate) fn on_checked(&self) {
        self.region.words()[CHECK_WORD].store(0, Ordering::Release);
    }

    /// Whether the store must be asked before the tail is served.
    pub(crate) fn requires_check(&self) -> bool {
        self.region.words()[CHECK_WORD].load(Ordering::Acquire) != 0
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Words of the region.
    pub(crate) fn words(&self) -> usize {
        self.region.words().len()
    }

    fn slot(&self, lsn: Lsn) -> Option<&[AtomicU64]> {
        let nth = lsn.0.checked_rem(self.entries)?;
        let at = HEADER_WORDS + nth as usize * SLOT_WORDS;
        self.region.words().get(at..at + SLOT_WORDS)
    }

    /// Writes an entry. The caller holds the volume's lock, and the slot's former entry is in a
    /// durable frame. A process that dies in the midst leaves an entry that fails its CRC: it was
    /// never acknowledged.
    pub(crate) fn write(&self, entry: &Entry) {
        let [lsn, start, sectors, addr, generation] = entry.words();
        let words = [lsn, start, sectors, addr, generation, self.header_crc, 0];
        let slot = self.slot(entry.lsn).expect("a tail's ring has entries");
        for (word, value) in slot.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        slot[SLOT_WORDS - 1].store(entry_crc(&words), Ordering::Release);
    }

    /// The entry of `lsn`, if it is there and whole.
    pub(crate) fn read(&self, lsn: Lsn) -> Option<Entry> {
        let entry = self.entry_in(self.slot(lsn)?)?;
        (entry.lsn == lsn).then_some(entry)
    }

    /// Whether no commit was ever written to it.
    pub(crate) fn is_unused(&self) -> bool {
        let slots = self.region.words().get(HEADER_WORDS..).unwrap_or(&[]);
        slots.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The entry that stands in a slot, whichever it is.
    fn entry_in(&self, slot: &[AtomicU64]) -> Option<Entry> {
        let crc = slot[SLOT_WORDS - 1].load(Ordering::Acquire);
        let words: [u64; 7] = std::array::from_fn(|i| slot[i].load(Ordering::Acquire));
        let whole = crc == entry_crc(&words) && words[5] == self.header_crc;
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

    const BOOT: BootId = BootId(9);
    const RING: RingId = RingId {
        host: HOST,
        session: LogSession {
            number: 4,
            random: 77,
        },
        tail: Some(TAIL),
    };

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
        let ring = Ring::format(region.clone(), &RING, BOOT);
        (1..=6).for_each(|lsn| ring.write(&entry(lsn)));
        let again = Ring::open_existing(region, &RING, BOOT).expect("the same ring");
        assert_eq!(again.read(Lsn(2)), None);
        assert_eq!(again.read(Lsn(3)), Some(entry(3)));
        assert_eq!(again.read(Lsn(6)), Some(entry(6)));
        assert_eq!(again.read(Lsn(7)), None);
    }

    #[test]
    fn a_ring_of_another_boot_host_session_or_tail_is_not_trusted() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        Ring::format(region.clone(), &RING, BOOT);
        let believed = |ring, boot| Ring::open_existing(region.clone(), &ring, boot).is_some();
        let tail = |tail| RingId { tail, ..RING };
        let session = |number, random| RingId {
            session: LogSession { number, random },
            ..RING
        };
        assert!(believed(RING, BOOT));
        assert!(!believed(RING, BootId(8)));
        assert!(!believed(tail(None), BOOT));
        let since = Epoch(4);
        assert!(!believed(tail(Some(TailId { since, ..TAIL })), BOOT));
        let host = HostId([3; 16]);
        assert!(!believed(RingId { host, ..RING }, BOOT));
        assert!(!believed(session(5, 77), BOOT) && !believed(session(4, 78), BOOT));
    }

    #[test]
    fn a_session_has_a_region_of_its_own_that_holds_no_entries() {
        let region = Arc::new(HeapRegion::new(region_words(0)));
        let own = RingId { tail: None, ..RING };
        let ring = Ring::format(region.clone(), &own, BOOT);
        assert_eq!((ring.entries(), ring.read(Lsn(1))), (0, None));
        ring.poison();
        let again = Ring::open_existing(region, &own, BOOT).expect("the same one");
        assert!(again.is_poisoned() && again.is_unused());
    }

    #[test]
    fn a_poisoned_ring_is_still_this_tails_and_says_so() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let ring = Ring::format(region.clone(), &RING, BOOT);
        ring.write(&entry(1));
        assert!(!ring.is_poisoned());
        ring.poison();
        ring.poison();
        let again = Ring::open_existing(region.clone(), &RING, BOOT).expect("the same ring");
        assert!(again.is_poisoned());
        assert_eq!(again.read(Lsn(1)), Some(entry(1)));
        assert!(Ring::open_existing(region, &RING, BootId(8)).is_none());
    }

    #[test]
    fn a_ring_that_requires_a_check_says_so_wherever_it_is_moved_and_a_new_one_does_not() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let mut ring = Ring::format(region.clone(), &RING, BOOT);
        ring.write(&entry(1));
        ring.set_durable(Lsn(1));
        assert!(!ring.requires_check());
        ring.require_check();
        let moved = Arc::new(HeapRegion::new(region_words(4)));
        ring.move_to(moved.clone());
        for region in [region, moved] {
            let again = Ring::open_existing(region.clone(), &RING, BOOT).expect("the same ring");
            assert!(again.requires_check() && !again.is_poisoned());
            assert_eq!(
                (again.durable(), again.read(Lsn(1))),
                (Lsn(1), Some(entry(1)))
            );
            let anew = Ring::format(region, &RING, BOOT);
            assert!(!anew.requires_check());
        }
    }

    #[test]
    fn an_entry_with_any_flipped_bit_was_never_committed() {
        let region = Arc::new(HeapRegion::new(region_words(4)));
        let ring = Ring::format(region.clone(), &RING, BOOT);
        ring.write(&entry(1));
        for bit in 0..512 {
            let word = &region.words()[HEADER_WORDS + SLOT_WORDS + bit / 64];
            word.fetch_xor(1 << (bit % 64), Ordering::Relaxed);
            assert_eq!(ring.read(Lsn(1)), None, "bit {bit}");
            word.fetch_xor(1 << (bit % 64), Ordering::Relaxed);
        }
        assert_eq!(ring.read(Lsn(1)), Some(entry(1)));
    }
}
