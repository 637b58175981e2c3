//! In which order a start opens volumes, and how many of them at once.
//!
//! Those for which clients wait come first, then the others by name. A few are opened at once at first, so that the
//! first is open long before the last, and then ever more, for what openings need of the host's log is read for all of
//! them together. It must never let volumes that hang keep others from being opened: each counts for a short time only.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::frontends::opening_volumes::OpeningVolumes;

/// Volumes that are opened at once at first: what they need is not kept from them by many others.
const AT_ONCE_MIN: usize = 8;

/// So many are begun for each that is open: each reading of the log, for all that wait for it, is to be worth it.
const GROWTH: usize = 8;

/// The most at once.
const AT_ONCE_MAX: usize = 1024;

/// After so long one that is not open does not count any more.
const COUNTS_FOR: Duration = Duration::from_millis(250);

/// Volumes that are still to be opened, with what belongs to each.
#[derive(Debug)]
pub(super) struct OpeningOrder<T>(BTreeMap<String, T>);

impl<T> OpeningOrder<T> {
    pub(super) fn new(volumes: impl IntoIterator<Item = (String, T)>) -> Self {
        OpeningOrder(volumes.into_iter().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next one out: one for which clients wait, if there is such.
    pub(super) fn next(&mut self, opening: &OpeningVolumes) -> Option<T> {
        // What is not here is being opened already, or later.
        let asked = opening.take_asked(|name| self.0.contains_key(name));
        match asked.and_then(|name| self.0.remove(&name)) {
            Some(found) => Some(found),
            None => self.0.pop_first().map(|(_, next)| next),
        }
    }
}

/// Places for volumes that are opened at once.
#[derive(Debug)]
pub(super) struct OpeningSlots {
    free: Semaphore,
    /// How many more there will be.
    more: AtomicUsize,
}

impl Default for OpeningSlots {
    fn default() -> Self {
        OpeningSlots {
            free: Semaphore::new(AT_ONCE_MIN),
            more: AtomicUsize::new(AT_ONCE_MAX - AT_ONCE_MIN),
        }
    }
}

/// One such place.
#[derive(Debug)]
pub(super) struct OpeningSlot<'a> {
    slots: &'a OpeningSlots,
    _permit: Option<SemaphorePermit<'a>>,
}

impl OpeningSlots {
    pub(super) async fn take(&self) -> OpeningSlot<'_> {
        // Never closed; were it, going on without a permit is right.
        let permit = self.free.acquire().await;
        OpeningSlot {
            slots: self,
            _permit: permit.ok(),
        }
    }
}

impl OpeningSlot<'_> {
    /// Opens a volume, for which this place is kept as long as it counts.
    pub(super) async fn keep_during<F: Future>(self, opening: F) -> F::Output {
        let mut opening = pin!(opening);
        if let Ok(opened) = tokio::time::timeout(COUNTS_FOR, &mut opening).await {
            return opened;
        }
        drop(self);
        opening.await
    }
}

impl Drop for OpeningSlot<'_> {
    fn drop(&mut self) {
        let rest = |more: usize| Some(more.saturating_sub(GROWTH - 1));
        let more = &self.slots.more;
        let before = more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        let added = before.unwrap_or_default().min(GROWTH - 1);
        self.slots.free.add_permits(added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(names: &[&str]) -> (OpeningVolumes, OpeningOrder<String>) {
        let opening = OpeningVolumes::default();
        names.iter().for_each(|name| opening.add(name));
        let each = names
            .iter()
            .map(|name| ((*name).to_owned(), (*name).to_owned()));
        (opening, OpeningOrder::new(each))
    }

    #[test]
    fn volumes_for_which_clients_wait_are_opened_before_all_others_and_each_once() {
        let (opening, mut order) = opening(&["c", "a", "d", "b", "e"]);
        assert_eq!(order.next(&opening).as_deref(), Some("a"));
        // The one that is being opened, one twice, and one that is none of them.
        for asked in ["a", "e", "d", "e", "x"] {
            opening.ask(asked);
        }
        let rest = std::iter::from_fn(|| order.next(&opening));
        assert_eq!(rest.collect::<Vec<_>>(), ["e", "d", "b", "c"]);
        assert!(order.is_empty());
        // For whoever opens others later.
        assert_eq!(opening.take_asked(|_| true).as_deref(), Some("a"));
        opening.ask("b");
        opening.remove("b");
        assert_eq!(opening.take_asked(|_| true), None);
    }

    #[tokio::test]
    async fn a_volume_that_hangs_keeps_its_place_from_others_for_a_short_time_only() {
        let slots = OpeningSlots::default();
        let mut taken = Vec::new();
        for _ in 0..AT_ONCE_MIN {
            taken.push(slots.take().await);
        }
        assert_eq!(slots.free.available_permits(), 0);
        let hanging = taken.pop().unwrap();
        let began = std::time::Instant::now();
        tokio::select! {
            () = hanging.keep_during(std::future::pending()) => {}
            _next = slots.take() => {}
        }
        assert!(began.elapsed() >= COUNTS_FOR);
    }

    #[tokio::test]
    async fn a_few_volumes_are_opened_at_once_at_first_and_more_with_each_that_is_open() {
        let slots = OpeningSlots::default();
        for opened in 1..=AT_ONCE_MAX {
            let slot = slots.take().await;
            assert_eq!(slot.keep_during(async { opened }).await, opened);
            let free = (AT_ONCE_MIN + opened * (GROWTH - 1)).min(AT_ONCE_MAX);
            assert_eq!(slots.free.available_permits(), free);
        }
    }
}
