//! Owns the order of syncs of the log: one at a time, whoever asks for it.
//!
//! A kernel tells of bytes that did not reach the disk once per open file. Of two syncs in flight, one
//! may fail and the other succeed, though the bytes that it was to make durable are lost. So there
//! must never be two: who asks while one is in flight waits for the next one, which serves all of them.

use crate::driver::RequestId;

/// Counts the syncs of the log. The committer's state has one.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// The sync in flight.
    in_flight: Option<RequestId>,
    /// Somebody waits for the one after it.
    wanted: bool,
    begun: u64,
    done: u64,
}

impl Syncs {
    /// Asks for a sync that begins after this call. Answers which one that is; the request has to be
    /// issued now if `issue` is asked for its name.
    pub(super) fn request(&mut self, issue: impl FnOnce() -> RequestId) -> u64 {
        if self.in_flight.is_some() && !canary::active!("two_syncs_at_once") {
            self.wanted = true;
            return self.begun + 1;
        }
        self.begin(issue());
        self.begun
    }

    fn begin(&mut self, id: RequestId) {
        self.in_flight = Some(id);
        self.begun += 1;
    }

    /// The outcome of the request in flight; false if it is another request's.
    pub(super) fn take(&mut self, id: RequestId) -> bool {
        self.in_flight.take_if(|waiting| *waiting == id).is_some()
    }

    /// The sync that was taken succeeded: begins the next one, if somebody waits for it.
    pub(super) fn on_done(&mut self, issue: impl FnOnce() -> RequestId) {
        self.done = self.begun;
        if std::mem::take(&mut self.wanted) {
            self.begin(issue());
        }
    }

    /// Whether a request is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether that sync is done.
    pub(super) fn is_done(&self, sync: u64) -> bool {
        self.done >= sync
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_during_a_sync_waits_for_the_next_and_all_of_them_for_the_same() {
        let mut syncs = Syncs::default();
        let nobody = || -> RequestId { panic!("one is in flight") };
        let first = syncs.request(|| RequestId(1));
        let (second, third) = (syncs.request(nobody), syncs.request(nobody));
        assert_eq!((first, second, third), (1, 2, 2));
        assert!(!syncs.take(RequestId(7)));
        assert!(syncs.take(RequestId(1)));
        syncs.on_done(|| RequestId(2));
        assert!(syncs.is_done(first) && !syncs.is_done(second));
        assert_eq!(syncs.request(nobody), 3);
        assert!(syncs.take(RequestId(2)));
        syncs.on_done(|| RequestId(3));
        assert!(syncs.take(RequestId(3)));
        syncs.on_done(nobody);
        assert!(syncs.is_done(3));
        assert_eq!(syncs.request(|| RequestId(4)), 4);
    }

    #[test]
    fn a_sync_that_failed_is_not_done_and_none_follows_it() {
        let mut syncs = Syncs::default();
        let first = syncs.request(|| RequestId(1));
        let second = syncs.request(|| RequestId(2));
        assert!(syncs.take(RequestId(1)));
        assert!(!syncs.is_done(first) && !syncs.is_done(second));
        assert!(!syncs.take(RequestId(2)), "it was never issued");
    }
}
