//! Requests do what they say, on both drivers, for a client that shares no code with the server.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;

use proptest::test_runner::{RngAlgorithm, TestRng};
use reactor::DioAlign;
use serve::testing::Faults;

use crate::support::client::{Client, FLUSH, FUA, READ, TRIM, ZEROES};
use crate::support::{DEADLINE, Engine, Setup, World, backends, eventually};

/// Random commands on a region of its own, checked against plain memory.
fn random_commands(client: &mut Client, start: u64, sectors: usize, seed: u8, rounds: usize) {
    use proptest::prelude::Rng;
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut model = vec![0_u8; sectors * 512];
    for round in 0..rounds {
        let mut draw = |below: usize| rng.next_u32() as usize % below;
        let at = draw(sectors) * 512;
        let most = (sectors * 512 - at) / 512;
        let len = (1 + draw(most.min(if round % 10 == 0 { 2048 } else { 24 }))) * 512;
        let flags = if draw(4) == 0 { FUA } else { 0 };
        let (offset, range) = (start + at as u64, at..at + len);
        match draw(10) {
            0..4 => {
                let data: Vec<u8> = (0..len).map(|i| (round + i / 512) as u8 | 1).collect();
                client.write(flags, offset, &data).unwrap();
                model[range].copy_from_slice(&data);
            }
            4..8 => {
                let got = client.read(offset, len as u32).unwrap();
                assert!(got == model[range], "seed {seed} round {round}: {at} {len}");
            }
            8 => {
                let command = if draw(2) == 0 { TRIM } else { ZEROES };
                client.simple(command, flags, offset, len as u32).unwrap();
                model[range].fill(0);
            }
            _ => client.simple(FLUSH, 0, 0, 0).unwrap(),
        }
    }
    let all = client.read(start, (sectors * 512) as u32).unwrap();
    assert!(all == model, "seed {seed}: the whole region");
}

fn mixed_load(setup: Setup) {
    let world = World::new(setup);
    let engine = Engine::start(&world.disk);
    std::thread::scope(|scope| {
        for number in 0..4_u8 {
            let world = &world;
            scope.spawn(move || {
                let mut client = if number % 2 == 0 {
                    world.client()
                } else {
                    Client::tcp(world.tcp, "disk")
                };
                let region = 4 << 20;
                let start = u64::from(number) * region;
                random_commands(&mut client, start, 4096, number, 150);
            });
        }
    });
    drop(engine);
    world.assert_nothing_left();
}

fn align(memory: u32, offset: u32) -> DioAlign {
    DioAlign { memory, offset }
}

#[test]
fn every_command_does_what_it_says_over_several_connections() {
    for kind in backends() {
        mixed_load(Setup::new(kind));
    }
}

#[test]
fn parks_syncs_failed_moves_and_small_pieces_change_nothing_that_clients_see() {
    let faults = Faults {
        park_space: 7,
        park_fetch: 5,
        fail_move: 6,
        slow_sync: true,
        piece_sectors: 5,
        ..Faults::NONE
    };
    for kind in backends() {
        mixed_load(Setup::new(kind).with_faults(faults));
    }
}

#[test]
fn direct_alignment_is_respected_for_pieces_of_any_sector_length() {
    // This file would take anything; the next test checks the same on one that does not.
    for (align, piece_sectors) in [
        (align(512, 4096), 3),
        (align(4096, 4096), 5),
        (align(4, 512), 1),
    ] {
        for kind in backends() {
            let faults = Faults {
                piece_sectors,
                ..Faults::NONE
            };
            mixed_load(Setup {
                align,
                faults,
                ..Setup::new(kind)
            });
        }
    }
}

#[test]
fn a_disk_file_opened_for_direct_io_serves_single_sectors() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for kind in backends() {
        let path = dir.path().join(format!("{kind:?}"));
        std::fs::File::create(&path)
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let mut options = std::fs::File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let Ok(file) = options.open(&path) else {
            return println!("skipped: no direct I/O on this file system");
        };
        let Some(align) = DioAlign::of(&file).unwrap() else {
            return println!("skipped: this file system does not tell its direct I/O alignment");
        };
        let faults = Faults {
            piece_sectors: 9,
            ..Faults::NONE
        };
        mixed_load(Setup {
            align,
            faults,
            file: Some(file.into()),
            ..Setup::new(kind)
        });
    }
}

#[test]
fn a_small_pool_parks_requests_in_order_and_all_complete() {
    for kind in backends() {
        // Less than the four connections want at a time. The reserve makes it 128 MiB at most,
        // so large requests are what fills it.
        let align = align(4096, 4096);
        let world = World::new(Setup {
            bytes: 256 << 20,
            align,
            ..Setup::new(kind)
        });
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let world = &world;
                scope.spawn(move || {
                    let mut client = world.client();
                    let data = vec![number as u8 + 1; 32 << 20];
                    client.write(0, number * (32 << 20), &data).unwrap();
                    assert!(client.read(number * (32 << 20), 32 << 20).unwrap() == data);
                    // Misaligned by one sector: through bounce buffers as large as requests.
                    let back = client
                        .read(number * (32 << 20) + 512, (32 << 20) - 1024)
                        .unwrap();
                    assert!(back[..] == data[1024..]);
                });
            }
        });
        world.assert_nothing_left();
    }
}

#[test]
fn a_write_larger_than_the_pool_is_served_when_its_turn_comes() {
    for kind in backends() {
        let world = World::new(Setup {
            reactors: 1,
            pool_bytes: 64 << 10,
            reserve_bytes: 1 << 20,
            ..Setup::new(kind)
        });
        std::thread::scope(|scope| {
            for number in 0..3_u64 {
                let world = &world;
                scope.spawn(move || {
                    let mut client = world.client();
                    let (at, data) = (number * (4 << 20), vec![number as u8 + 1; 4 << 20]);
                    for _ in 0..3 {
                        client.write(0, at, &data).unwrap();
                    }
                    assert!(client.read(at, 4 << 20).unwrap() == data);
                });
            }
        });
        world.assert_nothing_left();
    }
}

#[test]
fn a_flush_completes_only_when_the_backend_says_it_is_durable() {
    for kind in backends() {
        let world = World::new(Setup::new(kind).with_faults(Faults::SLOW_SYNC));
        let mut client = world.client();
        client.start(FLUSH, 0, 1, 0, 0);
        client.start_write(FUA, 2, 0, &[1; 512]);
        client.start_write(0, 3, 512, &[2; 512]);
        // The write without FUA overtakes both; nothing else is answered before its time.
        assert_eq!(client.reply(), (3, 0));
        eventually("the engine is asked for durability", || {
            world.disk.make_durable() == 2
        });
        let mut cookies = [client.reply(), client.reply()];
        cookies.sort_unstable();
        assert_eq!(cookies, [(1, 0), (2, 0)]);
        world.assert_nothing_left();
    }
}

#[test]
fn a_request_parked_for_a_fetch_is_overtaken_and_completes_when_woken() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        client.write(0, 0, &[9; 4096]).unwrap();
        world.disk.set_faults(Faults::EVERY_FETCH_PARKS);
        client.start(READ, 0, 1, 0, 4096);
        eventually("the read parks", || world.disk.begin_count() == 2);
        world.disk.set_faults(Faults::NONE);
        client.start(READ, 0, 2, 4096, 512);
        assert_eq!(client.reply(), (2, 0));
        assert_eq!(client.bytes(512).unwrap(), [0; 512]);
        eventually("somebody is parked", || world.disk.wake_all() == 1);
        assert_eq!(client.reply(), (1, 0));
        assert_eq!(client.bytes(4096).unwrap(), [9; 4096]);
        world.assert_nothing_left();
    }
}

#[test]
fn a_read_only_export_says_so_and_refuses_writes() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        world.disk.read_only.store(true, Ordering::SeqCst);
        let mut client = world.client();
        assert_eq!(client.flags & 2, 2);
        assert_eq!(client.write(0, 0, &[1; 512]), Err(1));
        assert_eq!(client.simple(ZEROES, 0, 0, 512), Err(1));
        assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    }
}

#[test]
fn a_quiesced_device_holds_new_requests_until_it_is_released() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        client.write(0, 0, &[1; 512]).unwrap();
        let quiesced = world.export.device.quiesce();
        quiesced.wait(DEADLINE).unwrap();
        client.start_write(0, 1, 0, &[2; 512]);
        eventually("the write waits at the gate", || {
            world
                .export
                .device
                .load()
                .iter()
                .map(|load| load.parked)
                .sum::<usize>()
                == 1
        });
        assert_eq!(world.disk.begin_count(), 1);
        drop(quiesced);
        assert_eq!(client.reply(), (1, 0));
        assert_eq!(client.read(0, 512).unwrap(), [2; 512]);
    }
}

#[test]
fn a_cancelled_device_answers_with_its_error() {
    for kind in backends() {
        let world = World::new(Setup::new(kind));
        let mut client = world.client();
        world.disk.set_faults(Faults::EVERY_FETCH_PARKS);
        client.start_write(0, 1, 0, &[2; 512]);
        eventually("the write parks", || world.disk.begin_count() == 1);
        world.export.device.cancel(blkmq::error::ErrorKind::Closed);
        assert_eq!(client.reply(), (1, 108));
        assert_eq!(client.write(0, 0, &[1; 512]), Err(108));
        world.assert_nothing_left();
    }
}
