//! In which order the chunks of one size leave: what was used once goes before what was used again.
//!
//! Owns the two queues of each class of slots and the chunks' links in them. New chunks are *on probation*:
//! they leave first, unless they were used again meanwhile, which moves them to the *main* queue, a clock.
//! A chunk that comes back soon after it left goes to the main queue at once. So a long sequential read
//! passes through a tenth of the cache and leaves the rest as it was. Uses that follow each other closely
//! count as one: a reader of 4 KiB at a time uses each chunk of 64 KiB sixteen times.

use std::hash::{DefaultHasher, Hash, Hasher};

use blkmq::io::PinCount;

use super::ChunkKey;
use super::regions::{Class, Place};
use crate::codec::Checksum;
use crate::log::layout::BLOCK_BYTES;

/// Chunks looked at for one eviction.
const LOOKS_MAX: usize = 128;
/// A chunk's count of uses: how many rounds of the clock it survives without another.
const USES_MAX: u8 = 3;

/// Chunks in one piece of memory. A vector that doubles would copy all of them under the lock.
const PIECE_CHUNKS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Probation,
    Main,
}

/// A chunk in a slot of a cache file.
#[derive(Debug)]
pub(super) struct CachedChunk {
    pub(super) key: ChunkKey,
    pub(super) place: Place,
    pub(super) class: Class,
    /// Bytes of content.
    pub(super) bytes: u64,
    /// What proves the content of its slot.
    pub(super) checksum: Option<Checksum>,
    pub(super) pins: PinCount,
    /// It could not be read: look-ups miss it, and its space is free once it is evicted.
    pub(super) damaged: bool,
    /// Until when it may not be evicted unless a plan has used it before (monotonic ns).
    pub(super) fresh_until: u64,
    pub(super) uses: u8,
    /// The tier's count of inserted chunks when a use last counted.
    used_at: u64,
    /// The same, when it was last put into a queue.
    pub(super) queued_at: u64,
    pub(super) queue: QueueKind,
    before: Option<u32>,
    after: Option<u32>,
}

#[derive(Debug, Default)]
struct Queue {
    first: Option<u32>,
    last: Option<u32>,
    len: usize,
}

#[derive(Debug, Default)]
struct ClassQueues {
    probation: Queue,
    main: Queue,
}

impl ClassQueues {
    fn of(&mut self, kind: QueueKind) -> &mut Queue {
        match kind {
            QueueKind::Probation => &mut self.probation,
            QueueKind::Main => &mut self.main,
        }
    }
}

/// The chunks of one cache file, by number, in their queues.
#[derive(Debug)]
pub(super) struct Queues {
    /// In pieces of [`PIECE_CHUNKS`].
    chunks: Vec<Vec<Option<CachedChunk>>>,
    free: Vec<u32>,
    classes: Vec<ClassQueues>,
    left: GhostEntries,
    /// Chunks inserted so far: the clock by which uses and queues are told apart.
    inserted: u64,
    len: usize,
}

impl Queues {
    /// Queues for a file of so many bytes.
    pub(super) fn new(capacity: u64) -> Queues {
        Queues {
            chunks: Vec::new(),
            free: Vec::new(),
            classes: Vec::new(),
            left: GhostEntries::new(capacity),
            inserted: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes room for the names of what leaves a file of this capacity. Returns the table that it replaces, whose names are
    /// forgotten.
    pub(super) fn forget_left(&mut self, capacity: u64) -> GhostEntries {
        std::mem::replace(&mut self.left, GhostEntries::new(capacity))
    }

    pub(super) fn get(&self, number: u32) -> Option<&CachedChunk> {
        let piece = self.chunks.get(number as usize / PIECE_CHUNKS)?;
        piece.get(number as usize % PIECE_CHUNKS)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut CachedChunk> {
        self.cell(number)?.as_mut()
    }

    fn cell(&mut self, number: u32) -> Option<&mut Option<CachedChunk>> {
        let piece = self.chunks.get_mut(number as usize / PIECE_CHUNKS)?;
        piece.get_mut(number as usize % PIECE_CHUNKS)
    }

    /// A number that no chunk has.
    fn new_number(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            return number;
        }
        if self
            .chunks
            .last()
            .is_none_or(|piece| piece.len() == PIECE_CHUNKS)
        {
            self.chunks.push(Vec::with_capacity(PIECE_CHUNKS));
        }
        let before = (self.chunks.len() - 1) * PIECE_CHUNKS;
        let piece = &mut self.chunks[before / PIECE_CHUNKS];
        piece.push(None);
        (before + piece.len() - 1) as u32
    }

    /// How many chunks were inserted since a chunk was put into its queue.
    pub(super) fn age(&self, number: u32) -> u64 {
        self.get(number)
            .map_or(0, |chunk| self.inserted - chunk.queued_at)
    }

    /// Takes a chunk in and gives it a number.
    pub(super) fn insert(&mut self, new: NewChunk) -> u32 {
        let queue = match self.left.take(new.key) {
            true => QueueKind::Main,
            false => QueueKind::Probation,
        };
        self.insert_into(queue, new, 0)
    }

    /// Takes a chunk into a queue, behind all that are there.
    pub(super) fn insert_into(&mut self, queue: QueueKind, new: NewChunk, uses: u8) -> u32 {
        self.inserted += 1;
        self.len += 1;
        let chunk = CachedChunk {
            key: new.key,
            place: new.place,
            class: new.class,
            bytes: new.bytes,
            checksum: new.checksum,
            pins: PinCount::default(),
            damaged: false,
            fresh_until: new.fresh_until,
            uses: uses.min(USES_MAX),
            used_at: self.inserted,
            queued_at: self.inserted,
            queue,
            before: None,
            after: None,
        };
        let number = self.new_number();
        if let Some(cell) = self.cell(number) {
            *cell = Some(chunk);
        }
        let class = usize::from(new.class.0);
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, ClassQueues::default);
        }
        self.push(number, queue);
        number
    }

    /// Takes a chunk out.
    pub(super) fn remove(&mut self, number: u32) -> Option<CachedChunk> {
        self.unlink(number);
        let chunk = self.cell(number)?.take()?;
        self.free.push(number);
        self.len -= 1;
        if chunk.queue == QueueKind::Probation && !chunk.damaged {
            self.left.add(chunk.key);
        }
        Some(chunk)
    }

    /// A plan found the chunk. The read that had it fetched does not count.
    pub(super) fn count_use(&mut self, number: u32) {
        let (inserted, together) = (self.inserted, (self.len / 32).max(8) as u64);
        let Some(chunk) = self.get_mut(number) else {
            return;
        };
        if chunk.fresh_until == 0 && inserted - chunk.used_at > together {
            chunk.used_at = inserted;
            chunk.uses = (chunk.uses + 1).min(USES_MAX);
        }
    }

    pub(super) fn is_used_again(&self, number: u32) -> bool {
        self.get(number).is_some_and(|chunk| chunk.uses > 0)
    }

    /// The chunk of a class that is to go next: if all that were looked at were used again, the first of them;
    /// none if all of those are held.
    pub(super) fn next_to_leave(&mut self, class: Class, now: u64) -> Option<u32> {
        let mut used_again = None;
        for _ in 0..LOOKS_MAX {
            let queues = self.classes.get(usize::from(class.0))?;
            let (probation, main) = (&queues.probation, &queues.main);
            let on_probation = main.len == 0 || probation.len * 10 > probation.len + main.len;
            let first = if on_probation {
                probation.first
            } else {
                main.first
            };
            let number = first?;
            let held = self.is_held(number, now);
            if !held {
                used_again.get_or_insert(number);
            }
            let chunk = self.get_mut(number)?;
            let to = match chunk.queue {
                kind if held => kind,
                QueueKind::Probation if chunk.uses > 0 => {
                    chunk.uses = 0;
                    QueueKind::Main
                }
                QueueKind::Main if chunk.uses > 0 => {
                    chunk.uses -= 1;
                    QueueKind::Main
                }
                _ => return Some(number),
            };
            self.unlink(number);
            self.push(number, to);
        }
        used_again
    }

    /// Pinned by a plan, or fetched for a read that has not planned yet.
    pub(super) fn is_held(&self, number: u32, now: u64) -> bool {
        self.get(number)
            .is_some_and(|chunk| chunk.pins.count() > 0 || chunk.fresh_until > now)
    }

    /// The first chunks of a class's queues, those on probation first.
    pub(super) fn first_chunks(&self, class: Class, looks: usize) -> Vec<u32> {
        let mut heads = Vec::with_capacity(looks);
        let Some(queues) = self.classes.get(usize::from(class.0)) else {
            return heads;
        };
        for queue in [&queues.probation, &queues.main] {
            let mut next = queue.first;
            while let Some(number) = next.filter(|_| heads.len() < looks) {
                heads.push(number);
                next = self.get(number).and_then(|chunk| chunk.after);
            }
        }
        heads
    }

    /// The classes that have chunks, the one whose queues have waited longest first.
    pub(super) fn classes_by_age(&self) -> Vec<(u64, Class)> {
        let mut ages: Vec<_> = (0..self.classes.len() as u8)
            .map(Class)
            .filter_map(|class| {
                let queues = &self.classes[usize::from(class.0)];
                let heads = [queues.probation.first, queues.main.first];
                let oldest = heads
                    .into_iter()
                    .flatten()
                    .map(|number| self.age(number))
                    .max()?;
                Some((oldest, class))
            })
            .collect();
        ages.sort_unstable_by(|a, b| b.cmp(a));
        ages
    }

    fn push(&mut self, number: u32, kind: QueueKind) {
        let inserted = self.inserted;
        let Some(class) = self.get(number).map(|chunk| chunk.class) else {
            return;
        };
        let queue = self.classes[usize::from(class.0)].of(kind);
        let before = queue.last.replace(number);
        queue.first.get_or_insert(number);
        queue.len += 1;
        if let Some(chunk) = self.get_mut(number) {
            (chunk.queue, chunk.queued_at) = (kind, inserted);
            (chunk.before, chunk.after) = (before, None);
        }
        if let Some(chunk) = before.and_then(|before| self.get_mut(before)) {
            chunk.after = Some(number);
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(chunk) = self.get(number) else {
            return;
        };
        let (class, kind) = (usize::from(chunk.class.0), chunk.queue);
        let (before, after) = (chunk.before, chunk.after);
        let queue = self.classes[class].of(kind);
        queue.len -= 1;
        if before.is_none() {
            queue.first = after;
        }
        if after.is_none() {
            queue.last = before;
        }
        if let Some(chunk) = before.and_then(|before| self.get_mut(before)) {
            chunk.after = after;
        }
        if let Some(chunk) = after.and_then(|after| self.get_mut(after)) {
            chunk.before = before;
        }
    }

    /// Every chunk has a number below this one.
    pub(super) fn numbers(&self) -> u32 {
        let before = self.chunks.len().saturating_sub(1) * PIECE_CHUNKS;
        (before + self.chunks.last().map_or(0, Vec::len)) as u32
    }

    /// The chunks of one piece; none behind the last one.
    pub(super) fn piece(&self, at: usize) -> Option<impl Iterator<Item = &CachedChunk>> {
        let piece = self.chunks.get(at)?;
        Some(piece.iter().flatten())
    }

    /// All chunks with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &CachedChunk)> {
        let numbered = self.chunks.iter().flatten().enumerate();
        numbered.filter_map(|(number, chunk)| Some((number as u32, chunk.as_ref()?)))
    }

    /// Each chunk is in one queue, its own.
    pub(super) fn invariants(&self) -> Result<(), &'static str> {
        let mut listed = 0;
        for queues in &self.classes {
            let both = [
                (QueueKind::Probation, &queues.probation),
                (QueueKind::Main, &queues.main),
            ];
            for (kind, queue) in both {
                let (mut next, mut before, mut len) = (queue.first, None, 0);
                while let Some(number) = next.filter(|_| len <= self.len) {
                    let Some(chunk) = self.get(number) else {
                        return Err("a queue names a chunk that is gone");
                    };
                    if chunk.queue != kind || chunk.before != before {
                        return Err("a chunk is in a queue that it does not know");
                    }
                    (before, next, len) = (Some(number), chunk.after, len + 1);
                }
                if len != queue.len || queue.last != before {
                    return Err("a queue does not count its chunks, or does not end");
                }
                listed += len;
            }
        }
        match listed == self.len && self.iter().count() == self.len {
            true => Ok(()),
            false => Err("a chunk is in no queue"),
        }
    }
}

/// What a chunk is when it comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewChunk {
    pub(super) key: ChunkKey,
    pub(super) place: Place,
    pub(super) class: Class,
    pub(super) bytes: u64,
    pub(super) checksum: Option<Checksum>,
    pub(super) fresh_until: u64,
}

/// Chunks that left on probation, by a print of their names: a table of fixed size in which the newer
/// overwrites the older. A wrong guess costs a place in the main queue and nothing else.
#[derive(Debug)]
pub(super) struct GhostEntries(Box<[u32]>);

impl GhostEntries {
    /// For about as many chunks of one size, or of a quarter as many small ones, as the file holds.
    fn new(capacity: u64) -> GhostEntries {
        let prints = (capacity / BLOCK_BYTES / 4).clamp(16, 1 << 22) as usize;
        GhostEntries(vec![0; prints].into())
    }

    fn add(&mut self, key: ChunkKey) {
        let (at, print) = self.place(key);
        self.0[at] = print;
    }

    fn take(&mut self, key: ChunkKey) -> bool {
        let (at, print) = self.place(key);
        let is_there = self.0[at] == print;
        if is_there {
            self.0[at] = 0;
        }
        is_there
    }

    /// Where a name's print is, and the print, which is never 0.
    fn place(&self, key: ChunkKey) -> (usize, u32) {
        // Without a random key: the simulator repeats runs.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        (
            (hash as u32) as usize % self.0.len(),
            (hash >> 32) as u32 | 1,
        )
    }
}
