//! Children of a volume that is served here: of the volume as it was at one commit, while writers go on.
//!
//! The top layer is frozen, and the point between two commits is held until the child is pinned: then
//! what the store has up to there is the root that this host knows, and the packs of its log beyond it. The
//! root's turn is held from that look until the pin is there, so that no fold of this process comes between.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::object::sessions::SessionNames;
use crate::request::tail::{Status, Tail};
use crate::store::flow;
use crate::store::forks::child::{ChildSpec, Outcome, ParentState, put_child};
use crate::store::forks::held_point::HeldPoint;

/// Ends when the store has the child.
pub(super) async fn make_child(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let point = HeldPoint::take(tail)?;
    flow::wait_stored(engine, tail, point.lsn).await?;
    let _turn = tail.upload.turn.take().await;
    let parent = state_at(engine, &point)?;
    match put_child(engine, &parent, spec).await? {
        Outcome::Made(root) => Ok(*root),
        Outcome::Moved(standing) if standing.root.epoch > parent.head.root.epoch => {
            Err(OpenError::Fenced(tail.name().to_owned()))
        }
        Outcome::Moved(_) => Err(OpenError::Store(format!(
            "{}: its root is not what this host wrote there; nothing was made: try again",
            tail.name()
        ))),
    }
}

/// The volume as it was at the point, of which the store has everything. In the root's turn.
fn state_at(engine: &Engine, point: &HeldPoint) -> Result<ParentState, OpenError> {
    let tail = point.tail();
    let closed = || OpenError::InUse(tail.name().to_owned());
    if tail.lock().status != Status::Live {
        return Err(closed());
    }
    let head = tail.upload.head().ok_or_else(closed)?;
    let (_, beyond) = tail.upload.published();
    let mut sessions = SessionNames::default();
    let named = sessions.insert(engine.session_name);
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", tail.name())))?;
    Ok(ParentState {
        head,
        beyond,
        sessions,
        lsn: point.lsn,
        bytes: point.bytes,
    })
}
