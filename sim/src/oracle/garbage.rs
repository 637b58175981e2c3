//! Owns the judgement of garbage (S9): what a store's objects name, and whether what nothing names goes.
//!
//! It looks at the store from outside, each time that a pass of a collector has ended: the store sees the candidates
//! replaced. What was garbage when one pass ended is found by the next, and removed by the one after that. A pass does
//! not count for an object that the store was asked to remove and did not: that is tried again. And nothing that a root
//! names may be gone. The formats are read by the engine's decoders; what follows from them is worked out here, by
//! docs/store-protocol.md alone. It must never ask the engine what it takes for garbage.

use std::collections::{BTreeMap, BTreeSet};

use volume::hostlog::marks::{LowMark, Pin};
use volume::hostlog::names::{
    Digest, HOST_PREFIX, INDEX_PREFIX, PIN_PREFIX, Position, SessionName, low_key, object_of_key,
    record_of_key,
};
use volume::hostlog::record::{Content, Record};
use volume::object::node::decode_node;
use volume::object::page::{BlockRef, block_volume, decode_page};
use volume::object::root::{RenameStep, Root};
use volume::object::{ObjectId, ROOT_PREFIX, SNAPSHOT_PREFIX};
use volume::units::{HostId, LogSession};

use crate::trace::Violation;

/// The object whose replacement ends a pass.
pub const CANDIDATES_KEY: &str = "garbage/candidates";

/// One pass finds garbage, the next one removes it.
const PASSES_MAX: u64 = 2;

/// An object of a store.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its version.
    pub version: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A pack or an index object: its kind and its name.
type Name = (bool, ObjectId);

/// What passes leave standing.
#[derive(Clone, Debug, Default)]
pub struct GarbageJudge {
    /// Garbage by its key: its version, and how many passes could have seen it.
    known: BTreeMap<String, (u64, u64)>,
}

impl GarbageJudge {
    /// A pass has ended, and the store did not carry out the removal of `refused` since the one before. `in_peace`: no process
    /// dies any more, and whoever ended the pass before knows that it ended. Answers how much garbage went since then.
    ///
    /// # Errors
    /// If garbage stays that the last two passes had to find and to remove, or if something is gone that a root names.
    pub fn on_pass(
        &mut self,
        objects: &[Stored<'_>],
        refused: &BTreeSet<String>,
        in_peace: bool,
    ) -> Result<u64, Violation> {
        let store = StoreView::read(objects)?;
        let garbage = store.garbage();
        let before = std::mem::take(&mut self.known);
        let stays = |key: &String, version: u64| garbage.get(key.as_str()) == Some(&version);
        let gone = before
            .iter()
            .filter(|(key, (version, _))| !stays(key, *version));
        let gone = gone.count() as u64;
        for (key, version) in garbage {
            let passes = match before.get(key) {
                Some((known, passes)) if *known == version => {
                    // Pins go behind what ends a pass, and a process may die in between, or not hear of the end.
                    let is_asked = in_peace || !key.starts_with(PIN_PREFIX);
                    passes + u64::from(is_asked && !refused.contains(key))
                }
                _ => 0,
            };
            if passes >= PASSES_MAX {
                let detail = format!(
                    "{key} was named by nothing and of a session that had ended, or below its floor, or a pin whose child \
                     had its root, when a pass ended, and {passes} passes later it still stands there"
                );
                return Err(Violation::new("S9 bounded garbage", detail));
            }
            self.known.insert(key.to_owned(), (version, passes));
        }
        Ok(gone)
    }
}

/// What is said in one host's log of objects that nobody will come to name.
#[derive(Debug, Default)]
struct Endings {
    newest: u64,
    floors: BTreeMap<LogSession, u64>,
}

/// A store at one moment.
#[derive(Debug, Default)]
struct StoreView<'a> {
    objects: BTreeMap<Name, (SessionName, Stored<'a>)>,
    named: BTreeSet<Name>,
    /// Only of hosts whose logs are whole.
    endings: BTreeMap<HostId, Endings>,
    /// Pins whose child has had a root since, which names what it needs.
    needless_pins: Vec<Stored<'a>>,
}

impl<'a> StoreView<'a> {
    fn read(objects: &[Stored<'a>]) -> Result<StoreView<'a>, Violation> {
        let mut view = StoreView::default();
        for object in objects {
            if let Some((session, number)) = object_of_key(object.key) {
                let is_index = object.key.starts_with(INDEX_PREFIX);
                let name = (is_index, ObjectId::new(session, number));
                view.objects.insert(name, (session, *object));
            }
        }
        view.read_logs(objects)?;
        for object in objects {
            let of = |prefix| object.key.starts_with(prefix);
            if of(ROOT_PREFIX) || of(SNAPSHOT_PREFIX) {
                let root =
                    Root::decode(object.data).map_err(|error| damaged(object.key, &error))?;
                view.read_root(object.key, &root, true)?;
            } else if of(PIN_PREFIX) {
                let pin = Pin::decode(object.data).map_err(|error| damaged(object.key, &error))?;
                // Of a child that came too late something may be gone.
                view.read_root(object.key, &pin.root, false)?;
                if is_needless(&pin.root, objects) {
                    view.needless_pins.push(*object);
                }
            }
        }
        Ok(view)
    }

    /// What records name stays; and they say which sessions are over. Nothing is concluded from a log with a hole, or
    /// with a record that does not follow the one before it.
    fn read_logs(&mut self, objects: &[Stored<'a>]) -> Result<(), Violation> {
        let mut lows: BTreeMap<HostId, Position> = BTreeMap::new();
        let mut logs: BTreeMap<HostId, BTreeMap<Position, (Record, Digest)>> = BTreeMap::new();
        for object in objects
            .iter()
            .filter(|object| object.key.starts_with(HOST_PREFIX))
        {
            let damaged = |error| damaged(object.key, &error);
            if let Some((host, at)) = record_of_key(object.key) {
                let record = Record::decode(object.data).map_err(damaged)?;
                self.named.extend(names_of_record(&record));
                let digest = Digest::of(object.data);
                logs.entry(host).or_default().insert(at, (record, digest));
            } else {
                let low = LowMark::decode(object.data).map_err(damaged)?;
                if object.key == low_key(low.host) {
                    lows.insert(low.host, low.position);
                }
            }
        }
        for (host, low) in lows {
            let records = logs.remove(&host).unwrap_or_default();
            if let Some(endings) = endings_of_log(low, &records) {
                self.endings.insert(host, endings);
            }
        }
        Ok(())
    }

    fn read_root(&mut self, key: &str, root: &Root, is_whole: bool) -> Result<(), Violation> {
        let mark = root.rename_mark();
        let is_leaving = mark.is_some_and(|mark| mark.step == RenameStep::Leaving);
        if root.deleted && !is_leaving {
            return Ok(());
        }
        let mut names: BTreeSet<Name> = BTreeSet::new();
        names.extend(root.deltas.iter().map(|delta| (false, delta.pack)));
        let mut pages: Vec<(u64, BlockRef)> = Vec::new();
        for (number, block) in &root.nodes {
            names.insert((true, block.object));
            if let Some(bytes) = self.block(block)
                && let Some(volume) = block_volume(bytes)
            {
                let node = decode_node(volume, *number, bytes);
                pages.extend(node.map_err(|error| damaged(key, &error))?.pages());
            }
        }
        for (number, block) in &pages {
            names.insert((true, block.object));
            if let Some(bytes) = self.block(block)
                && let Some(volume) = block_volume(bytes)
            {
                let page = decode_page(volume, *number, bytes);
                let page = page.map_err(|error| damaged(key, &error))?;
                names.extend(page.packs().map(|pack| (false, pack)));
            }
        }
        let missing = names.iter().find(|name| !self.objects.contains_key(*name));
        if let Some((is_index, object)) = missing.filter(|_| is_whole) {
            let kind = if *is_index { "index object" } else { "pack" };
            let detail = format!("{key} names {kind} {object}, which is not in the store");
            return Err(Violation::new("S9 nothing reachable goes", detail));
        }
        self.named.append(&mut names);
        Ok(())
    }

    fn block(&self, block: &BlockRef) -> Option<&'a [u8]> {
        let (_, object) = self.objects.get(&(true, block.object))?;
        let at = block.offset as usize;
        object.data.get(at..at + block.bytes as usize)
    }

    /// Objects that nothing names, and nobody will: their keys and versions.
    fn garbage(&self) -> BTreeMap<&'a str, u64> {
        let unnamed = self
            .objects
            .iter()
            .filter(|(name, _)| !self.named.contains(*name));
        let over = unnamed.filter(|((_, object), (session, _))| {
            self.endings.get(&session.host).is_some_and(|endings| {
                let floor = endings.floors.get(&session.session).copied().unwrap_or(0);
                let is_over = session.session.number < endings.newest || object.number < floor;
                // A poisoned log has no session, and what it brings is named by roots alone.
                is_over && session.session.number != 0
            })
        });
        let over = over.map(|(_, (_, object))| object);
        over.chain(&self.needless_pins)
            .map(|object| (object.key, object.version))
            .collect()
    }
}

/// Whether the root stands of which this is the first, under whatever name.
fn is_needless(first: &Root, objects: &[Stored<'_>]) -> bool {
    let is_root = |key: &str| key.starts_with(ROOT_PREFIX) || key.starts_with(SNAPSHOT_PREFIX);
    let roots = objects.iter().filter(|object| is_root(object.key));
    let mut roots = roots.filter_map(|object| Root::decode(object.data).ok());
    roots.any(|root| root.volume == first.volume && root.epoch >= first.epoch)
}

fn names_of_record(record: &Record) -> Vec<Name> {
    let Content::Slices(slices) = &record.content else {
        return Vec::new();
    };
    let session = |is_kept| match is_kept {
        true => slices.ends_session.random,
        false => record.writer.session.random,
    };
    let object = |is_kept, number| ObjectId {
        session: session(is_kept),
        number,
    };
    let packs = slices
        .packs
        .iter()
        .map(|pack| (false, object(pack.is_kept, pack.number)));
    let others = slices.objects.iter();
    let others = others.map(|named| (named.is_index, object(named.is_kept, named.number)));
    packs.chain(others).collect()
}

/// None: the log is not whole.
fn endings_of_log(
    low: Position,
    records: &BTreeMap<Position, (Record, Digest)>,
) -> Option<Endings> {
    let mut endings = Endings::default();
    let mut previous: Option<(Position, Digest)> = None;
    for (at, (record, digest)) in records.range(low..) {
        let expected = previous.map_or(low, |(before, _)| before.next());
        if *at != expected {
            return None;
        }
        let before = previous.replace((*at, *digest));
        if let Content::Slices(slices) = &record.content {
            if before.is_some_and(|(_, before)| before != slices.previous) {
                return None;
            }
            let session = record.writer.session;
            endings.newest = endings.newest.max(session.number);
            let floor = endings.floors.entry(session).or_default();
            *floor = slices.floor.max(*floor);
        }
    }
    Some(endings)
}

fn damaged(key: &str, error: &dyn std::fmt::Debug) -> Violation {
    let detail = format!("{key} cannot be read where it stands: {error:?}");
    Violation::new("S9 nothing reachable goes", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::hostlog::record::Slices;

    const HOST: HostId = HostId([1; 16]);

    fn session(number: u64) -> SessionName {
        let random = number + 100;
        let session = LogSession { number, random };
        SessionName {
            host: HOST,
            session,
        }
    }

    /// A log of one record, of session 2, whose floor is 5.
    fn log() -> Vec<(String, Vec<u8>)> {
        let slices = Slices {
            floor: 5,
            ..Slices::default()
        };
        let record = Record {
            log: HOST,
            position: Position::FIRST,
            writer: session(2),
            content: Content::Slices(slices),
        };
        let low = LowMark {
            host: HOST,
            position: Position::FIRST,
        };
        let key = volume::hostlog::names::record_key(HOST, Position::FIRST);
        vec![(key, record.encode()), (low_key(HOST), low.encode())]
    }

    fn pass(
        judge: &mut GarbageJudge,
        objects: &[(String, Vec<u8>)],
        refused: &[&str],
    ) -> Result<u64, Violation> {
        let stored = objects.iter().map(|(key, data)| Stored {
            key,
            version: 1,
            data,
        });
        let refused = refused.iter().map(|key| (*key).to_owned()).collect();
        judge.on_pass(&stored.collect::<Vec<_>>(), &refused, true)
    }

    #[test]
    fn garbage_may_stay_for_one_pass_that_finds_it_and_one_that_the_store_fails() {
        let mut objects = log();
        let old = session(1).pack_key(9);
        objects.push((old.clone(), Vec::new()));
        let mut judge = GarbageJudge::default();
        for refused in [&[][..], &[], &[&*old], &[&*old]] {
            assert_eq!(pass(&mut judge, &objects, refused), Ok(0));
        }
        assert!(pass(&mut judge.clone(), &objects, &[]).is_err());
        objects.pop();
        assert_eq!(pass(&mut judge, &objects, &[]), Ok(1));
    }

    #[test]
    fn what_is_above_the_floor_of_a_session_that_goes_on_is_held_and_what_is_below_is_not() {
        for (number, is_garbage) in [(4, true), (5, false)] {
            let mut objects = log();
            objects.push((session(2).index_key(number), Vec::new()));
            let mut judge = GarbageJudge::default();
            let passes = [(); 3].map(|()| pass(&mut judge, &objects, &[]).is_err());
            assert_eq!(passes, [false, false, is_garbage], "{number}");
        }
    }

    #[test]
    fn nothing_is_garbage_of_a_host_whose_log_has_a_hole() {
        let mut objects = log();
        objects.remove(0);
        let hole = volume::hostlog::names::record_key(HOST, Position(2));
        let record = Record {
            log: HOST,
            position: Position(2),
            writer: session(2),
            content: Content::Slices(Slices::default()),
        };
        objects.push((hole, record.encode()));
        objects.push((session(1).pack_key(9), Vec::new()));
        let mut judge = GarbageJudge::default();
        for _ in 0..4 {
            assert_eq!(pass(&mut judge, &objects, &[]), Ok(0));
        }
    }
}
