//! The latencies of the volumes that this server serves, and which of them are listed by name.
//!
//! A host may have thousands of volumes, and each would be hundreds of samples: the busiest are listed
//! by name, all others are one row, [`REST`]. No row ever goes back while it is there: what a volume
//! counted before it was listed stays in the rest, and what it counted while it was listed ends with
//! its row. Must never be asked on a ring thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nbd::server::latency::{Latencies, LatencyCounts, SlowRequests};

/// Volumes that are listed by name.
const LISTED_MAX: usize = 20;

/// The name of the row of all others. No volume can have it.
pub(crate) const REST: &str = "(rest)";

/// How long a choice of the busiest volumes stands.
const CHOICE_LASTS: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Entry {
    latencies: Arc<Latencies>,
    is_listed: bool,
    /// What is not in its row, or not in the rest, because it was counted before.
    since: LatencyCounts,
    /// Its requests when the busiest were last chosen.
    requests_then: u64,
}

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<String, Entry>,
    /// What is in the rest for good.
    rest: LatencyCounts,
    chosen: Option<Instant>,
}

/// The latencies of all open volumes.
#[derive(Debug)]
pub(crate) struct LatencyRegistry {
    slow: Arc<SlowRequests>,
    state: Mutex<State>,
}

impl LatencyRegistry {
    /// Requests that take at least `slow` are kept for the log.
    pub(crate) fn new(slow: Duration) -> Self {
        LatencyRegistry {
            slow: Arc::new(SlowRequests::new(slow)),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counters stay usable whatever panicked between them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the slow requests of all volumes are kept.
    pub(crate) fn slow(&self) -> &SlowRequests {
        &self.slow
    }

    /// The latencies of a volume that is opened, or still served.
    pub(crate) fn open(&self, name: &str) -> Arc<Latencies> {
        let mut state = self.state();
        if let Some(entry) = state.volumes.get(name) {
            return Arc::clone(&entry.latencies);
        }
        let latencies = Latencies::new(name, Arc::clone(&self.slow));
        let listed = state.volumes.values().filter(|entry| entry.is_listed);
        let entry = Entry {
            latencies: Arc::clone(&latencies),
            is_listed: listed.count() < LISTED_MAX,
            since: LatencyCounts::default(),
            requests_then: 0,
        };
        state.volumes.insert(name.to_owned(), entry);
        latencies
    }

    /// A volume was closed.
    pub(crate) fn close(&self, name: &str) {
        let mut state = self.state();
        if let Some(entry) = state.volumes.remove(name)
            && !entry.is_listed
        {
            let counts = entry.latencies.counts().since(&entry.since);
            state.rest.add(&counts);
        }
    }

    /// What a volume counted since it was opened.
    pub(crate) fn of(&self, name: &str) -> Option<LatencyCounts> {
        let latencies = Arc::clone(&self.state().volumes.get(name)?.latencies);
        Some(latencies.counts())
    }

    /// The listed volumes and the rest, each with what it counted.
    pub(crate) fn rows(&self) -> Vec<(String, LatencyCounts)> {
        let mut state = self.state();
        let state = &mut *state;
        let now = Instant::now();
        if state.chosen.is_none_or(|then| now - then >= CHOICE_LASTS) {
            state.chosen = Some(now);
            state.choose();
        }
        let mut rest = state.rest.clone();
        let mut rows = Vec::new();
        for (name, entry) in &state.volumes {
            let counts = entry.latencies.counts().since(&entry.since);
            match entry.is_listed {
                true => rows.push((name.clone(), counts)),
                false => rest.add(&counts),
            }
        }
        if rest.requests() > 0 {
            rows.push((REST.to_owned(), rest));
        }
        rows
    }
}

impl State {
    /// Lists the volumes that had the most requests since the last choice.
    fn choose(&mut self) {
        let mut busiest: Vec<(u64, bool, String)> = Vec::new();
        for (name, entry) in &mut self.volumes {
            let requests = entry.latencies.counts().requests();
            let since = requests - std::mem::replace(&mut entry.requests_then, requests);
            // Of equals, one that is listed stays.
            busiest.push((since, entry.is_listed, name.clone()));
        }
        busiest.sort_by(|a, b| b.cmp(a));
        for (rank, (_, was_listed, name)) in busiest.into_iter().enumerate() {
            let is_listed = rank < LISTED_MAX;
            let Some(entry) = self.volumes.get_mut(&name) else {
                continue;
            };
            if is_listed == was_listed {
                continue;
            }
            let counts = entry.latencies.counts();
            if is_listed {
                self.rest.add(&counts.clone().since(&entry.since));
            }
            entry.since = counts;
            entry.is_listed = is_listed;
        }
    }
}

#[cfg(test)]
mod tests {
    use blkmq::io::Op;
    use nbd::server::latency::OpKind;

    use super::*;

    fn count(registry: &LatencyRegistry, name: &str, requests: u64) {
        let latencies = registry.open(name);
        for _ in 0..requests {
            latencies.count(&Op::Flush, 0, Duration::from_micros(10));
        }
    }

    fn rows(registry: &LatencyRegistry) -> BTreeMap<String, u64> {
        let rows = registry.rows().into_iter();
        rows.map(|(name, counts)| (name, counts.op(OpKind::Flush).requests.count()))
            .collect()
    }

    /// As when a choice has grown old.
    fn expire_choice(registry: &LatencyRegistry) {
        registry.state().chosen = None;
    }

    #[test]
    fn a_host_with_many_volumes_lists_the_busiest_and_a_rest() {
        let registry = LatencyRegistry::new(Duration::MAX);
        assert!(rows(&registry).is_empty());
        for volume in 0..100 {
            count(&registry, &format!("v{volume:02}"), 1 + volume);
        }
        let listed = rows(&registry);
        assert_eq!(listed.len(), LISTED_MAX + 1);
        assert_eq!(listed.values().sum::<u64>(), 5050, "nothing is lost");
        expire_choice(&registry);
        count(&registry, "v07", 1000);
        let listed = rows(&registry);
        assert_eq!(listed.len(), LISTED_MAX + 1);
        assert!(listed.contains_key("v07"), "{listed:?}");
    }

    #[test]
    fn no_row_goes_back_while_volumes_are_listed_unlisted_and_closed() {
        let registry = LatencyRegistry::new(Duration::MAX);
        let mut before = rows(&registry);
        for round in 0..40_u64 {
            for volume in 0..30_u64 {
                count(
                    &registry,
                    &format!("v{volume}"),
                    (volume * 7 + round * 11) % 30,
                );
            }
            expire_choice(&registry);
            let now = rows(&registry);
            for (name, then) in &before {
                let goes_back = now.get(name).is_some_and(|now| now < then);
                assert!(!goes_back, "{name}: {then} then, {now:?}");
            }
            before = now;
            let closed = format!("v{}", round % 30);
            registry.close(&closed);
            assert!(registry.of(&closed).is_none());
            assert!(rows(&registry).get(REST) >= before.get(REST));
            before.remove(&closed);
        }
    }
}
