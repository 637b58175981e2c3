//! Owns the history of one volume as its clients and their transport saw it, and judges reads and
//! recovered images by it.
//!
//! Commit is the one step in which a write takes effect, and the simulator makes one step at a
//! time; so the order of those steps *is* the history (S4), and no number from the engine is
//! believed. Position `k` is the state after `k` commits. Each sector keeps its versions by `k`;
//! a value found in it allows the intervals of `k` in which it held that value, and a set of
//! sectors agrees if their intervals intersect.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::stamp::{SectorContent, Stamp};
use crate::disk::SECTOR;
use crate::trace::Violation;

mod point;
#[cfg(test)]
mod tests;

/// Sectors of the unit that is written atomically.
pub const ATOMIC: u64 = 8;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zeroes: never written, discarded or zeroed.
    Zero,
    /// The stamp of this write.
    Write(u64),
    /// Not known: it could not be read when the history was settled. Fits everything.
    Unknown,
}

/// What a crash leaves unpromised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The process died (S1).
    Process,
    /// The host lost power (S2).
    Host,
    /// The cache directory is gone (S3).
    Cache,
}

impl Loss {
    fn promise(self) -> &'static str {
        match self {
            Loss::Process => "S1 process crash",
            Loss::Host => "S2 host crash",
            Loss::Cache => "S3 host loss",
        }
    }
}

/// One client's read as the history sees it.
#[derive(Clone, Copy, Debug)]
pub struct ReadWindow {
    /// Commits when the read was issued.
    pub from: u64,
    /// Commits when it completed.
    pub to: u64,
}

/// Closed intervals of history positions, ascending and apart.
pub type Intervals = Vec<(u64, u64)>;

fn intersect(a: &Intervals, b: &Intervals) -> Intervals {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        let (low, high) = (a[i].0.max(b[j].0), a[i].1.min(b[j].1));
        if low <= high {
            both.push((low, high));
        }
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    both
}

/// The history of one volume.
#[derive(Clone, Debug)]
pub struct History {
    volume: u64,
    /// Volumes whose bytes it began with, if it is a fork's.
    ancestors: Vec<u64>,
    /// Per sector its versions: position and value. Before the first it held zeroes.
    versions: Vec<Vec<(u64, Value)>>,
    /// How many commits there were.
    len: u64,
    /// Newest position that a client was told is complete.
    acked: u64,
    /// Promised by completed flushes and FUA writes.
    flushed: u64,
    /// Promised by completed syncs to the store.
    stored: u64,
    /// What the recovery point has come for, by now.
    due: u64,
    /// Up to where the volume's next holder went on from here: nothing later is in it.
    superseded: Option<u64>,
    /// The branches it went along, each with the position from which it did: what it shares with
    /// another history is what both went along.
    path: Vec<(u64, u64)>,
    /// The worst loss since the last settled recovery.
    loss: Option<Loss>,
    /// Writes that were issued, and on which sectors: to tell "never committed" from "never
    /// written".
    issued: BTreeMap<u64, Range<u64>>,
}

impl History {
    /// A new volume, all zeroes.
    pub fn new(volume: u64, sectors: u64) -> History {
        History {
            volume,
            ancestors: Vec::new(),
            versions: vec![Vec::new(); sectors as usize],
            len: 0,
            acked: 0,
            flushed: 0,
            stored: 0,
            due: 0,
            superseded: None,
            path: Vec::new(),
            loss: None,
            issued: BTreeMap::new(),
        }
    }

    /// The volume's size.
    pub fn sectors(&self) -> u64 {
        self.versions.len() as u64
    }

    /// How many commits there were.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was committed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The newest position a client knows complete: what a flush or sync issued now must cover.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// A write was handed to the transport.
    pub fn issue(&mut self, write: u64, range: Range<u64>) {
        self.issued.insert(write, range);
    }

    /// A write took effect; answers its position.
    pub fn commit(&mut self, range: Range<u64>, value: Value) -> u64 {
        self.len += 1;
        for sector in range {
            self.versions[sector as usize].push((self.len, value));
        }
        self.len
    }

    /// Whether `write`, were it to take effect in this range now, would do so a second time and hide a
    /// completed write that took effect after its first.
    pub fn hides_completed(&self, range: Range<u64>, write: u64) -> bool {
        range.into_iter().any(|sector| {
            let versions = &self.versions[sector as usize];
            let first = versions.iter().position(|(_, v)| *v == Value::Write(write));
            let after = first.map_or(&[][..], |first| &versions[first + 1..]);
            after.iter().any(|(k, _)| *k <= self.acked)
        })
    }

    /// The client of the commit at `position` was told that it is complete.
    pub fn complete(&mut self, position: u64) {
        self.acked = self.acked.max(position);
    }

    /// A flush, or a FUA write, completed; `position` is what it covers.
    pub fn on_flushed(&mut self, position: u64) {
        self.flushed = self.flushed.max(position);
    }

    /// A sync to the store completed; `position` is what it covers.
    pub fn on_stored(&mut self, position: u64) -> Result<(), Violation> {
        self.stored = self.stored.max(position);
        match self.superseded {
            Some(last) if position > last => Err(Violation::new(
                "S7 one writer",
                format!(
                    "commits up to {position} were acknowledged as stored by a host that was taken over; \
                     the volume went on from {last}"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// What was complete up to `position` is older than the recovery point.
    pub fn on_due(&mut self, position: u64) {
        self.due = self.due.max(position);
    }

    /// What was promised to be in the store.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Another host has the volume now, and goes on from `position`.
    pub fn supersede(&mut self, position: u64) -> Result<(), Violation> {
        let last = self.superseded.map_or(position, |last| last.min(position));
        self.superseded = Some(last);
        self.on_stored(self.stored)
    }

    /// It was settled after another host had gone on from `position`, as that host's image showed it. Where a
    /// sector could not be read, this history may take an earlier state for a later one, and what it calls its
    /// end is at that host's position.
    pub fn note_overtaken(&mut self, position: u64) {
        let last = if self.has_unknown() {
            self.len
        } else {
            position.min(self.len)
        };
        let known = self.superseded.unwrap_or(last);
        self.superseded = Some(last.min(known));
    }

    fn has_unknown(&self) -> bool {
        let mut versions = self.versions.iter().flatten();
        versions.any(|(_, value)| *value == Value::Unknown)
    }

    /// From here on this history is called `branch`, a number that no other has.
    pub fn begin_branch(&mut self, branch: u64) {
        self.path.push((branch, self.len));
    }

    /// Up to which position this history and another are one.
    pub fn shared_with(&self, other: &History) -> u64 {
        let both = self.path.iter().zip(&other.path);
        let common = both.take_while(|(mine, theirs)| mine == theirs).count();
        let end = |history: &History| history.path.get(common).map_or(history.len, |(_, at)| *at);
        end(self).min(end(other))
    }

    /// Something was lost. Until the next [`History::judge_recovery`] only what survives that counts.
    pub fn record_loss(&mut self, loss: Loss) {
        self.loss = self.loss.max(Some(loss));
    }

    /// Whether more may be lost than what a process takes with it, which is nothing that was committed.
    pub fn may_have_lost(&self) -> bool {
        self.loss > Some(Loss::Process)
    }

    /// A recovery is taken for complete without an image: what is missing, reads will show.
    pub fn assume_whole(&mut self) {
        self.loss = None;
    }

    fn value(&self, sector: u64, bytes: &[u8]) -> Result<Value, Violation> {
        let wrong = |what: String| {
            Err(Violation::new(
                "S8 foreign bytes",
                format!("sector {sector}: {what}"),
            ))
        };
        match Stamp::read_from(bytes) {
            SectorContent::Zero => Ok(Value::Zero),
            SectorContent::Poison => wrong("bytes that nobody ever wrote".into()),
            SectorContent::Garbage => wrong("torn, or no client's bytes".into()),
            SectorContent::Stamp(stamp)
                if stamp.volume != self.volume && !self.ancestors.contains(&stamp.volume) =>
            {
                wrong(format!("bytes of another volume: {stamp:?}"))
            }
            SectorContent::Stamp(stamp) if stamp.sector != sector => {
                wrong(format!("bytes of another sector: {stamp:?}"))
            }
            SectorContent::Stamp(stamp) => match self.issued.get(&stamp.write) {
                Some(range) if range.contains(&sector) => Ok(Value::Write(stamp.write)),
                _ => wrong(format!("a write that was never issued here: {stamp:?}")),
            },
        }
    }

    /// The positions within `low..=high` at which `sector` held `value`.
    fn allowed(&self, sector: u64, value: Value, low: u64, high: u64) -> Intervals {
        let versions = &self.versions[sector as usize];
        let mut allowed = Vec::new();
        // The version that held at `low`, and all later ones up to `high`.
        let first = versions.partition_point(|(k, _)| *k <= low);
        let mut begin = low;
        let mut held = if first == 0 {
            Value::Zero
        } else {
            versions[first - 1].1
        };
        for (k, next) in &versions[first..] {
            if *k > high {
                break;
            }
            if held == value || held == Value::Unknown {
                allowed.push((begin, k - 1));
            }
            (begin, held) = (*k, *next);
        }
        if held == value || held == Value::Unknown {
            allowed.push((begin, high));
        }
        // Adjacent intervals of one value (zeroed twice) are joined.
        allowed.dedup_by(|next, held| {
            held.1 + 1 == next.0 && {
                held.1 = next.1;
                true
            }
        });
        allowed
    }

    /// Judges a completed read of `bytes` from `sector` on (S5; per 4 KiB also S4's atomicity).
    pub fn check_read(
        &self,
        sector: u64,
        bytes: &[u8],
        window: ReadWindow,
    ) -> Result<(), Violation> {
        let mut allowed = vec![(window.from, window.to)];
        for (index, chunk) in bytes.chunks(SECTOR).enumerate() {
            let at = sector + index as u64;
            if at.is_multiple_of(ATOMIC) {
                allowed = vec![(window.from, window.to)];
            }
            let value = self.value(at, chunk)?;
            let here = self.allowed(at, value, window.from, window.to);
            if here.is_empty() {
                return Err(self.unexpected("S5 linearizability", at, value, window));
            }
            allowed = intersect(&allowed, &here);
            if allowed.is_empty() {
                let detail = format!(
                    "4 KiB block of sector {at}: its sectors are of no one moment in {window:?}"
                );
                return Err(Violation::new("S4 atomic block", detail));
            }
        }
        Ok(())
    }

    fn unexpected(
        &self,
        promise: &'static str,
        sector: u64,
        value: Value,
        window: ReadWindow,
    ) -> Violation {
        let versions = &self.versions[sector as usize];
        let first = versions
            .partition_point(|(k, _)| *k <= window.from)
            .saturating_sub(1);
        let last = versions.partition_point(|(k, _)| *k <= window.to);
        let ever = versions
            .iter()
            .filter(|(_, v)| *v == value)
            .map(|(k, _)| *k)
            .next_back();
        let detail = format!(
            "sector {sector} holds {value:?} (last committed at {ever:?}), but within \
             {}..={} it was {:?}",
            window.from,
            window.to,
            &versions[first.min(last)..last]
        );
        Violation::new(promise, detail)
    }

    /// Judges the whole image of a recovered volume and settles where the history goes on.
    /// Answers the position of the prefix that was found.
    ///
    /// Sectors in `unread` gave an I/O error and say nothing.
    pub fn judge_recovery(
        &mut self,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<u64, Violation> {
        let loss = self.loss.unwrap_or(Loss::Process);
        let floor = match loss {
            Loss::Process => self.acked,
            Loss::Host => self.flushed,
            Loss::Cache => self.stored.max(self.due),
        };
        let prefix = self.prefixes(image, unread)?;
        let found = prefix.last().map_or(0, |(_, high)| *high);
        if found < floor {
            let detail = format!(
                "commits up to {floor} of {} were promised, the volume is a prefix of {found}",
                self.len
            );
            let promise = match loss {
                Loss::Cache if found >= self.stored => "S3 recovery point",
                _ => loss.promise(),
            };
            return Err(Violation::new(promise, detail));
        }
        self.roll_back(found);
        // Which of several prefixes it was may be decided by what could not be read.
        for sector in unread {
            self.versions[*sector as usize] = vec![(0, Value::Unknown)];
        }
        Ok(found)
    }

    /// The prefixes of the history of which this may be the whole image.
    fn prefixes(&self, image: &[u8], unread: &BTreeSet<u64>) -> Result<Intervals, Violation> {
        assert_eq!(
            image.len(),
            self.versions.len() * SECTOR,
            "the whole volume"
        );
        let mut prefix: Intervals = vec![(0, self.len)];
        for (index, chunk) in image.chunks(SECTOR).enumerate() {
            let sector = index as u64;
            if unread.contains(&sector) {
                continue;
            }
            let value = self.value(sector, chunk)?;
            let here = self.allowed(sector, value, 0, self.len);
            let both = intersect(&prefix, &here);
            if both.is_empty() {
                let detail = format!(
                    "after {:?} loss no prefix of the {} commits fits: sector {sector} holds \
                     {value:?}, so {here:?}, but the sectors before it say {prefix:?}; stored \
                     {}, sector history {:?}",
                    self.loss, self.len, self.stored, self.versions[index]
                );
                return Err(Violation::new("S4 prefix", detail));
            }
            prefix = both;
        }
        Ok(prefix)
    }

    fn roll_back(&mut self, position: u64) {
        for versions in &mut self.versions {
            while versions.last().is_some_and(|(k, _)| *k > position) {
                versions.pop();
            }
        }
        self.len = position;
        self.acked = position;
        self.flushed = self.flushed.min(position);
        self.stored = self.stored.min(position);
        self.due = self.due.min(position);
        self.superseded = None;
        self.loss = None;
    }

    /// Forgets versions that no question can reach any more: older than every promise.
    pub fn prune(&mut self) {
        let floor = self.stored.min(self.flushed).min(self.acked);
        for versions in &mut self.versions {
            let keep = versions
                .partition_point(|(k, _)| *k <= floor)
                .saturating_sub(1);
            versions.drain(..keep);
        }
    }
}
