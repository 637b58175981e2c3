//! Rings in the test's own memory, which outlive a host as long as the test keeps them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use volume::units::HostId;
use volume::{HeapRegion, RetainedRings, RingId, RingRegion, Rings};

#[derive(Default)]
pub(crate) struct HeapRings {
    regions: Mutex<BTreeMap<RingId, Arc<HeapRegion>>>,
    aside: Mutex<Vec<RingId>>,
    /// Whoever touches a ring panics, once.
    trap: Arc<AtomicBool>,
}

/// A region that can be made to panic: the engine holds a volume's lock when it writes there.
#[derive(Debug)]
struct Trapped(Arc<HeapRegion>, Arc<AtomicBool>);

impl RingRegion for Trapped {
    fn words(&self) -> &[AtomicU64] {
        assert!(!self.1.swap(false, Ordering::Relaxed), "the trap was set");
        self.0.words()
    }
}

impl Rings for HeapRings {
    fn find(&self, ring: RingId) -> Result<Option<Arc<dyn RingRegion>>, String> {
        let rings = self.regions.lock().expect("no panics");
        Ok(rings.get(&ring).map(|region| self.trapped(region)))
    }

    fn open(&self, ring: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String> {
        let mut rings = self.regions.lock().expect("no panics");
        let fresh = || Arc::new(HeapRegion::new(words));
        let region = rings.entry(ring).or_insert_with(fresh);
        if region.words().len() != words {
            *region = fresh();
        }
        Ok(self.trapped(region))
    }

    fn remove(&self, ring: RingId) {
        self.regions.lock().expect("no panics").remove(&ring);
    }

    fn list(&self, host: HostId) -> Vec<RingId> {
        let rings = self.regions.lock().expect("no panics");
        rings
            .keys()
            .filter(|ring| ring.host == host)
            .copied()
            .collect()
    }

    fn set_aside(&self, ring: RingId) -> Result<RetainedRings, String> {
        let region = self.regions.lock().expect("no panics").remove(&ring);
        let mut aside = self.aside.lock().expect("no panics");
        aside.push(ring);
        Ok(RetainedRings {
            place: "aside".into(),
            count: aside.len(),
            bytes: region.map_or(0, |region| region.words().len() as u64 * 8),
        })
    }
}

impl HeapRings {
    fn trapped(&self, region: &Arc<HeapRegion>) -> Arc<dyn RingRegion> {
        Arc::new(Trapped(Arc::clone(region), Arc::clone(&self.trap)))
    }

    /// The next access to a ring panics.
    pub(crate) fn set_trap(&self) {
        self.trap.store(true, Ordering::Relaxed);
    }

    /// The same words in memory of their own.
    pub(crate) fn copy(&self) -> HeapRings {
        let copied = |region: &Arc<HeapRegion>| {
            let copy = HeapRegion::new(region.words().len());
            for (to, from) in copy.words().iter().zip(region.words()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            Arc::new(copy)
        };
        let rings = self.regions.lock().expect("no panics");
        let copies = rings.iter().map(|(ring, region)| (*ring, copied(region)));
        HeapRings {
            regions: Mutex::new(copies.collect()),
            aside: Mutex::default(),
            trap: Arc::default(),
        }
    }

    /// The names of all rings that were not put aside.
    pub(crate) fn names(&self) -> Vec<RingId> {
        let rings = self.regions.lock().expect("no panics");
        rings.keys().copied().collect()
    }

    /// Those that were.
    pub(crate) fn aside(&self) -> Vec<RingId> {
        self.aside.lock().expect("no panics").clone()
    }

    pub(crate) fn lose_all(&self) {
        self.regions.lock().expect("no panics").clear();
    }
}
