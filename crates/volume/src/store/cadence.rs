//! When the next record of the host's log goes out.
//!
//! A record costs the same for one volume as for a thousand, so slices that are ready wait for others that
//! are on their way. Nobody who waits for the store waits for that: a record goes out at once where somebody
//! does, where log space is short, and where something was asked of the log; and no slice waits so long
//! that the recovery point of its volume could be missed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::request::tail::{Status, Tail};
use crate::sync::atomic::Ordering;

/// Ends when a record is to be made.
pub(super) async fn wait_for_record(engine: &Arc<Engine>) {
    let log = &engine.host_log;
    loop {
        let due_ns = log.changed.wait_until(|| due_ns(engine)).await;
        let now_ns = engine.jobs.mono_ns();
        if due_ns <= now_ns {
            return;
        }
        let mut sleep = engine.port.sleep(due_ns - now_ns);
        std::future::poll_fn(|cx| {
            log.changed.wait(cx.waker());
            let is_over = Pin::new(&mut sleep).poll(cx).is_ready();
            let now_ns = engine.jobs.mono_ns();
            match is_over || self::due_ns(engine).is_none_or(|due_ns| due_ns <= now_ns) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// When the next record is due; zero: at once. None: there is nothing for it.
fn due_ns(engine: &Engine) -> Option<u64> {
    if engine.host_log.has_asked() {
        return Some(0);
    }
    let (mut due_ns, mut others) = (None, false);
    for tail in engine.tails() {
        if tail.lock().status != Status::Live {
            continue;
        }
        match ready_due_ns(engine, &tail) {
            Some(0) => return Some(0),
            ready => due_ns = due_ns.into_iter().chain(ready).min(),
        }
        others |= tail.upload.has_unready();
    }
    let waits = others && !canary::active!("records_wait_for_no_slice");
    due_ns.map(|due_ns| if waits { due_ns } else { 0 })
}

/// The same for what is ready of one volume.
fn ready_due_ns(engine: &Engine, tail: &Tail) -> Option<u64> {
    let upload = &tail.upload;
    let first = upload.first_ready().filter(|_| !upload.is_held_back())?;
    let is_poisoned = engine.poisoned.load(Ordering::Acquire);
    if is_poisoned || upload.is_waited_for(tail.stored_lsn()) {
        return Some(0);
    }
    let rpo_ns = engine.options.rpo_ns;
    // The other half is for the record.
    let lead_ns = rpo_ns - upload.recovery_point.begin_at_ns(rpo_ns);
    Some(first.cut_ns + lead_ns / 2)
}

/// Whether something of the volume is ready to be published.
pub(super) fn has_ready(tail: &Arc<Tail>) -> bool {
    let upload = &tail.upload;
    upload.first_ready().is_some()
        && !upload.is_held_back()
        && upload.head().is_some()
        && tail.lock().status == Status::Live
}
