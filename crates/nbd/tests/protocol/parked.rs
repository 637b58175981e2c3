//! Clients that ask for an export which is being opened: they wait without holding anybody up, and each hears what comes
//! of it.

use std::time::Duration;

use nbd::server::Options;

use crate::support::client::Client;
use crate::support::{Setup, World, backends, eventually};

const GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const SHUTDOWN: u32 = (1 << 31) + 7;

fn opening(kind: reactor::BackendKind, options: Options) -> World {
    World::new(Setup {
        opening: true,
        options,
        ..Setup::new(kind)
    })
}

/// Sends GO, as the first option or a further one, and waits for no reply.
fn ask(client: &mut Client, export: &str) {
    let mut option = b"IHAVEOPT".to_vec();
    option.extend(GO.to_be_bytes());
    option.extend((export.len() as u32 + 6).to_be_bytes());
    option.extend((export.len() as u32).to_be_bytes());
    option.extend(export.as_bytes());
    option.extend(0_u16.to_be_bytes());
    client.send(&option).unwrap();
}

/// A client that has asked for `export`.
fn asking(world: &World, export: &str) -> Client {
    let mut client = Client::raw(&world.unix);
    client.send(&3_u32.to_be_bytes()).unwrap();
    ask(&mut client, export);
    client
}

/// The last reply to GO: its kind and its text.
fn answer(client: &mut Client) -> (u32, String) {
    loop {
        let head = client.bytes(20).unwrap();
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let data = client.bytes(word(16) as usize).unwrap();
        if word(12) != INFO {
            return (word(12), String::from_utf8(data).unwrap());
        }
    }
}

#[test]
fn a_client_waits_for_an_export_that_is_being_opened_and_holds_up_nobody() {
    for kind in backends() {
        let world = opening(
            kind,
            Options {
                // It is no time of the client's.
                handshake_within: Duration::from_millis(500),
                ..Options::default()
            },
        );
        let mut waiting = asking(&world, "disk");
        let mut by_default = asking(&world, "");
        eventually("both wait", || world.server.parked() == 2);
        assert_eq!(*world.exports.parked.lock().unwrap(), ["disk", "disk"]);
        let mut unknown = asking(&world, "other");
        assert_eq!(answer(&mut unknown).0, UNKNOWN);
        assert!(unknown.is_closed(), "that one has had its time");
        assert_eq!(world.server.connections_to("disk"), 0);
        world.set_opening(false);
        for client in [&mut waiting, &mut by_default] {
            assert_eq!(answer(client).0, ACK);
            client.write(0, 0, &[7; 512]).unwrap();
            assert_eq!(client.read(0, 512).unwrap(), [7; 512]);
        }
        assert_eq!(world.server.parked(), 0);
        drop((waiting, by_default));
        world.assert_nothing_left();
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_is_forgotten() {
    for kind in backends() {
        let world = opening(kind, Options::default());
        let mut ahead = asking(&world, "disk");
        // What it sends behind its wish changes nothing.
        ask(&mut ahead, "disk");
        let waiting = asking(&world, "disk");
        eventually("both wait", || world.server.parked() == 2);
        drop((ahead, waiting));
        eventually("nobody is left", || world.server.connections() == 0);
        assert_eq!(world.server.parked(), 0);
        world.set_opening(false);
        world.client().write(0, 0, &[1; 512]).unwrap();
    }
}

#[test]
fn a_client_waits_no_longer_than_it_may_in_all_and_hears_why() {
    for kind in backends() {
        let world = opening(
            kind,
            Options {
                parked_within: Duration::from_millis(50),
                ..Options::default()
            },
        );
        let mut waiting = asking(&world, "disk");
        for _ in 0..3 {
            let (kind, why) = answer(&mut waiting);
            assert_eq!(kind, UNKNOWN);
            assert!(why.contains("still being opened"), "{why}");
            ask(&mut waiting, "disk");
        }
        assert_eq!(answer(&mut waiting).0, UNKNOWN);
        // The negotiation goes on all the same.
        world.set_opening(false);
        ask(&mut waiting, "disk");
        assert_eq!(answer(&mut waiting).0, ACK);
        waiting.write(0, 0, &[1; 512]).unwrap();
    }
}

#[test]
fn no_more_clients_wait_than_may_and_no_stranger_takes_their_place() {
    for kind in backends() {
        let world = opening(
            kind,
            Options {
                handshakes_max: 2,
                parked_max: 3,
                ..Options::default()
            },
        );
        let mut waiting: Vec<Client> = Vec::new();
        for number in 1..=3 {
            waiting.push(asking(&world, "disk"));
            eventually("it waits", || world.server.parked() == number);
        }
        let mut one_more = asking(&world, "disk");
        let (refused, why) = answer(&mut one_more);
        assert_eq!(refused, UNKNOWN);
        assert!(why.contains("too many clients wait"), "{why}");
        let strangers: Vec<Client> = (0..4).map(|_| Client::raw(&world.unix)).collect();
        eventually("two handshakes are left", || {
            world.server.connections() == 5
        });
        assert_eq!(world.server.parked(), 3);
        world.set_opening(false);
        for client in &mut waiting {
            assert_eq!(answer(client).0, ACK);
            client.write(0, 0, &[1; 512]).unwrap();
        }
        drop(strangers);
    }
}

#[test]
fn clients_that_wait_hear_that_their_server_stops_or_gives_its_place_to_another() {
    for kind in backends() {
        for stops in [true, false] {
            let world = opening(kind, Options::default());
            let mut waiting = asking(&world, "disk");
            eventually("it waits", || world.server.parked() == 1);
            match stops {
                true => {
                    let ended = world.server.stop(Duration::from_secs(10));
                    assert_eq!((ended.cut, ended.remaining), (0, 0));
                }
                false => {
                    let handed = world.server.try_hand_over(Duration::from_secs(10)).unwrap();
                    assert_eq!((handed.connections.len(), handed.closed), (0, 1));
                    assert_eq!(handed.report.cut, 0, "it is not waited for");
                }
            }
            let (kind, why) = answer(&mut waiting);
            assert_eq!(kind, SHUTDOWN, "{why}");
            assert!(waiting.is_closed());
        }
    }
}

#[test]
fn a_decision_that_comes_as_a_client_begins_to_wait_is_not_missed() {
    for kind in backends() {
        let world = opening(kind, Options::default());
        for _ in 0..300 {
            world.set_opening(true);
            let mut client = asking(&world, "disk");
            world.set_opening(false);
            // Late, it would wait until the end of its time, which is later than the test's.
            assert_eq!(answer(&mut client).0, ACK);
        }
    }
}
