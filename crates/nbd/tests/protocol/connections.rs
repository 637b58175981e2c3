//! Connections begin, share what the server has and end, on both drivers, with a client that shares no
//! code with the server.

use std::time::Duration;

use nbd::server::Options;
use serve::testing::Faults;

use crate::support::client::{Client, DISC, FUA, READ, WRITE};
use crate::support::{Setup, World, backends, eventually};

#[test]
fn a_disconnect_in_the_middle_of_anything_leaves_no_tag_no_pin_and_no_buffer() {
    for kind in backends() {
        let faults = Faults {
            park_space: 3,
            park_fetch: 4,
            slow_sync: true,
            ..Faults::NONE
        };
        let world = World::new(Setup::new(kind).with_faults(faults));
        let mut witness = world.client();
        for round in 0..40_u64 {
            let mut client = world.client();
            for cookie in 0..20 {
                client.start_write(FUA, cookie, cookie * 65536, &vec![round as u8; 32768]);
                client.start(READ, 0, 100 + cookie, cookie * 65536, 32768);
            }
            // Half of a header, or half of a payload.
            let mut cut = Client::header(WRITE, 0, 99, 0, 1 << 20);
            if round % 2 == 0 {
                cut.truncate(13);
            } else {
                cut.extend(vec![1; 100_000]);
            }
            client.send(&cut).unwrap();
            drop(client);
        }
        eventually("only the witness is connected", || {
            world.server.connections() == 1
        });
        world.disk.set_faults(Faults::NONE);
        world.disk.wake_all();
        world.disk.make_durable();
        witness.write(0, 0, &[5; 512]).unwrap();
        assert_eq!(witness.read(0, 512).unwrap(), [5; 512]);
        world.assert_nothing_left();
    }
}

#[test]
fn a_protocol_error_closes_that_connection_with_the_right_reply_and_disturbs_no_other() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut other = world.client();

        let mut bad_magic = world.client();
        bad_magic.start_write(0, 1, 0, &[3; 512]);
        let mut header = Client::header(READ, 0, 2, 0, 512);
        header[0] ^= 1;
        bad_magic.send(&header).unwrap();
        assert_eq!(bad_magic.reply(), (1, 0), "what came before is answered");
        assert!(bad_magic.is_closed());

        let mut oversized = world.client();
        oversized.start(WRITE, 0, 7, 0, (32 << 20) + 512);
        assert_eq!(oversized.reply(), (7, 22));
        assert!(oversized.is_closed());

        let mut refused = world.client();
        assert_eq!(refused.simple(77, 0, 0, 0), Err(22), "an unknown command");
        assert_eq!(
            refused.simple(READ, 1 << 9, 0, 512),
            Err(22),
            "an unknown flag"
        );
        assert_eq!(
            refused.simple(READ, 0, 16 << 20, 512),
            Err(22),
            "beyond the end"
        );
        assert_eq!(
            refused.write(0, 16 << 20, &[1; 512]),
            Err(28),
            "beyond the end"
        );
        assert_eq!(refused.write(0, 1, &[1; 512]), Err(22), "unaligned");
        assert_eq!(
            refused.read(0, 512).unwrap(),
            [3; 512],
            "the session goes on"
        );

        let mut stranger = Client::raw(&world.unix);
        stranger.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(stranger.is_closed());

        assert_eq!(other.read(0, 512).unwrap(), [3; 512]);
        world.assert_nothing_left();
    }
}

#[test]
fn many_connections_share_few_threads_and_leave_nothing_behind() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        world.client().write(0, 0, &[1; 512]).unwrap();
        let before = threads();
        // Both ends of each are descriptors of this process; the usual limit is 1,024.
        let mut clients: Vec<Client> = (0..150).map(|_| world.client()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.start_write(0, 1, number as u64 * 4096, &[number as u8; 4096]);
        }
        for client in &mut clients {
            assert_eq!(client.reply(), (1, 0));
        }
        let mut other = world.client();
        for number in 0..150 {
            let got = other.read(number * 4096, 4096).unwrap();
            assert_eq!(got, [number as u8; 4096]);
        }
        assert_eq!(world.server.connections_to("disk"), 151);
        // Other tests of this process start and end threads of their own meanwhile.
        assert!(threads() < before + 100, "a thread per connection");
        drop(clients);
        eventually("one connection is left", || world.server.connections() == 1);
        world.assert_nothing_left();
    }
}

#[test]
fn a_client_has_no_more_outstanding_than_it_may() {
    for kind in backends() {
        let options = Options {
            requests_max: 8,
            ..Options::default()
        };
        let faults = Faults::EVERY_FETCH_PARKS;
        let world = World::new(Setup {
            options,
            faults,
            ..Setup::new(kind)
        });
        let mut client = world.client();
        let mut other = world.client();
        (0..100).for_each(|cookie| client.start_write(0, cookie, cookie * 512, &[1; 512]));
        eventually("eight requests are begun", || world.disk.begin_count() == 8);
        world.disk.set_faults(Faults::NONE);
        // While the first client is held, another is served.
        other.write(0, 1 << 20, &[2; 512]).unwrap();
        assert_eq!(world.disk.begin_count(), 9);
        eventually("all eight are parked", || world.disk.wake_all() == 8);
        let mut seen: Vec<u64> = (0..100).map(|_| client.reply().0).collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..100));
        world.assert_nothing_left();
    }
}

#[test]
fn a_client_that_reads_no_replies_holds_up_only_itself() {
    for kind in backends() {
        let options = Options {
            bytes_max: 4 << 20,
            ..Options::default()
        };
        let world = World::new(Setup {
            options,
            reactors: 1,
            ..Setup::new(kind)
        });
        let mut stuck = world.client();
        (0..200).for_each(|cookie| stuck.start(READ, 0, cookie, 0, 1 << 20));
        let mut other = world.client();
        for round in 0..50 {
            other.write(0, round * 4096, &[round as u8; 4096]).unwrap();
        }
        let lent: usize = world.pools().iter().map(|pool| pool.lent).sum();
        assert!(
            lent <= 6 << 20,
            "{lent} bytes are lent to a client that reads nothing"
        );
        drop(stuck);
        world.assert_nothing_left();
    }
}

#[test]
fn clients_that_stall_lose_their_buffers_to_those_that_wait_for_them() {
    for kind in backends() {
        let options = Options {
            stalled_within: Duration::from_millis(100),
            tick: Duration::from_millis(20),
            ..Options::default()
        };
        let world = World::new(Setup {
            options,
            reactors: 1,
            bytes: 64 << 20,
            ..Setup::new(kind)
        });
        // Half of the pool, 64 MiB, may be held by payloads under way, and as much again by clients
        // that had none: four take it.
        let mut stalled: Vec<_> = (0..4).map(|_| world.client()).collect();
        for client in &mut stalled {
            client.start(WRITE, 0, 1, 0, 32 << 20);
        }
        eventually("all four payloads have a buffer", || {
            let pools = world.pools();
            let lent = pools.iter().map(|pool| pool.lent + pool.beyond);
            lent.sum::<usize>() == 128 << 20
        });
        let mut reader = world.client();
        assert_eq!(
            reader.read(0, 4096).unwrap(),
            [0; 4096],
            "reads need no such buffer"
        );
        assert_eq!(
            world.server.connections(),
            5,
            "nobody waited, so nobody was cut"
        );
        let mut writer = world.client();
        writer.write(0, 0, &[7; 4096]).unwrap();
        eventually("one of the four is cut", || world.server.connections() <= 5);
        assert_eq!(reader.read(0, 4096).unwrap(), [7; 4096]);
        drop(stalled);
        world.assert_nothing_left();
    }
}

#[test]
fn writes_that_are_parked_stop_no_other_clients_writes() {
    for kind in backends() {
        let world = World::new(Setup {
            faults: Faults::EVERY_FETCH_PARKS,
            reactors: 1,
            bytes: 64 << 20,
            ..Setup::new(kind)
        });
        // Half of the pool, which is all that may be held.
        let mut parked: Vec<_> = (0..2).map(|_| world.client()).collect();
        for client in &mut parked {
            client.start_write(0, 1, 0, &vec![3; 32 << 20]);
        }
        eventually("both are parked", || world.disk.begin_count() == 2);
        world.disk.set_faults(Faults::NONE);
        let mut other = world.client();
        for round in 0..10 {
            other.write(0, round * 4096, &[7; 4096]).unwrap();
            assert_eq!(other.read(round * 4096, 4096).unwrap(), [7; 4096]);
        }
        assert_eq!(world.disk.begin_count(), 22, "nobody woke the two");
        eventually("both go on", || world.disk.wake_all() == 2);
        assert!(parked.iter_mut().all(|client| client.reply() == (1, 0)));
        world.assert_nothing_left();
    }
}

#[test]
fn disc_finishes_what_is_outstanding_and_closes() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        client.start_write(0, 1, 0, &[8; 4096]);
        client.start(DISC, 0, 2, 0, 0);
        assert_eq!(client.reply(), (1, 0));
        assert!(client.is_closed());
        assert_eq!(world.client().read(0, 4096).unwrap(), [8; 4096]);
    }
}

#[test]
fn a_handshake_that_does_not_end_is_cut() {
    for kind in backends() {
        let options = Options {
            handshake_within: Duration::from_millis(50),
            ..Options::default()
        };
        let world = World::new(Setup::new(kind).with_options(options));
        let mut served = world.client();
        let mut silent = Client::raw(&world.unix);
        assert!(silent.is_closed());
        served.write(0, 0, &[1; 512]).unwrap();
        eventually("one connection is left", || world.server.connections() == 1);
    }
}

#[test]
fn a_handshake_gives_way_to_a_newer_one_where_there_are_too_many_and_a_client_never() {
    for kind in backends() {
        let options = Options {
            handshakes_max: 4,
            ..Options::default()
        };
        let world = World::new(Setup::new(kind).with_options(options));
        let mut first = world.client();
        let mut strangers: Vec<_> = (0..4).map(|_| Client::raw(&world.unix)).collect();
        let mut second = world.client();
        assert!(strangers[0].is_closed());
        for client in [&mut first, &mut second] {
            client.write(0, 0, &[1; 512]).unwrap();
        }
        eventually("three strangers are left", || {
            world.server.connections() == 5
        });
    }
}

#[test]
fn stopping_answers_what_is_outstanding_then_cuts_what_is_parked() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        client.write(0, 0, &[1; 512]).unwrap();
        world.disk.set_faults(Faults::NO_SPACE);
        client.start_write(0, 1, 0, &[2; 512]);
        eventually("the write parks", || world.disk.begin_count() == 2);
        let ended = world.server.stop(Duration::from_millis(50));
        assert_eq!((ended.cut, ended.remaining), (1, 0));
        assert!(client.is_closed());
        assert!(!world.unix.exists(), "the socket stays behind");
        world.assert_nothing_left();
    }
}

#[test]
fn detaching_an_export_cancels_what_is_parked_and_ends_its_connections() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut idle = world.client();
        let mut client = world.client();
        client.write(0, 0, &[1; 512]).unwrap();
        world.disk.set_faults(Faults::EVERY_FETCH_PARKS);
        client.start_write(0, 1, 0, &[2; 512]);
        eventually("the write parks", || world.disk.begin_count() == 2);
        let ended = world
            .server
            .detach(&world.export, Duration::from_millis(50));
        assert_eq!((ended.cut, ended.remaining), (1, 0));
        assert!(idle.is_closed());
        assert_eq!(world.server.connections_to("disk"), 0);
        world.assert_nothing_left();
    }
}
