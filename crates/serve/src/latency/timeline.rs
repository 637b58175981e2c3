//! Where the time of one request went.
//!
//! The clock is read when a request is admitted and when it is answered, around every wait, and for
//! one request in [`Step::SAMPLED_EVERY`] also between plan, move and commit. A request is always
//! either served or waiting for one thing, so the steps add up to the whole.

use std::time::{Duration, Instant};

use super::Step;

#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    admitted: Instant,
    /// The end of the last step; once it is answered, of the request.
    mark: Instant,
    /// What it waits for, if it waits.
    wait: Step,
    is_sampled: bool,
    spent_ns: [u64; Step::ALL.len()],
}

impl Timeline {
    /// Begins with the admission. A request that cannot be planned at once waits in its queue.
    pub(crate) fn new(is_sampled: bool) -> Timeline {
        let now = Instant::now();
        Timeline {
            admitted: now,
            mark: now,
            wait: Step::Queue,
            is_sampled,
            spent_ns: [0; Step::ALL.len()],
        }
    }

    fn end(&mut self, step: Step) {
        let now = Instant::now();
        let spent = now.saturating_duration_since(self.mark);
        self.mark = now;
        self.spent_ns[step as usize] += spent.as_nanos() as u64;
    }

    /// The request begins to wait; up to now `step` was taken.
    pub(crate) fn on_wait(&mut self, step: Step, wait: Step) {
        self.end(step);
        self.wait = wait;
    }

    /// The request goes on.
    pub(crate) fn on_resumed(&mut self) {
        self.end(self.wait);
    }

    /// A step ended that every request takes.
    #[inline]
    pub(crate) fn on_step(&mut self, step: Step) {
        if self.is_sampled {
            self.end(step);
        }
    }

    /// The request is answered; `step` was its last.
    #[inline]
    pub(crate) fn on_answered(&mut self, step: Step) {
        self.end(step);
    }

    /// How long it took, up to the end of its last step.
    pub(crate) fn total(&self) -> Duration {
        self.mark.saturating_duration_since(self.admitted)
    }

    /// The steps that were timed, and how long each took.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (Step, Duration)> {
        let is_timed = |step: Step| match step {
            Step::Plan | Step::Move | Step::Commit => self.is_sampled,
            _ => true,
        };
        let spent = Step::ALL.into_iter().zip(self.spent_ns);
        spent
            .filter(move |(step, ns)| *ns > 0 && is_timed(*step))
            .map(|(step, ns)| (step, Duration::from_nanos(ns)))
    }

    /// The longest step, in a word, and how long it took.
    pub(crate) fn longest(&self) -> (&'static str, Duration) {
        let waits = [
            Step::Queue,
            Step::Buffer,
            Step::Space,
            Step::Fetch,
            Step::Flush,
        ];
        let served = [Step::Plan, Step::Move, Step::Commit];
        let ns_of = |step: Step| self.spent_ns[step as usize];
        let timed = Step::ALL.into_iter().map(|step| (step.name(), ns_of(step)));
        let together = (
            "plan, move and commit",
            served.into_iter().map(ns_of).sum::<u64>(),
        );
        let longest = if self.is_sampled {
            timed.max_by_key(|(_, ns)| *ns)
        } else {
            let waits = waits.into_iter().map(|step| (step.name(), ns_of(step)));
            waits.chain([together]).max_by_key(|(_, ns)| *ns)
        };
        let (step, ns) = longest.unwrap_or(together);
        (step, Duration::from_nanos(ns))
    }
}
