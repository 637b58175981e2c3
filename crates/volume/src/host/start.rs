//! How a host begins: what recovery found becomes an engine, under a session of its own.
//!
//! A plain start writes what it found as a checkpoint before anything is served. A start that goes on with what a
//! process left in its favour serves first, and has its first frame say its session: journal and rings are as they were, so
//! a crash before that frame leaves what a crash of that process would have left. Until the frame is durable nothing of this process may
//! be in the store, for its session may be forgotten: [`SessionGate`](crate::log::session_gate::SessionGate).

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::{Permission, Setup};
use crate::engine::{Engine, Parts};
use crate::error::OpenError;
use crate::jobs::{Jobs, Port};
use crate::log::checkpoint;
use crate::log::committer::{Committer, FIRST_ROUND, Journal};
use crate::log::frame::Record;
use crate::log::ring::TailId;
use crate::log::session::BootId;
use crate::recover::continuation::Continuation;
use crate::recover::layering::RecoveredTail;
use crate::recover::report::{RecoveryReport, TailReport};
use crate::recover::rings::{ObsoleteRings, PreviousRings};
use crate::recover::{self, Continued, LogBefore};
use crate::store::collector;
use crate::store::compact;
use crate::store::flow::publish;
use crate::store::forks::store_kept;
use crate::store::host_log::{log_procedures, low_marks};
use crate::store::open;
use crate::store::open::go_live;
use crate::sync::atomic::Ordering;
use crate::units::{HostId, LogSession};

/// Recovers the log and makes the host usable.
pub(super) async fn start_engine(
    jobs: Arc<Jobs>,
    slot: Arc<OnceLock<Arc<Engine>>>,
    setup: Setup,
) -> Result<RecoveryReport, OpenError> {
    let port = Port(Arc::clone(&jobs));
    let boot = BootId::new(&setup.boot_id);
    let hash = |what: &str| *blake3::keyed_hash(&setup.entropy, what.as_bytes()).as_bytes();
    let mut fresh = [0; 16];
    fresh.copy_from_slice(&hash("host")[..16]);
    let rings = &*setup.rings;
    let mark = setup.continues.and_then(|before| before.journal);
    let host = HostId(fresh);
    let found = recover::open(&port, &setup.options, host, (rings, boot), mark).await?;
    wait_for_permission(setup.may_begin).await?;
    let mut drawn = [0; 8];
    drawn.copy_from_slice(&hash("log session")[..8]);
    let drawn = u64::from_le_bytes(drawn);
    let (before, poisoned) = (found.before, found.poisoned);
    let goes_on = found.continued;
    let goes_on = goes_on.and_then(|left| Some((left, before.sessions.go_on(drawn)?)));
    let (continued, sessions) = match goes_on {
        Some((left, sessions)) => (Some(left), sessions),
        // Nothing is written to it any more, so it has no new one.
        None if poisoned => (None, before.sessions.clone().of_poisoned_log()),
        None => (
            None,
            before.sessions.begin(drawn, boot, before.has_read_rings),
        ),
    };
    let takes_over = setup.continues.is_some();
    let parts = Parts {
        options: setup.options,
        layout: found.layout,
        host: found.host,
        label: setup.label,
        boot,
        sessions,
        log_state: found.log_state,
        segments: found.segments,
        rings: setup.rings,
        poisoned,
        entropy: setup.entropy,
    };
    let engine = new_engine(&jobs, parts, setup.continues);
    let mut report = found.report;
    report.poisoned = poisoned;
    report.tails = add_tails(&engine, found.tails);
    let is_continued = continued.is_some();
    report.goes_on = is_continued;
    let committer = match continued {
        Some(left) => go_on(&engine, left)?,
        None if poisoned => Committer::new(before.journal, true),
        None => {
            let journal = begin(&engine, &before, takes_over, &mut report).await?;
            Committer::new(journal, false)
        }
    };
    if !engine.begin_commits(committer) || slot.set(Arc::clone(&engine)).is_err() {
        return Err(OpenError::Options("the host was started twice".into()));
    }
    jobs.spawn(crate::log::reclaim::run(Arc::clone(&engine)));
    engine.request_reclaim();
    jobs.spawn(crate::scrub::run(Arc::clone(&engine)));
    // Before anybody can change it.
    let collects = engine.gc_interval.ns() > 0;
    engine.collector.set_on(collects, jobs.now().unix_ms);
    let last = before.sessions.current();
    if is_continued {
        let engine = Arc::clone(&engine);
        jobs.spawn(async move { record_session(&engine, last).await });
    } else {
        pass_gate(&engine, last);
    }
    Ok(report)
}

/// A start that may not begin leaves no session, no checkpoint and no report of a loss behind, however often it is made.
async fn wait_for_permission(may_begin: Option<Permission>) -> Result<(), OpenError> {
    let may_begin = match may_begin {
        Some(permission) if !canary::active!("start_begins_without_permission") => permission.await,
        _ => true,
    };
    match may_begin {
        true => Ok(()),
        false => Err(OpenError::Options(
            "the start was refused before anything was written".into(),
        )),
    }
}

/// An engine that puts nothing into a cache file of which it is yet to hear what it holds.
fn new_engine(jobs: &Arc<Jobs>, parts: Parts, continues: Option<Continuation>) -> Arc<Engine> {
    let engine = Arc::new(Engine::new(Arc::clone(jobs), parts));
    if continues.is_some_and(|before| before.cache_follows) {
        engine.cache.freeze_disk();
    }
    engine
}

/// Adds what was recovered, but for tails that were ended with all of them in the store: nothing of those is to
/// be rescued.
fn add_tails(engine: &Engine, tails: BTreeMap<TailId, RecoveredTail>) -> Vec<TailReport> {
    let has_use = |tail: &RecoveredTail| !tail.rescue || !tail.layers.is_empty();
    let tails = tails.into_iter().filter(|(_, tail)| has_use(tail));
    let add = |(id, tail): (TailId, RecoveredTail)| {
        let report = TailReport {
            volume: tail.name.clone(),
            newest: tail.newest,
            rescue: tail.rescue,
        };
        engine.add_tail(Arc::new(open::dormant::dormant_tail(id, tail)));
        report
    };
    tails.map(add).collect()
}

/// Begins a session with rings of its own: from then on the rings of dead processes are not needed.
async fn begin(
    engine: &Arc<Engine>,
    before: &LogBefore,
    takes_over: bool,
    report: &mut RecoveryReport,
) -> Result<Journal, OpenError> {
    let newest = engine.tails().into_iter();
    let newest = newest.map(|tail| (tail.id(), tail.newest())).collect();
    if takes_over {
        go_live::make_rings_early(engine);
    }
    let journal = write_first_checkpoint(engine, before).await?;
    // Before anything that takes time: without it the next start trusts no tail that this one does not touch.
    engine.make_session_ring()?;
    let done = ObsoleteRings {
        rings: &*engine.rings,
        host: engine.host,
        sessions: &before.sessions,
        own: engine.sessions.ring_session(),
        read: &before.rings_read,
        newest,
    };
    done.clear(report);
    Ok(journal)
}

/// Writes what was recovered as a checkpoint, before anything is served.
async fn write_first_checkpoint(
    engine: &Arc<Engine>,
    before: &LogBefore,
) -> Result<Journal, OpenError> {
    let frozen = checkpoint::freeze(engine).expect("nothing was committed yet");
    match checkpoint::write(engine, before.journal, frozen).await {
        Ok((journal, cuts)) => {
            cuts.iter().for_each(|(tail, cut)| tail.set_framed(*cut));
            Ok(journal)
        }
        Err(error) => {
            if engine.poisoned.load(Ordering::Acquire) {
                // What the next start reads may not be on disk: it must not take it for durable,
                // whichever session it finds to be the last.
                for session in [&before.sessions, &engine.sessions] {
                    let left = PreviousRings {
                        rings: &*engine.rings,
                        host: engine.host,
                        boot: engine.boot_id(),
                        session: session.ring_session(),
                    };
                    left.poison(engine.tails().iter().map(|tail| tail.id()));
                }
                checkpoint::mark_poisoned(&engine.port, engine.superblock()).await;
            }
            Err(error.into())
        }
    }
}

/// Goes on with journal and rings as they are. Nothing is written here.
fn go_on(engine: &Arc<Engine>, left: Continued) -> Result<Committer, OpenError> {
    engine.keep_rings(left.rings)?;
    if left.has_unframed {
        engine.segments.free_after(FIRST_ROUND);
    }
    let session = Record::Sessions(engine.sessions.clone());
    Ok(Committer::continuing(left.journal, session))
}

/// Has the log record this session, while volumes are served.
async fn record_session(engine: &Arc<Engine>, last: LogSession) {
    if engine.committer().durable(engine, FIRST_ROUND).await {
        pass_gate(engine, last);
    } else {
        engine.session_gate.lose();
    }
}

/// Begins what writes to the store. The session is durable, or the log is poisoned.
fn pass_gate(engine: &Arc<Engine>, last: LogSession) {
    let port = log_procedures::log_port(engine);
    engine.host_log.begin(port, engine.session_name, last);
    forget_reported_losses(engine);
    let jobs = &engine.jobs;
    jobs.spawn(publish::run(Arc::clone(engine)));
    jobs.spawn(low_marks::run(Arc::clone(engine)));
    jobs.spawn(collector::run(Arc::clone(engine)));
    jobs.spawn(compact::run(Arc::clone(engine)));
    jobs.spawn(compact::closed::run(Arc::clone(engine)));
    jobs.spawn(store_kept::run(Arc::clone(engine)));
    engine.session_gate.open();
}

/// The next start need not report again what this one is about to: a round takes that along.
fn forget_reported_losses(engine: &Arc<Engine>) {
    if engine.committer().is_poisoned() {
        return;
    }
    let reported = engine.tails().into_iter();
    for tail in reported.filter(|tail| tail.take_unreported_loss()) {
        let record = Record::Tail(tail.record());
        engine.committer().record(engine, record);
    }
}
