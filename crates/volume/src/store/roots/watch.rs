//! Reads the roots of volumes whose writes wait for log space and that have nothing to upload.
//!
//! A host learns at its next commit that it was fenced. Where other volumes fill the log, a volume may have no
//! next commit: its parked writes would wait for ever, although another host has the volume. So its root is read
//! now and then, and only while writes are parked. A root that this host may have written must never count as
//! another host's: within an epoch only the owner writes the root.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{Status, Tail};
use crate::store::open::endings;
use crate::store::roots::read_any_root;

/// Called as time passes while writes are parked for log space.
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
    // Without an answer nothing is known; the next check asks again.
    let Ok(found) = read_any_root(engine, tail.name()).await else {
        return;
    };
    // A volume with a commit ahead learns it from that commit.
    if !has_no_commit_ahead(tail) {
        return;
    }
    let name = tail.name().to_owned();
    if found.root.rename_mark().is_some() {
        // Whoever renamed it has taken it over before.
        endings::end(engine, tail, &OpenError::Fenced(name));
    } else if found.root.volume != known.root.volume || found.root.deleted {
        endings::end(engine, tail, &OpenError::Deleted(name));
    } else if found.root.epoch > known.root.epoch {
        endings::end(engine, tail, &OpenError::Fenced(name));
    }
}
