//! Sessions against a scripted peer: refusals, reconnects, features.

use super::*;

#[test]
fn reconnect_is_refused_with_reset_when_the_session_is_unknown() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    for (server_cookie, client_cookie) in [(cookie, 6), (cookie ^ 1, 5)] {
        let mut again = Peer::connect(&mut host, &none("a"));
        let ask = Reconnect {
            client_cookie,
            ..reconnect(server_cookie, 11, 1, 0)
        };
        again.send_frame(&mut host, &ask.frame());
        assert!(again.last::<Reset>().full);
        assert!(
            host.hung_up.contains(&again.at),
            "a refused connection is dropped"
        );
    }
    // Another host cannot have it either, whatever it knows.
    let mut thief = Peer::connect(&mut host, &none("c"));
    thief.send_frame(&mut host, &reconnect(cookie, 12, 1, 0).frame());
    assert!(thief.last::<Reset>().full);
    assert!(host.close_reason().is_none());
    assert_eq!(host.node.stats().refused_reset, 3);
}

#[test]
fn reconnect_is_refused_with_retry_when_its_connect_sequence_is_used_up() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    let mut second = Peer::connect(&mut host, &none("a"));
    second.send_frame(&mut host, &reconnect(cookie, 11, 7, 0).frame());
    assert_eq!(second.last::<ReconnectOk>().0, 0);
    let mut third = Peer::connect(&mut host, &none("a"));
    third.send_frame(&mut host, &reconnect(cookie, 12, 7, 0).frame());
    assert_eq!(third.last::<Retry>().0, 7);
    // On the same connection, with a number above.
    third.send_frame(&mut host, &reconnect(cookie, 13, 8, 0).frame());
    third.last::<ReconnectOk>();
    assert!(
        host.hung_up.contains(&second.at),
        "the older connection is dropped"
    );
}

#[test]
fn a_connection_that_comes_late_is_refused_with_retry_global() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    for frame in [reconnect(cookie, 10, 1, 0).frame(), ident(5, 9).frame()] {
        let mut late = Peer::connect(&mut host, &none("a"));
        late.send_frame(&mut host, &frame);
        assert_eq!(late.last::<RetryGlobal>().0, 10);
    }
    assert!(host.close_reason().is_none());
    assert_eq!(host.node.stats().refused_retry_global, 2);
}

#[test]
fn a_session_beyond_the_limit_is_refused_with_wait() {
    let (mut host, _peer) = open_with(
        Config {
            sessions_max: 1,
            ..Config::default()
        },
        0,
    );
    let mut more = Peer::connect(&mut host, &none("c"));
    more.send_frame(&mut host, &ident(8, 1).frame());
    more.last::<Wait>();
    assert!(host.hung_up.contains(&more.at));
    assert_eq!(host.node.load(), (1, 0));
}

#[test]
fn the_connecting_side_obeys_all_four_refusals() {
    let mut host = Host::new(Config::default(), none("a"));
    let (id, _queue) = host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let server_ident = granted_session();
    let mut peer = Peer::answer(&mut host, &none("b"));
    // Wait: hangs up, and comes again after the pause.
    peer.send_frame(&mut host, &Wait.frame());
    assert_eq!(host.hung_up, [peer.at]);
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    // Retry global: the same question with a number above.
    peer.send_frame(&mut host, &RetryGlobal(500).frame());
    assert_eq!(peer.last::<ClientIdent>().global_seq, 501);
    peer.send_frame(&mut host, &server_ident.frame());
    // Retry, after a fault while there is something to send.
    host.with_node(|node, _| {
        node.queue(id)
            .unwrap()
            .try_send(Message::data(1, 1, vec![1]))
            .unwrap()
            .0
    });
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    let asked = peer.last::<Reconnect>();
    assert_eq!(
        (asked.server_cookie, asked.connect_seq, asked.global_seq),
        (9, 1, 502)
    );
    peer.send_frame(&mut host, &Retry(40).frame());
    assert_eq!(peer.last::<Reconnect>().connect_seq, 41);
    // Reset: reported, and nothing is sent again.
    peer.send_frame(&mut host, &Reset { full: true }.frame());
    assert_eq!(host.close_reason(), Some(&CloseReason::PeerLostSession));
    assert_eq!(peer.count_received(Tag::Message), 0);
}

#[test]
fn a_lossy_session_where_a_lossless_one_was_asked_for_is_refused() {
    let mut host = Host::new(Config::default(), none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut peer = Peer::answer(&mut host, &none("b"));
    let granted = ServerIdent {
        addrs: vec![EntityAddr::blank(0)],
        global_id: 0,
        global_seq: 0,
        supported: 0,
        required: 0,
        flags: FLAG_LOSSY,
        cookie: 0,
    };
    peer.send_frame(&mut host, &granted.frame());
    assert_eq!(
        host.close_reason(),
        Some(&CloseReason::Fault(Fault::LossyGranted))
    );
}

#[test]
fn missing_features_are_named_on_both_sides() {
    let config = Config {
        required: 0b1000,
        ..Config::default()
    };
    let mut host = Host::new(config, none("b"));
    let mut peer = Peer::connect(&mut host, &none("a"));
    peer.send_frame(&mut host, &ident(5, 1).frame());
    assert_eq!(peer.last::<MissingFeatures>().0, 0b1000);
    let mut host = Host::new(Config::default(), none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &MissingFeatures(0b1000).frame());
    let missing = Fault::MissingFeatures { missing: 0b1000 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(missing)));
}

#[test]
fn a_peer_that_acknowledges_more_than_was_sent_when_it_reconnects_is_refused() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    let mut liar = Peer::connect(&mut host, &none("a"));
    liar.send_frame(&mut host, &reconnect(cookie, 11, 1, 3).frame());
    let lie = Fault::AckOfUnsent { acked: 3, sent: 0 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(lie)));
    assert!(host.hung_up.contains(&liar.at));
}

#[test]
fn a_reconnect_drops_what_the_peer_has_and_sends_the_rest_again_in_order() {
    let (mut host, mut peer) = open();
    let cookie = host_cookie(&peer);
    for tid in 1..=4 {
        let _ = host.accepted[0]
            .1
            .try_send(Message::data(1, tid, vec![1]))
            .unwrap();
    }
    peer.exchange_until_idle(&mut host);
    peer.send_frame(&mut host, &Ack(1).frame());
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    let mut again = Peer::connect(&mut host, &none("a"));
    again.send_frame(&mut host, &reconnect(cookie, 11, 1, 2).frame());
    let sent: Vec<_> = again
        .heard
        .iter()
        .filter(|f| f.tag == Tag::Message)
        .map(|f| Header::decode(&f.segments[0]).unwrap())
        .map(|h| (h.seq, h.tid))
        .collect();
    assert_eq!(sent, [(3, 3), (4, 4)]);
}
