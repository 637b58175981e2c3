//! Structured replies, extended headers and metadata contexts, on both drivers.

use proptest::test_runner::{RngAlgorithm, TestRng};
use reactor::BackendKind;
use serve::testing::Faults;

use crate::support::chunks::{CACHE, ChunkClient, DF, REQ_ONE, STATUS};
use crate::support::client::{FLUSH, FUA, TRIM, ZEROES};
use crate::support::{Engine, Setup, World, backends};

/// A world and a client of it, for each driver and both forms of chunks.
fn each(mut check: impl FnMut(&World, ChunkClient)) {
    for kind in backends() {
        for is_extended in [false, true] {
            let world = World::new(Setup::new(kind));
            check(&world, ChunkClient::new(&world.unix, "disk", is_extended));
            world.assert_nothing_left();
        }
    }
}

#[test]
fn a_structured_read_tells_holes_as_holes_and_covers_the_rest_once() {
    each(|_, mut client| {
        client.write(0, 65536, &[0x5a; 8192]).unwrap();
        client.write(0, 81920, &[0x6b; 512]).unwrap();
        let (data, chunks) = client.read(0, 61440, 24576).unwrap();
        // 61440: hole of 4 KiB, 8 KiB of data, hole of 8 KiB, 512 bytes, hole of 3.5 KiB.
        let told = [(4096, true), (8192, false), (8192, true), (4096, false)];
        assert_eq!(chunks, told, "the last hole is too small to be told");
        assert!(data[4096..12288].iter().all(|byte| *byte == 0x5a));
        assert!(data[20480..20992].iter().all(|byte| *byte == 0x6b));
        assert!(data[20992..].iter().all(|byte| *byte == 0));
        let (_, chunks) = client.read(0, 1 << 20, 1 << 20).unwrap();
        assert_eq!(chunks, [(1 << 20, true)]);
    });
}

#[test]
fn a_read_with_df_comes_in_one_chunk() {
    each(|_, mut client| {
        client.write(0, 65536, &[0x5a; 4096]).unwrap();
        let (data, chunks) = client.read(DF, 0, 1 << 20).unwrap();
        assert_eq!(chunks, [(1 << 20, false)]);
        assert_eq!(data.iter().filter(|byte| **byte == 0x5a).count(), 4096);
    });
}

#[test]
fn block_status_tells_holes_and_dirty_ranges_per_context() {
    each(|_, mut client| {
        client.write(0, 8192, &[1; 8192]).unwrap();
        let status = client.status(0, 0, 32768).unwrap();
        let allocation = vec![(8192, 3), (8192, 0), (16384, 3)];
        let dirty = vec![(8192, 0), (8192, 1), (16384, 0)];
        assert_eq!(status, [allocation, dirty]);
        let one = client.status(REQ_ONE, 8192, 24576).unwrap();
        assert_eq!(one, [vec![(8192, 0)], vec![(8192, 1)]]);
        client.simple(TRIM, 0, 8192, 8192).unwrap();
        let status = client.status(0, 0, 32768).unwrap();
        assert_eq!(status, [vec![(32768, 3)], vec![(32768, 0)]]);
        assert_eq!(client.status(0, 0, 0), Err(22));
        assert_eq!(client.status(0, 1 << 40, 512), Err(22));
    });
}

#[test]
fn refusals_carry_a_message_and_the_session_goes_on() {
    each(|_, mut client| {
        assert_eq!(client.simple(99, 0, 0, 0), Err(22));
        assert_eq!(client.simple(FLUSH, 0, 0, 512), Err(22));
        assert_eq!(client.read(0, 1 << 40, 512), Err(22));
        assert_eq!(client.write(0, 1 << 40, &[0; 512]), Err(28));
        assert_eq!(client.simple(STATUS, 0, 1, 512), Err(22));
        client.simple(CACHE, 0, 0, 1 << 20).unwrap();
        client.simple(ZEROES, 2 | 16, 0, 1 << 20).unwrap();
        client.simple(FLUSH, 0, 0, 0).unwrap();
    });
}

#[test]
fn extended_headers_trim_and_describe_more_than_4_gib_at_once() {
    let world = World::new(Setup {
        bytes: 5 << 30,
        ..Setup::new(BackendKind::Epoll)
    });
    let mut client = ChunkClient::new(&world.unix, "disk", true);
    client.write(0, 5 << 29, &[1; 4096]).unwrap();
    let status = client.status(0, 0, 5 << 30).unwrap();
    let far = 5 << 29;
    assert_eq!(status[0], [(far, 3), (4096, 0), (far - 4096, 3)]);
    client.simple(TRIM, 0, 0, 5 << 30).unwrap();
    assert_eq!(client.status(0, 0, 5 << 30).unwrap()[0], [(5 << 30, 3)]);
}

/// Random commands, checked against plain memory.
fn random_commands(client: &mut ChunkClient, seed: u8) {
    use proptest::prelude::Rng;
    const SECTORS: usize = 4096;
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut model = vec![0_u8; SECTORS * 512];
    for round in 0..150 {
        let mut draw = |below: usize| rng.next_u32() as usize % below;
        let at = draw(SECTORS) * 512;
        let most = (SECTORS * 512 - at) / 512;
        let len = (1 + draw(most.min(if round % 10 == 0 { 2048 } else { 48 }))) * 512;
        let flags = if draw(4) == 0 { FUA } else { 0 };
        let range = at..at + len;
        match draw(10) {
            0..4 => {
                let data: Vec<u8> = (0..len).map(|i| (round + i / 512) as u8 | 1).collect();
                client.write(flags, at as u64, &data).unwrap();
                model[range].copy_from_slice(&data);
            }
            4..8 => {
                let flags = if draw(4) == 0 { DF } else { 0 };
                let (got, _) = client.read(flags, at as u64, len).unwrap();
                assert!(got == model[range], "seed {seed} round {round}: {at} {len}");
            }
            8 => {
                let command = if draw(2) == 0 { TRIM } else { ZEROES };
                client
                    .simple(command, flags, at as u64, len as u64)
                    .unwrap();
                model[range].fill(0);
            }
            _ => client.simple(FLUSH, 0, 0, 0).unwrap(),
        }
    }
    let mut at = 0;
    for (length, state) in client
        .status(0, 0, (SECTORS * 512) as u64)
        .unwrap()
        .remove(0)
    {
        let part = &model[at..at + length as usize];
        assert!(
            state == 0 || part.iter().all(|byte| *byte == 0),
            "no hole at {at}"
        );
        at += length as usize;
    }
}

#[test]
fn structured_and_extended_sessions_see_the_same_disk_whatever_the_engine_does() {
    let hard = Faults {
        park_space: 7,
        park_fetch: 5,
        fail_move: 6,
        slow_sync: true,
        piece_sectors: 5,
        ..Faults::NONE
    };
    for kind in backends() {
        for faults in [Faults::NONE, hard] {
            let world = World::new(Setup::new(kind).with_faults(faults));
            let engine = Engine::start(&world.disk);
            for is_extended in [false, true] {
                let mut client = ChunkClient::new(&world.unix, "disk", is_extended);
                client.simple(TRIM, 0, 0, 4096 * 512).unwrap();
                random_commands(&mut client, u8::from(is_extended));
            }
            drop(engine);
            world.assert_nothing_left();
        }
    }
}
