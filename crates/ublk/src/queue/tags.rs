//! What a queue knows of its tags.

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
    /// Nobody: the driver will not use it again.
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
    pub(super) fn new(depth: u16) -> Tags {
        let tag = Tag {
            state: State::Pausing,
            sent: Sent::Fetch,
            refused: 0,
            op: 0,
            bytes: 0,
            slot: None,
        };
        let mut counts = [0; 7];
        counts[State::Pausing as usize] = depth;
        Tags {
            tags: vec![tag; usize::from(depth)],
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
