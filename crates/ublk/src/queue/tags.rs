//! The tags of a queue: which of them it serves, who has each one, and its last command.

/// The tags of a hardware queue that one source serves: every `step`-th from `first` on. Every kernel
/// allows whole queues; shares need a driver that gives each tag a task of its own (6.16), and let
/// several reactors serve a queue that one processor keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first tag.
    pub first: u16,
    /// The distance from one tag to the next.
    pub step: u16,
}

impl Share {
    /// All tags.
    pub const WHOLE: Share = Share { first: 0, step: 1 };

    /// Its tags, of a queue with this depth.
    pub fn tags(self, depth: u16) -> impl Iterator<Item = u16> {
        (self.first..depth).step_by(usize::from(self.step))
    }

    /// The index of a tag within this share.
    pub(super) fn index_in_share(self, tag: u16) -> usize {
        usize::from(tag / self.step)
    }

    fn has(self, tag: u16) -> bool {
        tag % self.step == self.first
    }
}

/// Who has a tag, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagState {
    /// The driver: FETCH or COMMIT_AND_FETCH is in flight.
    WithDriver,
    /// The server: the handler has the request.
    WithHandler,
    /// The server: a write needs a buffer (get-data), or a request needs a slot, and waits for it.
    Waiting,
    /// NEED_GET_DATA or REGISTER_IO_BUF is in flight for its request.
    Preparing,
    /// The server: the driver refused a command, which is issued again after a pause.
    Backoff,
    /// The server, for good: it is about to leave, and the request is left for the next server.
    Abandoned,
    /// Nobody, because the driver aborted it, or another source.
    Retired,
}

/// The last command of a tag, in case the driver refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCommand {
    Fetch,
    Commit {
        result: i32,
    },
    /// NEED_GET_DATA or REGISTER_IO_BUF, once the request has its buffer or slot.
    Prepare,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub(super) state: TagState,
    pub(super) last_command: LastCommand,
    /// How often in a row the driver refused its command.
    pub(super) refusals: u8,
    /// The operation of its request.
    pub(super) op: u8,
    /// The bytes that its request carries.
    pub(super) bytes: u32,
    /// The slot of its own in which its request is registered.
    pub(super) slot: Option<u16>,
}

/// The tags of a queue, with the number in each state.
#[derive(Debug)]
pub(super) struct Tags {
    tags: Vec<Tag>,
    counts: [u16; 7],
}

impl Tags {
    pub(super) fn new(depth: u16, share: Share) -> Tags {
        let tag = |tag| Tag {
            state: if share.has(tag) {
                TagState::Backoff
            } else {
                TagState::Retired
            },
            last_command: LastCommand::Fetch,
            refusals: 0,
            op: 0,
            bytes: 0,
            slot: None,
        };
        let mut counts = [0; 7];
        let ours = share.tags(depth).count() as u16;
        counts[TagState::Backoff as usize] = ours;
        counts[TagState::Retired as usize] = depth - ours;
        Tags {
            tags: (0..depth).map(tag).collect(),
            counts,
        }
    }

    pub(super) fn of(&mut self, tag: u16) -> &mut Tag {
        &mut self.tags[usize::from(tag)]
    }

    pub(super) fn state(&self, tag: u16) -> TagState {
        self.tags[usize::from(tag)].state
    }

    pub(super) fn set(&mut self, tag: u16, state: TagState) {
        let before = std::mem::replace(&mut self.of(tag).state, state);
        self.counts[before as usize] -= 1;
        self.counts[state as usize] += 1;
    }

    /// The driver handed a tag over, so it has accepted the last command.
    #[inline]
    pub(super) fn on_fetched(&mut self, tag: u16, state: TagState) {
        self.of(tag).refusals = 0;
        self.set(tag, state);
    }

    pub(super) fn count(&self, state: TagState) -> u16 {
        self.counts[state as usize]
    }

    /// The number of tags that the server has.
    pub(super) fn count_with_server(&self) -> u16 {
        use TagState::{Abandoned, Backoff, Preparing, Waiting, WithHandler};
        [WithHandler, Waiting, Preparing, Backoff, Abandoned]
            .iter()
            .map(|&state| self.count(state))
            .sum()
    }
}
