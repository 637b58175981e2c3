//! A whole host: clients on threads of their own, the group commit on one, the jobs on another.

use std::sync::Arc;

use blkmq::io::Op;
use shuttle::thread;

use super::check;
use super::machine::{LARGE_LOG, SMALL_LOG, Server, request};

const BLOCK_SECTORS: u32 = 8;

fn write(block: u64) -> Op {
    Op::Write {
        sector: block * u64::from(BLOCK_SECTORS),
        sectors: BLOCK_SECTORS,
        fua: false,
    }
}

fn read(block: u64) -> Op {
    Op::Read {
        sector: block * u64::from(BLOCK_SECTORS),
        sectors: BLOCK_SECTORS,
    }
}

/// S2: two clients write and flush, each for itself.
#[test]
pub(super) fn what_was_flushed_is_durable_and_every_flush_ends() {
    check(1500, || {
        // Nobody waits for space: no time passes that would heal a lost wake.
        let server = Server::start(LARGE_LOG);
        let clients = [0, 1].map(|client| {
            let (volume, machine) = (server.volume.clone(), Arc::clone(&server.machine));
            thread::spawn(move || {
                for fill in 1..=4 {
                    let moves = request(&machine, &volume, write(client), fill).unwrap();
                    let newest = volume.newest();
                    request(&machine, &volume, Op::Flush, 0).unwrap();
                    let framed = volume.tail.framed_lsn();
                    assert!(framed >= newest, "its entry is in no frame");
                    let synced = moves.written.iter().all(|at| machine.is_synced(*at));
                    assert!(synced, "its bytes were not synced");
                }
            })
        });
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        assert_eq!(server.stop().invariants(), Ok(()));
    });
}

/// S1: a log with as many blocks as the clients write in all, so that segments are reclaimed under them.
#[test]
pub(super) fn a_write_that_waits_for_space_gets_it_and_reads_see_whole_writes() {
    check(300, || {
        let server = Server::start(SMALL_LOG);
        let clients = [0, 1].map(|client| {
            let (volume, machine) = (server.volume.clone(), Arc::clone(&server.machine));
            thread::spawn(move || {
                for fill in 1..=8 {
                    request(&machine, &volume, write(client), fill).unwrap();
                    let seen = request(&machine, &volume, read(client), 0).unwrap().read;
                    assert!(
                        seen.iter().all(|byte| *byte == fill),
                        "a read after the write"
                    );
                }
            })
        });
        // What another client writes is seen as it was before or as it is after, and never goes back.
        let mut newest = 0;
        for _ in 0..8 {
            let seen = request(&server.machine, &server.volume, read(0), 0).unwrap();
            let first = seen.read[0];
            assert!(seen.read.iter().all(|byte| *byte == first) && first >= newest);
            newest = first;
        }
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        assert_eq!(server.stop().invariants(), Ok(()));
    });
}
