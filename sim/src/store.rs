//! Owns the simulated object store: strongly consistent, with conditional writes, and an unsure
//! line in front of it.
//!
//! For every call it is drawn independently whether it takes effect and whether its caller
//! learns so; a write may also take effect long after its caller was told "unknown", or twice.
//! The store outlives every host. It must never decide when something happens: the world calls
//! [`SimStore::deliver`], [`SimStore::answer`] and [`SimStore::redeliver`] at times of its choice.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use volume::hostlog::names::PIN_PREFIX;
use volume::object::root::Root;
use volume::object::{ROOT_PREFIX, SNAPSHOT_PREFIX};
use volume::units::VolumeId;

use crate::faults::{Fault, FaultCounts};
use crate::oracle::garbage::{CANDIDATES_KEY, Stored};
use crate::rng::Rng;

#[cfg(test)]
mod tests;

/// Whether the call ends a pass of the collector.
fn ends_pass(call: &Call) -> bool {
    matches!(call, Call::Put { key, .. } if key == CANDIDATES_KEY)
}

fn is_root(key: &str) -> bool {
    key.starts_with(ROOT_PREFIX) || key.starts_with(SNAPSHOT_PREFIX)
}

/// Names a call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Read an object.
    Get {
        /// Key.
        key: String,
    },
    /// Read a range of an object.
    GetRange {
        /// Key.
        key: String,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Write, subject to the condition.
    Put {
        /// Key.
        key: String,
        /// Content.
        data: Rc<[u8]>,
        /// What must hold.
        condition: Condition,
    },
    /// Delete; a missing object is no error.
    Delete {
        /// Key.
        key: String,
    },
    /// All keys with this prefix, in order.
    List {
        /// Prefix.
        prefix: String,
    },
    /// The first of them behind a place.
    ListPart {
        /// Prefix.
        prefix: String,
        /// The place.
        after: String,
        /// How many.
        limit: usize,
    },
}

/// What must hold for a write to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    None,
    /// There is no such object.
    Absent,
    /// The object has this version.
    Version(u64),
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An object and its version.
    Object(Vec<u8>, u64),
    /// A range of an object.
    Range(Vec<u8>),
    /// Written, with the new version.
    Written(u64),
    /// Deleted.
    Deleted,
    /// Keys.
    Keys(Vec<(String, u64)>),
}

/// Why a call gave no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No such object.
    NotFound,
    /// The object ends before the range does.
    OutOfRange,
    /// The condition did not hold.
    Lost,
    /// It may or may not have happened, and may yet happen.
    Unknown,
    /// It did not happen.
    Unavailable,
}

/// What a call answers.
pub type CallResult = Result<Reply, CallError>;

/// How likely each fault is, in ten thousand calls of its kind.
#[derive(Clone, Debug, Default)]
pub struct StoreFaults {
    /// A call fails and does nothing.
    pub unavailable: u32,
    /// The answer of a write is lost; half of these are not applied in time.
    pub unknown: u32,
    /// Of the writes that were not applied in time: take effect later all the same.
    pub late: u32,
    /// A write is delivered again, later.
    pub duplicate: u32,
    /// A read fails.
    pub get_failed: u32,
    /// A bit of a read's answer is flipped.
    pub get_corrupt: u32,
    /// A read's answer is cut short.
    pub get_truncated: u32,
}

#[derive(Clone, Debug)]
struct Object {
    data: Rc<[u8]>,
    version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallEffect {
    /// Takes effect and is answered.
    Normal,
    /// Takes effect, and is answered `Unknown`.
    AppliedUnknown,
    /// Does not take effect, and is answered `Unknown`.
    DroppedUnknown,
    /// Does not take effect, and is answered `Unavailable`.
    Refused,
}

/// A replacement of an object that is replaced conditionally: who became its author.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// The version it has since then.
    pub version: u64,
    /// Whose call it was.
    pub author: u64,
    /// Whose root it is since then, if it is a volume's.
    pub volume: Option<VolumeId>,
}

/// What took effect that the rules of forks speak of, and whose call it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootStep {
    /// A pin was written.
    Pinned(String),
    /// A root was read.
    Read(u64, String),
    /// A root was written where none was.
    Created(u64, String),
    /// The root of a volume was written, as a new one or over another.
    Named(String),
}

#[derive(Clone, Debug)]
struct CallInFlight {
    author: u64,
    call: Call,
    effect: CallEffect,
    result: Option<CallResult>,
    is_redelivered: bool,
}

/// All objects of a store at one moment.
#[derive(Clone, Debug)]
pub struct SavedStore(BTreeMap<String, Object>);

impl SavedStore {
    /// The version of an object.
    pub fn version(&self, key: &str) -> Option<u64> {
        self.0.get(key).map(|object| object.version)
    }
}

/// The store.
#[derive(Clone, Debug)]
pub struct SimStore {
    objects: BTreeMap<String, Object>,
    calls_in_flight: BTreeMap<CallId, CallInFlight>,
    next_call: u64,
    next_version: u64,
    /// By key, of objects that were written with a condition.
    replacements: BTreeMap<String, Vec<Replacement>>,
    /// Keys whose removal was asked for and not carried out.
    refused_removals: BTreeSet<String>,
    /// A pass of the collector took effect in the store, and who made it does not know.
    has_unheard_pass: bool,
    /// Since they were taken last.
    root_steps: Vec<RootStep>,
    rng: Rng,
    /// Fault rates; the world sets them to zero to heal.
    pub faults: StoreFaults,
    /// Nothing gets through.
    pub outage: bool,
    /// What took effect.
    pub counts: FaultCounts,
    /// Calls submitted.
    pub calls: u64,
    /// Bytes of writes that took effect.
    pub bytes_written: u64,
}

impl SimStore {
    /// An empty store.
    pub fn new(rng: Rng, faults: StoreFaults) -> SimStore {
        SimStore {
            objects: BTreeMap::new(),
            calls_in_flight: BTreeMap::new(),
            next_call: 0,
            next_version: 1,
            replacements: BTreeMap::new(),
            refused_removals: BTreeSet::new(),
            has_unheard_pass: false,
            root_steps: Vec::new(),
            rng,
            faults,
            outage: false,
            counts: FaultCounts::default(),
            calls: 0,
            bytes_written: 0,
        }
    }

    /// Sends a call of `author`'s; nothing happens until it is delivered.
    pub fn submit(&mut self, author: u64, call: Call) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.calls += 1;
        let writes = matches!(call, Call::Put { .. } | Call::Delete { .. });
        let (fate, is_redelivered) = self.draw_fate(writes);
        self.calls_in_flight.insert(
            id,
            CallInFlight {
                author,
                call,
                effect: fate,
                result: None,
                is_redelivered,
            },
        );
        id
    }

    fn draw_fate(&mut self, writes: bool) -> (CallEffect, bool) {
        if self.rng.draw_rate(self.faults.unavailable) {
            return (CallEffect::Refused, false);
        }
        if !writes {
            return (CallEffect::Normal, false);
        }
        let again = self.rng.draw_rate(self.faults.duplicate);
        if !self.rng.draw_rate(self.faults.unknown) {
            return (CallEffect::Normal, again);
        }
        if self.rng.coin() {
            (CallEffect::AppliedUnknown, again)
        } else {
            (
                CallEffect::DroppedUnknown,
                self.rng.draw_rate(self.faults.late),
            )
        }
    }

    /// Whether the call will do something after its answer.
    pub fn is_redelivered(&self, id: CallId) -> bool {
        self.calls_in_flight
            .get(&id)
            .is_some_and(|f| f.is_redelivered)
    }

    /// The call reaches the store. Happens at most once, also after its caller died.
    pub fn deliver(&mut self, id: CallId) {
        let Some(flight) = self.calls_in_flight.get(&id).cloned() else {
            return;
        };
        if flight.result.is_some() {
            return;
        }
        let writes = matches!(flight.call, Call::Put { .. } | Call::Delete { .. });
        let mut fate = flight.effect;
        if self.outage {
            // A connection that breaks leaves a writer unsure; a refused one does not.
            self.counts.count(Fault::StoreOutage);
            fate = if writes && self.rng.coin() {
                CallEffect::DroppedUnknown
            } else {
                CallEffect::Refused
            };
        }
        if let (Call::Delete { key }, CallEffect::DroppedUnknown | CallEffect::Refused) =
            (&flight.call, fate)
        {
            self.refused_removals.insert(key.clone());
        }
        let result = match fate {
            CallEffect::Normal => self.execute(flight.author, &flight.call),
            CallEffect::AppliedUnknown => {
                self.counts.count(Fault::UnknownApplied);
                if self.execute(flight.author, &flight.call).is_ok() {
                    self.has_unheard_pass |= ends_pass(&flight.call);
                }
                Err(CallError::Unknown)
            }
            CallEffect::DroppedUnknown => {
                self.counts.count(Fault::UnknownDropped);
                Err(CallError::Unknown)
            }
            CallEffect::Refused => {
                self.counts.count(Fault::StoreUnavailable);
                Err(CallError::Unavailable)
            }
        };
        let result = self.corrupt_read(result);
        if let Some(flight) = self.calls_in_flight.get_mut(&id) {
            flight.effect = fate;
            flight.result = Some(result);
        }
    }

    /// The answer reaches the caller. The call stays known if it will be delivered again.
    pub fn answer(&mut self, id: CallId) -> Option<CallResult> {
        self.deliver(id);
        let flight = self.calls_in_flight.get_mut(&id)?;
        let result = flight.result.clone();
        if !flight.is_redelivered {
            self.calls_in_flight.remove(&id);
        }
        result
    }

    /// A write takes effect late, or once more; subject to its condition like any write.
    pub fn redeliver(&mut self, id: CallId) {
        let Some(flight) = self.calls_in_flight.remove(&id) else {
            return;
        };
        if !flight.is_redelivered || flight.result.is_none() {
            return;
        }
        match flight.effect {
            CallEffect::DroppedUnknown => {
                if self.execute(flight.author, &flight.call).is_ok() {
                    self.has_unheard_pass |= ends_pass(&flight.call);
                    self.counts.count(Fault::LateApply);
                }
            }
            CallEffect::Normal | CallEffect::AppliedUnknown => {
                self.counts.count(Fault::Duplicate);
                let _ = self.execute(flight.author, &flight.call);
            }
            CallEffect::Refused => {}
        }
    }

    fn execute(&mut self, author: u64, call: &Call) -> CallResult {
        match call {
            Call::Get { key } => {
                if is_root(key) {
                    self.root_steps.push(RootStep::Read(author, key.clone()));
                }
                let object = self.objects.get(key).ok_or(CallError::NotFound)?;
                Ok(Reply::Object(object.data.to_vec(), object.version))
            }
            Call::GetRange { key, offset, len } => {
                let object = self.objects.get(key).ok_or(CallError::NotFound)?;
                let end = offset.saturating_add(*len) as usize;
                let range = object.data.get(*offset as usize..end);
                Ok(Reply::Range(range.ok_or(CallError::OutOfRange)?.to_vec()))
            }
            Call::Put {
                key,
                data,
                condition,
            } => self.put(author, key, data, *condition),
            Call::Delete { key } => {
                self.objects.remove(key);
                Ok(Reply::Deleted)
            }
            Call::ListPart {
                prefix,
                after,
                limit,
            } => Ok(Reply::Keys(
                self.objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(prefix) && *key > after)
                    .take(*limit)
                    .map(|(key, object)| (key.clone(), object.data.len() as u64))
                    .collect(),
            )),
            Call::List { prefix } => Ok(Reply::Keys(
                self.objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(prefix))
                    .map(|(key, object)| (key.clone(), object.data.len() as u64))
                    .collect(),
            )),
        }
    }

    fn put(&mut self, author: u64, key: &str, data: &Rc<[u8]>, condition: Condition) -> CallResult {
        let current = self.objects.get(key).map(|object| object.version);
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => current.is_none(),
            Condition::Version(version) => current == Some(version),
        };
        if !holds {
            return Err(CallError::Lost);
        }
        let version = self.next_version;
        self.next_version += 1;
        if condition != Condition::None {
            let all = self.replacements.entry(key.to_owned()).or_default();
            let root = key.starts_with(ROOT_PREFIX).then(|| Root::decode(data));
            let volume = root.and_then(Result::ok).map(|root| root.volume);
            all.push(Replacement {
                version,
                author,
                volume,
            });
        }
        if key.starts_with(ROOT_PREFIX) {
            self.root_steps.push(RootStep::Named(key.to_owned()));
        }
        if condition == Condition::Absent && is_root(key) {
            self.root_steps
                .push(RootStep::Created(author, key.to_owned()));
        } else if key.starts_with(PIN_PREFIX) {
            self.root_steps.push(RootStep::Pinned(key.to_owned()));
        }
        self.bytes_written += data.len() as u64;
        self.objects.insert(
            key.to_owned(),
            Object {
                data: Rc::clone(data),
                version,
            },
        );
        Ok(Reply::Written(version))
    }

    fn corrupt_read(&mut self, result: CallResult) -> CallResult {
        let (Ok(Reply::Object(..)) | Ok(Reply::Range(_))) = &result else {
            return result;
        };
        if self.rng.draw_rate(self.faults.get_failed) {
            self.counts.count(Fault::GetFailed);
            return Err(CallError::Unavailable);
        }
        let (corrupt, cut) = (
            self.rng.draw_rate(self.faults.get_corrupt),
            self.rng.draw_rate(self.faults.get_truncated),
        );
        let mut result = result;
        let (Ok(Reply::Object(bytes, _)) | Ok(Reply::Range(bytes))) = &mut result else {
            return result;
        };
        if corrupt && !bytes.is_empty() {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.counts.count(Fault::GetCorrupt);
        }
        if cut && !bytes.is_empty() {
            let keep = self.rng.below(bytes.len() as u64) as usize;
            bytes.truncate(keep);
            self.counts.count(Fault::GetTruncated);
        }
        result
    }

    /// The writes of an object that had a condition and took effect, in order.
    pub fn replacements(&self, key: &str) -> &[Replacement] {
        self.replacements.get(key).map_or(&[], Vec::as_slice)
    }

    /// The version that the next write gets.
    pub fn next_version(&self) -> u64 {
        self.next_version
    }

    /// An object's bytes, for oracles.
    pub fn data(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(key).map(|object| &*object.data)
    }

    /// A copy of all objects.
    pub fn save(&self) -> SavedStore {
        SavedStore(self.objects.clone())
    }

    /// The version of an object.
    pub fn version(&self, key: &str) -> Option<u64> {
        self.objects.get(key).map(|object| object.version)
    }

    /// All objects are again what they were. Those that had changed are new ones to their readers. True if
    /// none is gone.
    pub fn set_back(&mut self, saved: SavedStore) -> bool {
        let now = std::mem::replace(&mut self.objects, saved.0);
        for (key, object) in &mut self.objects {
            let same = now.get(key).is_some_and(|at| at.version == object.version);
            if !same {
                object.version = self.next_version;
                self.next_version += 1;
            }
        }
        now.keys().all(|key| self.objects.contains_key(key))
    }

    /// Whether a pass of the collector ended since this was called last, and its host did not hear that it had.
    pub fn take_unheard_pass(&mut self) -> bool {
        std::mem::take(&mut self.has_unheard_pass)
    }

    /// Keys whose removal was asked for and not carried out since this was called last.
    pub fn take_refused_removals(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.refused_removals)
    }

    /// What took effect of pins and roots since this was called last.
    pub fn take_root_steps(&mut self) -> Vec<RootStep> {
        std::mem::take(&mut self.root_steps)
    }

    /// All objects, for oracles.
    pub fn stored(&self) -> impl Iterator<Item = Stored<'_>> {
        self.objects.iter().map(|(key, object)| Stored {
            key,
            version: object.version,
            data: &object.data,
        })
    }
}
