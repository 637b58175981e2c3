//! Authentication against a scripted peer: refusals that tell nothing, impostors, changed bytes.

use super::*;

#[test]
fn a_refused_peer_learns_nothing_and_every_reason_looks_the_same() {
    let refusals: Vec<_> = [secret(8), none("host")]
        .into_iter()
        .map(|wrong| {
            let mut host = Host::new(Config::default(), secret(7));
            let peer = Peer::connect(&mut host, &wrong);
            assert!(host.accepted.is_empty() && host.events.is_empty());
            assert_eq!(host.node.stats().handshakes_failed, 1);
            assert_eq!(host.hung_up, [peer.at]);
            peer.failed.unwrap()
        })
        .collect();
    let refused = Fault::Auth(AuthError::Refused { result: -13 });
    assert_eq!(refusals, [refused.clone(), refused]);
}

#[test]
fn a_peer_without_the_secret_cannot_pose_as_the_accepting_side() {
    let mut host = Host::new(Config::default(), secret(7));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    Peer::answer(&mut host, &secret(8));
    // It refuses us, as it cannot check our proof, and has nothing to show for itself.
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Auth(_)))
    ));
}

#[test]
fn a_changed_byte_in_a_secure_session_ends_it() {
    let mut host = Host::new(Config::default(), secret(7));
    let mut peer = Peer::connect(&mut host, &secret(7));
    peer.send_frame(&mut host, &ident(5, 1).frame());
    peer.send_frame(&mut host, &message(1));
    peer.link.emit(&message(2));
    let mut bytes = peer.link.tx.take_all();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    host.with_node(|node, env| node.on_bytes(env, peer.at, &bytes));
    assert_eq!(host.messages(), [101]);
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Frame(
            FrameError::Authentication { .. }
        )))
    ));
}
