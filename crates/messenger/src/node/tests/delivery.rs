//! Messages against a scripted peer: duplicates, gaps, acknowledgements, done.

use super::*;

#[test]
fn the_receiver_drops_what_it_has_seen() {
    let run = || {
        let (mut host, mut peer) = open();
        for seq in [1, 2, 2, 1, 3] {
            peer.send_frame(&mut host, &message(seq));
        }
        host.messages()
    };
    assert_eq!(run(), [101, 102, 103]);
    // The test would notice if it did not.
    assert_ne!(canary::with("deliver_twice", run), [101, 102, 103]);
}

#[test]
fn a_gap_is_an_error_that_ends_the_session() {
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &message(1));
    peer.send_frame(&mut host, &message(3));
    assert_eq!(host.messages(), [101]);
    let gap = Fault::Gap {
        expected: 2,
        got: 3,
    };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(gap)));
    assert_eq!(host.hung_up, [peer.at]);
    assert_eq!(host.node.load(), (0, 0));
}

#[test]
fn acknowledgements_are_cumulative_and_ride_along_or_go_alone_when_idle() {
    let (mut host, mut peer) = open();
    for seq in 1..=5 {
        peer.link.emit(&message(seq));
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(
        (peer.count_received(Tag::Ack), peer.last::<Ack>().0),
        (1, 5)
    );
    // With something to send there is no frame of its own.
    peer.link.emit(&message(6));
    let _ = host.accepted[0]
        .1
        .try_send(Message::data(1, 9, vec![1]))
        .unwrap();
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Ack), 1);
    let frame = peer.heard.last().unwrap();
    assert_eq!(Header::decode(&frame.segments[0]).unwrap().ack_seq, 6);
    // Cumulative the other way, too.
    for _ in 0..3 {
        let _ = host.accepted[0]
            .1
            .try_send(Message::data(1, 9, vec![1]))
            .unwrap();
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(host.accepted[0].1.load().unacked, 4);
    peer.send_frame(&mut host, &Ack(3).frame());
    assert_eq!(host.accepted[0].1.load().unacked, 1);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_session() {
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &Ack(1).frame());
    let lie = Fault::AckOfUnsent { acked: 1, sent: 0 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(lie)));
}

#[test]
fn an_aborted_message_counts_and_is_not_delivered() {
    // The bytes of an aborted frame come from the known answers; here the session's view of it.
    let (mut host, _peer) = open();
    let session = host.accepted[0].0;
    let mut aborted = message(1);
    aborted.aborted = true;
    let (node, now) = (&mut host.node, host.now);
    let mut env = Env {
        now,
        entropy: &mut host.entropy,
    };
    node.with_session(&mut env, session, |s, cx| s.on_frame_for_test(cx, &aborted));
    node.with_session(&mut env, session, |s, cx| {
        s.on_frame_for_test(cx, &message(2))
    });
    host.with_node(|_, _| ());
    assert_eq!(host.messages(), [102]);
}

#[test]
fn done_is_not_received_and_needs_both_sides_to_agree_on_it() {
    let config = Config {
        done_acks: true,
        ..Config::default()
    };
    let (mut host, mut peer) = open_with(config, FEATURE_DONE);
    let _ = host.accepted[0]
        .1
        .try_send(Message::data(1, 8, vec![1; 10]))
        .unwrap();
    peer.exchange_until_idle(&mut host);
    peer.send_frame(&mut host, &Ack(1).frame());
    let load = host.accepted[0].1.load();
    assert_eq!((load.unacked, load.bytes, load.count), (0, 0, 1));
    peer.send_frame(&mut host, &Done(1).frame());
    assert_eq!(host.accepted[0].1.load().count, 0);
    assert!(
        host.events
            .iter()
            .any(|(_, e)| matches!(e, Event::Done { tid: 8, seq: 1 }))
    );
    // Without the agreement the frame does not belong here.
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &Done(0).frame());
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Unexpected { .. }))
    ));
}
