//! Looks at the roots of volumes whose writes wait for log space and that have nothing to bring to the
//! store.
//!
//! A host learns that it was fenced at its next commit. Where the log is full of what others hold, a
//! volume may have no next commit: its parked writes would wait for ever, though another host has the
//! volume long since. So now and then, and only while writes are parked, its root is read. It must never
//! take a root for foreign that this host may have written: within an epoch only the owner writes it.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{Status, Tail};
use crate::store::endings;
use crate::store::roots::read_any_root;

/// Time passes, and writes are parked for space.
pub(crate) fn on_parked(engine: &Arc<Engine>, now_ns: u64) {
    if canary::active!("parked_host_stays_unfenced") || !engine.root_watch.begin(now_ns) {
        return;
    }
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        for tail in engine.tails() {
            if has_no_commit_ahead(&tail) {
                check_root(&engine, &tail).await;
            }
        }
        engine.root_watch.end(engine.jobs.mono_ns());
    });
}

/// Whether the volume is served and has nothing that the store lacks.
fn has_no_commit_ahead(tail: &Tail) -> bool {
    let inner = tail.lock();
    inner.status == Status::Live && inner.newest <= tail.stored_lsn()
}

/// Fences the volume if another host has it now.
async fn check_root(engine: &Arc<Engine>, tail: &Tail) {
    let Some(known) = tail.upload.head() else {
        return;
    };
    // A store that does not answer says nothing; the next look asks again.
    let Ok(found) = read_any_root(engine, tail.name()).await else {
        return;
    };
    // What has something to commit by now learns it from that.
    if !has_no_commit_ahead(tail) {
        return;
    }
    let name = tail.name().to_owned();
    if found.root.volume != known.root.volume || found.root.deleted {
        endings::end(engine, tail, &OpenError::Deleted(name));
    } else if found.root.epoch > known.root.epoch {
        endings::end(engine, tail, &OpenError::Fenced(name));
    }
}
