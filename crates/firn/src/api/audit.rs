//! The audit trail: a line of the log for each change that was asked for, with who asked, whether it
//! was done, and the request's id. The newest are kept in memory for the page.
//!
//! Lines go out whatever `FIRN_LOG` leaves out. The body of a request is never logged, for it may hold
//! a secret; its path is, as it was sent, and what the handler notes: the name of a new volume, or that
//! a loss was declared.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::model::{Event, EventList};

/// The target of the lines, for `tracing`.
pub(crate) const TARGET: &str = "audit";

/// How many events are kept.
const EVENTS_MAX: usize = 256;

const NOTE_CHARS_MAX: usize = 200;

/// Longest path that is logged as it is.
const PATH_CHARS_MAX: usize = 200;

/// What a handler adds to the line of its request: what the path does not say.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditNote(Arc<OnceLock<String>>);

impl AuditNote {
    /// May hold what a client sent: it is written so that it stays within its line.
    pub(super) fn set(&self, text: &str) {
        let mut plain = text.escape_debug().to_string();
        plain.truncate(plain.floor_char_boundary(NOTE_CHARS_MAX));
        // Each handler has one thing to say.
        let _ = self.0.set(plain);
    }
}

/// A change that was asked for.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) request_id: String,
    /// Who asked for it.
    pub(super) who: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) note: AuditNote,
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
            note,
        } = change;
        path.truncate(path.floor_char_boundary(PATH_CHARS_MAX));
        if let Some(note) = note.0.get() {
            path = format!("{path} ({note})");
        }
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
                note: AuditNote::default(),
            };
            trail.record(change, 200, Duration::from_millis(1));
        }
        let events = trail.events().events;
        assert_eq!(events.len(), EVENTS_MAX);
        assert_eq!(events[0].request_id, (EVENTS_MAX + 2).to_string());
        assert!(events[0].what.len() <= PATH_CHARS_MAX + "POST ".len());
    }

    #[test]
    fn what_a_client_sent_stays_within_its_line() {
        let note = AuditNote::default();
        note.set("a\naudit: DELETE \u{1b}[2J");
        let said = note.0.get().unwrap();
        assert!(!said.contains(char::is_control), "{said:?}");
    }
}
