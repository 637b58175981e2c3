//! What a queue knows of its tags.

/// The tags of a hardware queue that one source has: every `step`-th from `first` on. Whole queues
/// everywhere; shares where the driver lets each tag have a thread of its own (6.16), so that a
/// queue that one processor keeps busy is served by several reactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first of them.
    pub first: u16,
    /// From one to the next.
    pub step: u16,
}

impl Share {
    /// All tags.
    pub const WHOLE: Share = Share { first: 0, step: 1 };

    /// Its tags, of a queue that has this many.
    pub fn tags(self, depth: u16) -> impl Iterator<Item = u16> {
        (self.first..depth).step_by(usize::from(self.step))
    }

    /// The how-manieth of its tags this one is.
    pub(super) fn ordinal(self, tag: u16) -> usize {
        usize::from(tag / self.step)
    }

    fn has(self, tag: u16) -> bool {
        tag % self.step == self.first
    }
}

/// Who has a tag, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The driver: a fetch or commit is in flight.
    Armed,
    /// The server: the handler has its request.
    Served,
    /// The server: a write was announced (get-data) or a request needs a slot, and waits for it.
    Owed,
    /// A command that fetches a write's data, or puts pages into a slot, is in flight.
    Fetching,
    /// The server: a command was refused and is sent again after a pause.
    Pausing,
    /// Left with the driver for good: the server is about to leave.
    Left,
    /// Nobody, or another source: the driver will not use it here again.
    Retired,
}

/// The last command of a tag, for when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Fetch,
    Commit {
        result: i32,
    },
    /// Whatever `Owed` waits for.
    Prepare,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub(super) state: State,
    pub(super) sent: Sent,
    /// How often in a row its command was refused.
    pub(super) refused: u8,
    /// Of its request.
    pub(super) op: u8,
    /// Of its request: bytes that a read or write carries.
    pub(super) bytes: u32,
    /// A slot that its request was put into.
    pub(super) slot: Option<u16>,
}

/// The tags of a queue, with how many are in which state.
#[derive(Debug)]
pub(super) struct Tags {
    tags: Vec<Tag>,
    counts: [u16; 7],
}

impl Tags {
    pub(super) fn new(depth: u16, share: Share) -> Tags {
        let tag = |tag| Tag {
            state: if share.has(tag) {
                State::Pausing
            } else {
                State::Retired
            },
            sent: Sent::Fetch,
            refused: 0,
            op: 0,
            bytes: 0,
            slot: None,
        };
        let mut counts = [0; 7];
        let ours = share.tags(depth).count() as u16;
        counts[State::Pausing as usize] = ours;
        counts[State::Retired as usize] = depth - ours;
        Tags {
            tags: (0..depth).map(tag).collect(),
            counts,
        }
    }

    pub(super) fn of(&mut self, tag: u16) -> &mut Tag {
        &mut self.tags[usize::from(tag)]
    }

    pub(super) fn state(&self, tag: u16) -> State {
        self.tags[usize::from(tag)].state
    }

    pub(super) fn set(&mut self, tag: u16, state: State) {
        let before = std::mem::replace(&mut self.of(tag).state, state);
        self.counts[before as usize] -= 1;
        self.counts[state as usize] += 1;
    }

    /// The driver handed a tag over: it took what was sent before.
    #[inline]
    pub(super) fn came(&mut self, tag: u16, state: State) {
        self.of(tag).refused = 0;
        self.set(tag, state);
    }

    pub(super) fn count(&self, state: State) -> u16 {
        self.counts[state as usize]
    }

    /// Tags that the server has.
    pub(super) fn owned(&self) -> u16 {
        use State::{Fetching, Left, Owed, Pausing, Served};
        [Served, Owed, Fetching, Pausing, Left]
            .iter()
            .map(|&state| self.count(state))
            .sum()
    }
}
