//! Snapshots that are served here: read-only, and beside the tails.
//!
//! What is served is the snapshot's root as it stood when it was opened. It takes no epoch, writes nothing to the store,
//! and has no ring and no place in the log, so neither recovery nor the committer knows of it, and a poisoned log
//! is no matter to it. Its objects are held by the snapshot's root alone: on this host a snapshot is not deleted while it is
//! open; where another host deletes it, what is not cached here goes with a later pass of the collector, and reads
//! of that are errors. Names of objects are never used again, so nothing else can stand in its place.

use std::sync::Arc;

use blkmq::io::Geometry;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::lock::lock;
use crate::map::index::Index;
use crate::object::{SNAPSHOT_SIGN, root_key};
use crate::request::Volume;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::lock_point;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::fold::index_blocks;
use crate::store::forks::kept_snapshots;
use crate::store::forks::restore::read_snapshot;
use crate::store::forks::snapshot_list::check_snapshot_name;
use crate::store::open::dormant::stored_tail;
use crate::store::open::go_live::geometry_of;
use crate::store::open::load_index::load_index;

/// The snapshot of this name that is open here.
pub(in crate::store) fn find(engine: &Engine, name: &str) -> Option<Arc<Tail>> {
    lock(&engine.open_snapshots).get(name).cloned()
}

/// Whether one is open here that has a name under this volume's.
pub(in crate::store) fn has_any(engine: &Engine, volume: &str) -> bool {
    let open = lock(&engine.open_snapshots);
    let of = |name: &String| name.split_once(SNAPSHOT_SIGN).map(|(of, _)| of == volume);
    open.keys().any(|name| of(name) == Some(true))
}

/// Opens a snapshot to be read. Any number of hosts may have it open.
pub(crate) async fn open(engine: &Arc<Engine>, name: &str) -> Result<Volume, OpenError> {
    check_snapshot_name(name)?;
    kept_snapshots::wait_in_store(engine, name).await?;
    let _busy = lock_point(engine, name)?;
    if find(engine, name).is_some() {
        return Err(OpenError::InUse(name.to_owned()));
    }
    let head = read_snapshot(engine, name).await?;
    if head.root.labels().is_none() {
        return Err(OpenError::Corrupt(format!(
            "{}: it is no snapshot",
            root_key(name)
        )));
    }
    let index = load_index(engine, &head.root).await?;
    let tail = Arc::new(tail_of(head, index));
    lock(&engine.open_snapshots).insert(name.to_owned(), Arc::clone(&tail));
    let loading = (Arc::clone(engine), Arc::clone(&tail));
    engine
        .jobs
        .spawn(index_blocks::load_nodes(loading.0, loading.1));
    Ok(Volume {
        engine: Arc::clone(engine),
        tail,
    })
}

/// Everything in it is stored and framed, and no request can add to that.
pub(in crate::store) fn tail_of(head: KnownRoot, index: Index) -> Tail {
    let (size, lsn) = (head.root.size(), head.root.lsn);
    let tail = stored_tail(&head.root);
    tail.upload.set_head(head);
    {
        let mut inner = tail.lock();
        inner.geometry = Geometry {
            read_only: true,
            ..geometry_of(size)
        };
        inner.index = index;
        inner.cut = lsn;
        inner.status = Status::Live;
    }
    tail
}

/// Serves a snapshot no more. Transports have let go of it before; nothing is to be stored.
pub(crate) fn close(engine: &Engine, tail: &Tail) {
    tail.lock().status = Status::Closed;
    let mut open = lock(&engine.open_snapshots);
    // A snapshot that was opened behind this one has the name now.
    if open
        .get(tail.name())
        .is_some_and(|found| std::ptr::eq(&**found, tail))
    {
        open.remove(tail.name());
    }
    drop(open);
    engine.wake_parked();
}
