//! The queue's rules, one thread at a time; interleavings are loom's.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests use threads and clocks"
)]

use std::time::Duration;

use super::*;

fn message(tid: u64, size: usize) -> Message {
    Message::data(1, tid, vec![0; size])
}

fn open(bounds: Bounds) -> (Arc<OutQueue>, QueueOwner) {
    let (queue, mut owner) = OutQueue::new(bounds);
    owner.lock().set_state(State::Open);
    (queue, owner)
}

fn take(owner: &mut QueueOwner, seq: &mut u64) -> Option<(u64, u64)> {
    match owner.take_next(seq, true) {
        Next::Message { seq, message } => Some((seq, message.tid)),
        _ => None,
    }
}

#[test]
fn the_worker_is_told_once_for_each_idle_period() {
    let (queue, mut owner) = open(Bounds::default());
    let mut seq = 0;
    assert_eq!(take(&mut owner, &mut seq), None);
    let kicks: Vec<Kick> = (0..3)
        .map(|i| queue.try_send(message(i, 1)).unwrap().1)
        .collect();
    assert_eq!(kicks, [Kick::Worker, Kick::Nobody, Kick::Nobody]);
    while take(&mut owner, &mut seq).is_some() {}
    assert_eq!(queue.try_send(message(9, 1)).unwrap().1, Kick::Worker);
}

#[test]
fn a_send_after_close_gives_the_message_back_with_the_reason() {
    let (queue, mut owner) = open(Bounds::default());
    queue.try_send(message(1, 1)).unwrap().1.ignore();
    let unacknowledged = owner.close();
    assert_eq!(unacknowledged.len(), 1);
    let err = queue.try_send(message(2, 1)).unwrap_err();
    assert_eq!((err.reason, err.message.tid), (Refusal::Closed, 2));
    assert_eq!(queue.keepalive(), Err(Refusal::Closed));
}

#[test]
fn the_bound_covers_sent_messages_and_control_passes_it() {
    let bounds = Bounds {
        bytes_max: 100,
        count_max: 3,
        message_max: 90,
    };
    let (queue, mut owner) = open(bounds);
    assert_eq!(
        queue.try_send(message(0, 91)).unwrap_err().reason,
        Refusal::TooLarge
    );
    queue.try_send(message(1, 80)).unwrap().1.ignore();
    queue.try_send(message(2, 80)).unwrap().1.ignore();
    assert_eq!(
        queue.try_send(message(3, 1)).unwrap_err().reason,
        Refusal::Full
    );
    let mut seq = 0;
    while take(&mut owner, &mut seq).is_some() {}
    assert_eq!(
        queue.try_send(message(3, 1)).unwrap_err().reason,
        Refusal::Full
    );
    assert_eq!(queue.keepalive(), Ok(Kick::Worker));
    owner.take_acked(1, false, &mut Vec::new());
    queue.try_send(message(3, 1)).unwrap().1.ignore();
    queue.try_send(message(4, 1)).unwrap().1.ignore();
    assert_eq!(
        queue.try_send(message(5, 1)).unwrap_err().reason,
        Refusal::Full
    );
    assert_eq!(queue.load().count, 3);
}

#[test]
fn a_waiting_send_gives_the_message_back_at_its_deadline() {
    let (queue, _owner) = open(Bounds {
        count_max: 1,
        ..Bounds::default()
    });
    queue.try_send(message(1, 1)).unwrap().1.ignore();
    let err = queue.send(
        message(2, 1),
        Some(Instant::now() + Duration::from_millis(5)),
    );
    let err = err.unwrap_err();
    assert_eq!((err.reason, err.message.tid), (Refusal::TimedOut, 2));
}

#[test]
fn a_waiting_send_ends_with_the_session() {
    let (queue, mut owner) = open(Bounds {
        count_max: 1,
        ..Bounds::default()
    });
    queue.try_send(message(1, 1)).unwrap().1.ignore();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| queue.send(message(2, 1), None).unwrap_err().reason);
        while queue.inner.lock(Site::Control).waiting == 0 {
            std::thread::yield_now();
        }
        drop(owner.close());
        assert_eq!(waiter.join().unwrap(), Refusal::Closed);
    });
}

#[test]
fn a_queue_whose_worker_is_gone_is_closed_and_wakes_who_waits() {
    let (queue, owner) = open(Bounds {
        count_max: 1,
        ..Bounds::default()
    });
    queue.try_send(message(1, 1)).unwrap().1.ignore();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| queue.send(message(2, 1), None).unwrap_err().reason);
        while queue.inner.lock(Site::Control).waiting == 0 {
            std::thread::yield_now();
        }
        drop(owner);
        assert_eq!(waiter.join().unwrap(), Refusal::Closed);
    });
    assert_eq!(
        queue.load(),
        Load {
            queued: 0,
            unacked: 0,
            bytes: 0,
            count: 0
        }
    );
}

#[test]
fn what_was_not_acknowledged_goes_back_in_order_and_keeps_its_numbers() {
    let (queue, mut owner) = open(Bounds::default());
    let mut seq = 0;
    for tid in 1..=4 {
        queue.try_send(message(tid, 1)).unwrap().1.ignore();
    }
    for _ in 0..3 {
        take(&mut owner, &mut seq).unwrap();
    }
    owner.take_acked(1, false, &mut Vec::new());
    owner.lock().requeue();
    let order: Vec<_> = std::iter::from_fn(|| take(&mut owner, &mut seq)).collect();
    assert_eq!(order, [(2, 2), (3, 3), (4, 4)]);
}

#[test]
fn a_revoked_message_leaves_no_hole() {
    let (queue, mut owner) = open(Bounds::default());
    let mut seq = 0;
    let tickets: Vec<_> = (1..=3)
        .map(|tid| queue.try_send(message(tid, 7)).unwrap().0)
        .collect();
    assert_eq!(take(&mut owner, &mut seq), Some((1, 1)));
    assert!(
        queue.revoke(tickets[0]).is_none(),
        "it is being sent: too late"
    );
    assert_eq!(queue.revoke(tickets[1]).unwrap().tid, 2);
    assert_eq!(take(&mut owner, &mut seq), Some((2, 3)));
    assert_eq!((queue.load().bytes, queue.load().count), (14, 2));
    // Sent once, then back in the queue: the peer may have it, so it cannot be revoked.
    owner.lock().requeue();
    assert!(queue.revoke(tickets[2]).is_none());
}

#[test]
fn a_number_given_at_enqueue_is_caught_as_a_hole() {
    let caught = canary::with("sequence_at_enqueue", || {
        let (queue, mut owner) = open(Bounds::default());
        let first = queue.try_send(message(1, 1)).unwrap().0;
        queue.try_send(message(2, 1)).unwrap().1.ignore();
        queue.revoke(first);
        take(&mut owner, &mut 0) != Some((1, 2))
    });
    assert!(caught);
}

#[test]
fn a_message_freed_under_the_lock_is_caught() {
    let run = || {
        let (queue, mut owner) = open(Bounds::default());
        queue.try_send(message(1, 1)).unwrap().1.ignore();
        take(&mut owner, &mut 0).unwrap();
        let mut acked = Vec::new();
        owner.take_acked(1, false, &mut acked);
    };
    run();
    let caught = std::panic::catch_unwind(|| canary::with("free_under_lock", run)).unwrap_err();
    let text = caught.downcast_ref::<String>().unwrap();
    assert!(text.contains("freed under the out-queue's lock"), "{text}");
}

#[test]
fn keepalive_goes_before_messages() {
    let (queue, mut owner) = open(Bounds::default());
    queue.try_send(message(1, 1)).unwrap().1.ignore();
    let _ = queue.keepalive();
    let _ = queue.acknowledge(9);
    let mut seq = 0;
    assert!(matches!(owner.take_next(&mut seq, true), Next::Keepalive));
    assert!(matches!(owner.take_next(&mut seq, true), Next::Done(9)));
    assert!(matches!(
        owner.take_next(&mut seq, true),
        Next::Message { seq: 1, .. }
    ));
    assert!(matches!(owner.take_next(&mut seq, true), Next::Idle));
}

impl Kick {
    fn ignore(self) {}
}
