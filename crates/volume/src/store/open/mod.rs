//! Opening and closing volumes.
//!
//! Opening takes the volume's epoch by conditional update of its root and a fence in the log of whoever
//! had it last: from then on no other host can commit to it (S7). Whether the local tail continues the root is decided by `since`,
//! the epoch in which the owner's unbroken hold began; a tail that does not is kept for rescue
//! and never replayed.
//!
//! [`take_together`] reads hosts' logs once for all that open together, [`holds`] judges what a root says,
//! [`load_index`] reads the index, of which [`prepared`] may have much and [`loaded_deltas`] all, [`go_live`] begins the service and [`endings`] ends it; [`let_go`] gives a
//! volume back in good order. [`unchecked`] serves while
//! the store is away, [`kept_fork`] forks that it does not have yet, by [`without_root`]. [`rescue`] shows and drops what is kept of lost volumes, one at a time by [`tail_claim`], and
//! [`forget`] takes a person's word that a volume is gone.

pub(crate) mod dormant;
pub(crate) mod endings;
pub(crate) mod forget;
pub(crate) mod go_live;
pub(in crate::store) mod holds;
mod kept_fork;
pub(crate) mod known_indexes;
mod last_slices;
pub(crate) mod let_go;
pub(crate) mod load_index;
mod loaded_deltas;
pub(crate) mod log_reads;
pub(crate) mod prepared;
pub(crate) mod rescue;
pub(in crate::store) mod tail_claim;
pub(crate) mod take_together;
pub(crate) mod unchecked;
mod without_root;

use std::sync::Arc;

use crate::driver::Version;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{Position, SessionName};
use crate::hostlog::root_updates::{UpdateError, VersionedRoot};
use crate::hostlog::taker::{TakeError, TakeRequest, Taker, UnreadableLog};
use crate::lock::lock;
use crate::log::frame::Record;
use crate::log::ring::TailId;
use crate::object::root::Root;
use crate::request::Volume;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::NameLock;
use crate::store::catalog::volume_spec::check_name;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::objects::ATTEMPTS_MAX;
use crate::store::open::dormant::stored_tail;
use crate::store::open::go_live::go_live;
use crate::store::open::holds::{
    check_not_held, continuing_tail, covers_tail, has_low_mark, is_closed, is_continued,
    is_held_here, is_nowhere, local_tails, records_lost, set_back, set_back_to_any_namesake,
};
use crate::store::open::load_index::{EarlyIndex, load_index};
use crate::store::open::tail_claim::TailClaim;
use crate::store::open::take_together::read_logs;
use crate::store::roots::checks::check_goes_on;
use crate::store::roots::renamed::why_not_there_now;
use crate::store::roots::{read_any_root, unusable_root_error};
use crate::sync::atomic::Ordering;
use crate::units::LogSession;

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Take the volume from a host that still has it open; the writes that this host has not uploaded are lost.
    pub take_over: bool,
    /// Open the volume only if it continues as this hold left it: whoever has a device of it open has seen no
    /// other history. A volume with another id is not bound by this.
    pub continues: Option<TailId>,
}

/// For whom a volume's epoch is taken.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// For clients that will use it.
    Open,
    /// For clients that use this tail unchecked: it must continue the root.
    Served(&'a Arc<Tail>),
    /// For nobody: to write anew what a closed volume holds, if its root is still the one of this version.
    Maintenance(&'a Version),
}

pub(crate) async fn open(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
) -> Result<Volume, OpenError> {
    check_name(name)?;
    let _busy = without_root::lock_name(engine, name).await?;
    let opened = match kept_fork::open(engine, name, mode).await {
        Ok(None) => open_named(engine, name, mode, Wanted::Open).await,
        Ok(Some(volume)) => Ok(volume),
        Err(error) => Err(error),
    };
    if let Err(error) = &opened {
        // A store that does not answer, or lacks the root, says nothing of the volume.
        let is_silent = matches!(error, OpenError::Store(_) | OpenError::RootMissing(_));
        if !is_silent {
            endings::ask_store_first(engine, name);
        }
    }
    opened
}

impl<'a> Wanted<'a> {
    fn served(self) -> Option<&'a Arc<Tail>> {
        match self {
            Wanted::Served(tail) => Some(tail),
            Wanted::Open | Wanted::Maintenance(_) => None,
        }
    }

    fn maintains(self) -> bool {
        matches!(self, Wanted::Maintenance(_))
    }

    /// Whether somebody may use the volume by now, so that it is not maintained.
    fn is_refused(self, head: &KnownRoot, tails: &[Arc<Tail>]) -> bool {
        match self {
            Wanted::Maintenance(judged) => {
                *judged != head.version || !is_nowhere(&head.root, tails)
            }
            Wanted::Open | Wanted::Served(_) => false,
        }
    }
}

/// Opens a volume that nobody uses, to be maintained, if its root has not moved. From the claim on its root says so, and
/// every host may take it. In the log of this host there is nothing of it, before or after.
pub(crate) async fn open_for_maintenance(
    engine: &Arc<Engine>,
    head: &KnownRoot,
) -> Result<Arc<Tail>, OpenError> {
    let name = &head.root.name;
    let _busy = NameLock::take(engine, name)?;
    let wanted = Wanted::Maintenance(&head.version);
    let opened = open_named(engine, name, OpenMode::default(), wanted).await?;
    Ok(opened.tail)
}

/// Opens the volume. The caller holds the lock of its name.
async fn open_named(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
    wanted: Wanted<'_>,
) -> Result<Volume, OpenError> {
    let mut early = None;
    let judged = |root: &Root| {
        // What a log has beyond the root of an open volume is not known yet.
        early = is_closed(root).then(|| EarlyIndex::begin(engine, root));
    };
    let (head, continuing) = take_judged(engine, name, mode, wanted, judged).await?;
    let index = match early {
        Some(early) => early.get(engine, &head.root).await?,
        None => load_index(engine, &head.root).await?,
    };
    let tail = continuing.unwrap_or_else(|| Arc::new(stored_tail(&head.root)));
    if wanted.maintains() {
        tail.set_for_maintenance();
    }
    go_live(engine, &tail, head, index).await?;
    Ok(Volume {
        engine: Arc::clone(engine),
        tail,
    })
}

/// Takes the volume's next epoch. Returns the local tail, if it continues the root, or a new one. A tail that
/// serves unchecked must continue the root: it is never replaced by another history.
pub(crate) async fn take_epoch(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
    served: Option<&Arc<Tail>>,
) -> Result<(KnownRoot, Option<Arc<Tail>>), OpenError> {
    let wanted = served.map_or(Wanted::Open, Wanted::Served);
    take_judged(engine, name, mode, wanted, |_| {}).await
}

/// The same; `on_judged` hears of each root that may be taken, before it is.
async fn take_judged(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
    wanted: Wanted<'_>,
    mut on_judged: impl FnMut(&Root),
) -> Result<(KnownRoot, Option<Arc<Tail>>), OpenError> {
    let (served, maintains) = (wanted.served(), wanted.maintains());
    for _ in 0..ATTEMPTS_MAX {
        let head = read_root_of_tails(engine, name).await?;
        let tails = local_tails(engine, head.root.volume);
        let is_served = |tail: &Arc<Tail>| served.is_some_and(|served| Arc::ptr_eq(served, tail));
        let is_used = |tail: &&Arc<Tail>| tail.lock().status.serves() && !is_served(tail);
        if wanted.is_refused(&head, &tails) || tails.iter().any(|tail| is_used(&tail)) {
            return Err(OpenError::InUse(name.to_owned()));
        }
        let take_over =
            served.is_none() && !maintains && (mode.take_over || engine.options.take_over);
        // Checked before the owner is: an older root may name the owner before this host.
        let set_back =
            set_back(&head.root, &tails).or_else(|| set_back_to_any_namesake(engine, &head.root));
        let is_refused = !take_over && !canary::active!("older_root_is_another_hosts");
        if let Some(error) = set_back.as_ref().filter(|_| is_refused) {
            return Err(error.clone());
        }
        let ours = is_held_here(engine, &head.root, &tails);
        if !ours && !take_over {
            check_not_held(engine, &head.root)?;
        }
        let continuing = match set_back {
            Some(_) => None,
            None => continuing_tail(engine, &head.root, &tails, ours),
        };
        let bound = mode
            .continues
            .filter(|hold| hold.volume == head.root.volume);
        if bound.is_some_and(|hold| !is_continued(engine, &head.root, &tails, hold, &continuing)) {
            return Err(OpenError::HoldEnded(name.to_owned()));
        }
        if let Some(served) = served {
            check_goes_on(engine, &head.root, served, continuing.as_ref())?;
        }
        on_judged(&head.root);
        let ours = ours || continuing.is_some();
        let taken = take(
            engine,
            &head,
            &tails,
            (ours, continuing.as_ref()),
            (take_over, maintains),
        );
        // The reading of logs has a limit of its own.
        let keys = KeyPrefixes::default().with_root(name);
        let Some(taken) = with_patience(engine, name, keys, taken).await? else {
            // Another host updated the root first: read it again.
            continue;
        };
        // The root with what the predecessor's log had beyond it.
        let stored = Root {
            lsn: taken.root.lsn,
            ..head.root.clone()
        };
        let continuing_id = continuing.as_ref().map(|tail| tail.id());
        for tail in tails.iter().filter(|tail| Some(tail.id()) != continuing_id) {
            retire_tail(engine, tail, &stored);
        }
        retire_namesakes(engine, &head.root);
        return Ok((taken, continuing));
    }
    Err(OpenError::Store(format!(
        "{name}: its root changes faster than it can be taken"
    )))
}

/// Reads the root. A volume of which a tail waits here had one, unless it is a fork that was lost before, and a deleted
/// volume leaves a tombstone: a root that is gone was removed by somebody.
async fn read_root_of_tails(engine: &Arc<Engine>, name: &str) -> Result<KnownRoot, OpenError> {
    let waits = |tail: &Arc<Tail>| !tail.is_rescue();
    match read_any_root(engine, name).await {
        Err(missing @ OpenError::NoSuchVolume(_)) if engine.tails_named(name).iter().any(waits) => {
            // Without a mark it may be another store, which lacks everything of this host.
            let is_this_store = has_low_mark(engine).await?;
            Err(
                match is_this_store && !without_root::retire_lost(engine, name) {
                    true => OpenError::RootMissing(name.to_owned()),
                    false => missing,
                },
            )
        }
        Ok(head) if head.root.deleted => Err(why_not_there_now(engine, &head).await),
        head => head,
    }
}

/// Takes the volume over from its last holder, which may be this host: that host's log is read and fenced, so
/// that nothing of an older epoch can be added to it. `None`: the root is no longer the one that was judged.
async fn take(
    engine: &Arc<Engine>,
    head: &KnownRoot,
    tails: &[Arc<Tail>],
    (ours, continuing): (bool, Option<&Arc<Tail>>),
    (take_over, maintains): (bool, bool),
) -> Result<Option<KnownRoot>, OpenError> {
    if let Some(stop) = engine.host_log.stop_reason() {
        return Err(OpenError::HostStopped(stop));
    }
    let name = &head.root.name;
    let known = tails.iter().map(|tail| tail.id().since).max();
    let port = log_port(engine);
    let mut taker = Taker {
        port: &port,
        own: SessionName {
            host: engine.host,
            session: session_of_open(engine, &head.root, ours),
        },
        label: &engine.label,
        mark: Position::default(),
        unix_ms: engine.jobs.now().unix_ms,
    };
    let wanted = TakeRequest {
        name: name.clone(),
        // Above the epochs of local tails, too: a store that was set back must give out no epoch twice.
        above: known.unwrap_or_default(),
        take_over: true,
        judged: Some(versioned(head)),
        continues: continuing.map(|tail| tail.newest()),
        maintains,
    };
    // Nobody's log has to be fenced for it, so the own one may be read meanwhile.
    let early = is_closed(&head.root).then(|| read_logs(engine, versioned(head)));
    let claimed = match standing_claim(engine, head, taker.own, &wanted) {
        Some(claimed) => claimed,
        None => match taker.claim(&wanted).await {
            Ok(claimed) => claimed,
            Err(error) => return on_take_failed(engine, name, error),
        },
    };
    let kept = (claimed.clone(), wanted.continues.is_some());
    lock(&engine.claims).insert(head.root.volume, kept);
    let reading = early.unwrap_or_else(|| read_logs(engine, claimed.clone()));
    let read = match reading.await {
        Ok(read) => read,
        Err(error) => return check_claim_stands(engine, &claimed, error).await,
    };
    taker.mark = read.mark;
    let found = read.chain.as_ref().map(|chain| chain.last);
    let stored = Root {
        lsn: found.unwrap_or(head.root.lsn),
        ..head.root.clone()
    };
    // Checked before the adoption: its mark passes these records, and then nothing would name what they name.
    if let Some(error) = records_lost(&stored, tails) {
        let error = match check_claim_stands(engine, &claimed, error).await {
            Err(error @ OpenError::StoreWentBack { .. }) => error,
            outrun => return outrun,
        };
        if !take_over {
            return Err(error);
        }
        tails.iter().for_each(|tail| keep_for_rescue(engine, tail));
        return Ok(None);
    }
    match taker.adopt(&wanted, claimed, read.chain.as_ref()).await {
        Ok(VersionedRoot { root, version }) => {
            lock(&engine.claims).remove(&head.root.volume);
            Ok(Some(KnownRoot { root, version }))
        }
        Err(error) => on_take_failed(engine, name, error),
    }
}

fn versioned(head: &KnownRoot) -> VersionedRoot {
    VersionedRoot {
        root: head.root.clone(),
        version: head.version.clone(),
    }
}

/// The claim that an earlier attempt of this process made, if the root is still that one: what has failed since was
/// behind it, and is tried again without another epoch.
fn standing_claim(
    engine: &Engine,
    head: &KnownRoot,
    own: SessionName,
    wanted: &TakeRequest,
) -> Option<VersionedRoot> {
    let claims = lock(&engine.claims);
    let (claimed, continued) = claims.get(&head.root.volume)?;
    // A claim says whether the hold goes on, and for whom it is: another answer needs another claim.
    let is_same = claimed.root.writer == own
        && *continued == wanted.continues.is_some()
        && (claimed.root.is_maintained() == wanted.maintains
            || canary::active!("client_serves_under_a_maintenance_claim"));
    let stands = claimed.version == head.version && is_same;
    (stands && !canary::active!("each_attempt_claims")).then(|| claimed.clone())
}

/// Decides what to do when a log does not fit the claim. `None`: the claim no longer stands. The host that took
/// the volume meanwhile has what the log held, and its records may be gone, which is no loss.
async fn check_claim_stands(
    engine: &Engine,
    claimed: &VersionedRoot,
    error: OpenError,
) -> Result<Option<KnownRoot>, OpenError> {
    let may_be = matches!(
        error,
        OpenError::Corrupt(_) | OpenError::StoreWentBack { .. }
    );
    if !may_be || canary::active!("outrun_claim_is_judged") {
        return Err(error);
    }
    let found = read_any_root(engine, &claimed.root.name).await?;
    match found.version == claimed.version {
        true => Err(error),
        false => Ok(None),
    }
}

/// The error for a volume that was not taken. `None`: the root is no longer the one that was judged.
fn on_take_failed(
    engine: &Engine,
    name: &str,
    error: TakeError,
) -> Result<Option<KnownRoot>, OpenError> {
    match error {
        TakeError::Outrun => Ok(None),
        TakeError::Held(root) => {
            check_not_held(engine, &root)?;
            Ok(None)
        }
        TakeError::Deleted | TakeError::Root(UpdateError::Missing) => {
            Err(OpenError::NoSuchVolume(name.to_owned()))
        }
        TakeError::Root(error) => Err(unusable_root_error(name, &error)),
        TakeError::Log(UnreadableLog(why)) => Err(OpenError::Corrupt(why)),
    }
}

/// The session that a root is written in when a volume is opened.
///
/// What a poisoned log says of its sessions need not be durable. But nothing is written to it, so its
/// copies do not part: it goes on as the session that wrote the root, or as none.
fn session_of_open(engine: &Engine, root: &Root, ours: bool) -> LogSession {
    if !engine.poisoned.load(Ordering::Acquire) {
        engine.sessions.current()
    } else if ours {
        root.writer.session
    } else {
        LogSession::default()
    }
}

/// Retires a tail that does not continue the root: it is kept if it holds something that the store lacks, and
/// never replayed.
fn retire_tail(engine: &Arc<Engine>, tail: &Arc<Tail>, root: &Root) {
    if covers_tail(engine, tail, root) && !TailClaim::is_taken(engine, tail) {
        discard_tail(engine, tail);
    } else {
        keep_for_rescue(engine, tail);
    }
}

/// Keeps a tail that holds something that the store lacks, and discards one that does not.
fn keep_for_rescue(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    if TailClaim::is_taken(engine, tail) {
        // The tail is kept for rescue already, and a fork reads it.
    } else if tail.lock().layers.dirty_extents() == 0 {
        discard_tail(engine, tail);
    } else if !tail.is_rescue() {
        tail.report_lost_snapshots();
        tracing::warn!(
            volume = tail.name(),
            newest = tail.newest().0,
            stored = tail.stored_lsn().0,
            "the volume goes on without what this log holds of it; what was not uploaded is kept for \
             rescue"
        );
        tail.mark_rescue();
        tail.upload.wake_all();
        engine
            .committer()
            .record(engine, Record::Tail(tail.record()));
    }
}

/// Retires tails of deleted volumes that had this name. Nothing will ever serve them, and the log space that they
/// hold must not look as if it could become free.
fn retire_namesakes(engine: &Arc<Engine>, root: &Root) {
    if canary::active!("deleted_volume_waits") {
        return;
    }
    let is_namesake = |tail: &Arc<Tail>| {
        let dormant = tail.lock().status == Status::Dormant;
        dormant && tail.name() == root.name && tail.id().volume != root.volume
    };
    for tail in engine.tails().into_iter().filter(is_namesake) {
        keep_for_rescue(engine, &tail);
    }
}

/// Takes a tail out of the log that holds nothing the store lacks.
pub(crate) fn discard_tail(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    tail.report_lost_snapshots();
    let stale = {
        let mut inner = tail.lock();
        if inner.status == Status::Dormant {
            // Forks that wait for what it has hear that nobody will open it.
            inner.status = Status::Closed;
        }
        inner.layers.clear()
    };
    tail.upload.wake_all();
    for (addr, sectors, clean) in stale {
        if clean {
            engine.segments.release_clean(addr, sectors);
        } else {
            tail.release_dirty(&engine.segments, addr, sectors);
        }
    }
    let id = tail.id();
    engine.remove_tail(id);
    if tail.is_for_maintenance() {
        return;
    }
    engine.committer().record(engine, Record::TailRemoved(id));
    let round = engine.committer().next_round();
    engine.request_reclaim();
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        // As long as a frame names the tail, recovery would miss its ring.
        if engine.committer().durable(&engine, round).await && engine.tail(id).is_none() {
            engine.rings.remove(engine.ring_id(Some(id)));
        }
    });
}
