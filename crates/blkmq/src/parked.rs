//! The dispatch list of one hardware queue: who is parked, why, and in which order they run.
//!
//! Pure bookkeeping under the queue's small lock (R2); it never calls out. There are two kinds of
//! entries. *Waiting* ones met a shut gate or found no tag; they hold nothing and run first in,
//! first out. *Held* ones were admitted and then parked by the engine; they keep their tag, which
//! names them to whoever wakes them, and run when woken: a `Fetch` on its own, whatever else is
//! parked; `Space` in the order of admission (R11); a `Sync` is in flight all along.
//!
//! Invariant (space): if somebody waits for space and `space_open` is false, then the oldest of
//! them has a waker that the engine still holds. A wake of any of them opens the door for all, in
//! order, until one of them parks again: that one is then the oldest. So a request that was woken
//! behind an older one is never forgotten, and a full log costs one retry per wake, not one per
//! parked request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::gate::Counts;
use crate::io::Park;
use crate::tags::Tag;

/// Why an admitted request does not go on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkReason {
    /// The log or the index ring has no room: requests go on in the order they were admitted.
    Space,
    /// Its bytes are being fetched: it goes on by itself, and holds up nobody.
    Fetch,
    /// It is done but for durability. It stays in flight: a quiesce waits for it, and a cancel
    /// leaves it to its owner.
    Sync,
}

impl From<Park> for ParkReason {
    fn from(park: Park) -> ParkReason {
        match park {
            Park::Space => ParkReason::Space,
            Park::Fetch => ParkReason::Fetch,
        }
    }
}

/// A request that met a shut gate or found no tag.
pub(crate) struct Waiting<T> {
    pub(crate) payload: T,
    pub(crate) since: Option<Duration>,
}

/// A request that was admitted and then parked.
pub(crate) struct Held<T> {
    pub(crate) payload: T,
    /// Its place in the order of admission, kept however often it parks.
    pub(crate) ticket: u64,
    pub(crate) reason: ParkReason,
    /// When the clock was first seen while it was parked.
    pub(crate) since: Option<Duration>,
}

/// Parked requests that were taken out to be completed: those without a tag, those with one.
pub(crate) type Drained<T> = (Vec<Waiting<T>>, Vec<(Tag, Held<T>)>);

pub(crate) struct Parked<T> {
    waiting: VecDeque<Waiting<T>>,
    held: BTreeMap<Tag, Held<T>>,
    /// Woken fetches, by the order of their wakes.
    fetched: VecDeque<Tag>,
    /// Woken syncs.
    synced: VecDeque<Tag>,
    /// Who waits for space, by ticket.
    space: BTreeMap<u64, Tag>,
    space_open: bool,
    space_wakes: u64,
    /// The last one let through to try for space, and the wakes seen then.
    probe: Option<(u64, u64)>,
    /// Woken while not parked: the wake came before the park, or was for an earlier use of the
    /// tag. The next park of that tag goes on at once, which is right in the first case and
    /// harmless in the second.
    early: BTreeSet<Tag>,
    syncing: u32,
    /// The owner is gone: nothing is kept any more.
    retired: bool,
}

impl<T> Parked<T> {
    pub(crate) fn new() -> Parked<T> {
        Parked {
            waiting: VecDeque::new(),
            held: BTreeMap::new(),
            fetched: VecDeque::new(),
            synced: VecDeque::new(),
            space: BTreeMap::new(),
            space_open: false,
            space_wakes: 0,
            probe: None,
            early: BTreeSet::new(),
            syncing: 0,
            retired: false,
        }
    }

    /// The counts for looks without the lock.
    pub(crate) fn counts(&self) -> Counts {
        let door = usize::from(self.space_open && !self.space.is_empty());
        let parked = self.waiting.len() + self.held.len() - self.syncing as usize;
        Counts {
            runnable: count(self.waiting.len() + self.fetched.len() + door),
            parked: count(parked),
            resumed: count(self.synced.len()),
        }
    }

    /// How many requests are here.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.held.len()
    }

    /// Adds a request at the end of the line. Gives it back if the owner is gone.
    pub(crate) fn wait(&mut self, payload: T) -> Option<T> {
        if self.retired {
            return Some(payload);
        }
        self.waiting.push_back(Waiting {
            payload,
            since: None,
        });
        None
    }

    /// The oldest request that waits at the gate, if there is one and `take_tag` has a tag for it.
    pub(crate) fn next_waiting(
        &mut self,
        ticket: u64,
        take_tag: impl FnOnce() -> Option<Tag>,
    ) -> Option<(Tag, Held<T>)> {
        self.waiting.front()?;
        let tag = take_tag()?;
        let Waiting { payload, since } = self.waiting.pop_front()?;
        // The reason is of no account until it parks again.
        Some((
            tag,
            Held {
                payload,
                ticket,
                reason: ParkReason::Fetch,
                since,
            },
        ))
    }

    /// Parks an admitted request. Gives it back if the owner is gone.
    pub(crate) fn hold(&mut self, tag: Tag, held: Held<T>) -> Option<Held<T>> {
        if self.retired {
            return Some(held);
        }
        let woken = self.early.remove(&tag);
        match held.reason {
            ParkReason::Fetch if woken => self.fetched.push_back(tag),
            ParkReason::Fetch => {}
            ParkReason::Sync => {
                self.syncing += 1;
                if woken {
                    self.synced.push_back(tag);
                }
            }
            ParkReason::Space => {
                self.space.insert(held.ticket, tag);
                if woken {
                    self.open_space();
                }
            }
        }
        let before = self.held.insert(tag, held);
        debug_assert!(before.is_none(), "tag {tag} parked twice");
        None
    }

    /// The engine woke the request with this tag.
    pub(crate) fn wake(&mut self, tag: Tag) {
        match self.held.get(&tag).map(|held| held.reason) {
            Some(ParkReason::Fetch) => push_once(&mut self.fetched, tag),
            Some(ParkReason::Sync) => push_once(&mut self.synced, tag),
            Some(ParkReason::Space) => self.open_space(),
            None if canary::active!("early_wake_forgotten") => {}
            None => {
                self.early.insert(tag);
            }
        }
    }

    fn open_space(&mut self) {
        self.space_open = !self.space.is_empty();
        self.space_wakes = self.space_wakes.wrapping_add(1);
    }

    /// The next woken request that needs the gate: a fetched one, else the next for space.
    pub(crate) fn next_held(&mut self) -> Option<(Tag, Held<T>)> {
        if let Some(tag) = self.fetched.pop_front() {
            return Some((tag, self.release(tag)));
        }
        self.settle_probe();
        if !self.space_open {
            return None;
        }
        let (ticket, tag) = self.space.pop_first()?;
        // The door stands open for those who wait, not for those who come later.
        self.space_open = !self.space.is_empty();
        self.probe = Some((ticket, self.space_wakes));
        Some((tag, self.release(tag)))
    }

    /// If the last one let through is parked again, and nobody was woken since, the log is still
    /// full: the rest stay where they are.
    fn settle_probe(&mut self) {
        if let Some((ticket, wakes)) = self.probe.take()
            && self.space.contains_key(&ticket)
            && wakes == self.space_wakes
        {
            self.space_open = false;
        }
    }

    /// The next woken request that is in flight already.
    pub(crate) fn next_synced(&mut self) -> Option<(Tag, Held<T>)> {
        let tag = self.synced.pop_front()?;
        self.syncing -= 1;
        Some((tag, self.release(tag)))
    }

    fn release(&mut self, tag: Tag) -> Held<T> {
        self.held
            .remove(&tag)
            .expect("a listed tag is held: both change together under the lock")
    }

    /// Takes out everything that a cancel completes: all but the syncs.
    pub(crate) fn drain_cancelled(&mut self) -> Drained<T> {
        self.fetched.clear();
        self.space.clear();
        self.space_open = false;
        let (syncs, rest) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(_, h)| h.reason == ParkReason::Sync);
        self.held = syncs;
        let rest: BTreeMap<Tag, Held<T>> = rest;
        (self.waiting.drain(..).collect(), rest.into_iter().collect())
    }

    /// The owner goes: takes out everything but the syncs, and keeps nothing from now on.
    pub(crate) fn retire(&mut self) -> Drained<T> {
        self.retired = true;
        self.drain_cancelled()
    }

    /// Takes out the syncs, when the owner goes.
    pub(crate) fn drain_syncs(&mut self) -> Vec<(Tag, Held<T>)> {
        self.synced.clear();
        self.syncing = 0;
        std::mem::take(&mut self.held).into_iter().collect()
    }

    /// Takes out what has been parked for `limit` or longer; starts the clock of the others.
    pub(crate) fn drain_expired(&mut self, now: Duration, limit: Duration) -> Drained<T> {
        let due = |since: &mut Option<Duration>| {
            let since = *since.get_or_insert(now);
            now.saturating_sub(since) >= limit
        };
        let waiting = extract_due(&mut self.waiting, |waiting| due(&mut waiting.since));
        let tags: Vec<Tag> = self
            .held
            .iter_mut()
            .filter(|(_, held)| held.reason != ParkReason::Sync)
            .filter_map(|(tag, held)| due(&mut held.since).then_some(*tag))
            .collect();
        let mut held = Vec::with_capacity(tags.len());
        for tag in tags {
            self.fetched.retain(|t| *t != tag);
            let one = self.release(tag);
            if one.reason == ParkReason::Space {
                self.space.remove(&one.ticket);
                // It may have been the one whose waker stood for all (invariant "space").
                self.open_space();
            }
            held.push((tag, one));
        }
        (waiting, held)
    }

    /// The tags that are held here but not in flight.
    pub(crate) fn idle_tags(&self) -> impl Iterator<Item = Tag> {
        self.held
            .iter()
            .filter(|(_, held)| held.reason != ParkReason::Sync)
            .map(|(tag, _)| *tag)
    }
}

/// Takes out the elements that are due and keeps the others in order.
fn extract_due<T>(list: &mut VecDeque<T>, mut due: impl FnMut(&mut T) -> bool) -> Vec<T> {
    let mut taken = Vec::new();
    for mut element in std::mem::take(list) {
        if due(&mut element) {
            taken.push(element);
        } else {
            list.push_back(element);
        }
    }
    taken
}

fn push_once(list: &mut VecDeque<Tag>, tag: Tag) {
    if !list.contains(&tag) {
        list.push_back(tag);
    }
}

/// Counts are bounded by memory long before this clamps.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
