//! What happened in a run, so that a fault kind that never fired fails it.

/// How often each kind of thing happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Coverage {
    pub(super) messages: u64,
    pub(super) cuts: u64,
    pub(super) half_open: u64,
    pub(super) stalls: u64,
    pub(super) restarts: [u64; 2],
    pub(super) parked: u64,
    pub(super) reopened: u64,
    pub(super) interrupted: u64,
    pub(super) revoked: u64,
    pub(super) unacknowledged: u64,
    pub(super) done: u64,
    pub(super) late_bytes: u64,
    pub(super) reset: u64,
    pub(super) retry_global: u64,
    pub(super) secure: u64,
}

impl Coverage {
    pub(super) fn add(&mut self, o: &Self) {
        self.messages += o.messages;
        self.cuts += o.cuts;
        self.half_open += o.half_open;
        self.stalls += o.stalls;
        self.restarts[0] += o.restarts[0];
        self.restarts[1] += o.restarts[1];
        self.parked += o.parked;
        self.reopened += o.reopened;
        self.interrupted += o.interrupted;
        self.revoked += o.revoked;
        self.unacknowledged += o.unacknowledged;
        self.done += o.done;
        self.late_bytes += o.late_bytes;
        self.reset += o.reset;
        self.retry_global += o.retry_global;
        self.secure += o.secure;
    }

    /// A kind of fault that never fired proves nothing.
    pub(super) fn assert_everything_happened(&self) {
        let all = [
            self.messages,
            self.cuts,
            self.half_open,
            self.stalls,
            self.restarts[0],
            self.restarts[1],
            self.parked,
            self.reopened,
            self.interrupted,
            self.revoked,
            self.unacknowledged,
            self.done,
            self.late_bytes,
            self.reset,
            self.retry_global,
            self.secure,
        ];
        assert!(
            all.iter().all(|n| *n > 0),
            "some kind never happened: {self:?}"
        );
    }
}
