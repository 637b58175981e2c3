//! The gate: quiesce against admission (P1), unquiesce against parking (P2), completions against
//! waiters for one (P3), and kicks that are not sent because one is under way.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::thread;

use super::{TestTransport, admit, admit_open, check_model, complete};
use crate::ParkReason;

/// What a control operation changes while nothing is in flight: a geometry, say. Loom reports
/// every access that another one does not come before.
struct Geometry(UnsafeCell<u64>);

#[allow(unsafe_code)]
// SAFETY: that no two threads touch it at once is what the model checks; loom sees each access.
unsafe impl Sync for Geometry {}

#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Send for Geometry {}

impl Geometry {
    fn new() -> Arc<Geometry> {
        Arc::new(Geometry(UnsafeCell::new(1)))
    }

    #[allow(unsafe_code)]
    fn read(&self) -> u64 {
        // SAFETY: loom fails the model before it lets a race reach this.
        self.0.with(|value| unsafe { *value })
    }

    #[allow(unsafe_code)]
    fn grow(&self) {
        // SAFETY: loom fails the model before it lets a race reach this.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

/// P2, with the owner itself as the enqueuer.
#[test]
fn a_request_that_parks_while_the_gate_opens_is_run() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let quiesced = device.quiesce();
        let owner = thread::spawn(move || {
            admit(&mut queue, 1, complete);
            queue
        });
        drop(quiesced);
        let mut queue = owner.join().unwrap();
        assert_eq!(
            transport.finish(&mut queue),
            [(1, Ok(()))],
            "the request was lost"
        );
    });
}

/// P2, with another thread as the enqueuer and the owner running meanwhile.
#[test]
fn a_request_submitted_while_the_gate_opens_is_run() {
    check_model(Some(3), || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let handle = queue.handle();
        let quiesced = device.quiesce();
        let submitter = thread::spawn(move || handle.submit(1));
        let owner = thread::spawn(move || {
            queue.run(complete);
            queue
        });
        drop(quiesced);
        submitter.join().unwrap();
        let mut queue = owner.join().unwrap();
        assert_eq!(
            transport.finish(&mut queue),
            [(1, Ok(()))],
            "the request was lost"
        );
    });
}

/// A request whose kick is not sent, because one is under way, is seen by the run for that one.
#[test]
fn a_saved_kick_is_not_lost() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let quiesced = device.quiesce();
        admit(&mut queue, 1, complete);
        drop(quiesced);
        let quiesced = device.quiesce();
        // Unquiesce kicked; the owner runs for that kick while the gate opens again.
        assert_eq!(transport.take_kicks(), 1);
        let owner = thread::spawn(move || {
            queue.run(complete);
            queue
        });
        drop(quiesced);
        let mut queue = owner.join().unwrap();
        assert_eq!(
            transport.finish(&mut queue),
            [(1, Ok(()))],
            "the request was lost"
        );
    });
}

/// P1 and P3: what a request does, and what is changed while nothing is in flight, never overlap;
/// and each sees what the other did before.
#[test]
fn nothing_runs_while_a_drained_device_is_changed() {
    check_model(Some(3), || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let geometry = Geometry::new();
        let owner = {
            let geometry = Arc::clone(&geometry);
            thread::spawn(move || {
                for number in [1, 2] {
                    admit(&mut queue, number, |request| {
                        assert!(geometry.read() > 0);
                        complete(request);
                    });
                }
                queue
            })
        };
        let quiesced = device.quiesce();
        block_on(quiesced.drain());
        geometry.grow();
        drop(quiesced);
        let mut queue = owner.join().unwrap();
        transport.run_kicked(&mut queue, |request| {
            assert_eq!(geometry.read(), 2);
            complete(request);
        });
        assert_eq!(transport.done(), [(1, Ok(())), (2, Ok(()))]);
    });
}

/// blk-mq's second barrier: a thread that sees the gate open sees what was changed while it was
/// shut.
#[test]
fn what_was_changed_while_quiesced_is_seen_by_what_runs_after() {
    check_model(None, || {
        let (device, _rig, mut queue) = TestTransport::device_and_queue(1);
        let geometry = Geometry::new();
        let quiesced = device.quiesce();
        let owner = {
            let geometry = Arc::clone(&geometry);
            thread::spawn(move || {
                admit(&mut queue, 1, |request| {
                    assert_eq!(geometry.read(), 2);
                    complete(request);
                });
            })
        };
        geometry.grow();
        drop(quiesced);
        owner.join().unwrap();
    });
}

/// P3: the last completion wakes the drain (if it did not, loom would report a deadlock).
#[test]
fn a_drain_ends_with_the_last_completion() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let request = admit_open(&mut queue, 1);
        let completer = thread::spawn(move || complete(request));
        let quiesced = device.quiesce();
        block_on(quiesced.drain());
        assert_eq!(
            transport.done(),
            [(1, Ok(()))],
            "drained before it was answered"
        );
        drop(quiesced);
        completer.join().unwrap();
    });
}

/// P3: a request parks for a tag while one comes back.
#[test]
fn a_request_without_a_tag_runs_when_one_comes_back() {
    check_model(None, || {
        let (_device, transport, mut queue) = TestTransport::device_and_queue(1);
        let request = admit_open(&mut queue, 1);
        let completer = thread::spawn(move || complete(request));
        admit(&mut queue, 2, complete);
        completer.join().unwrap();
        assert_eq!(
            transport.finish(&mut queue),
            [(1, Ok(())), (2, Ok(()))],
            "the second was lost"
        );
    });
}

/// The same when another thread put the request into the list, and it is the owner's run, done
/// for that thread's kick, that finds no tag.
#[test]
fn a_run_that_finds_no_tag_is_followed_by_a_kick() {
    check_model(Some(3), || {
        let (_device, transport, mut queue) = TestTransport::device_and_queue(1);
        let request = admit_open(&mut queue, 1);
        let handle = queue.handle();
        let completer = thread::spawn(move || complete(request));
        let submitter = thread::spawn(move || handle.submit(2));
        transport.run_kicked(&mut queue, complete);
        completer.join().unwrap();
        submitter.join().unwrap();
        assert_eq!(
            transport.finish(&mut queue),
            [(1, Ok(())), (2, Ok(()))],
            "the second was lost"
        );
    });
}

/// The engine may wake a request before the transport has parked it.
#[test]
fn a_wake_before_the_park_is_not_lost() {
    for reason in [ParkReason::Fetch, ParkReason::Space, ParkReason::Sync] {
        check_model(None, move || {
            let (_device, transport, mut queue) = TestTransport::device_and_queue(1);
            let request = admit_open(&mut queue, 1);
            let waker = request.waker().clone();
            let engine = thread::spawn(move || waker.wake());
            request.park(reason);
            engine.join().unwrap();
            assert_eq!(
                transport.finish(&mut queue),
                [(1, Ok(()))],
                "the wake was lost"
            );
        });
    }
}

/// A request that waits for its bytes does not hold up a quiesce, and is not lost to it.
#[test]
fn a_parked_request_is_not_in_flight_and_survives_a_quiesce() {
    check_model(Some(2), || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let request = admit_open(&mut queue, 1);
        let waker = request.waker().clone();
        let owner = thread::spawn(move || {
            request.park(ParkReason::Fetch);
            queue
        });
        let engine = thread::spawn(move || waker.wake());
        let quiesced = device.quiesce();
        block_on(quiesced.drain());
        assert_eq!(transport.done(), [], "it ran on a quiesced device");
        drop(quiesced);
        engine.join().unwrap();
        let mut queue = owner.join().unwrap();
        assert_eq!(transport.finish(&mut queue), [(1, Ok(()))]);
    });
}
