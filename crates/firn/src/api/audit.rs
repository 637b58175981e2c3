//! The audit trail: a line of the log for each change that was asked for, with who asked, whether it
//! was done, and the request's id. The newest are kept in memory for the page.
//!
//! Lines go out whatever `FIRN_LOG` leaves out. What a request carries is never logged, for it may
//! hold secrets; its path is, as it was sent.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::model::{Event, EventList};

/// The target of the lines, for `tracing`.
pub(crate) const TARGET: &str = "audit";

/// How many events are kept.
const EVENTS_MAX: usize = 256;

/// Longest path that is logged as it is.
const PATH_CHARS_MAX: usize = 200;

/// A change that was asked for.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) request_id: String,
    /// Who asked for it.
    pub(super) who: String,
    pub(super) method: String,
    pub(super) path: String,
}

#[derive(Debug, Default)]
pub(super) struct AuditTrail {
    newest: Mutex<VecDeque<Event>>,
}

impl AuditTrail {
    /// Records how a change ended.
    pub(super) fn record(&self, change: Change, status: u16, took: Duration) {
        let Change {
            request_id,
            who,
            method,
            mut path,
        } = change;
        path.truncate(path.floor_char_boundary(PATH_CHARS_MAX));
        tracing::info!(
            target: TARGET,
            who,
            request = request_id,
            status,
            ms = took.as_millis() as u64,
            "audit: {method} {path}"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut newest = self
            .newest
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if newest.len() == EVENTS_MAX {
            newest.pop_back();
        }
        newest.push_front(Event {
            at_unix_ms: now.map_or(0, |now| now.as_millis() as u64),
            what: format!("{method} {path}"),
            who,
            status,
            request_id,
        });
    }

    /// The newest first.
    pub(super) fn events(&self) -> EventList {
        let newest = self
            .newest
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        EventList {
            events: newest.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_are_kept_and_long_paths_are_cut() {
        let trail = AuditTrail::default();
        for at in 0..EVENTS_MAX + 3 {
            let change = Change {
                request_id: at.to_string(),
                who: "uid 0".into(),
                method: "POST".into(),
                path: "/ä".repeat(200),
            };
            trail.record(change, 200, Duration::from_millis(1));
        }
        let events = trail.events().events;
        assert_eq!(events.len(), EVENTS_MAX);
        assert_eq!(events[0].request_id, (EVENTS_MAX + 2).to_string());
        assert!(events[0].what.len() <= PATH_CHARS_MAX + "POST ".len());
    }
}
