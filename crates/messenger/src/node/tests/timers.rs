//! Timers against a scripted peer: keepalives, pauses between attempts, deadlines of connections.

use super::*;

#[test]
fn a_keepalive_is_answered_with_its_stamp_and_a_flood_of_them_with_one_answer() {
    let (mut host, mut peer) = open();
    for sec in 1..=1000 {
        peer.link.emit(&Keepalive2(Stamp { sec, nsec: 7 }).frame());
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2Ack), 1);
    assert_eq!(peer.last::<Keepalive2Ack>().0, Stamp { sec: 1000, nsec: 7 });
}

#[test]
fn keepalives_go_out_at_their_interval_and_silence_is_a_fault_at_the_deadline() {
    let (mut host, mut peer) = open();
    host.advance(Duration::from_secs(10));
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    let stamp = peer.last::<Keepalive2>().0;
    host.advance(Duration::from_secs(1));
    peer.send_frame(&mut host, &Keepalive2Ack(stamp).frame());
    let second = Duration::from_secs(1);
    assert!(host.events.iter().any(|(_, e)| matches!(
        e, Event::Alive { round_trip } if *round_trip == second)));
    host.advance(Duration::from_secs(9));
    peer.exchange_until_idle(&mut host);
    host.advance(Duration::from_secs(20));
    assert!(host.events.iter().any(|(_, e)| matches!(
        e,
        Event::Interrupted {
            fault: Fault::KeepaliveTimeout,
            ..
        }
    )));
}

#[test]
fn a_keepalive_that_a_fault_swallowed_is_asked_again_and_not_parked() {
    let mut host = Host::new(Config::default(), none("a"));
    let (id, _) = host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let granted = granted_session();
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &granted.frame());
    let _ = host.with_node(|node, _| node.queue(id).unwrap().keepalive().unwrap());
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &ReconnectOk(0).frame());
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    // Answered, the next fault parks.
    peer.send_frame(&mut host, &Keepalive2Ack(Stamp { sec: 0, nsec: 0 }).frame());
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    let parked = |e: &(SessionId, Event)| matches!(e.1, Event::Interrupted { parked: true, .. });
    assert_eq!(host.events.iter().filter(|e| parked(e)).count(), 1);
}

#[test]
fn pauses_between_attempts_double_up_to_the_limit_with_jitter() {
    let config = Config {
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_millis(1000),
        ..Config::default()
    };
    let mut host = Host::new(config, none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let link = *host.dialled.last().unwrap();
        host.with_node(|node, env| node.on_lost(env, link, Fault::Disconnected));
        let pause = host.node.next_timer().unwrap() - host.now;
        pauses.push(pause.as_millis());
        host.advance(pause);
    }
    let full = [100, 200, 400, 800, 1000, 1000, 1000, 1000];
    for (pause, full) in pauses.iter().zip(full) {
        assert!((full / 2..=full).contains(pause), "{pauses:?}");
    }
    assert!(
        pauses[4..].windows(2).any(|w| w[0] != w[1]),
        "no jitter in {pauses:?}"
    );
}

#[test]
fn connections_beyond_the_limit_are_turned_away_and_slow_ones_run_out_of_time() {
    let config = Config {
        handshakes_max: 8,
        ..Config::default()
    };
    let (mut host, mut peer) = open_with(config, 0);
    let mut handshakes_refused = 0;
    for _ in 0..1000 {
        let link = host.with_node(|node, env| node.on_accepted(env, addr()));
        handshakes_refused += u64::from(link.is_none());
    }
    assert_eq!((handshakes_refused, host.node.load()), (992, (1, 8)));
    assert_eq!(host.node.stats().handshakes_refused, 992);
    // Others go on, and the flood's places are free again after the handshake's time.
    peer.send_frame(&mut host, &message(1));
    assert_eq!(host.messages(), [101]);
    host.advance(Config::default().handshake_timeout);
    peer.exchange_until_idle(&mut host);
    assert_eq!(host.node.load(), (1, 0));
    assert_eq!(host.hung_up.len(), 8);
}
