//! Giving a volume back: everything of it in the store, its epoch ended in this host's log, and its root closed.
//!
//! Until the root is closed no other host opens the volume without declaring a loss. It must never be closed before the store
//! has all that was committed, and never stay open because nobody heard the answer: a close may be repeated.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::NameLock;
use crate::store::flow;
use crate::store::host_log::log_procedures::{KeyPrefixes, with_patience};
use crate::store::open::{discard_tail, endings, last_slices};
use crate::store::roots::checks::wait_checked;
use crate::store::roots::{begin_closing, begin_update, finish_update};
use crate::sync::atomic::Ordering;

pub(crate) async fn close(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let_go(engine, tail, false).await
}

/// The same, by one record for the last slices and the end of the epoch.
pub(crate) async fn close_awaited(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let_go(engine, tail, true).await
}

async fn let_go(engine: &Arc<Engine>, tail: &Arc<Tail>, is_awaited: bool) -> Result<(), OpenError> {
    wait_checked(tail).await?;
    let _busy = NameLock::take(engine, tail.name())?;
    let kept = match is_awaited {
        true => last_slices::upload(engine, tail).await?,
        false => None,
    };
    if kept.is_none() {
        flow::wait_stored(engine, tail, tail.newest()).await?;
        flow::wait_snapshots_stored(tail).await?;
    }
    // Even with everything stored: a copy of this host may be in use.
    engine.host_log.check_not_stopped()?;
    {
        let mut inner = tail.lock();
        let stored = match &kept {
            Some(_) => last_slices::ready_lsn(tail),
            None => tail.stored_lsn(),
        };
        if inner.newest > stored {
            return Err(OpenError::InUse(tail.name().to_owned()));
        }
        if !inner.points.kept().is_empty() {
            return Err(OpenError::Busy(tail.name().to_owned()));
        }
        inner.status = Status::Closed;
    }
    tail.upload.wake_all();
    engine.wake_parked();
    if kept.is_some() {
        end_with_last_slices(engine, tail).await?;
    }
    drop(kept);
    let keys = KeyPrefixes::default()
        .with_root(tail.name())
        .with_host(engine.host);
    let given_back = with_patience(engine, tail.name(), keys, give_back(engine, tail)).await;
    if let Err(error) = given_back {
        endings::note_end(engine, tail, &error);
        return Err(error);
    }
    discard_tail(engine, tail);
    // Otherwise a server that dies now would leave the tail to its successor, which would open the volume again.
    // A poisoned log keeps the tail, and the volume is given back all the same.
    let round = engine.committer().next_round();
    engine.committer().durable(engine, round).await;
    Ok(())
}

async fn end_with_last_slices(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let head = tail.upload.head();
    let head = head.ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    let ended = last_slices::end_with_them(engine, tail, head.root.epoch).await;
    ended.inspect_err(|error| {
        // Not everything of it is stored: it is kept for rescue, and whoever waits hears why.
        tail.lock().status = Status::Fenced;
        tail.upload.set_refusal(Some(error.clone()));
        endings::note_end(engine, tail, error);
        tail.upload.wake_all();
    })
}

/// Ends the epoch in this host's log, then in the root. It may be repeated after it was cut short.
async fn give_back(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let head = tail.upload.head();
    let head = head.ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    let epoch = head.root.epoch;
    // A poisoned log records no end, and publishes nothing either.
    let is_silent =
        engine.poisoned.load(Ordering::Acquire) || canary::active!("close_ends_nothing");
    if !tail.upload.has_ended() && !is_silent {
        engine.host_log.end_epoch(tail, epoch).await?;
    }
    let _turn = tail.upload.turn.take().await;
    if tail.upload.is_closed() {
        return Ok(());
    }
    engine.host_log.check_not_stopped()?;
    // From the update on another host may open the volume, and a log that takes no records cannot say so to the
    // next start.
    tail.require_check();
    let update = match tail.upload.closing() {
        Some(update) => update,
        None => {
            let mut update = match is_silent {
                true => begin_update(engine, tail).await?,
                false => begin_closing(engine, tail).await?,
            };
            update.root.owner = None;
            update.root.mark = Position::default();
            update.root.set_maintained(false);
            tail.upload.set_closing(Some(update.clone()));
            update
        }
    };
    finish_update(engine, tail, &update).await?;
    // There is no await between the answer and this line, so a repeated call finds everything done.
    tail.upload.set_closed();
    engine.host_log.detach(tail.id().volume);
    Ok(())
}
