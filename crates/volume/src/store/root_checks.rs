//! What the root of a volume must say whose tail serves already, and who waits until it was read.
//!
//! Judgements only: what becomes of the tail is for `unchecked` to say. A root that this host did not write must never pass.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::stop::Stop;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::log_procedures::stop_host;

/// Ends when the tail is checked, or serves no more.
pub(crate) async fn wait_checked(tail: &Tail) {
    let is_known = || (tail.lock().status != Status::Unchecked).then_some(());
    tail.upload.changed.wait_until(is_known).await;
}

/// Refuses a root that does not go on with the tail that serves.
pub(super) fn check_goes_on(
    engine: &Arc<Engine>,
    root: &Root,
    served: &Arc<Tail>,
    continuing: Option<&Arc<Tail>>,
) -> Result<(), OpenError> {
    if !continuing.is_some_and(|tail| Arc::ptr_eq(tail, served)) {
        return Err(OpenError::Fenced(root.name.clone()));
    }
    check_not_ahead(engine, root, served)
}

/// What the store has and recovery did not find, this host did not write: the numbers of those commits may have been
/// given out again by now.
pub(super) fn check_not_ahead(
    engine: &Arc<Engine>,
    root: &Root,
    tail: &Tail,
) -> Result<(), OpenError> {
    if root.lsn <= tail.lock().recovered {
        return Ok(());
    }
    let what = format!("the root of {} is ahead of this host's own log", root.name);
    Err(stop_host(engine, &Stop::Cloned(what)))
}
