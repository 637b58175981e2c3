//! The dispatch list of one hardware queue: who is parked, why, and in which order they run.
//!
//! Data structure only, under the queue's small lock (R2): it calls no code of others. It has two
//! kinds of entries. A [`WaitingRequest`] found the gate shut or no free tag; it holds no tag and
//! runs first in, first out. A [`ParkedRequest`] was admitted and then parked by the engine; it
//! keeps its tag, by which its waker names it, and runs when woken: a `Fetch` independently of all
//! others, `Space` in the order of admission (R11). A `Sync` stays in flight while it is parked.
//!
//! Invariant (space): if requests wait for space and `space_open` is false, then the engine still
//! holds the waker of the oldest of them. A wake of any of them sets `space_open`, and they run in
//! order until one of them parks again, which is then the oldest. So a request that was woken while
//! an older one waits is not lost, and a full log costs one retry per wake, not one per parked
//! request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::gate::PendingCounts;
use crate::io::Park;
use crate::tags::Tag;

/// Why an admitted request is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkReason {
    /// The log or the index ring has no room: requests run again in the order of admission.
    Space,
    /// Its bytes are being fetched: it runs again when they are there, independently of others.
    Fetch,
    /// All but durability is done. It stays in flight: a quiesce waits for it, and a cancel does
    /// not complete it.
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

/// A request that found the gate shut or no free tag.
pub(crate) struct WaitingRequest<T> {
    pub(crate) payload: T,
    /// When `expire` first saw it here.
    pub(crate) since: Option<Duration>,
}

/// A request that was admitted and then parked.
pub(crate) struct ParkedRequest<T> {
    pub(crate) payload: T,
    /// Its place in the order of admission, kept however often it parks.
    pub(crate) ticket: u64,
    pub(crate) reason: ParkReason,
    /// When `expire` first saw it parked.
    pub(crate) since: Option<Duration>,
}

/// Requests that were removed from the list to be completed.
pub(crate) struct RemovedRequests<T> {
    pub(crate) waiting: Vec<WaitingRequest<T>>,
    pub(crate) parked: Vec<(Tag, ParkedRequest<T>)>,
}

impl<T> RemovedRequests<T> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.parked.len()
    }
}

pub(crate) struct DispatchList<T> {
    waiting: VecDeque<WaitingRequest<T>>,
    parked: BTreeMap<Tag, ParkedRequest<T>>,
    /// Tags of woken fetches, in the order of their wakes.
    woken_fetches: VecDeque<Tag>,
    /// Tags of woken syncs.
    woken_syncs: VecDeque<Tag>,
    /// Requests that wait for space, by ticket.
    space_waiters: BTreeMap<u64, Tag>,
    /// The oldest request that waits for space may try again.
    space_open: bool,
    /// Wakes for space so far.
    space_wakes: u64,
    /// The ticket of the last request that was handed out to try for space, and `space_wakes` then.
    space_probe: Option<(u64, u64)>,
    /// Tags woken while not parked: the wake came before the park, or was meant for an earlier
    /// request with the tag. The next request that parks with the tag runs again at once, which is
    /// right in the first case and harmless in the second.
    early_wakes: BTreeSet<Tag>,
    /// Parked requests that are in flight.
    sync_count: u32,
    /// The owner is gone: the list takes no request any more.
    retired: bool,
}

impl<T> DispatchList<T> {
    pub(crate) fn new() -> DispatchList<T> {
        DispatchList {
            waiting: VecDeque::new(),
            parked: BTreeMap::new(),
            woken_fetches: VecDeque::new(),
            woken_syncs: VecDeque::new(),
            space_waiters: BTreeMap::new(),
            space_open: false,
            space_wakes: 0,
            space_probe: None,
            early_wakes: BTreeSet::new(),
            sync_count: 0,
            retired: false,
        }
    }

    /// The counts that others read without the lock.
    pub(crate) fn counts(&self) -> PendingCounts {
        let next_for_space = usize::from(self.space_open && !self.space_waiters.is_empty());
        let cancellable = self.waiting.len() + self.parked.len() - self.sync_count as usize;
        PendingCounts {
            runnable: saturating_u32(
                self.waiting.len() + self.woken_fetches.len() + next_for_space,
            ),
            cancellable: saturating_u32(cancellable),
            woken_syncs: saturating_u32(self.woken_syncs.len()),
        }
    }

    /// How many requests are in the list.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.parked.len()
    }

    /// Adds a request at the tail. Returns it if the owner is gone.
    pub(crate) fn push_waiting(&mut self, payload: T) -> Option<T> {
        if self.retired {
            return Some(payload);
        }
        self.waiting.push_back(WaitingRequest {
            payload,
            since: None,
        });
        None
    }

    /// Removes the oldest waiting request, if there is one and `take_tag` finds a tag for it.
    pub(crate) fn pop_waiting(
        &mut self,
        ticket: u64,
        take_tag: impl FnOnce() -> Option<Tag>,
    ) -> Option<(Tag, ParkedRequest<T>)> {
        self.waiting.front()?;
        let tag = take_tag()?;
        let WaitingRequest { payload, since } = self.waiting.pop_front()?;
        // The reason is set again before it is read.
        Some((
            tag,
            ParkedRequest {
                payload,
                ticket,
                reason: ParkReason::Fetch,
                since,
            },
        ))
    }

    /// Parks an admitted request. Returns it if the owner is gone.
    pub(crate) fn park(&mut self, tag: Tag, request: ParkedRequest<T>) -> Option<ParkedRequest<T>> {
        if self.retired {
            return Some(request);
        }
        let woken = self.early_wakes.remove(&tag);
        match request.reason {
            ParkReason::Fetch if woken => self.woken_fetches.push_back(tag),
            ParkReason::Fetch => {}
            ParkReason::Sync => {
                self.sync_count += 1;
                if woken {
                    self.woken_syncs.push_back(tag);
                }
            }
            ParkReason::Space => {
                self.space_waiters.insert(request.ticket, tag);
                if woken {
                    self.open_space();
                }
            }
        }
        let before = self.parked.insert(tag, request);
        debug_assert!(before.is_none(), "tag {tag} parked twice");
        None
    }

    /// The engine wakes the request with this tag.
    pub(crate) fn wake(&mut self, tag: Tag) {
        match self.parked.get(&tag).map(|request| request.reason) {
            Some(ParkReason::Fetch) => push_once(&mut self.woken_fetches, tag),
            Some(ParkReason::Sync) => push_once(&mut self.woken_syncs, tag),
            Some(ParkReason::Space) => self.open_space(),
            None if canary::active!("early_wake_forgotten") => {}
            None => {
                self.early_wakes.insert(tag);
            }
        }
    }

    fn open_space(&mut self) {
        self.space_open = !self.space_waiters.is_empty();
        self.space_wakes = self.space_wakes.wrapping_add(1);
    }

    /// Removes the next woken request that has to enter the gate: a fetch, else the next for space.
    pub(crate) fn pop_woken(&mut self) -> Option<(Tag, ParkedRequest<T>)> {
        if let Some(tag) = self.woken_fetches.pop_front() {
            return Some((tag, self.remove_parked(tag)));
        }
        self.check_space_probe();
        if !self.space_open {
            return None;
        }
        let (ticket, tag) = match canary::active!("space_goes_to_the_newest") {
            true => self.space_waiters.pop_last()?,
            false => self.space_waiters.pop_first()?,
        };
        // The wake is for the requests that wait now, not for those that park later.
        self.space_open = !self.space_waiters.is_empty();
        self.space_probe = Some((ticket, self.space_wakes));
        Some((tag, self.remove_parked(tag)))
    }

    /// If the request that last tried for space is parked again, and no wake came since, the log
    /// is still full: the others stay parked.
    fn check_space_probe(&mut self) {
        if let Some((ticket, wakes)) = self.space_probe.take()
            && self.space_waiters.contains_key(&ticket)
            && wakes == self.space_wakes
        {
            self.space_open = false;
        }
    }

    /// Removes the next woken request that is in flight already.
    pub(crate) fn pop_woken_sync(&mut self) -> Option<(Tag, ParkedRequest<T>)> {
        let tag = self.woken_syncs.pop_front()?;
        self.sync_count -= 1;
        Some((tag, self.remove_parked(tag)))
    }

    fn remove_parked(&mut self, tag: Tag) -> ParkedRequest<T> {
        self.parked
            .remove(&tag)
            .expect("a listed tag is parked: both change together under the lock")
    }

    /// Removes what a cancel completes: all but the syncs.
    pub(crate) fn remove_cancellable(&mut self) -> RemovedRequests<T> {
        self.woken_fetches.clear();
        self.space_waiters.clear();
        self.space_open = false;
        let (syncs, parked): (Vec<_>, Vec<_>) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|(_, request)| request.reason == ParkReason::Sync);
        self.parked = syncs.into_iter().collect();
        RemovedRequests {
            waiting: self.waiting.drain(..).collect(),
            parked,
        }
    }

    /// The owner is dropped: removes all but the syncs. From now on the list takes no request.
    pub(crate) fn retire(&mut self) -> RemovedRequests<T> {
        self.retired = true;
        self.remove_cancellable()
    }

    /// Removes the syncs, when the owner is dropped.
    pub(crate) fn remove_syncs(&mut self) -> Vec<(Tag, ParkedRequest<T>)> {
        self.woken_syncs.clear();
        self.sync_count = 0;
        std::mem::take(&mut self.parked).into_iter().collect()
    }

    /// Removes what has been here for `limit` or longer; notes the time for requests seen first.
    pub(crate) fn remove_expired(&mut self, now: Duration, limit: Duration) -> RemovedRequests<T> {
        let due = |since: &mut Option<Duration>| {
            let since = *since.get_or_insert(now);
            now.saturating_sub(since) >= limit
        };
        let waiting = extract_due(&mut self.waiting, |waiting| due(&mut waiting.since));
        let tags: Vec<Tag> = self
            .parked
            .iter_mut()
            .filter(|(_, request)| request.reason != ParkReason::Sync)
            .filter_map(|(tag, request)| due(&mut request.since).then_some(*tag))
            .collect();
        let mut parked = Vec::with_capacity(tags.len());
        for tag in tags {
            self.woken_fetches.retain(|t| *t != tag);
            let request = self.remove_parked(tag);
            if request.reason == ParkReason::Space {
                self.space_waiters.remove(&request.ticket);
                // Its waker may have been the one that the engine holds (invariant "space").
                self.open_space();
            }
            parked.push((tag, request));
        }
        RemovedRequests { waiting, parked }
    }

    /// The tags of parked requests that are not in flight.
    pub(crate) fn parked_tags(&self) -> impl Iterator<Item = Tag> {
        self.parked
            .iter()
            .filter(|(_, request)| request.reason != ParkReason::Sync)
            .map(|(tag, _)| *tag)
    }
}

/// Removes the elements that are due and keeps the others in order.
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

/// Memory bounds the counts long before this saturates.
fn saturating_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
