//! TLS: what clients send and get through it is what they would without, and who may not, gets nothing.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use nbd::server::{Options, TlsConfig, TlsOptions};
use reactor::BackendKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::client::{Client, FLUSH, TRIM, WRITE};
use crate::support::{Setup, World, backends, eventually};

const AUTHORITY: &[u8] = include_bytes!("../fixtures/tls/ca-cert.pem");
const SERVER: [&[u8]; 2] = [
    include_bytes!("../fixtures/tls/server-cert.pem"),
    include_bytes!("../fixtures/tls/server-key.pem"),
];
const ALICE: [&[u8]; 2] = [
    include_bytes!("../fixtures/tls/alice-cert.pem"),
    include_bytes!("../fixtures/tls/alice-key.pem"),
];
const BOB: [&[u8]; 2] = [
    include_bytes!("../fixtures/tls/bob-cert.pem"),
    include_bytes!("../fixtures/tls/bob-key.pem"),
];
/// Says that it is alice, and was signed by nobody.
const STRAY: [&[u8]; 2] = [
    include_bytes!("../fixtures/tls/stray-cert.pem"),
    include_bytes!("../fixtures/tls/stray-key.pem"),
];

fn world(
    kind: BackendKind,
    required: bool,
    verifies: bool,
    only_for: Option<&'static str>,
) -> World {
    let authority = verifies.then_some(AUTHORITY);
    let config = TlsConfig::from_pem(SERVER[0], SERVER[1], authority).unwrap();
    let setup = Setup::new(kind);
    let tls = Some(TlsOptions { config, required });
    let options = Options {
        tls,
        ..setup.options
    };
    World::new(Setup {
        options,
        only_for,
        ..setup
    })
}

/// A client's side, with this certificate.
fn client_config(identity: Option<[&[u8]; 2]>) -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(AUTHORITY).unwrap();
    roots.add(authority).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some([chain, key]) => {
            let chain = vec![CertificateDer::from_pem_slice(chain).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

fn connect(world: &World, identity: Option<[&[u8]; 2]>) -> std::io::Result<Client> {
    Client::tls(&world.unix, "disk", client_config(identity))
}

#[test]
fn bytes_of_any_length_pass_through_tls_unchanged() {
    for kind in backends() {
        let world = world(kind, true, false, None);
        let mut client = connect(&world, None).unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        for sectors in [1, 8, 63, 700, 9000] {
            let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(sectors * 512)
                .collect();
            client.write(0, 512, &data).unwrap();
            assert!(client.read(512, data.len() as u32).unwrap() == data);
        }
        for cookie in 0..200 {
            client.start_write(0, cookie, cookie * 4096, &[cookie as u8; 4096]);
        }
        for _ in 0..200 {
            assert_eq!(client.reply().1, 0);
        }
        assert_eq!(client.read(199 * 4096, 512).unwrap(), [199; 512]);
        client.simple(TRIM, 0, 0, 1 << 20).unwrap();
        client.simple(FLUSH, 0, 0, 0).unwrap();
        drop(client);
        world.assert_nothing_left();
    }
}

#[test]
fn where_tls_is_offered_a_client_may_go_on_without_and_where_it_is_required_it_may_not() {
    let offered = world(BackendKind::Epoll, false, false, None);
    offered.client().write(0, 0, &[1; 512]).unwrap();
    connect(&offered, None)
        .unwrap()
        .write(0, 0, &[2; 512])
        .unwrap();
    let required = world(BackendKind::Epoll, true, false, None);
    let mut plain = Client::raw(&required.unix);
    plain.send(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap();
    let reply = plain.bytes(20).unwrap();
    assert_eq!(
        reply[12..16],
        (1_u32 << 31 | 5).to_be_bytes(),
        "TLS required"
    );
    connect(&required, None).unwrap();
}

#[test]
fn a_client_without_a_certificate_of_the_authority_gets_nothing_and_disturbs_no_other() {
    let world = world(BackendKind::Epoll, true, true, None);
    let mut good = connect(&world, Some(ALICE)).unwrap();
    for bad in [None, Some(STRAY)] {
        assert!(connect(&world, bad).is_err());
    }
    good.write(0, 0, &[1; 4096]).unwrap();
    assert_eq!(good.read(0, 4096).unwrap(), [1; 4096]);
}

#[test]
fn an_export_is_there_for_the_names_it_is_meant_for_alone() {
    let world = world(BackendKind::Epoll, true, true, Some("alice"));
    connect(&world, Some(ALICE)).unwrap();
    assert!(connect(&world, Some(BOB)).is_err());
}

#[test]
fn what_a_stranger_sent_behind_starttls_is_never_taken_for_the_clients() {
    let world = world(BackendKind::Epoll, false, false, None);
    let mut plain = Client::raw(&world.unix);
    let starttls = b"IHAVEOPT\0\0\0\x05\0\0\0\0";
    let list = b"IHAVEOPT\0\0\0\x03\0\0\0\0";
    plain
        .send(&[&b"\0\0\0\x03"[..], starttls, list].concat())
        .unwrap();
    assert_eq!(plain.bytes(20).unwrap()[12..16], 1_u32.to_be_bytes());
    // An alert of TLS at most, then the end: no list.
    let mut rest = Vec::new();
    let end = loop {
        match plain.bytes(1) {
            Ok(byte) => rest.extend(byte),
            Err(end) => break end,
        }
    };
    let end = end.kind();
    assert!(
        matches!(end, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        "not closed: {end}"
    );
    assert!(
        rest.len() < 20 && !rest.windows(4).any(|four| four == b"disk"),
        "{rest:?}"
    );
}

#[test]
fn a_client_that_knows_no_tls_1_3_is_refused() {
    let world = world(BackendKind::Epoll, false, false, None);
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(AUTHORITY).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let old = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert!(Client::tls(&world.unix, "disk", Arc::new(old)).is_err());
}

#[test]
fn what_came_before_the_end_of_tls_is_done_and_answered() {
    for kind in backends() {
        let world = world(kind, true, false, None);
        let mut tls = Client::tls_stream(&world.unix, client_config(None)).unwrap();
        tls.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
        tls.read_exact(&mut [0; 10]).unwrap();
        let mut sent = Client::header(WRITE, 0, 9, 4096, 4096);
        sent.extend([5; 4096]);
        tls.conn.writer().write_all(&sent).unwrap();
        tls.conn.send_close_notify();
        let mut cipher = Vec::new();
        while tls.conn.wants_write() {
            tls.conn.write_tls(&mut cipher).unwrap();
        }
        tls.sock.write_all(&cipher).unwrap();
        let mut reply = [0; 16];
        tls.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let mut other = connect(&world, None).unwrap();
        assert_eq!(other.read(4096, 4096).unwrap(), [5; 4096]);
    }
}

#[test]
fn a_client_over_tls_waits_for_an_export_that_is_being_opened_and_who_may_not_use_it_does_not() {
    for kind in backends() {
        let world = world(kind, true, true, Some("alice"));
        world.set_opening(true);
        let refused = connect(&world, Some(BOB)).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(world.server.parked(), 0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| connect(&world, Some(ALICE)));
            eventually("alice waits", || world.server.parked() == 1);
            world.set_opening(false);
            let mut alice = waits.join().unwrap().unwrap();
            alice.write(0, 0, &[6; 512]).unwrap();
        });
    }
}

#[test]
fn certificates_and_keys_that_are_none_are_refused_by_name() {
    let refused = |chain: &[u8], key: &[u8]| {
        let error = TlsConfig::from_pem(chain, key, None).unwrap_err();
        error.to_string()
    };
    assert!(refused(b"", SERVER[1]).contains("certificate"));
    assert!(refused(SERVER[0], b"nothing").contains("key"));
    refused(SERVER[0], ALICE[1]);
}

#[test]
fn a_connection_with_tls_is_closed_where_others_are_handed_over() {
    for kind in backends() {
        let world = world(kind, false, false, None);
        let mut client = connect(&world, None).unwrap();
        let mut plain = world.client();
        client.write(0, 0, &[4; 512]).unwrap();
        let handed = world.server.hand_over(Duration::from_secs(10));
        assert_eq!((handed.connections.len(), handed.closed), (1, 1));
        assert_eq!(handed.report.cut, 0, "it is not waited for");
        assert_eq!(
            client.bytes(1).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
        for connection in handed.connections {
            world.server.adopt(connection).unwrap();
        }
        assert_eq!(plain.read(0, 512).unwrap(), [4; 512]);
    }
}
