//! When this host raises its low mark: records that no root needs any more go, and volumes whose marks keep it
//! back get a root that has passed them.
//!
//! It reads each record once more and the roots of the volumes that they name, so it is done seldom. What it may
//! not pass is for `hostlog::low_mark` to know.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::low_mark::{raise_low_mark, remove_records};
use crate::hostlog::names::Position;
use crate::request::tail::{Status, Tail};
use crate::store::endings::{end, is_final};
use crate::store::log_procedures::log_port;
use crate::store::roots::{begin_update, finish_update};
use crate::sync::atomic::Ordering;

/// Raises it for as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let every = engine.options.low_mark_records.max(1);
    let mut raised_at = Position::default();
    loop {
        let log = &engine.host_log;
        let is_due = || {
            let next = log.state().next;
            (next.0 > raised_at.0.saturating_add(every)).then_some(next)
        };
        raised_at = log.advanced.wait_until(is_due).await;
        if engine.poisoned.load(Ordering::Acquire) {
            // Its log does not grow any more.
            return;
        }
        if !canary::active!("marks_keep_the_low_mark_back") {
            pass_marks(&engine, every).await;
        }
        raise(&engine).await;
    }
}

/// Raises this host's low mark as far as it goes, and removes what is below it.
pub(crate) async fn raise(engine: &Arc<Engine>) {
    if engine.host_log.check_not_stopped().is_err() {
        return;
    }
    let port = log_port(engine);
    let tails = engine.tails().into_iter();
    let names: BTreeMap<_, _> = tails
        .map(|tail| (tail.id().volume, tail.name().to_owned()))
        .collect();
    let last = engine.host_log.state().next.before();
    let low = raise_low_mark(&port, engine.host, last, &names).await;
    if let Some(low) = low {
        tracing::debug!(low = low.0, last = last.0, "records below the low mark go");
        remove_records(&port, engine.host, low).await;
    }
}

/// Gives a new root to each volume whose own has passed none of the last `records` records, and that some of
/// those before them name.
pub(crate) async fn pass_marks(engine: &Arc<Engine>, records: u64) {
    let next = engine.host_log.state().next;
    for tail in engine.tails() {
        let Some(head) = tail.upload.head() else {
            continue;
        };
        let is_behind = head.root.mark.0.saturating_add(records) < next.0;
        let (_, packs) = tail.upload.published();
        if !is_behind || packs.is_empty() {
            continue;
        }
        if let Err(error) = pass_mark(engine, &tail).await {
            let volume = tail.name();
            tracing::warn!(volume, %error, "its root keeps the low mark back for now");
            if is_final(&error) {
                end(engine, &tail, &error);
            }
        }
    }
}

async fn pass_mark(engine: &Arc<Engine>, tail: &Tail) -> Result<(), OpenError> {
    let _turn = tail.upload.turn.take().await;
    if tail.lock().status != Status::Live {
        return Ok(());
    }
    let update = begin_update(engine, tail).await?;
    finish_update(engine, tail, &update).await.map(drop)
}
