//! Checks the root of a volume whose tail serves already, and lets requests wait for that check.
//!
//! Judgements only: `unchecked` acts on them. A root that this host did not write must never pass.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::stop::Stop;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::host_log::log_procedures::stop_host;
use crate::sync::atomic::Ordering;

/// Waits until the tail is checked, or is not served any more.
///
/// # Errors
/// If something has to be done at the store before the tail can be checked.
pub(crate) async fn wait_checked(tail: &Tail) -> Result<(), OpenError> {
    let is_known = || {
        let status = tail.lock().status;
        match status {
            Status::Unchecked => tail.upload.refusal().map(Err),
            // The name is still locked.
            _ if tail.is_going_live.load(Ordering::Acquire) => None,
            _ => Some(Ok(())),
        }
    };
    tail.upload.changed.wait_until(is_known).await
}

/// Refuses a root that the serving tail does not continue.
pub(in crate::store) fn check_goes_on(
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

/// Refuses a root with commits that recovery did not find: this host may have given their LSNs to other writes
/// since.
pub(in crate::store) fn check_not_ahead(
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
