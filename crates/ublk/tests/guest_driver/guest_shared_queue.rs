//! Queues whose tags several threads share, on a real kernel (generic_12 of the kernel's own tests).
//!
//! From 6.16 a tag belongs to the thread that fetched it, so one busy queue need not mean one busy
//! thread. What is tested is that every thread gets its part, that data is right in every mode, and
//! that such a device is taken over, too.

use ublk::sys;

use crate::servers::client::{Load, completed};
use crate::servers::driver;
use crate::servers::figures::Figures;
use crate::servers::world::{
    DEADLINE, Scratch, ServerOptions, Table, delete, is_requested, modes, wait_until,
};

/// Threads, more than the queues that a guest's processors allow.
const THREADS: u16 = 6;

fn shared() -> Vec<String> {
    vec!["--reactors".into(), THREADS.to_string(), "--spread".into()]
}

/// generic_12.
#[test]
fn every_thread_serves_a_queue_that_one_processor_keeps_busy() {
    if !is_requested(Table::All) {
        return;
    }
    let serve = ServerOptions {
        queues: 4,
        depth: 16,
        extra_args: shared(),
        ..ServerOptions::default()
    };
    if driver::features() & sys::F_PER_IO_TASK == 0 {
        let mut refused = serve.spawn();
        assert!(!refused.wait_for_exit().success());
        assert!(refused.log().contains("6.16"), "{}", refused.log());
        assert_eq!(driver::devices(), [0; 0], "left behind");
        return;
    }
    for mode in modes() {
        let server = ServerOptions {
            mode,
            ..serve.clone()
        }
        .start();
        Load {
            pattern: "read",
            mib: 8,
            extra_args: vec!["--cpus_allowed=0"],
            ..Load::verified(server.blocks())
        }
        .run();
        let log = server.exits_cleanly();
        let requests = Figures::read(&log).by_share("requests");
        for thread in 0..THREADS {
            let of_thread = requests.iter().filter(|(share, _)| *share == thread);
            let sum: u64 = of_thread.map(|(_, count)| count).sum();
            assert!(sum > 0, "{mode}: thread {thread} had nothing to do:\n{log}");
        }
    }
}

#[test]
fn a_shared_queue_is_taken_over_under_load_in_every_mode() {
    if !is_requested(Table::All) {
        return;
    }
    if driver::features() & sys::F_PER_IO_TASK == 0 {
        println!("skipped: this kernel lacks tags of several threads");
        return;
    }
    for mode in modes() {
        let scratch = Scratch::new();
        let serve = ServerOptions {
            program: "file",
            mode,
            queues: 4,
            depth: 16,
            recovery: "reissue",
            extra_args: shared(),
            files: vec![scratch.file("disk", 32)],
            ..ServerOptions::default()
        };
        let first = serve.start();
        let load = Load::paced(first.blocks()).start();
        let block = first.block(0);
        let before = completed(&block);
        wait_until("the load is under way", DEADLINE, || {
            completed(&block) > before + 50
        });
        first.kill();
        let extra_args = [shared(), vec!["--recover".into()]].concat();
        let next = ServerOptions {
            extra_args,
            ..serve
        }
        .start();
        assert_eq!(next.mode(0), mode, "{}", next.log());
        load.expect_success();
        let (status, log) = next.terminate();
        assert!(status.success(), "{log}");
        delete([0]);
    }
}
