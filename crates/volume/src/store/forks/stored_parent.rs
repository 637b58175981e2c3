//! Creates children of a volume that is not served here, from what the store has of it: its root and its holder's
//! log. Snapshots are such volumes.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::scan::read_beyond_root;
use crate::object::SNAPSHOT_SIGN;
use crate::object::root::Root;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::child::{ChildSpec, Outcome, ParentState, put_child};
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::objects::ATTEMPTS_MAX;
use crate::store::roots::{read_root, why_not_there};

/// Creates a child; ends when the store has it.
pub(super) async fn make_child(
    engine: &Arc<Engine>,
    mut head: KnownRoot,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let name = head.root.name.clone();
    let mut why = "its root changes faster than it can be read".to_owned();
    for _ in 0..ATTEMPTS_MAX {
        let unix_ms = engine.jobs.now().unix_ms;
        let port = log_port(engine);
        let keys = KeyPrefixes::of_holder(&head.root);
        let read = async { Ok(read_beyond_root(&port, &head.root).await) };
        let found = match with_patience(engine, &name, keys, read).await? {
            Ok(found) => found,
            Err(error) => {
                // Records are removed once the root has what they say.
                tracing::warn!(
                    volume = name,
                    ?error,
                    "the log of its holder cannot be read"
                );
                why = "the log of its holder cannot be read; the server's log says why".to_owned();
                engine.port.sleep(engine.options.retry_ns).await;
                head = match read_root(engine, &name).await {
                    Err(OpenError::NoSuchVolume(name)) => return Err(no_parent(name)),
                    head => head?,
                };
                continue;
            }
        };
        let parent = ParentState {
            beyond: found.deltas.iter().map(|(_, delta)| *delta).collect(),
            sessions: found.sessions,
            lsn: found.last,
            bytes: head.root.bytes,
            unix_ms,
            head,
        };
        match put_child(engine, &parent, spec).await? {
            Outcome::Made(root) => return Ok(*root),
            Outcome::Moved(standing) if standing.root.rename_mark().is_some() => {
                return Err(why_not_there(&standing.root));
            }
            Outcome::Moved(standing) if standing.root.deleted => {
                return Err(no_parent(name));
            }
            Outcome::Moved(standing) => head = *standing,
        }
    }
    Err(OpenError::Store(format!(
        "{name}: {why}; nothing was made: try again"
    )))
}

/// The error for a parent that does not exist.
pub(super) fn no_parent(name: String) -> OpenError {
    match name.contains(SNAPSHOT_SIGN) {
        true => OpenError::NoSuchSnapshot(name),
        false => OpenError::NoSuchVolume(name),
    }
}
