//! When this host raises its low mark: it removes records that no root needs any more, and gives new roots to
//! volumes whose marks hold the low mark back.
//!
//! A raise reads each record once more and the roots of the volumes that the records name, so it is rare.
//! `hostlog::low_mark` knows what the mark must not pass.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::collect::limit::{LimitedPort, NoAnswer};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::low_mark::{raise_low_mark, remove_records};
use crate::hostlog::names::Position;
use crate::hostlog::recent_records::SharedRecords;
use crate::jobs::{Answer, join_all};
use crate::options::Options;
use crate::request::tail::{Status, Tail};
use crate::store::host_log::log_procedures::log_port;
use crate::store::open::endings::{end, is_final};
use crate::store::roots::{begin_update, finish_update};
use crate::sync::atomic::Ordering;

/// Failures of a request in a row that end background work for this time: some minutes, so that a short outage
/// costs no pass.
pub(crate) const FAILURES_MAX: u32 = 64;

/// Volumes that get new roots in parallel.
const SIDE_BY_SIDE: usize = 16;

/// How long all of them together are waited for, in pauses after a failed request.
const PATIENCE: u64 = 20;

/// Raises the mark from time to time, as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let every = engine.options.low_mark_records.max(1);
    let (mut raised_at, mut raised_bytes) = (Position::default(), 0);
    loop {
        let log = &engine.host_log;
        let is_due = || {
            let next = log.state().next;
            let (bytes, volumes) = named(&engine);
            let is_large = bytes - raised_bytes > bytes_max(&engine, volumes)
                && !canary::active!("low_mark_counts_no_bytes");
            let is_due = next.0 > raised_at.0.saturating_add(every) || is_large;
            is_due.then_some((next, bytes))
        };
        let before = raised_at;
        (raised_at, raised_bytes) = log.advanced.wait_until(is_due).await;
        if engine.poisoned.load(Ordering::Acquire) {
            // A stopped host's log does not grow any more.
            return;
        }
        if !canary::active!("marks_keep_the_low_mark_back") {
            let records_ago = Position(raised_at.0.saturating_sub(every));
            advance_marks(&engine, before.max(records_ago)).await;
        }
        raise_own_low_mark(&engine, FAILURES_MAX, Records::Remembered).await;
    }
}

/// Bytes of packs that this process's records name, and how many volumes the records name that the low mark has
/// not passed.
fn named(engine: &Engine) -> (u64, usize) {
    let records = engine.host_log.records();
    records.map_or((0, 0), |records| records.size())
}

/// Bytes of packs between two looks. A look costs a new root for each volume, so each may leave a pack.
fn bytes_max(engine: &Engine, volumes: usize) -> u64 {
    let Options {
        low_mark_bytes,
        pack_bytes,
        ..
    } = engine.options;
    low_mark_bytes + pack_bytes * volumes as u64
}

/// What is known of the records that this process published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Records {
    /// The newest that names each volume: one that was written to lately keeps all behind its root's mark.
    Remembered,
    /// Each is read again: one that names nothing needed keeps nothing, also if nobody writes any more.
    Read,
}

/// Raises this host's low mark as far as these records allow, and removes those below it. Gives up when a request has
/// failed so often in a row.
pub(crate) async fn raise_own_low_mark(engine: &Arc<Engine>, failures_max: u32, from: Records) {
    if engine.host_log.check_not_stopped().is_err() {
        return;
    }
    let port = LimitedPort::new(log_port(engine), failures_max);
    let tails = engine.tails().into_iter();
    let names: BTreeMap<_, _> = tails
        .map(|tail| (tail.id().volume, tail.name().to_owned()))
        .collect();
    let last = engine.host_log.state().next.previous();
    let records = engine.host_log.records();
    let remembered = records.as_ref().filter(|_| from == Records::Remembered);
    let recent = remembered.map(SharedRecords::get);
    let raised = port.run(async {
        let low = raise_low_mark(&port, engine.host, last, &names, recent.as_ref()).await;
        if let Some(low) = low {
            if let Some(records) = &records {
                records.forget_below(low);
            }
            tracing::debug!(low = low.0, last = last.0, "records below the low mark go");
            remove_records(&port, engine.host, low).await;
        }
    });
    if let Err(NoAnswer { key, error }) = raised.await {
        tracing::warn!(
            key,
            error,
            "the store gives no answer about it: this host's low mark stays"
        );
    }
}

/// Gives a new root to each volume that an older record names and whose root's mark is below `before`. A volume whose
/// root does not answer is waited for no longer than the others take; its update goes on in the background.
pub(crate) async fn advance_marks(engine: &Arc<Engine>, before: Position) {
    let is_behind = |tail: &Arc<Tail>| {
        let Some(head) = tail.upload.head() else {
            return false;
        };
        let (_, packs) = tail.upload.published();
        head.root.mark < before && !packs.is_empty()
    };
    let tails: Vec<Arc<Tail>> = engine.tails().into_iter().filter(is_behind).collect();
    let passed = async {
        for tails in tails.chunks(SIDE_BY_SIDE) {
            join_all(
                tails
                    .iter()
                    .filter_map(|tail| start_advancing_mark(engine, tail))
                    .collect(),
            )
            .await;
        }
    };
    let patience_ns = engine.options.retry_ns.saturating_mul(PATIENCE);
    if canary::active!("a_pass_never_gives_up") {
        passed.await;
    } else if !completes_within(engine, patience_ns, passed).await {
        tracing::warn!(
            "some volumes do not get a new root for now, and keep this host's low mark back"
        );
    }
}

/// Folds the volumes that are open here, so that objects hidden by their newest writes are named by nothing. A
/// fold that takes too long for the caller goes on in the background.
pub(crate) async fn fold_all(engine: &Arc<Engine>) {
    let has_deltas = |tail: &Arc<Tail>| {
        let inner = tail.lock();
        inner.status == Status::Live && inner.index.unfolded_deltas() > 0
    };
    let tails: Vec<Arc<Tail>> = engine.tails().into_iter().filter(has_deltas).collect();
    let folded = async {
        for tails in tails.chunks(SIDE_BY_SIDE) {
            tails
                .iter()
                .for_each(|tail| tail.upload.set_fold_asked(true));
            // Those that fold already may wait for a record.
            engine.host_log.hurry();
            for tail in tails {
                let is_done = || {
                    let is_live = tail.lock().status == Status::Live;
                    (!is_live || !tail.upload.is_fold_asked()).then_some(())
                };
                tail.upload.changed.wait_until(is_done).await;
            }
        }
    };
    let patience_ns = engine.options.retry_ns.saturating_mul(PATIENCE);
    if !completes_within(engine, patience_ns, folded).await {
        tracing::warn!("some volumes are not folded yet: a later pass finds what they hide");
    }
}

/// Runs `work` for at most `ns`; returns whether it ended. After that it is dropped.
async fn completes_within(engine: &Engine, ns: u64, work: impl Future<Output = ()>) -> bool {
    let (mut work, mut sleep) = (pin!(work), pin!(engine.port.sleep(ns)));
    std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| false),
    })
    .await
}

/// Advances the mark of a volume in a job of its own, because an update that is cut short costs another one.
/// `None` if a job is doing that already.
fn start_advancing_mark(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Option<Answer<()>> {
    if !engine.collector.begin_advancing_mark(tail.id()) {
        return None;
    }
    let (sender, answer) = Answer::channel();
    let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
    engine.clone().jobs.spawn(async move {
        if let Err(error) = advance_mark(&engine, &tail).await {
            let volume = tail.name();
            tracing::warn!(volume, %error, "its root keeps the low mark back for now");
            if is_final(&error) {
                end(&engine, &tail, &error);
            }
        }
        engine.collector.end_advancing_mark(tail.id());
        sender.send(());
    });
    Some(answer)
}

async fn advance_mark(engine: &Arc<Engine>, tail: &Tail) -> Result<(), OpenError> {
    let _turn = tail.upload.turn.take().await;
    if tail.lock().status != Status::Live {
        return Ok(());
    }
    let update = begin_update(engine, tail).await?;
    finish_update(engine, tail, &update).await.map(drop)
}
