//! Where the time of one request went.
//!
//! Times are taken when a request is admitted and when it is answered, around every wait, and for
//! one request in [`Step::SAMPLED_EVERY`] also between plan, move and commit. A request is always
//! either served or waiting for one thing, so the steps add up to the whole.
//!
//! Reading the clock costs more than counting. So most requests take the time of their reactor's turn,
//! which all of that turn share: what they took is known to within a turn. Sampled requests look at the
//! clock itself. All times are nanoseconds of [`monotonic_ns`].

use std::time::Duration;

use reactor::monotonic_ns;

use super::Step;

#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    admitted_ns: u64,
    /// The end of the last step; once it is answered, of the request.
    mark_ns: u64,
    /// What it waits for, if it waits.
    wait: Step,
    is_sampled: bool,
    has_waited: bool,
    spent_ns: [u64; Step::ALL.len()],
}

impl Timeline {
    /// Begins with the admission. A request that cannot be planned at once waits in its queue.
    #[inline]
    pub(crate) fn new(is_sampled: bool, turn_time_ns: u64) -> Timeline {
        let now_ns = match is_sampled {
            true => monotonic_ns(),
            false => turn_time_ns,
        };
        Timeline {
            admitted_ns: now_ns,
            mark_ns: now_ns,
            wait: Step::Queue,
            is_sampled,
            has_waited: false,
            spent_ns: [0; Step::ALL.len()],
        }
    }

    /// Ends a step at the turn's time, or of a sampled request at this moment.
    #[inline]
    fn end(&mut self, step: Step, turn_time_ns: u64) {
        let now_ns = match self.is_sampled {
            true => monotonic_ns(),
            false => turn_time_ns,
        };
        self.spent_ns[step as usize] += now_ns.saturating_sub(self.mark_ns);
        self.mark_ns = now_ns;
    }

    /// The request begins to wait; up to now `step` was taken.
    pub(crate) fn on_wait(&mut self, step: Step, wait: Step, turn_time_ns: u64) {
        self.end(step, turn_time_ns);
        self.wait = wait;
    }

    /// The request goes on.
    pub(crate) fn on_resumed(&mut self, turn_time_ns: u64) {
        self.has_waited = true;
        self.end(self.wait, turn_time_ns);
    }

    /// A step ended that every request takes.
    #[inline]
    pub(crate) fn on_step(&mut self, step: Step) {
        if self.is_sampled {
            self.end(step, self.mark_ns);
        }
    }

    /// The request is answered; `step` was its last.
    #[inline]
    pub(crate) fn on_answered(&mut self, step: Step, turn_time_ns: u64) {
        self.end(step, turn_time_ns);
    }

    /// How long it took in nanoseconds, up to the end of its last step.
    pub(crate) fn total_ns(&self) -> u64 {
        self.mark_ns.saturating_sub(self.admitted_ns)
    }

    /// Whether more was timed than the whole.
    #[inline]
    pub(crate) fn has_steps(&self) -> bool {
        self.is_sampled || self.has_waited
    }

    /// The steps that were timed, and how many nanoseconds each took.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (Step, u64)> {
        let is_timed = |step: Step| match step {
            Step::Plan | Step::Move | Step::Commit => self.is_sampled,
            _ => true,
        };
        let spent = Step::ALL.into_iter().zip(self.spent_ns);
        spent.filter(move |(step, ns)| *ns > 0 && is_timed(*step))
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
