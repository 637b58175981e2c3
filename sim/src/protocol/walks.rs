//! Random walks through the fleets: side by side, bounded by a number of seeds and by time.
//!
//! A walk is its fleet and its seed and nothing else, so `--world FLEET --seed N --seeds 1` repeats
//! it on any machine. Blocks of seeds are handed out in order and each is walked to its end, so the
//! failure that is reported is the first one, however many threads there are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::action::sentence;
use super::search::{Violation, walk};
use super::worlds::{FLEETS, Fleet};

/// Actions of one walk.
pub(crate) const WALK_STEPS: usize = 90;
/// Walks of one fleet between two looks at the time.
const BLOCK_WALKS: u64 = 500;

/// Which walks are asked for.
pub(crate) struct Walks {
    pub(crate) fleets: Vec<&'static Fleet>,
    /// The first seed.
    pub(crate) first: u64,
    /// At most so many of each fleet.
    pub(crate) most: u64,
    pub(crate) threads: usize,
    pub(crate) begun: Instant,
    pub(crate) time: Duration,
}

/// A walk that broke a promise, with a schedule from which nothing more can be left out.
pub(crate) struct FailedWalk {
    pub(crate) fleet: &'static str,
    pub(crate) seed: u64,
    pub(crate) failure: (Violation, Vec<String>),
}

/// What all walks came to.
#[derive(Default)]
pub(crate) struct WalkResults {
    pub(crate) walks: u64,
    /// The first failure, and the number of its block.
    failure: Option<(usize, FailedWalk)>,
}

impl WalkResults {
    pub(crate) fn into_failure(self) -> Option<FailedWalk> {
        self.failure.map(|(_, failure)| failure)
    }

    fn add(&mut self, block: usize, walks: u64, failure: Option<FailedWalk>) {
        self.walks += walks;
        let is_first = self
            .failure
            .as_ref()
            .is_none_or(|(known, _)| block < *known);
        if let (true, Some(failure)) = (is_first, failure) {
            self.failure = Some((block, failure));
        }
    }
}

/// The fleets whose name contains this.
pub(crate) fn fleets(part: &str) -> Vec<&'static Fleet> {
    FLEETS
        .iter()
        .filter(|(name, _)| name.contains(part))
        .collect()
}

impl Walks {
    /// Walks until the seeds or the time are up, at least one block of each fleet.
    pub(crate) fn run(&self) -> WalkResults {
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let walked = Mutex::new(WalkResults::default());
        let work = || {
            while !has_failed.load(Ordering::Acquire) {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= self.fleets.len() && self.begun.elapsed() >= self.time {
                    return;
                }
                let Some((fleet, first, walks)) = self.seeds_of(block) else {
                    return;
                };
                let failure = walk_block(fleet, first, walks);
                has_failed.fetch_or(failure.is_some(), Ordering::AcqRel);
                let mut walked = walked.lock().unwrap_or_else(PoisonError::into_inner);
                walked.add(block, walks, failure);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(work);
            }
        });
        walked.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fleet of a block, its first seed and their number; `None` when all seeds were handed out.
    fn seeds_of(&self, block: usize) -> Option<(&'static Fleet, u64, u64)> {
        let fleets = self.fleets.len();
        let fleet = self.fleets.get(block.checked_rem(fleets)?)?;
        let done = (block / fleets) as u64 * BLOCK_WALKS;
        let walks = self.most.saturating_sub(done).min(BLOCK_WALKS);
        (walks > 0).then_some((*fleet, self.first + done, walks))
    }
}

fn walk_block((name, build): &Fleet, first: u64, walks: u64) -> Option<FailedWalk> {
    let world = build();
    (first..first + walks).find_map(|seed| {
        let (violation, actions) = walk(&world, seed, WALK_STEPS).failure?;
        let sentences = actions.into_iter().map(sentence).collect();
        Some(FailedWalk {
            fleet: name,
            seed,
            failure: (violation, sentences),
        })
    })
}
