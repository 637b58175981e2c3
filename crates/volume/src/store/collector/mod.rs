//! The collector in the engine: a pass at an interval, and whenever an operator asks for one.
//!
//! One pass runs at a time. Before it, this host raises its own low mark and those of hosts that seem to have
//! stopped raising theirs, because the objects that their records name are kept as long as the records are. The
//! findings of a pass, or why it failed, are kept for the API.

pub(crate) mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::collect::limit::{LimitedPort, NoAnswer};
use crate::collect::pass::{CollectError, Findings, collect, find_garbage};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::low_mark::{raise_low_mark, remove_records};
use crate::hostlog::names::{HOST_PREFIX, Position, record_of_key};
use crate::hostlog::port::list;
use crate::request::tail::Status;
use crate::store::host_log::log_procedures::log_port;
use crate::store::host_log::low_marks::{self, FAILURES_MAX, Records};
use crate::store::rename;
use crate::store::trash::empty::empty_expired;
use crate::sync::atomic::Ordering;
use crate::units::{HostId, VolumeId};

/// The first pass comes after this part of the interval, or twice that, so that short-lived servers make some,
/// too.
const FIRST_PART: u64 = 16;

/// Failures of a request in a row that end a pass which an operator waits for; as for other commands.
const ASKED_FAILURES_MAX: u32 = 8;

/// Other hosts raise the low mark of a log that is so many times longer than its own host lets it become.
const LEFT_LOG: u64 = 4;

/// Makes passes at the interval, as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let interval = &engine.gc_interval;
    let first_ns = |interval_ns: u64| (interval_ns / FIRST_PART).max(1);
    // Random, so that hosts started together do not all list the store at once.
    let random_ns = |interval_ns| {
        let first_ns = first_ns(interval_ns);
        first_ns + engine.next_nonce() % first_ns
    };
    interval.wait(&engine.port, random_ns).await;
    loop {
        if engine.host_log.check_not_stopped().is_err() {
            return;
        }
        match pass(&engine, engine.options.low_mark_records, FAILURES_MAX).await {
            Ok(_) => interval.wait(&engine.port, |ns| ns).await,
            Err(error) => {
                tracing::error!(%error, "a pass of the garbage collector failed");
                interval.wait(&engine.port, first_ns).await;
            }
        }
    }
}

/// The pass of `firn gc`. It fails after a bounded number of requests if the store is away. A pass that runs is
/// never cut short.
pub(crate) async fn collect_now(
    engine: &Arc<Engine>,
    dry_run: bool,
) -> Result<Findings, OpenError> {
    engine.host_log.check_not_stopped()?;
    if dry_run {
        let port = LimitedPort::new(log_port(engine), ASKED_FAILURES_MAX);
        let found = port.run(find_garbage(&port, served_volumes(engine))).await;
        return flatten(found).map_err(|error| to_open_error(&error));
    }
    if !engine.poisoned.load(Ordering::Acquire) && !canary::active!("asked_passes_fold_nothing") {
        low_marks::fold_all(engine).await;
    }
    pass(engine, 0, ASKED_FAILURES_MAX).await
}

/// Makes a pass. Volumes whose marks are so many records behind get a new root before it. The pass fails when a
/// request has failed so often in a row.
async fn pass(
    engine: &Arc<Engine>,
    records: u64,
    failures_max: u32,
) -> Result<Findings, OpenError> {
    let busy = engine.collector.take().await;
    busy.set_begun(engine.jobs.now().unix_ms);
    if !engine.poisoned.load(Ordering::Acquire) {
        let next = engine.host_log.state().next;
        let before = Position(next.0.saturating_sub(records));
        low_marks::advance_marks(engine, before).await;
        low_marks::raise_own_low_mark(engine, failures_max, Records::Read).await;
    }
    raise_left_logs(engine, records.saturating_mul(LEFT_LOG), failures_max).await;
    let found = match engine.host_log.check_not_stopped() {
        Ok(()) => collect_within(engine, failures_max).await,
        Err(stopped) => Err(stopped),
    };
    match &found {
        Ok(found) => {
            engine.collector.on_end(found, engine.jobs.now().unix_ms);
            if let Some(why) = found.reason_nothing_was_removed() {
                tracing::error!(why, "a pass of the garbage collector could remove nothing");
            }
            tracing::info!(
                live_packs = found.live_packs.objects,
                garbage = found.garbage.objects,
                removed = found.removed.objects,
                removed_bytes = found.removed.bytes,
                "a pass of the garbage collector ended"
            );
        }
        Err(error) => engine.collector.on_failure(error),
    }
    if let Ok(found) = &found {
        go_on_renaming(engine, found).await;
    }
    // A store that answered all of a pass answers here, too, so nobody waits longer for a pass that fails. What leaves
    // the trash now is garbage for the next pass, and nothing is wrong with this one if it stays.
    if found.is_ok()
        && let Err(error) = empty_expired(engine).await
    {
        tracing::warn!(%error, "the trash keeps what could leave it");
    }
    found
}

/// Goes on with renamings that were cut short, and has snapshots follow that stayed behind.
async fn go_on_renaming(engine: &Arc<Engine>, found: &Findings) {
    for name in &found.leaving {
        match rename::go_on(engine, name).await {
            // Whoever gave the command is at it.
            Ok(()) | Err(OpenError::Busy(_)) => {}
            Err(error) => {
                tracing::warn!(volume = name, %error, "a renaming that was cut short is not gone on with");
            }
        }
    }
    for name in &found.strays {
        match rename::strays::follow(engine, name).await {
            Ok(_) | Err(OpenError::Busy(_)) => {}
            Err(error) => {
                tracing::warn!(snapshot = name, %error, "it stays under this name, and its volume has another");
            }
        }
    }
}

async fn collect_within(engine: &Arc<Engine>, failures_max: u32) -> Result<Findings, OpenError> {
    let port = LimitedPort::new(log_port(engine), failures_max);
    let unix_ms = engine.jobs.now().unix_ms;
    let own = engine.session_name;
    let found = port
        .run(collect(&port, own, unix_ms, served_volumes(engine)))
        .await;
    let found = flatten(found);
    if let Err(CollectError::RootMissing(volume)) = found {
        engine.collector.on_missing_root(volume);
    }
    found.map_err(|error| to_open_error(&error))
}

fn flatten(
    found: Result<Result<Findings, CollectError>, NoAnswer>,
) -> Result<Findings, CollectError> {
    found.unwrap_or_else(|NoAnswer { key, error }| Err(CollectError::NoAnswer(key, error)))
}

/// Volumes that this host serves. If one of them had no root, the collector would take its objects for garbage.
fn served_volumes(engine: &Engine) -> BTreeSet<VolumeId> {
    let tails = engine.tails().into_iter();
    let live = tails.filter(|tail| tail.lock().status == Status::Live);
    live.map(|tail| tail.id().volume).collect()
}

fn to_open_error(error: &CollectError) -> OpenError {
    match error {
        CollectError::Moving | CollectError::NoAnswer(..) => OpenError::Store(error.to_string()),
        _ => OpenError::Corrupt(error.to_string()),
    }
}

/// Raises the low marks of other hosts whose logs have more than so many records: those hosts seem not to raise
/// them.
async fn raise_left_logs(engine: &Arc<Engine>, records: u64, failures_max: u32) {
    let mut counts: BTreeMap<HostId, u64> = BTreeMap::new();
    let port = LimitedPort::new(log_port(engine), failures_max);
    let listed = port.run(list(&port, HOST_PREFIX)).await;
    for (key, _) in listed.unwrap_or_default() {
        if let Some((host, _)) = record_of_key(&key) {
            *counts.entry(host).or_default() += 1;
        }
    }
    counts.remove(&engine.host);
    for (host, _) in counts.into_iter().filter(|(_, count)| *count > records) {
        let port = LimitedPort::new(log_port(engine), failures_max);
        let raised = port.run(async {
            let low = raise_low_mark(&port, host, Position(u64::MAX), &BTreeMap::new(), None).await;
            if let Some(low) = low {
                remove_records(&port, host, low).await;
            }
        });
        if let Err(NoAnswer { key, error }) = raised.await {
            tracing::warn!(%host, key, error, "no answer about it: the low mark of that host stays");
        }
    }
}
