//! Owns the simulated ring directory: shared memory that outlives the process, not the host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::rng::Rng;
use volume::units::HostId;
use volume::{RetainedRings, RingId, RingRegion, Rings};

/// One region of words.
#[derive(Debug)]
struct Region(Vec<AtomicU64>);

impl Region {
    fn copy(&self) -> Region {
        Region(
            self.0
                .iter()
                .map(|w| AtomicU64::new(w.load(Ordering::Relaxed)))
                .collect(),
        )
    }
}

impl RingRegion for Region {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// The words of all rings at one moment.
#[derive(Debug)]
pub struct Snapshot(BTreeMap<RingId, Vec<u64>>);

/// The directory.
#[derive(Debug, Default)]
pub struct RingDir(Mutex<BTreeMap<RingId, Arc<Region>>>);

impl RingDir {
    fn map(&self) -> std::sync::MutexGuard<'_, BTreeMap<RingId, Arc<Region>>> {
        self.0.lock().expect("nobody panics while holding it")
    }

    /// The same words in memory of their own.
    pub fn copy(&self) -> RingDir {
        let map = self.map();
        let regions = map
            .iter()
            .map(|(ring, region)| (*ring, Arc::new(region.copy())));
        RingDir(Mutex::new(regions.collect()))
    }

    /// Takes the regions away from whoever still holds them: a dead process writes no more.
    pub fn detach(&self) {
        for region in self.map().values_mut() {
            *region = Arc::new(region.copy());
        }
    }

    /// Removes everything. True if there was anything.
    pub fn clear(&self) -> bool {
        let mut map = self.map();
        let any = !map.is_empty();
        map.clear();
        any
    }

    /// Whether there is no ring.
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// What the rings hold now.
    pub fn snapshot(&self) -> Snapshot {
        let words = |region: &Region| region.0.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        Snapshot(
            self.map()
                .iter()
                .map(|(ring, region)| (*ring, words(region)))
                .collect(),
        )
    }

    /// Takes back some of the words that were written since `before`: a run of them, or each with
    /// an even chance; at least one. False if none was written.
    pub fn tear(&self, before: &Snapshot, rng: &mut Rng) -> bool {
        let map = self.map();
        let mut changed = Vec::new();
        for (ring, region) in map.iter() {
            let Some(old) = before.0.get(ring) else {
                continue;
            };
            for (index, (word, old)) in region.0.iter().zip(old).enumerate() {
                if word.load(Ordering::Relaxed) != *old {
                    changed.push((*ring, index, *old));
                }
            }
        }
        if changed.is_empty() {
            return false;
        }
        let count = changed.len() as u64;
        let sure = rng.below(count) as usize;
        // A run is what a cache line leaves: one entry is gone and its neighbour is not.
        let run = rng
            .coin()
            .then(|| sure..sure + rng.within(1, count.div_ceil(2)) as usize);
        for (nth, (ring, index, old)) in changed.iter().enumerate() {
            let gone = run
                .as_ref()
                .map_or_else(|| rng.coin(), |run| run.contains(&nth));
            if nth == sure || gone {
                map[ring].0[*index].store(*old, Ordering::Relaxed);
            }
        }
        true
    }
}

impl Rings for RingDir {
    fn find(&self, ring: RingId) -> Result<Option<Arc<dyn RingRegion>>, String> {
        let map = self.map();
        let region = map.get(&ring);
        Ok(region.map(|region| Arc::clone(region) as Arc<dyn RingRegion>))
    }

    fn open(&self, ring: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String> {
        let mut map = self.map();
        let fresh = || Arc::new(Region((0..words).map(|_| AtomicU64::new(0)).collect()));
        let region = map.entry(ring).or_insert_with(fresh);
        if region.0.len() != words {
            *region = fresh();
        }
        Ok(Arc::clone(region) as Arc<dyn RingRegion>)
    }

    fn remove(&self, ring: RingId) {
        self.map().remove(&ring);
    }

    fn list(&self, host: HostId) -> Vec<RingId> {
        let map = self.map();
        map.keys()
            .filter(|ring| ring.host == host)
            .copied()
            .collect()
    }

    /// Nobody looks into what was put aside here.
    fn set_aside(&self, ring: RingId) -> Result<RetainedRings, String> {
        let region = self.map().remove(&ring);
        Ok(RetainedRings {
            place: "aside".into(),
            count: 1,
            bytes: region.map_or(0, |region| region.0.len() as u64 * 8),
        })
    }
}
