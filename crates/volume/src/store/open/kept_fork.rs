//! Serves a fork that the log keeps and the store does not have yet (S6).
//!
//! Its tail is *unchecked*: it takes writes and reads what is here, and nothing of it goes to the store before it has a root.
//! What it reads of its parent is what was taken with the fork, or, after a restart, what the parent's recovered
//! layers still have up to its point; anything else waits. Its root is written by `forks::store_kept`, as one that this
//! host holds; after that it is checked like any other. It must never be served from its parent's newer state, and
//! never once the parent has gone on without the log that keeps the fork.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::recover::layering::RecoveredTail;
use crate::request::Volume;
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::forks::kept_forks::{find_fork, name_is_taken};
use crate::store::open::dormant::dormant_tail;
use crate::store::open::unchecked::{find_unbroken, serve_unchecked};
use crate::store::open::without_root::{hold_of, lay_base};
use crate::store::open::{OpenMode, Wanted, open_named};
use crate::store::roots::read_any_root;
use crate::units::{RootMark, VolumeSize};

/// Opens the fork of this name, if the log keeps one. The caller holds the lock of the name.
pub(super) async fn open(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
) -> Result<Option<Volume>, OpenError> {
    let Some((parent, kept)) = find_fork(engine, name) else {
        return Ok(None);
    };
    let id = hold_of(&kept);
    let bound = mode.continues;
    if bound.is_some_and(|hold| hold.volume == id.volume && hold != id) {
        return Err(OpenError::HoldEnded(name.to_owned()));
    }
    let Some(tail) = engine.tail(id) else {
        return open_anew(engine, name, mode, &parent, &kept).await;
    };
    if tail.lock().status.serves() {
        return Err(OpenError::InUse(name.to_owned()));
    }
    // An earlier process served it, and may have written its root.
    if kept.may_be_stored && has_root(engine, &kept).await? == RootFound::Own {
        return open_named(engine, name, mode, Wanted::Open).await.map(Some);
    }
    let tail = find_unbroken(engine, name)?;
    lay_base(engine, &tail);
    serve_unchecked(engine, tail).await.map(Some)
}

/// What stands under the name of a fork that the log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootFound {
    /// Its root, or what was left when it was deleted.
    Own,
    /// Another volume's.
    Anothers,
    /// None, as far as the store says.
    None,
}

/// Looks at the name: another host may have taken it, and that volume is not this one.
async fn has_root(engine: &Engine, kept: &KeptSnapshot) -> Result<RootFound, OpenError> {
    match read_any_root(engine, &kept.record.name).await {
        Ok(head) if head.root.volume == kept.record.id => Ok(RootFound::Own),
        Ok(_) if canary::active!("namesake_is_opened_as_the_fork") => Ok(RootFound::Own),
        Ok(head) if head.root.deleted => Ok(RootFound::None),
        Ok(_) => Ok(RootFound::Anothers),
        Err(OpenError::NoSuchVolume(_) | OpenError::Store(_)) => Ok(RootFound::None),
        Err(error) => Err(error),
    }
}

/// Opens one that nobody has opened before.
async fn open_anew(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
    parent: &Tail,
    kept: &KeptSnapshot,
) -> Result<Option<Volume>, OpenError> {
    let is_here = kept.is_durable && !kept.sent_unheld;
    let Some(base) = kept.base.clone().filter(|_| is_here) else {
        // Taken by an earlier process, or on its way to the store: once it has a root, it is opened as any other.
        return match has_root(engine, kept).await? {
            RootFound::Own => open_named(engine, name, mode, Wanted::Open).await.map(Some),
            RootFound::Anothers => Err(name_is_taken(name)),
            RootFound::None => Err(OpenError::Store(format!(
                "fork {name} is in the log of this host and not in the store yet: it is opened when volume {} is open here \
                 and the store has what that was",
                parent.name()
            ))),
        };
    };
    let lsn = kept.record.lsn;
    let tail = dormant_tail(
        hold_of(kept),
        RecoveredTail {
            name: name.to_owned(),
            stored: lsn,
            root: RootMark::default(),
            rescue: false,
            unreported_loss: false,
            size: VolumeSize {
                bytes: kept.record.bytes,
                block: base.block,
            },
            is_unbroken: true,
            newest: lsn,
            framed: lsn,
            layers: Vec::new(),
            snapshots: Vec::new(),
        },
    );
    {
        let mut inner = tail.lock();
        inner.index = base.index.clone();
        inner.layers.base = Some(Arc::clone(&base.layers));
    }
    tail.upload.set_first_lineage(base.lineage.clone());
    let tail = Arc::new(tail);
    engine.add_tail(Arc::clone(&tail));
    let served = serve_unchecked(engine, Arc::clone(&tail)).await;
    if served.is_err() && tail.lock().status == Status::Dormant {
        engine.remove_tail(tail.id());
    }
    served.map(Some)
}
