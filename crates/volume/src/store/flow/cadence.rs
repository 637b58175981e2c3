//! When the publisher sends the next record of the host's log.
//!
//! A record costs the same for one volume as for a thousand, so ready slices wait for others that are being
//! uploaded, and the index objects of a small fold wait for slices. A record is sent at once where somebody waits for
//! the store, where log space is short, and where a volume's epoch is to end. No slice waits so long that its volume
//! could miss its recovery point.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::request::tail::{Status, Tail};
use crate::sync::atomic::Ordering;

/// Waits until a record is due.
pub(in crate::store) async fn wait_for_record(engine: &Arc<Engine>) {
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
            // What came meanwhile may be due before what is slept for.
            let is_earlier = |now_due_ns| now_due_ns < due_ns || now_due_ns <= now_ns;
            match is_over || self::due_ns(engine).is_none_or(is_earlier) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// The time until the next record is due; zero: now. `None`: there is nothing to publish.
fn due_ns(engine: &Engine) -> Option<u64> {
    let asked = engine.host_log.asked_due_ns();
    if asked == Some(0) {
        return asked;
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
    let slices = due_ns.map(|due_ns| if waits { due_ns } else { 0 });
    slices.into_iter().chain(asked).min()
}

/// The time until the ready slices of one volume are due.
fn ready_due_ns(engine: &Engine, tail: &Tail) -> Option<u64> {
    let upload = &tail.upload;
    let first = upload.first_ready().filter(|_| !upload.is_held_back())?;
    let is_poisoned = engine.poisoned.load(Ordering::Acquire);
    if is_poisoned || upload.is_waited_for(tail.stored_lsn()) {
        return Some(0);
    }
    let rpo_ns = engine.rpo_ns();
    // The other half of the lead time is for the record.
    let lead_ns = rpo_ns - upload.recovery_point.begin_at_ns(rpo_ns);
    Some(first.cut_ns + lead_ns / 2)
}

/// Whether something of the volume is ready to be published.
pub(in crate::store) fn has_ready(tail: &Arc<Tail>) -> bool {
    let upload = &tail.upload;
    upload.first_ready().is_some()
        && !upload.is_held_back()
        && upload.head().is_some()
        && tail.lock().status == Status::Live
}
