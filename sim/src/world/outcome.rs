//! What a run is asked to show, and what it amounted to. Plain data; it must not judge.

use super::plan::PlanReport;
use crate::faults::FaultCounts;
use crate::trace::Violation;

/// What a run amounted to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Digest of all events.
    pub digest: u64,
    /// Events.
    pub events: u64,
    /// Virtual time that passed.
    pub virtual_ns: u64,
    /// Client requests answered.
    pub answered: u64,
    /// Client requests answered with an error.
    pub errors: u64,
    /// Recovered images judged.
    pub settled: u64,
    /// The longest that a FLUSH waited, in virtual time.
    pub flush_ns: u64,
    /// Faults that took effect.
    pub faults: FaultCounts,
    /// What was violated, if anything.
    pub violation: Option<Violation>,
    /// The last lines of the trace, when there was a violation.
    pub tail: Vec<String>,
    /// What a planned world tells.
    pub plan: PlanReport,
}

impl Outcome {
    /// A world that broke off: only its seed and the reason are known.
    pub fn from_violation(seed: u64, violation: Violation) -> Outcome {
        Outcome {
            seed,
            digest: 0,
            events: 0,
            virtual_ns: 0,
            answered: 0,
            errors: 0,
            settled: 0,
            flush_ns: 0,
            faults: FaultCounts::default(),
            violation: Some(violation),
            tail: Vec::new(),
            plan: PlanReport::default(),
        }
    }
}

/// How a run is watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Print each event.
    pub print: bool,
    /// Keep so many lines for the report of a violation.
    pub keep: usize,
    /// Judge by what clients see alone: do not look at the engine's invariants.
    pub clients_only: bool,
}
