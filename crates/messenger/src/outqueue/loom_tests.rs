//! Every interleaving of senders, worker and close, by loom.
//!
//! Run: `cargo test -p messenger --features loom --lib loom_ --profile sim`.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::*;

fn message(tid: u64) -> Message {
    Message::data(1, tid, vec![0; 8])
}

/// A worker that is kicked through `kicks`, as the real one is through its event descriptor.
struct Worker {
    owner: QueueOwner,
    next_seq: u64,
    got: Vec<u64>,
}

impl Worker {
    /// Takes everything until the queue says idle.
    fn drain(&mut self) -> bool {
        loop {
            match self.owner.take_next(&mut self.next_seq, true) {
                Next::Message { message, .. } => self.got.push(message.tid),
                Next::Idle => return true,
                Next::Close => {
                    self.owner.close();
                    return false;
                }
                Next::Keepalive | Next::Done(_) => {}
            }
        }
    }
}

fn worker(bounds: Bounds) -> (Arc<OutQueue>, Worker) {
    let (queue, mut owner) = OutQueue::new(bounds);
    owner.lock().set_state(State::Open);
    (
        queue,
        Worker {
            owner,
            next_seq: 0,
            got: Vec::new(),
        },
    )
}

fn pass_on(kick: Kick, kicks: &AtomicUsize) {
    if kick == Kick::Worker {
        kicks.fetch_add(1, Ordering::SeqCst);
    }
}

/// Two senders against a worker that looks once and then only when kicked.
fn senders_against_an_idle_worker() {
    loom::model(|| {
        let (queue, mut worker) = worker(Bounds::default());
        let kicks = Arc::new(AtomicUsize::new(0));
        let senders: Vec<_> = (0..2)
            .map(|tid| {
                let (queue, kicks) = (Arc::clone(&queue), Arc::clone(&kicks));
                thread::spawn(move || {
                    let (_, kick) = queue.try_send(message(tid)).unwrap();
                    pass_on(kick, &kicks);
                })
            })
            .collect();
        worker.drain();
        for sender in senders {
            sender.join().unwrap();
        }
        // Whatever was not taken yet, somebody kicked for.
        if queue.load().queued > 0 {
            assert!(kicks.load(Ordering::SeqCst) > 0, "a wake-up was lost");
            worker.drain();
        }
        assert_eq!(worker.got.len(), 2);
        assert!(kicks.load(Ordering::SeqCst) <= 2);
    });
}

#[test]
fn loom_no_wake_up_is_lost() {
    senders_against_an_idle_worker();
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn loom_catches_clearing_pending_outside_the_lock() {
    canary::with("clear_pending_outside_lock", senders_against_an_idle_worker);
}

/// A sender against a close by the worker and one by the application.
fn a_sender_against_close() {
    loom::model(|| {
        let (queue, mut worker) = worker(Bounds::default());
        let sender = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.try_send(message(1)).is_ok())
        };
        let unacknowledged = worker.owner.close();
        let taken = sender.join().unwrap();
        assert_eq!(queue.load().queued, 0, "a message was queued after close");
        assert_eq!(usize::from(taken), unacknowledged.len());
    });
}

#[test]
fn loom_nothing_is_queued_after_close() {
    a_sender_against_close();
}

#[test]
#[should_panic(expected = "a message was queued after close")]
fn loom_catches_a_push_after_close() {
    canary::with("push_after_close", a_sender_against_close);
}

#[test]
fn loom_after_the_call_to_close_every_send_is_refused() {
    loom::model(|| {
        let (queue, mut worker) = worker(Bounds::default());
        let closer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let _ = queue.close();
                assert_eq!(
                    queue.try_send(message(1)).unwrap_err().reason,
                    Refusal::Closed
                );
            })
        };
        worker.drain();
        closer.join().unwrap();
        if worker.owner.state() != State::Closed {
            worker.drain();
        }
        assert_eq!(queue.state(), State::Closed);
    });
}

#[test]
fn loom_waiting_senders_all_get_their_turn() {
    loom::model(|| {
        let bounds = Bounds {
            count_max: 1,
            ..Bounds::default()
        };
        let (queue, mut worker) = worker(bounds);
        let senders: Vec<_> = (0..2)
            .map(|tid| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let _kick = queue.send(message(tid), None).unwrap();
                })
            })
            .collect();
        let mut acked = Vec::new();
        while worker.got.len() < 2 {
            worker.drain();
            let seq = worker.next_seq;
            worker.owner.take_acked(seq, false, &mut acked);
            acked.clear();
            thread::yield_now();
        }
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn loom_parking_and_the_first_send_agree() {
    loom::model(|| {
        let (queue, mut worker) = worker(Bounds::default());
        worker.drain();
        let kicks = Arc::new(AtomicUsize::new(0));
        let senders: Vec<_> = (0..2)
            .map(|tid| {
                let (queue, kicks) = (Arc::clone(&queue), Arc::clone(&kicks));
                thread::spawn(move || {
                    let (_, kick) = queue.try_send(message(tid)).unwrap();
                    pass_on(kick, &kicks);
                })
            })
            .collect();
        // The connection fails now: parked only if nothing waits.
        let parked = {
            let mut both = worker.owner.lock();
            both.requeue();
            both.park_if_idle()
        };
        for sender in senders {
            sender.join().unwrap();
        }
        let kicks = kicks.load(Ordering::SeqCst);
        if parked {
            // Kicked before the fault at most once, and once for the park: never for each sender.
            assert!(kicks >= 1, "a wake-up was lost");
        }
        worker.drain();
        assert_eq!(worker.got.len(), 2);
    });
}
