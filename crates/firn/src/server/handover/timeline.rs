//! How long each step of a hand-over took, by the clock that both programs share.
//!
//! Only tells: nothing is decided by it.

use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The steps since the clients were brought to rest.
static TIMELINE: Mutex<Timeline> = Mutex::new(Timeline {
    begun_ns: 0,
    steps: Vec::new(),
});

/// When it began, and when each step ended, in nanoseconds of the monotonic clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timeline {
    begun_ns: u64,
    steps: Vec<(String, u64)>,
}

pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// The clients' pause begins.
pub(super) fn begin() {
    replace(Timeline {
        begun_ns: now_ns(),
        steps: Vec::new(),
    });
}

/// The pause goes on that began in the program before.
pub(super) fn replace(timeline: Timeline) {
    *TIMELINE.lock().unwrap_or_else(PoisonError::into_inner) = timeline;
}

/// A step ends at this time.
pub(super) fn note(step: &str, ended_ns: u64) {
    let timeline = TIMELINE.lock();
    let mut timeline = timeline.unwrap_or_else(PoisonError::into_inner);
    timeline.steps.push((step.to_owned(), ended_ns));
}

pub(super) fn current() -> Timeline {
    let timeline = TIMELINE.lock();
    timeline.unwrap_or_else(PoisonError::into_inner).clone()
}

impl Timeline {
    /// `NAME MILLISECONDS` of each step, in their order.
    pub(super) fn describe(&self) -> String {
        let mut last_ns = self.begun_ns;
        let steps = self.steps.iter().map(|(name, ended_ns)| {
            let took_ns = ended_ns.saturating_sub(last_ns);
            last_ns = *ended_ns;
            format!("{name} {:.1}", took_ns as f64 / 1e6)
        });
        steps.collect::<Vec<_>>().join(", ")
    }

    /// The whole pause up to the end of the last step, in milliseconds.
    pub(super) fn pause_ms(&self) -> f64 {
        let ended_ns = self.steps.last().map_or(self.begun_ns, |(_, ended)| *ended);
        ended_ns.saturating_sub(self.begun_ns) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_takes_what_is_between_its_end_and_the_one_before() {
        let timeline = Timeline {
            begun_ns: 1_000_000,
            steps: vec![("rest".into(), 3_500_000), ("stop".into(), 4_000_000)],
        };
        assert_eq!(timeline.describe(), "rest 2.5, stop 0.5");
        assert!((timeline.pause_ms() - 3.0).abs() < 1e-9);
        assert_eq!(Timeline::default().describe(), "");
    }
}
