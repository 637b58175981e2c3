//! The collector in the engine: a pass every so often, and whenever somebody asks for one.
//!
//! One pass at a time. Before it this host's low mark is raised, and that of hosts that seem to have left theirs: what
//! their records name stays as long as they do. What a pass found, and why one failed, is kept for whoever asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::collect::pass::{CollectError, Findings, collect, look};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::low_mark::{raise_low_mark, remove_records};
use crate::hostlog::names::{HOST_PREFIX, Position, record_of_key};
use crate::hostlog::port::list;
use crate::request::tail::Status;
use crate::store::log_procedures::{AskedKeys, log_port, with_patience};
use crate::store::low_marks;
use crate::sync::atomic::Ordering;
use crate::units::{HostId, VolumeId};

/// The first pass comes after this part of the interval, or twice that: also servers that live shortly make some.
const FIRST_PART: u64 = 16;

/// A log that is so many times longer than its host lets it become is raised by others.
const LEFT_LOG: u64 = 4;

/// Makes a pass every so often, for as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let interval_ns = engine.options.gc_interval_ns;
    if interval_ns == 0 {
        return;
    }
    engine.collector.set_on(engine.jobs.now().unix_ms);
    // Hosts that were started together do not all list the store at once.
    let first_ns = (interval_ns / FIRST_PART).max(1);
    engine
        .port
        .sleep(first_ns + engine.next_nonce() % first_ns)
        .await;
    loop {
        if engine.host_log.check_not_stopped().is_err() {
            return;
        }
        if let Err(error) = pass(&engine, engine.options.low_mark_records).await {
            tracing::error!(%error, "a pass of the garbage collector failed");
        }
        engine.port.sleep(interval_ns).await;
    }
}

/// What `firn gc` asks for. Nobody waits for ever for a store that is away.
pub(crate) async fn collect_now(
    engine: &Arc<Engine>,
    dry_run: bool,
) -> Result<Findings, OpenError> {
    engine.host_log.check_not_stopped()?;
    let what = "garbage collection";
    if dry_run {
        let found = async {
            look(&log_port(engine), served(engine))
                .await
                .map_err(|error| failed(&error))
        };
        return with_patience(engine, what, AskedKeys::all(), found).await;
    }
    with_patience(engine, what, AskedKeys::all(), pass(engine, 0)).await
}

/// A pass. Volumes whose marks are so many records behind get a new root before it.
async fn pass(engine: &Arc<Engine>, records: u64) -> Result<Findings, OpenError> {
    let _busy = engine.collector.take().await;
    if !engine.poisoned.load(Ordering::Acquire) {
        low_marks::pass_marks(engine, records).await;
        low_marks::raise(engine).await;
    }
    raise_left_logs(engine, records.saturating_mul(LEFT_LOG)).await;
    engine.host_log.check_not_stopped()?;
    let unix_ms = engine.jobs.now().unix_ms;
    let found = collect(
        &log_port(engine),
        engine.session_name,
        unix_ms,
        served(engine),
    )
    .await;
    let found = found.map_err(|error| failed(&error));
    match &found {
        Ok(found) => {
            engine
                .collector
                .on_success(found, engine.jobs.now().unix_ms);
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
    found
}

/// Volumes that this host serves. If one of them had no root, what it holds would be taken for nobody's.
fn served(engine: &Engine) -> BTreeSet<VolumeId> {
    let tails = engine.tails().into_iter();
    let live = tails.filter(|tail| tail.lock().status == Status::Live);
    live.map(|tail| tail.id().volume).collect()
}

fn failed(error: &CollectError) -> OpenError {
    match error {
        CollectError::Moving => OpenError::Store(error.to_string()),
        _ => OpenError::Corrupt(error.to_string()),
    }
}

/// Raises the low marks of other hosts with more than so many records: they seem not to do it.
async fn raise_left_logs(engine: &Arc<Engine>, records: u64) {
    let port = log_port(engine);
    let mut counts: BTreeMap<HostId, u64> = BTreeMap::new();
    for (key, _) in list(&port, HOST_PREFIX).await {
        if let Some((host, _)) = record_of_key(&key) {
            *counts.entry(host).or_default() += 1;
        }
    }
    counts.remove(&engine.host);
    for (host, _) in counts.into_iter().filter(|(_, count)| *count > records) {
        let low = raise_low_mark(&port, host, Position(u64::MAX), &BTreeMap::new()).await;
        if let Some(low) = low {
            remove_records(&port, host, low).await;
        }
    }
}
