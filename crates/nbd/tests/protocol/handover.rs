//! Clients whose server gives way to another one, between any two bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nbd::codec::ConnectionState;
use nbd::server::{AdoptError, HandedConnection, Handover, Server};
use serve::testing::{Faults, MemoryDisk};

use crate::support::chunks::ChunkClient;
use crate::support::client::{Client, FLUSH, READ, WRITE};
use crate::support::{DEADLINE, Engine, Setup, World, backends, eventually};

const WITHIN: Duration = Duration::from_secs(10);

/// Gives all of it to another server, each state as the bytes that another process would get.
fn adopt(to: &Server<MemoryDisk>, handed: Handover) {
    assert_eq!(handed.report.remaining, 0);
    for HandedConnection { socket, state } in handed.connections {
        let state = ConnectionState::decode(&state.encode()).unwrap();
        to.adopt(HandedConnection { socket, state }).unwrap();
    }
    for listener in handed.listeners {
        to.adopt_listener(listener).unwrap();
    }
}

const ROUNDS: u64 = 3000;

/// Writes and reads of one block after another, sent in pieces of odd lengths without waiting for
/// any reply. Block N is written in round N and read in round N + 1000, when that write was answered.
fn send_all(mut stream: &UnixStream, start: u64, answered: &AtomicUsize) {
    let mut bytes = Vec::new();
    for round in 0..ROUNDS {
        let offset = start + round % 1000 * 4096;
        if round / 1000 % 2 == 0 {
            bytes.extend(Client::header(WRITE, 0, round, offset, 4096));
            bytes.extend([(round + round / 1000) as u8; 4096]);
        } else {
            bytes.extend(Client::header(READ, 0, round, offset, 4096));
        }
        let is_turn = round % 1000 == 999;
        let ready = bytes.len() - if is_turn { 0 } else { bytes.len() % 1013 };
        stream.write_all(&bytes[..ready]).unwrap();
        bytes.drain(..ready);
        if is_turn {
            eventually("the requests of this turn are answered", || {
                answered.load(Ordering::SeqCst) as u64 == round + 1
            });
        }
    }
}

fn take_all(mut stream: &UnixStream, answered: &AtomicUsize) {
    let mut seen = vec![false; ROUNDS as usize];
    for _ in 0..ROUNDS {
        let mut head = [0; 16];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let before = std::mem::replace(&mut seen[cookie as usize], true);
        assert!(!before, "request {cookie} was answered twice");
        if cookie / 1000 % 2 == 1 {
            let mut block = [0; 4096];
            stream.read_exact(&mut block).unwrap();
            assert_eq!(block, [(cookie % 1000) as u8; 4096], "{cookie}");
        }
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn requests_under_way_at_any_byte_are_answered_once_by_one_of_two_servers_that_take_turns() {
    for kind in backends() {
        let faults = Faults {
            park_fetch: 5,
            slow_sync: true,
            ..Faults::NONE
        };
        let world = World::new(Setup::new(kind).with_faults(faults));
        let engine = Engine::start(&world.disk);
        let second = world.successor(true);
        let clients: Vec<UnixStream> = (0..3)
            .map(|_| Client::unix_socket(&world.unix, "disk"))
            .collect();
        eventually("all are connected", || {
            world.server.connections_to("disk") == 3
        });
        let turns = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, stream) in clients.iter().enumerate() {
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                stream.set_write_timeout(Some(DEADLINE)).unwrap();
                let answered: &AtomicUsize = Box::leak(Box::default());
                let start = number as u64 * (4 << 20);
                threads.push(scope.spawn(move || send_all(stream, start, answered)));
                threads.push(scope.spawn(move || take_all(stream, answered)));
            }
            let mut turns = 0;
            while threads.iter().any(|thread| !thread.is_finished()) {
                let (from, to) = match turns % 2 {
                    0 => (&world.server, &second),
                    _ => (&second, &world.server),
                };
                let handed = from.hand_over(WITHIN);
                let found = (handed.connections.len(), handed.closed, handed.report.cut);
                // Also those that have all their replies: their sockets are open until the end.
                assert_eq!(found, (3, 0, 0));
                adopt(to, handed);
                turns += 1;
                std::thread::sleep(Duration::from_micros(300 * (turns % 7)));
            }
            turns
        });
        assert!(turns > 3, "{turns} turns: too few to mean anything");
        println!("{kind:?}: {turns} turns");
        drop(engine);
        world.assert_nothing_left();
    }
}

#[test]
fn a_header_or_a_refused_payload_that_was_cut_goes_on_at_the_next_server() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let second = world.successor(true);
        let mut client = world.client();
        let header = Client::header(READ, 0, 9, 0, 512);
        client.send(&header[..11]).unwrap();
        let mut refused = world.client();
        refused.start(WRITE, 0, 8, 1 << 40, 4096);
        refused.send(&[0x25; 1000]).unwrap();
        let (cookie, error) = refused.reply();
        assert!(cookie == 8 && error != 0);
        let handed = world.server.hand_over(WITHIN);
        assert_eq!((handed.connections.len(), handed.closed), (2, 0));
        for one in &handed.connections {
            let ConnectionState { skip, unread, .. } = &one.state;
            // Of the payload, what was not read by the server is still in the socket.
            let is_header = *skip == 0 && header[..11].starts_with(unread);
            assert!(is_header || (96..=4096).contains(skip), "{skip} {unread:?}");
        }
        adopt(&second, handed);
        client.send(&header[11..]).unwrap();
        assert_eq!(client.reply(), (9, 0));
        assert_eq!(client.bytes(512).unwrap(), [0; 512]);
        refused.send(&[0x25; 3096]).unwrap();
        refused.simple(FLUSH, 0, 0, 0).unwrap();
        assert_eq!(world.server.connections(), 0);
        assert_eq!(second.connections_to("disk"), 2);
        world.assert_nothing_left();
    }
}

#[test]
fn what_a_client_negotiated_holds_at_the_next_server() {
    for (kind, is_extended) in backends().into_iter().flat_map(|k| [(k, false), (k, true)]) {
        let world = World::new(Setup::new(kind));
        let second = world.successor(true);
        let mut client = ChunkClient::new(&world.unix, "disk", is_extended);
        client.write(0, 8192, &[3; 4096]).unwrap();
        adopt(&second, world.server.hand_over(WITHIN));
        let (data, seen) = client.read(0, 0, 16384).unwrap();
        assert!(data[8192..12288] == [3; 4096] && data[..8192] == [0; 8192]);
        assert!(seen.iter().any(|(_, is_hole)| *is_hole), "holes are told");
        assert_eq!(client.status(0, 0, 16384).unwrap().len(), 2, "two contexts");
    }
}

#[test]
fn listeners_pass_with_the_clients_that_wait_in_their_queues() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let second = world.successor(true);
        let handed = world.server.hand_over(WITHIN);
        assert_eq!(handed.listeners.len(), 2);
        // Nobody accepts now, and the kernel queues them.
        let stream = UnixStream::connect(&world.unix).unwrap();
        let tcp = std::net::TcpStream::connect(world.tcp).unwrap();
        adopt(&second, handed);
        drop((stream, tcp));
        let mut client = world.client();
        client.write(0, 0, &[5; 512]).unwrap();
        // The first one has ended; the sockets of the second are as they were.
        world.server.stop(Duration::ZERO);
        assert_eq!(client.read(0, 512).unwrap(), [5; 512]);
        let mut other = Client::tcp(world.tcp, "disk");
        assert_eq!(other.read(0, 512).unwrap(), [5; 512]);
        assert_eq!(world.client().read(0, 512).unwrap(), [5; 512]);
        assert_eq!(world.server.connections(), 0);
    }
}

#[test]
fn a_server_that_is_called_off_serves_on_what_it_gave_away() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        let mut waits = client_with_parked_read(&world);
        let handed = world.server.hand_over(Duration::from_millis(100));
        assert_eq!((handed.connections.len(), handed.closed), (1, 1));
        assert_eq!(
            handed.report.cut, 1,
            "a request waits for what may never come"
        );
        assert!(waits.is_closed());
        adopt(&world.server, handed);
        client.write(0, 0, &[6; 512]).unwrap();
        assert_eq!(world.client().read(0, 512).unwrap(), [6; 512]);
        world.assert_nothing_left();
    }
}

#[test]
fn a_hand_over_that_a_busy_connection_refuses_changes_nothing_for_any_client() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut idle = world.client();
        let _greeted = Client::raw(&world.unix);
        let mut waits = client_with_parked_read(&world);
        for _ in 0..3 {
            let busy = world.server.try_hand_over(Duration::from_millis(50));
            let busy = busy.unwrap_err();
            assert_eq!(
                (busy.exports.as_slice(), busy.lost),
                (&["disk".to_owned()][..], 0)
            );
            idle.write(0, 0, &[6; 512]).unwrap();
            assert_eq!(world.client().read(0, 512).unwrap(), [6; 512]);
        }
        eventually(
            "the others, also one in its handshake, are still there",
            || world.server.connections() == 3,
        );
        world.disk.wake_all();
        assert_eq!(waits.reply(), (1, 0));
        waits.bytes(512).unwrap();
        waits.write(0, 512, &[7; 512]).unwrap();
        // Now that nobody is busy, all leave.
        let second = world.successor(true);
        let handed = world.server.try_hand_over(WITHIN).unwrap();
        assert!(
            handed.connections.len() >= 2,
            "{}",
            handed.connections.len()
        );
        adopt(&second, handed);
        assert_eq!(idle.read(0, 512).unwrap(), [6; 512]);
        assert_eq!(waits.read(512, 512).unwrap(), [7; 512]);
        world.assert_nothing_left();
    }
}

fn client_with_parked_read(world: &World) -> Client {
    world.disk.set_faults(Faults::EVERY_FETCH_PARKS);
    let mut client = world.client();
    let begun = world.disk.begin_count();
    client.start(READ, 0, 1, 0, 512);
    eventually("its request is begun", || world.disk.begin_count() > begun);
    world.disk.set_faults(Faults::NONE);
    client
}

#[test]
fn handshakes_and_connections_to_exports_that_are_gone_are_closed() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let second = world.successor(false);
        let mut greeted = Client::raw(&world.unix);
        let mut client = world.client();
        let mut handed = world.server.hand_over(WITHIN);
        assert_eq!((handed.connections.len(), handed.closed), (1, 1));
        assert_eq!(handed.report.cut, 0, "a handshake is not waited for");
        assert!(greeted.is_closed());
        let error = second.adopt(handed.connections.remove(0)).unwrap_err();
        assert!(matches!(error, AdoptError::NoExport(_)), "{error}");
        assert!(client.is_closed());
    }
}

#[test]
fn a_request_that_comes_as_its_connection_is_given_away_is_not_lost() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        // These two have no listeners, which would have to leave first.
        let [mut from, mut to] = [(); 2].map(|()| world.successor(true));
        let mut client = world.client();
        adopt(&from, connections_of(world.server.hand_over(WITHIN)));
        for round in 0..20 {
            client.write(0, 0, &[round; 512]).unwrap();
            // While the reactors are held up, the request comes and then they are told to give all away.
            let (held, let_go): (Vec<_>, Vec<_>) = world.reactors.iter().map(block_reactor).unzip();
            held.iter()
                .for_each(|held| held.recv_timeout(DEADLINE).unwrap());
            client.start(READ, 0, 1, 0, 512);
            let handed = std::thread::scope(|scope| {
                let giving = scope.spawn(|| from.hand_over(WITHIN));
                // Less would make the test weaker, not wrong.
                std::thread::sleep(Duration::from_millis(5));
                drop(let_go);
                giving.join().unwrap()
            });
            adopt(&to, handed);
            assert_eq!(client.reply(), (1, 0));
            assert_eq!(client.bytes(512).unwrap(), [round; 512]);
            std::mem::swap(&mut from, &mut to);
        }
    }
}

#[test]
fn a_connection_that_was_just_adopted_is_given_away_like_any_other() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let servers = [world.successor(true), world.successor(true)];
        let mut client = world.client();
        adopt(&servers[0], connections_of(world.server.hand_over(WITHIN)));
        for round in 0..200 {
            let handed = servers[round % 2].hand_over(WITHIN);
            assert_eq!((handed.connections.len(), handed.closed), (1, 0), "{round}");
            adopt(&servers[(round + 1) % 2], handed);
        }
        client.write(0, 0, &[8; 512]).unwrap();
        assert_eq!(client.read(0, 512).unwrap(), [8; 512]);
    }
}

fn connections_of(mut handed: Handover) -> Handover {
    handed.listeners.clear();
    handed
}

/// Holds a reactor's thread up: from when the first end says so until the second is dropped.
fn block_reactor(reactor: &reactor::Reactor) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (held_to, held) = mpsc::channel();
    let (let_go, until) = mpsc::channel::<()>();
    let wait = move |_: &mut reactor::Core| {
        held_to.send(()).unwrap();
        let _ = until.recv_timeout(DEADLINE);
    };
    reactor.handle().post(wait).unwrap();
    (held, let_go)
}
