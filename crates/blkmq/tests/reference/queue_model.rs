//! What the model knows of one queue: which requests wait, run and are parked, and whose turn it is.
//!
//! It never looks into the queue; [`super::world`] tells it what happened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use blkmq::{AdmittedRequest, ParkReason};

/// The number of a request.
pub(crate) type Id = u64;

/// A request that the engine parked, as the model sees it.
#[derive(Debug)]
pub(crate) struct ParkedModel {
    pub(crate) tag: u16,
    pub(crate) reason: ParkReason,
    pub(crate) woken: bool,
    pub(crate) order: u64,
    pub(crate) since: Option<Duration>,
}

/// What the model knows of a queue.
#[derive(Debug, Default)]
pub(crate) struct QueueModel {
    pub(crate) depth: usize,
    pub(crate) waiting: VecDeque<(Id, Option<Duration>)>,
    pub(crate) parked: BTreeMap<Id, ParkedModel>,
    /// In flight, in somebody's hands: the order of admission and the clock.
    pub(crate) running: BTreeMap<Id, (u64, Option<Duration>)>,
    pub(crate) early_wakes: BTreeSet<u16>,
    pub(crate) space_open: bool,
    /// The last one let through for space, while nobody was woken since.
    pub(crate) probe: Option<Id>,
    pub(crate) admissions: u64,
}

impl QueueModel {
    pub(crate) fn tags_free(&self) -> bool {
        self.running.len() + self.parked.len() < self.depth
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.running.len()
            + self
                .parked
                .values()
                .filter(|h| h.reason == ParkReason::Sync)
                .count()
    }

    pub(crate) fn space(&self) -> impl Iterator<Item = (&Id, &ParkedModel)> {
        self.parked
            .iter()
            .filter(|(_, parked)| parked.reason == ParkReason::Space)
    }

    /// Whether the owner has something to do on a device in this state.
    pub(crate) fn must_run(&self, quiesced: bool, cancelled: bool) -> bool {
        let woken = |reason| self.parked.values().any(|h| h.reason == reason && h.woken);
        let space = self.space_open && self.space().next().is_some();
        let probing = self.probe.is_some_and(|id| {
            self.parked
                .get(&id)
                .is_some_and(|parked| parked.reason == ParkReason::Space)
        });
        if woken(ParkReason::Sync) {
            return true;
        }
        if cancelled {
            return !self.waiting.is_empty()
                || self
                    .parked
                    .values()
                    .any(|parked| parked.reason != ParkReason::Sync);
        }
        !quiesced
            && (woken(ParkReason::Fetch)
                || space && !probing
                || !self.waiting.is_empty() && self.tags_free())
    }

    pub(crate) fn open_space(&mut self) {
        self.space_open = self
            .parked
            .values()
            .any(|parked| parked.reason == ParkReason::Space);
        self.probe = None;
    }

    pub(crate) fn wake(&mut self, tag: u16) {
        match self.parked.values_mut().find(|parked| parked.tag == tag) {
            Some(parked) if parked.reason == ParkReason::Space => self.open_space(),
            Some(parked) => parked.woken = true,
            None => {
                self.early_wakes.insert(tag);
            }
        }
    }
}

impl QueueModel {
    pub(crate) fn park(&mut self, request: &AdmittedRequest<Id>, reason: ParkReason) {
        let (id, tag) = (*request.payload(), request.tag().number());
        let (order, since) = self.running.remove(&id).expect("it was in flight");
        let woken = self.early_wakes.remove(&tag);
        self.parked.insert(
            id,
            ParkedModel {
                tag,
                reason,
                woken,
                order,
                since,
            },
        );
        if reason == ParkReason::Space && woken {
            self.open_space();
        }
    }

    /// The queue handed this request out: it must have been its turn.
    pub(crate) fn check_handed_out(
        &mut self,
        request: &AdmittedRequest<Id>,
        shut: bool,
    ) -> &'static str {
        let (id, tag) = (*request.payload(), request.tag().number());
        let Some(parked) = self.parked.get(&id) else {
            assert!(!shut, "{id} ran through a shut gate");
            let (first, since) = self.waiting.pop_front().expect("nobody else can run");
            assert_eq!(id, first, "first in, first out");
            self.running.insert(id, (self.admissions, since));
            self.admissions += 1;
            self.close_space_after_probe();
            let line = self.space_open && self.space().next().is_some();
            assert!(
                !line,
                "{id} ran before older requests that may try for space"
            );
            return "run from the gate";
        };
        assert_eq!(parked.tag, tag, "a parked request keeps its tag");
        assert!(
            !shut || parked.reason == ParkReason::Sync,
            "{id} ran through a shut gate"
        );
        let kind = match parked.reason {
            ParkReason::Fetch => {
                assert!(parked.woken, "{id} was not woken");
                "run after a fetch"
            }
            ParkReason::Sync => {
                assert!(parked.woken, "{id} was not woken");
                "run after a sync"
            }
            ParkReason::Space => {
                let oldest = self.space().map(|(_, other)| other.order).min();
                assert_eq!(
                    oldest,
                    Some(parked.order),
                    "{id} overtook another that waits for space"
                );
                self.close_space_after_probe();
                assert!(
                    self.space_open,
                    "{id} was let through, and nobody was woken"
                );
                self.probe = Some(id);
                "run after space"
            }
        };
        let parked = self.parked.remove(&id).expect("seen above");
        // The door stands open for those who wait, not for those who come later.
        let anybody = self.space().next().is_some();
        self.space_open &= anybody;
        self.running.insert(id, (parked.order, parked.since));
        kind
    }

    /// If the last one let through for space is parked for it again, the door is closed.
    pub(crate) fn close_space_after_probe(&mut self) {
        if let Some(id) = self.probe
            && self
                .parked
                .get(&id)
                .is_some_and(|parked| parked.reason == ParkReason::Space)
        {
            self.space_open = false;
            self.probe = None;
        }
    }
}
