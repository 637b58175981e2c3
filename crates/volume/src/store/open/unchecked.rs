//! Serves a tail that this start continued before its volume's root could be read, and checks that root once the
//! store answers.
//!
//! An *unchecked* tail serves what is in this log and takes writes; reads of anything else wait. Nothing of it
//! goes to the store, no sync, close or growth of it ends, and nothing of it becomes clean. Then the volume is
//! opened as any other, while clients use it: if its root continues from the tail the volume is live; if not, its
//! service ends as if it had been fenced. A tail must never be served unchecked if the last session left
//! something that was not found, if its service has ended, if a client may have heard what its root says, or if the
//! volume may have been given back: then another host may have the volume, and clients may know it.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::Volume;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::name_locks::NameLock;
use crate::store::catalog::volume_spec::check_name;
use crate::store::open::endings;
use crate::store::open::go_live::{begin_serving, geometry_of, go_live, missing_ring, note_tail};
use crate::store::open::holds::set_back_to_namesake;
use crate::store::open::load_index::load_index;
use crate::store::open::{OpenMode, take_epoch, without_root};
use crate::store::roots::checks::check_not_ahead;
use crate::store::roots::read_any_root;
use crate::sync::atomic::Ordering;

/// Serves the volume's local tail without waiting for the store; the root is checked in the background.
pub(crate) async fn open_unchecked(
    engine: &Arc<Engine>,
    name: &str,
    mode: OpenMode,
) -> Result<Volume, OpenError> {
    check_name(name)?;
    let _busy = without_root::lock_name(engine, name).await?;
    engine.host_log.check_not_stopped()?;
    let tail = find_unbroken(engine, name)?;
    let bound = mode.continues;
    if bound.is_some_and(|hold| hold.volume == tail.id().volume && hold != tail.id()) {
        return Err(OpenError::HoldEnded(name.to_owned()));
    }
    without_root::lay_base(engine, &tail);
    serve_unchecked(engine, tail).await
}

/// Serves a dormant tail, whose index says what it is known to be, and checks its root in the background.
pub(super) async fn serve_unchecked(
    engine: &Arc<Engine>,
    tail: Arc<Tail>,
) -> Result<Volume, OpenError> {
    if engine.poisoned.load(Ordering::Acquire) {
        return Err(OpenError::Poisoned);
    }
    // One that is there is named by a frame.
    let is_named = tail.has_ring();
    let ring = missing_ring(engine, &tail)?;
    {
        let mut inner = tail.lock();
        inner.geometry = geometry_of(tail.size());
        begin_serving(engine, &mut inner, tail.stored_lsn(), ring);
    }
    if !is_named {
        note_tail(engine, &tail).await?;
    }
    tail.lock().status = Status::Unchecked;
    // A host that stops sets the stop first and then ends the serving tails, so either this check or that loop
    // ends this tail.
    if let Err(error) = engine.host_log.check_not_stopped() {
        endings::end(engine, &tail, &error);
        return Err(error);
    }
    tracing::warn!(
        volume = tail.name(),
        newest = tail.newest().0,
        "served before the store answers: nothing of it is called stored until its root was read"
    );
    let shared = (Arc::clone(engine), Arc::clone(&tail));
    engine.jobs.spawn(check_until_known(shared.0, shared.1));
    let engine = Arc::clone(engine);
    Ok(Volume { engine, tail })
}

/// Finds the one tail of this name that this start continued without a gap.
pub(super) fn find_unbroken(engine: &Engine, name: &str) -> Result<Arc<Tail>, OpenError> {
    let ended = engine.host_log.state().ended;
    let goes_on = |tail: &Arc<Tail>| {
        let is_unbroken = tail.is_unbroken() || canary::active!("broken_tail_is_served_unchecked");
        let may_be_given_back = ended.iter().any(|(volume, _)| *volume == tail.id().volume);
        is_unbroken
            && !tail.is_rescue()
            && !may_be_given_back
            && tail.size().block > 0
            && tail.lock().status == Status::Dormant
    };
    let mut tails = engine.tails_named(name).into_iter().filter(goes_on);
    match (tails.next(), tails.next()) {
        (Some(tail), None) => Ok(tail),
        _ => Err(OpenError::Store(format!(
            "volume {name}: whether this host still has it can only be said by the store, for the log here does \
             not continue it without a gap; it is opened when the store answers"
        ))),
    }
}

/// Reads the root until it is known whether the tail continues it.
async fn check_until_known(engine: Arc<Engine>, tail: Arc<Tail>) {
    let mut delay = engine.options.retry_ns;
    loop {
        let checked = match engine.session_gate.passed().await {
            Ok(()) => check(&engine, &tail).await,
            Err(error) => Err(error),
        };
        if tail.lock().status != Status::Unchecked {
            break;
        }
        if let Err(error) = checked {
            if let Some(end) = end_of_service(&tail, &error) {
                endings::end(&engine, &tail, &end);
                break;
            }
            tail.upload.set_error(Some(&error));
            // Whoever waits for the store hears what has to be done first.
            let refusal = endings::is_refusal(&error).then(|| error.clone());
            tail.upload.set_refusal(refusal);
            tail.upload.wake_all();
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
    // Also for a broken tail: nothing else wakes those that wait for the check.
    tail.checked.wake_all();
    tail.upload.wake_all();
}

/// The error with which the root ends the tail's service, if it does.
fn end_of_service(tail: &Tail, error: &OpenError) -> Option<OpenError> {
    if canary::active!("foreign_root_passes_the_check") {
        return None;
    }
    match error {
        OpenError::Held { .. } | OpenError::HoldEnded(_) => {
            Some(OpenError::Fenced(tail.name().to_owned()))
        }
        error => error.is_end_of_service().then(|| error.clone()),
    }
}

/// The lock of the name while a tail goes live. Whoever waits for the check takes the same lock next.
struct CheckLock<'a> {
    tail: &'a Tail,
    name: Option<NameLock>,
}

impl<'a> CheckLock<'a> {
    fn take(engine: &Arc<Engine>, tail: &'a Tail) -> Result<Self, OpenError> {
        let name = NameLock::take(engine, tail.name())?;
        tail.is_going_live.store(true, Ordering::Release);
        Ok(CheckLock {
            tail,
            name: Some(name),
        })
    }
}

impl Drop for CheckLock<'_> {
    fn drop(&mut self) {
        // Before anybody hears of it.
        drop(self.name.take());
        self.tail.is_going_live.store(false, Ordering::Release);
        self.tail.upload.wake_all();
    }
}

async fn check(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let name = tail.name();
    without_root::wait_has_root(engine, tail).await?;
    // Without the lock of the name: in an outage this takes long, and other operations on the name must fail in
    // time.
    let found = match read_any_root(engine, name).await {
        Err(OpenError::NoSuchVolume(name)) => {
            return Err(match without_root::is_lost_in_store(engine, tail).await? {
                true => OpenError::Fenced(name),
                false => OpenError::RootMissing(name),
            });
        }
        found => found?.root,
    };
    if let Some(error) = set_back_to_namesake(&found, tail) {
        return Err(error);
    }
    // Whoever renamed it has taken it over before.
    if found.rename_mark().is_some() {
        return Err(OpenError::Fenced(name.to_owned()));
    }
    if found.deleted || found.volume != tail.id().volume {
        return Err(OpenError::Deleted(name.to_owned()));
    }
    if canary::active!("unchecked_segments_are_reused") {
        let stale = tail.lock().layers.drop_stored(found.lsn);
        let drop = |(addr, sectors)| tail.release_dirty(&engine.segments, addr, sectors);
        stale.into_iter().for_each(drop);
    }
    let _busy = CheckLock::take(engine, tail)?;
    let (head, _) = take_epoch(engine, name, OpenMode::default(), Some(tail)).await?;
    check_not_ahead(engine, &head.root, tail)?;
    let index = load_index(engine, &head.root).await?;
    go_live(engine, tail, head, index).await?;
    tail.upload.set_error(None);
    tail.upload.set_refusal(None);
    tracing::info!(volume = name, "its root was read: it goes on");
    Ok(())
}
