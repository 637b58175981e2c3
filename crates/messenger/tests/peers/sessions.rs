//! What a session promises, over real sockets. Each test is named after its promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use messenger::{
    Bounds, CloseReason, Config, Connection, Event, Fault, Message, Refusal, State, Target,
};

use crate::support::{Pair, RecordedEvent, Recorder, config, eventually, loopback, start};

fn message(tid: u64, size: usize) -> Message {
    Message::data(1, tid, vec![tid.to_le_bytes()[0]; size])
}

#[test]
fn messages_of_thousands_of_callers_arrive_once_and_in_each_callers_order() {
    const CALLERS: u64 = 2000;
    const EACH: u64 = 5;
    let bounds = Bounds {
        count_max: 500,
        ..Bounds::default()
    };
    let pair = Pair::new(Config { bounds, ..config() });
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let connection = pair.connection.clone();
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    for i in 0..EACH {
                        connection.send(message(caller << 32 | i, 40)).unwrap();
                    }
                })
                .unwrap();
        }
    });
    let all = pair
        .b_recorder
        .wait_messages(usize::try_from(CALLERS * EACH).unwrap());
    let mut next = vec![0; usize::try_from(CALLERS).unwrap()];
    for tid in all {
        let caller = usize::try_from(tid >> 32).unwrap();
        assert_eq!(tid & 0xffff_ffff, next[caller]);
        next[caller] += 1;
    }
    assert!(next.iter().all(|n| *n == EACH));
}

#[test]
fn one_io_thread_serves_many_sessions_each_in_its_own_order() {
    const LANES: u32 = 200;
    const EACH: u64 = 20;
    let (a, b) = (start("a", config()), start("b", config()));
    let recorder = Recorder::new();
    let addr = b.listen(loopback(), recorder.clone()).unwrap();
    let sessions: Vec<_> = (0..LANES)
        .map(|lane| {
            a.open(Target::lossless(addr).in_lane(lane), Recorder::new())
                .unwrap()
        })
        .collect();
    for i in 0..EACH {
        for (lane, session) in (0u64..).zip(&sessions) {
            session.send(message(lane << 32 | i, 50)).unwrap();
        }
    }
    let all = recorder.wait_messages(usize::try_from(u64::from(LANES) * EACH).unwrap());
    let mut next = vec![0; sessions.len()];
    for tid in all {
        let lane = usize::try_from(tid >> 32).unwrap();
        assert_eq!(tid & 0xffff_ffff, next[lane]);
        next[lane] += 1;
    }
}

#[test]
fn unacknowledged_messages_are_sent_again_in_order_after_a_reconnect() {
    const N: u64 = 3000;
    let pair = Pair::new(config());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for tid in 0..N / 10 * 9 {
                pair.connection.send(message(tid, 700)).unwrap();
            }
        });
        for round in 1..=8 {
            let some = usize::try_from(N / 10 * round).unwrap();
            pair.b_recorder.wait_messages(some);
            pair.proxy.cut();
        }
        sender.join().unwrap();
        // On a slow machine all of those may have arrived before the first cut; these need a connection after the last.
        for tid in N / 10 * 9..N {
            pair.connection.send(message(tid, 700)).unwrap();
        }
    });
    let got = pair.b_recorder.wait_messages(usize::try_from(N).unwrap());
    assert_eq!(got, (0..N).collect::<Vec<_>>());
    assert!(pair.proxy.accepted() > 1, "no reconnect happened");
    eventually("the last acknowledgement", || {
        pair.connection.load().count == 0
    });
}

#[test]
fn received_and_done_are_different_acknowledgements() {
    let pair = Pair::new(Config {
        done_acks: true,
        ..config()
    });
    for tid in 10..13 {
        pair.connection.send(message(tid, 100)).unwrap();
    }
    pair.b_recorder.wait_messages(3);
    // Received: nothing is kept for sending again, but the messages still count.
    eventually("the acknowledgement of receipt", || {
        pair.connection.load().unacked == 0
    });
    assert_eq!(
        (pair.connection.load().count, pair.connection.load().bytes),
        (3, 0)
    );
    assert_eq!(
        pair.a_recorder
            .count(|h| matches!(h, RecordedEvent::Done(_))),
        0
    );
    // Done: only when the application over there says so.
    let other_side = pair.b_recorder.connection(0);
    other_side.acknowledge(2).unwrap();
    let done = |n| {
        move |heard: &[RecordedEvent]| {
            let tids: Vec<u64> = heard
                .iter()
                .filter_map(|h| {
                    if let RecordedEvent::Done(tid) = h {
                        Some(*tid)
                    } else {
                        None
                    }
                })
                .collect();
            (tids.len() >= n).then_some(tids)
        }
    };
    assert_eq!(pair.a_recorder.wait("done", done(2)), [10, 11]);
    assert_eq!(pair.connection.load().count, 1);
    // It also survives a connection that failed before it was told.
    pair.proxy.cut();
    other_side.acknowledge(3).unwrap();
    pair.connection.keepalive().unwrap();
    assert_eq!(pair.a_recorder.wait("done", done(3)), [10, 11, 12]);
}

#[test]
fn a_peer_that_lost_its_session_is_reported_and_nothing_is_replayed() {
    let a = start("a", config());
    let (a_recorder, b_recorder) = (Recorder::new(), Recorder::new());
    let b = start("b", config());
    let addr = b.listen(loopback(), b_recorder.clone()).unwrap();
    let connection = a.open(Target::lossless(addr), a_recorder.clone()).unwrap();
    connection.send(message(1, 10)).unwrap();
    b_recorder.wait_messages(1);
    eventually("the acknowledgement", || connection.load().count == 0);
    b.shutdown();
    for tid in 2..5 {
        connection.send(message(tid, 10)).unwrap();
    }
    // The peer is back at the same address and knows nothing.
    let again = Recorder::new();
    let b = start("b", config());
    eventually("binding the same address", || {
        b.listen(addr, again.clone()).is_ok()
    });
    let (reason, unacknowledged) = a_recorder.wait_closed();
    assert_eq!(reason, CloseReason::PeerLostSession);
    assert_eq!(unacknowledged, [2, 3, 4]);
    assert_eq!(
        connection.send(message(9, 1)).unwrap_err().reason,
        Refusal::Closed
    );
    // A new session is the application's decision, and starts clean.
    let connection = a.open(Target::lossless(addr), a_recorder.clone()).unwrap();
    connection.send(message(7, 10)).unwrap();
    assert_eq!(again.wait_messages(1), [7]);
}

#[test]
fn a_host_that_restarts_ends_its_earlier_session_at_the_peer() {
    let (a_recorder, b_recorder) = (Recorder::new(), Recorder::new());
    let b = start("b", config());
    let addr = b.listen(loopback(), b_recorder.clone()).unwrap();
    let a = start("a", config());
    a.open(Target::lossless(addr), a_recorder.clone()).unwrap();
    b_recorder.wait_opened(1);
    let old = b_recorder.connection(0);
    old.try_send(message(77, 10)).unwrap();
    a_recorder.wait_messages(1);
    a.shutdown();
    let a = start("a", config());
    a.open(Target::lossless(addr), Recorder::new()).unwrap();
    let (reason, _) = b_recorder.wait_closed();
    assert_eq!(reason, CloseReason::PeerLostSession);
    assert_eq!(
        old.try_send(message(1, 1)).unwrap_err().reason,
        Refusal::Closed
    );
    b_recorder.wait_opened(2);
}

#[test]
fn an_idle_fault_parks_the_session_and_many_first_sends_reconnect_it_once() {
    const CALLERS: u64 = 64;
    let pair = Pair::new(config());
    pair.proxy.cut();
    pair.a_recorder.wait_parked();
    assert_eq!(pair.connection.state(), State::Standby);
    let before = pair.proxy.accepted();
    std::thread::scope(|scope| {
        for tid in 0..CALLERS {
            let connection = pair.connection.clone();
            scope.spawn(move || connection.send(message(tid, 10)).unwrap());
        }
    });
    pair.b_recorder
        .wait_messages(usize::try_from(CALLERS).unwrap());
    assert_eq!(pair.proxy.accepted() - before, 1);
}

#[test]
fn a_keepalive_wakes_a_parked_session() {
    let pair = Pair::new(config());
    pair.proxy.cut();
    pair.a_recorder.wait_parked();
    // The other side cannot connect; what it sends waits for this.
    pair.b_recorder
        .connection(0)
        .try_send(message(5, 10))
        .unwrap();
    pair.connection.keepalive().unwrap();
    assert_eq!(pair.a_recorder.wait_messages(1), [5]);
    pair.a_recorder.wait("the answer", |h| {
        h.iter()
            .any(|h| matches!(h, RecordedEvent::Alive))
            .then_some(())
    });
}

#[test]
fn try_send_says_full_and_send_waits_until_the_peer_acknowledges() {
    let bounds = Bounds {
        count_max: 10,
        ..Bounds::default()
    };
    let pair = Pair::new(Config { bounds, ..config() });
    pair.proxy.stall(true);
    for tid in 0..10 {
        pair.connection.try_send(message(tid, 10)).unwrap();
    }
    // What was sent and is not acknowledged counts: a peer that stalls cannot make us hold more.
    let full = pair.connection.try_send(message(10, 10)).unwrap_err();
    assert_eq!((full.reason, full.message.tid), (Refusal::Full, 10));
    let late = pair
        .connection
        .send_by(message(10, 10), Instant::now() + Duration::from_millis(20));
    assert_eq!(late.unwrap_err().reason, Refusal::TimedOut);
    pair.connection.keepalive().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.connection.send(message(10, 10)).map(drop));
        pair.proxy.stall(false);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(
        pair.b_recorder.wait_messages(11),
        (0..11).collect::<Vec<_>>()
    );
}

#[test]
fn a_half_open_link_is_noticed_at_the_keepalives_deadline() {
    let config = Config {
        keepalive_interval: Some(Duration::from_millis(50)),
        keepalive_timeout: Duration::from_millis(300),
        handshake_timeout: Duration::from_millis(300),
        ..config()
    };
    let pair = Pair::new(config);
    pair.proxy.stall(true);
    pair.connection.send(message(1, 10)).unwrap();
    pair.a_recorder.wait("the deadline", |heard| {
        heard
            .iter()
            .any(|h| matches!(h, RecordedEvent::Interrupted { .. }))
            .then_some(())
    });
    pair.proxy.cut();
    pair.proxy.stall(false);
    assert_eq!(pair.b_recorder.wait_messages(1), [1]);
}

#[test]
fn attempts_to_connect_back_off() {
    // Accepts and hangs up at once, for a while.
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let (count, stop) = (Arc::clone(&attempts), Arc::new(AtomicUsize::new(0)));
    let ended = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            count.fetch_add(1, Ordering::SeqCst);
            if ended.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
    });
    let backoff_max = Duration::from_millis(200);
    let a = start(
        "a",
        Config {
            backoff_max,
            ..config()
        },
    );
    let begun = Instant::now();
    a.open(Target::lossless(addr), Recorder::new()).unwrap();
    eventually("ten attempts", || attempts.load(Ordering::SeqCst) >= 10);
    // The shortest pauses: halves of 5, 10, 20, 40, 80, 160 and then of 200 ms.
    assert!(
        begun.elapsed() >= Duration::from_millis(157 + 3 * 100),
        "{:?}",
        begun.elapsed()
    );
    a.shutdown();
    stop.store(1, Ordering::SeqCst);
    drop(std::net::TcpStream::connect(addr));
    thread.join().unwrap();
}

#[test]
fn a_send_after_close_gives_the_message_back_with_the_reason() {
    let pair = Pair::new(config());
    pair.proxy.stall(true);
    pair.connection.try_send(message(1, 10)).unwrap();
    pair.connection.close();
    let err = pair.connection.try_send(message(2, 10)).unwrap_err();
    assert_eq!((err.reason, err.message.tid), (Refusal::Closed, 2));
    let (reason, unacknowledged) = pair.a_recorder.wait_closed();
    assert_eq!((reason, unacknowledged), (CloseReason::ByOwner, vec![1]));
}

#[test]
fn a_revoked_message_leaves_no_hole_and_one_that_is_being_sent_arrives_whole() {
    let pair = Pair::new(config());
    // The session is away, so nothing is taken from the queue.
    pair.proxy.stall(true);
    pair.proxy.cut();
    pair.a_recorder.wait("the fault", |h| {
        h.iter()
            .any(|h| matches!(h, RecordedEvent::Interrupted { .. }))
            .then_some(())
    });
    let tickets: Vec<_> = (0..4)
        .map(|tid| pair.connection.try_send(message(tid, 5000)).unwrap())
        .collect();
    assert_eq!(pair.connection.revoke(tickets[1]).unwrap().tid, 1);
    assert!(pair.connection.revoke(tickets[1]).is_none());
    pair.proxy.stall(false);
    assert_eq!(pair.b_recorder.wait_messages(3), [0, 2, 3]);
    assert!(pair.connection.revoke(tickets[0]).is_none(), "it was sent");
    pair.connection.send(message(4, 1)).unwrap();
    assert_eq!(pair.b_recorder.wait_messages(4), [0, 2, 3, 4]);
}

#[test]
fn a_lossy_session_ends_with_its_connection_and_gives_back_what_was_not_sent() {
    let pair = Pair::with(config(), Target::lossy);
    pair.connection.send(message(1, 10)).unwrap();
    pair.b_recorder.wait_messages(1);
    pair.proxy.cut();
    let (reason, _) = pair.a_recorder.wait_closed();
    assert!(
        matches!(
            reason,
            CloseReason::Fault(Fault::Disconnected | Fault::Io(_))
        ),
        "{reason}"
    );
    assert!(matches!(
        pair.b_recorder.wait_closed().0,
        CloseReason::Fault(_)
    ));
}

#[test]
fn a_message_is_encoded_again_for_a_peer_that_changed() {
    // The encoder runs on the I/O thread, once for each time the message is taken.
    let bounds = Bounds {
        count_max: 4,
        ..Bounds::default()
    };
    let pair = Pair::new(Config {
        features: 0b100,
        bounds,
        ..config()
    });
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let encoder = Arc::new(move |features: u64| {
        counted.fetch_add(1, Ordering::SeqCst);
        messenger::Payload {
            data: vec![features.to_le_bytes()[0]].into(),
            ..Default::default()
        }
    });
    pair.proxy.stall(true);
    pair.connection
        .send(Message::per_peer(1, 5, 1, encoder))
        .unwrap();
    eventually("the first encoding", || calls.load(Ordering::SeqCst) == 1);
    pair.proxy.cut();
    pair.proxy.stall(false);
    let data = pair.b_recorder.wait("receiving", |heard| {
        crate::support::messages(heard)
            .next()
            .map(|m| m.payload.data.to_vec())
    });
    assert_eq!(data, [0b100]);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_blocking_send_on_the_io_thread_is_refused() {
    let (a, b) = (start("a", config()), start("b", config()));
    let (seen, told) = (Recorder::new(), Arc::new(AtomicUsize::new(0)));
    let addr = b.listen(loopback(), seen.clone()).unwrap();
    let count = Arc::clone(&told);
    let handler = move |connection: &Connection, event: Event| {
        if let Event::Opened { .. } = event {
            let refused = connection.send(message(1, 1)).unwrap_err();
            assert_eq!(refused.reason, Refusal::OnIoThread);
            connection.try_send(refused.message).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    a.open(Target::lossless(addr), Arc::new(handler)).unwrap();
    assert_eq!(seen.wait_messages(1), [1]);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn a_handler_that_panics_ends_its_own_session_and_no_other() {
    let (a, b) = (start("a", config()), start("b", config()));
    let b_recorder = Recorder::new();
    let addr = b.listen(loopback(), b_recorder.clone()).unwrap();
    let broken = |_: &Connection, event: Event| {
        assert!(!matches!(event, Event::Opened { .. }), "planned");
    };
    let bad = a
        .open(Target::lossless(addr).in_lane(1), Arc::new(broken))
        .unwrap();
    let good = a
        .open(Target::lossless(addr).in_lane(2), Recorder::new())
        .unwrap();
    eventually("the end of its session", || bad.state() == State::Closed);
    good.send(message(1, 10)).unwrap();
    assert_eq!(b_recorder.wait_messages(1), [1]);
}

#[test]
fn shutdown_gives_back_what_every_session_held() {
    let pair = Pair::new(config());
    pair.proxy.stall(true);
    for tid in 0..5 {
        pair.connection.try_send(message(tid, 10)).unwrap();
    }
    pair.a.shutdown();
    let (reason, unacknowledged) = pair.a_recorder.wait_closed();
    assert_eq!(
        (reason, unacknowledged),
        (CloseReason::Shutdown, vec![0, 1, 2, 3, 4])
    );
}

#[test]
fn a_message_of_the_largest_size_passes_and_a_larger_one_is_refused() {
    let pair = Pair::new(config());
    let most = Bounds::default().message_max;
    let err = pair.connection.try_send(message(1, most + 1)).unwrap_err();
    assert_eq!(err.reason, Refusal::TooLarge);
    pair.connection.send(message(2, most)).unwrap();
    let len = pair.b_recorder.wait("receiving", |heard| {
        crate::support::messages(heard)
            .next()
            .map(|m| m.payload.data.len())
    });
    assert_eq!(len, most);
}
