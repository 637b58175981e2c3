//! The engine from many threads at once: writers, readers, flushers and the driver, on a real
//! schedule. What must come out does not depend on the schedule.

#![allow(
    clippy::disallowed_methods,
    reason = "the test is the driver: its threads call the engine, and it has a deadline"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkmq::io::{Backend, Op, Place, Plan, Step};
use volume::Volume;

use crate::support::{World, waker};

const BLOCKS: u64 = 512;
const WRITERS: u64 = 4;

/// Runs a request; moves bytes through the world's files under its lock.
fn run(world: &Mutex<World>, volume: &Volume, op: Op, data: &mut [u8]) {
    let waker = waker();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut step = volume.begin(&op, &waker);
    loop {
        assert!(Instant::now() < deadline, "{op:?} hangs: {step:?}");
        step = match step {
            Step::Done(result) => return result.expect("no faults here"),
            Step::Read(plan) => {
                for piece in plan.pieces() {
                    let part = &mut data[piece.at as usize..(piece.at + piece.len) as usize];
                    match piece.place {
                        Place::Hole => part.fill(0),
                        Place::At { file, offset } => {
                            let world = world.lock().expect("no panics");
                            let bytes = &world.env.files[&file];
                            part.copy_from_slice(&bytes[offset as usize..][..part.len()]);
                        }
                    }
                }
                volume.read(plan, Ok(()), &waker)
            }
            Step::Write(plan) => {
                for piece in plan.pieces() {
                    let part = &data[piece.at as usize..(piece.at + piece.len) as usize];
                    let Place::At { file, offset } = piece.place else {
                        panic!("a hole")
                    };
                    world.lock().expect("no panics").put(file, offset, part);
                }
                volume.written(plan, Ok(()), &waker)
            }
            Step::Park(_) => {
                std::thread::yield_now();
                volume.begin(&op, &waker)
            }
            Step::Status(_) => unreachable!("nobody asked for it"),
            Step::Sync(wait) => {
                std::thread::yield_now();
                volume.poll_sync(wait, &waker)
            }
        };
    }
}

/// One writer: its own blocks, a rising generation in each; reads back what it wrote last.
fn writer(world: &Mutex<World>, volume: &Volume, writer: u64, rounds: u64) {
    for round in 1..=rounds {
        for block in (writer..BLOCKS).step_by(WRITERS as usize) {
            let stamp = round * BLOCKS + block;
            let mut data: Vec<u8> = stamp.to_le_bytes().repeat(512);
            let fua = (round + block).is_multiple_of(31);
            run(
                world,
                volume,
                Op::Write {
                    sector: block * 8,
                    sectors: 8,
                    fua,
                },
                &mut data,
            );
            if block.is_multiple_of(13) {
                let mut back = vec![0; 4096];
                run(
                    world,
                    volume,
                    Op::Read {
                        sector: block * 8,
                        sectors: 8,
                    },
                    &mut back,
                );
                assert_eq!(back, data, "block {block} in round {round}");
            }
        }
        run(world, volume, Op::Flush, &mut []);
    }
}

#[test]
fn every_block_reads_as_its_last_write_from_any_thread() {
    let mut world = World::new();
    world.create("demo", BLOCKS * 4096);
    let volume = world.open("demo");
    let world = Arc::new(Mutex::new(world));
    let rounds = 12;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                // Time flies: uploads, reclaiming and frames go on all the while.
                world.lock().expect("no panics").pass(10);
                std::thread::yield_now();
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (world, volume) = (&world, &volume);
                scope.spawn(move || writer(world, volume, n, rounds))
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    let mut world = Arc::into_inner(world)
        .expect("the threads have ended")
        .into_inner()
        .expect("no panics");
    let check = |world: &mut World, volume: &Volume| {
        for block in 0..BLOCKS {
            let stamp = rounds * BLOCKS + block;
            assert_eq!(
                world.read(volume, block * 8, 4096),
                stamp.to_le_bytes().repeat(512)
            );
        }
    };
    check(&mut world, &volume);
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    check(&mut world, &volume);
}
