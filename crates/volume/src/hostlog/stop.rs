//! Why a host stops publishing: what it found in the store does not fit what it wrote.
//!
//! A stop is final and concerns the whole host. The host uploads and acknowledges nothing more; what its log
//! holds stays there for rescue.

use std::fmt;

use super::names::{Position, record_key};
use crate::object::FormatError;
use crate::units::HostId;

/// Why a host stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Another process with a copy of this host's directory or memory writes under its name.
    Cloned(String),
    /// The host was retired: its low mark is gone, or a fence blocks all of its volumes.
    Retired(String),
    /// The store is older than what this host has written there.
    SetBack(String),
    /// An object of this host's log is damaged in the store. That does not mean that another host wrote it.
    Damaged(String),
    /// The local log takes no writes any more.
    LocalLog,
}

impl Stop {
    pub(super) fn foreign_record(host: HostId, position: Position) -> Stop {
        let key = record_key(host, position);
        Stop::Cloned(format!("{key} was written by another process"))
    }

    /// The stop for an object that cannot be read, so that its writer is not known.
    pub(super) fn unreadable(key: &str, error: &FormatError) -> Stop {
        let what = format!("{key} cannot be read ({error})");
        match canary::active!("damage_is_a_copys") {
            true => Stop::Cloned(what),
            false => Stop::Damaged(what),
        }
    }

    pub(super) fn set_back(what: impl Into<String>) -> Stop {
        Stop::SetBack(what.into())
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Cloned(found) => write!(
                f,
                "{found}: a copy of this cache directory is in use; stop all but one of them, and give \
                 each of the others an empty cache directory"
            ),
            Stop::Retired(found) => write!(
                f,
                "{found}: this host was retired, or a copy of its cache directory went ahead; give it an \
                 empty cache directory"
            ),
            Stop::SetBack(found) => write!(
                f,
                "{found}: the store was set back to an older state; stop all hosts, then put the store's \
                 newer state back, or give each host an empty cache directory. What this host has not uploaded \
                 stays in its log"
            ),
            Stop::Damaged(found) => write!(
                f,
                "{found}: this host does not know what its log in the store says, so it stores nothing more; what it \
                 has not uploaded stays here. Put the object back with the bytes that it had, then \
                 restart the server"
            ),
            Stop::LocalLog => f.write_str(
                "the local log takes nothing more, so nothing can be published: see why it is poisoned",
            ),
        }
    }
}

impl std::error::Error for Stop {}
