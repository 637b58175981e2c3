//! What openings need of hosts' logs, for all volumes opened at about the same time: one scan and one fence for
//! each host that volumes are taken from, one read of the own log, one write of its state.
//!
//! A restart opens all volumes of a host. If each opening read the log by itself, it would read the fences of all
//! others, which is quadratic in their number. Only keys of hosts are requested here: a request about one volume
//! must hold up no other volume.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{Position, SessionName};
use crate::hostlog::root_updates::VersionedRoot;
use crate::hostlog::scan::Chain;
use crate::hostlog::taker::{Taker, UnreadableLog};
use crate::jobs::Answer;
use crate::lock::lock;
use crate::store::host_log::log_procedures::{KeyPrefixes, catch_up, log_port, with_patience};
use crate::store::open::log_reads::{LogRead, PendingLogRead};
use crate::sync::atomic::Ordering;
use crate::units::{HostId, LogSession};

/// How long new openings wait for a running read of logs: one that the store does not answer must not hold up
/// later ones.
const GATHER_NS_MAX: u64 = 1_000_000_000;

/// Reads and fences the log of the claimed volume's predecessor, and reads the own log up to its end.
pub(in crate::store) fn read_logs(
    engine: &Arc<Engine>,
    claimed: VersionedRoot,
) -> Answer<Result<LogRead, OpenError>> {
    let (sender, answer) = Answer::channel();
    let is_first = {
        let mut waiting = lock(&engine.log_reads.waiting);
        waiting.push(PendingLogRead {
            claimed,
            answer: sender,
        });
        waiting.len() == 1
    };
    if is_first {
        engine.jobs.spawn(run(Arc::clone(engine)));
    }
    answer
}

async fn run(engine: Arc<Engine>) {
    let reads = &engine.log_reads;
    let mut gathered = engine.port.sleep(GATHER_NS_MAX);
    std::future::poll_fn(|cx| {
        reads.changed.wait(cx.waker());
        let is_free = reads.under_way.load(Ordering::Acquire) == 0;
        match is_free || Pin::new(&mut gathered).poll(cx).is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    let all = std::mem::take(&mut *lock(&reads.waiting));
    let mut groups: BTreeMap<Option<HostId>, Vec<PendingLogRead>> = BTreeMap::new();
    for waiting in all {
        let host = waiting.claimed.root.predecessor.map(|before| before.host);
        groups.entry(host).or_default().push(waiting);
    }
    // Each host's log by itself: a log that cannot be read holds up no volume of another host.
    for (host, members) in groups {
        reads.under_way.fetch_add(1, Ordering::AcqRel);
        engine
            .jobs
            .spawn(run_group(Arc::clone(&engine), host, members));
    }
}

async fn run_group(engine: Arc<Engine>, host: Option<HostId>, members: Vec<PendingLogRead>) {
    let what = match host {
        Some(host) => format!("the log of host {host}"),
        None => "this host's log".to_owned(),
    };
    // Its own log is read up to the fences, too.
    let keys = KeyPrefixes::default().with_host(engine.host);
    let keys = host.into_iter().fold(keys, KeyPrefixes::with_host);
    let read = read_group(&engine, host, &members);
    let found = with_patience(&engine, &what, keys, read).await;
    let reads = &engine.log_reads;
    reads.under_way.fetch_sub(1, Ordering::AcqRel);
    reads.changed.wake_all();
    let (chains, mark) = match found {
        Ok((chains, mark)) => (chains, Ok(mark)),
        Err(error) => (Vec::new(), Err(error)),
    };
    let mut chains = chains.into_iter();
    for waiting in members {
        let chain = chains.next().transpose();
        let read = mark.clone().and_then(|mark| {
            let chain = chain?;
            Ok(LogRead { chain, mark })
        });
        waiting.answer.send(read);
    }
}

type GroupRead = (Vec<Result<Chain, OpenError>>, Position);

async fn read_group(
    engine: &Arc<Engine>,
    host: Option<HostId>,
    members: &[PendingLogRead],
) -> Result<GroupRead, OpenError> {
    let port = log_port(engine);
    let session = match engine.poisoned.load(Ordering::Acquire) {
        true => LogSession::default(),
        false => engine.sessions.current(),
    };
    let taker = Taker {
        port: &port,
        own: SessionName {
            host: engine.host,
            session,
        },
        label: &engine.label,
        mark: engine.host_log.state().next.previous(),
        unix_ms: engine.jobs.now().unix_ms,
    };
    let claimed = members.iter().map(|waiting| waiting.claimed.clone());
    let claimed: Vec<_> = claimed.collect();
    let found = match host {
        Some(host) => taker.read_log(host, &claimed).await,
        None => Vec::new(),
    };
    // Reads up to the fences: if a copy of this host wrote there, this finds it.
    let mark = catch_up(engine).await?;
    let error = |UnreadableLog(why)| OpenError::Corrupt(why);
    let found = found.into_iter().map(|chain| chain.map_err(error));
    Ok((found.collect(), mark))
}
