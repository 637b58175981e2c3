//! Creates children of a volume that is served here, at one commit, while writers go on.
//!
//! The top layer is frozen, and the point between two commits is held until the child is pinned. What the store
//! has up to the point is the root that this host knows, and the packs of its log beyond that root. The turn at
//! the root is held from that reading until the pin is written, so that no fold of this process comes between.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::root_updates::{OwnerView, Verdict, judge};
use crate::hostlog::stop::Stop;
use crate::object::root::Root;
use crate::object::sessions::SessionNames;
use crate::request::tail::{Status, Tail};
use crate::store::forks::child::{ChildSpec, Outcome, ParentState, check_free, put_child};
use crate::store::forks::held_point::HeldPoint;
use crate::store::host_log::log_procedures::stop_host;
use crate::store::open::endings::end;
use crate::units::Lsn;

/// Creates a child; ends when the store has it.
pub(super) async fn make_child(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let point = HeldPoint::take(engine, tail).await?;
    let unix_ms = engine.jobs.now().unix_ms;
    if tail.stored_lsn() < point.lsn {
        // Before an upload that may take long.
        check_free(engine, &spec.name).await?;
    }
    point.wait_stored(engine).await?;
    let _turn = tail.upload.turn.take().await;
    let at = PointInTime {
        lsn: point.lsn,
        bytes: point.bytes,
        unix_ms,
    };
    create_at(engine, tail, at, spec).await
}

/// A point in a volume's history.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointInTime {
    pub(super) lsn: Lsn,
    /// The volume's size at the point.
    pub(super) bytes: u64,
    /// When it was taken, in milliseconds since 1970.
    pub(super) unix_ms: u64,
}

/// Creates a child at a point that is held, of which the store has everything. Called during a turn at the root.
pub(super) async fn create_at(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    at: PointInTime,
    spec: &ChildSpec,
) -> Result<Root, OpenError> {
    let parent = state_at(engine, tail, at)?;
    let outcome = put_child(engine, &parent, spec).await;
    let outcome = outcome.map_err(|error| match error {
        OpenError::NoSuchVolume(name) => OpenError::RootMissing(name),
        error => error,
    });
    match outcome? {
        Outcome::Made(root) => Ok(*root),
        Outcome::Moved(standing) => {
            Err(on_foreign_root(engine, tail, &parent.head.root, &standing.root).await)
        }
    }
}

/// Handles a root that is not the one this host wrote last. If it shows another owner, or that the store was set
/// back, the volume's service ends, as an update of the root would end it.
async fn on_foreign_root(
    engine: &Arc<Engine>,
    tail: &Tail,
    known: &Root,
    standing: &Root,
) -> OpenError {
    let name = tail.name().to_owned();
    let next = engine.host_log.publisher().await.state().next;
    let view = OwnerView {
        host: engine.host,
        known,
        stored: tail.stored_lsn(),
        next,
    };
    match judge(standing, &view) {
        Verdict::Fenced => {
            // Whoever renamed it has taken it over before.
            let is_deleted = standing.deleted || standing.volume != known.volume;
            let error = match is_deleted && standing.rename_mark().is_none() {
                true => OpenError::Deleted(name),
                false => OpenError::Fenced(name),
            };
            if !canary::active!("point_forgets_the_fence") {
                end(engine, tail, &error);
            }
            error
        }
        Verdict::Stop(stop) => stop_host(engine, &stop),
        Verdict::Moved if standing.writer != known.writer => {
            let what = format!("another session wrote the root of {name} in this one's epoch");
            stop_host(engine, &Stop::Cloned(what))
        }
        Verdict::Moved => OpenError::Store(format!(
            "{name}: its root was written again by somebody; nothing was made: try again"
        )),
    }
}

/// The volume's state at the point.
fn state_at(engine: &Engine, tail: &Tail, at: PointInTime) -> Result<ParentState, OpenError> {
    let closed = || OpenError::Busy(tail.name().to_owned());
    if tail.lock().status != Status::Live {
        return Err(closed());
    }
    let head = tail.upload.head().ok_or_else(closed)?;
    let (_, beyond) = tail.upload.published();
    let mut sessions = SessionNames::default();
    let named = sessions.extend(engine.own_sessions());
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", tail.name())))?;
    Ok(ParentState {
        head,
        beyond,
        sessions,
        lsn: at.lsn,
        bytes: at.bytes,
        unix_ms: at.unix_ms,
    })
}
