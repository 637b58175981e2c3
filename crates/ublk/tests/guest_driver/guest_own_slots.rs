//! Zero-copy devices without user copy, on a real kernel: a request that finds its buffer slot
//! taken is registered by hand into one that is taken for it alone, and given back afterwards.
//!
//! The library asks for user copy beside zero-copy wherever the kernel has it, and such a request
//! is then copied. Here a feature mask hides user copy, so that nothing can be copied: null_02 and
//! generic_09 of the kernel's own tests, which register every buffer by hand.

use ublk::sys;

use crate::servers::client::{Load, wait_for_requests};
use crate::servers::driver;
use crate::servers::world::{
    DEADLINE, Scratch, Server, ServerOptions, Table, delete, is_requested, kernel_has, state,
    wait_for_state, wait_until,
};

/// All features of 7.2, but for user copy.
const WITHOUT_USER_COPY: &str = "0xfff7f";

fn runs_here() -> bool {
    is_requested(Table::All) && kernel_has(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, "zero-copy")
}

/// 32 tags of each queue share one slot, and one is for those that find it taken.
fn serve<'a>(program: &'a str, extra_args: &str) -> ServerOptions<'a> {
    let extra_args = format!("--slots 1 {extra_args}");
    ServerOptions {
        program,
        mode: "zero-copy",
        extra_args: extra_args.split_whitespace().map(String::from).collect(),
        variables: vec![("FIRN_UBLK_FEATURE_MASK", WITHOUT_USER_COPY)],
        ..ServerOptions::default()
    }
}

/// The server's device has no window, and its requests were put into slots of their own.
fn registers(server: &mut Server) {
    let flags = driver::info(0).unwrap().flags;
    assert_eq!(flags & sys::F_USER_COPY, 0, "{flags:#x}");
    let figures = server.figures();
    for counter in ["fallbacks", "waits"] {
        assert!(figures.sum(counter) > 0, "no {counter}: {figures:?}");
    }
    for counter in ["copied", "retries", "commits_lost", "faults"] {
        assert_eq!(figures.sum(counter), 0, "{counter}: {figures:?}");
    }
}

/// A load that verifies what it wrote, with requests down to 512 bytes.
fn verifying_load(server: &Server) -> Load<'static> {
    let mut load = Load {
        depth: 32,
        ..Load::verified(server.blocks())
    };
    load.block = "512";
    load.extra_args
        .retain(|word| !word.starts_with("--bsrange"));
    load.extra_args.push("--bsrange=512-64k");
    load
}

/// generic_09.
#[test]
fn requests_whose_slot_is_taken_are_registered_by_hand_and_data_verifies() {
    if !runs_here() {
        return;
    }
    for (queues, extra_args) in [
        (1, ""),
        (2, "--direct"),
        (1, "--stripe 4096"),
        (2, "--reactors 3 --spread"),
    ] {
        let scratch = Scratch::new();
        let legs = if extra_args.contains("stripe") { 2 } else { 1 };
        let mut server = ServerOptions {
            queues,
            files: (0..legs)
                .map(|leg| scratch.file(&format!("leg{leg}"), 16))
                .collect(),
            ..serve("file", extra_args)
        }
        .start();
        verifying_load(&server).run();
        registers(&mut server);
        server.exits_cleanly();
    }
}

/// null_02.
#[test]
fn a_null_server_registers_by_hand_too() {
    if !runs_here() {
        return;
    }
    // Answered later, or no two requests would ever be with the server.
    let mut server = serve("null", "--deferred").start();
    let extra_args = vec!["--norandommap", "--io_size=16m", "--bsrange=4k-256k"];
    let pattern = "randrw";
    Load {
        pattern,
        extra_args,
        depth: 32,
        ..Load::verified(server.blocks())
    }
    .run();
    registers(&mut server);
    server.exits_cleanly();
}

#[test]
fn a_device_with_registered_requests_is_deleted_and_its_server_killed_under_load() {
    if !runs_here() {
        return;
    }
    for kill in [false, true] {
        let scratch = Scratch::new();
        let mut server = ServerOptions {
            files: vec![scratch.file("disk", 16)],
            ..serve("file", "")
        }
        .start();
        let load = Load {
            depth: 32,
            ..Load::endless(server.blocks())
        }
        .start();
        wait_for_requests(&server.block(0), 100);
        registers(&mut server);
        if kill {
            server.kill();
            load.expect_failure();
            wait_for_state(0, sys::STATE_DEAD);
            delete([0]);
        } else {
            driver::delete_async(0);
            load.expect_failure();
            let (_, log) = server.terminate();
            assert!(!log.contains("panicked"), "{log}");
        }
        wait_until("the number is free", DEADLINE, || state(0).is_none());
    }
}

#[test]
fn a_device_with_registered_requests_is_taken_over_under_load_and_data_verifies() {
    if !runs_here() {
        return;
    }
    for kill in [false, true] {
        let scratch = Scratch::new();
        let first = ServerOptions {
            recovery: "reissue",
            files: vec![scratch.file("disk", 16)],
            ..serve("file", "--leave")
        };
        let mut next = first.clone();
        next.extra_args.push("--recover".into());
        let server = first.start();
        let load = Load {
            depth: 32,
            ..Load::paced(server.blocks())
        };
        let load = load.start();
        wait_for_requests(&server.block(0), 100);
        if kill {
            server.kill();
        } else {
            let (status, log) = server.terminate();
            assert!(status.success(), "{log}");
        }
        let mut server = next.start();
        load.expect_success();
        verifying_load(&server).run();
        registers(&mut server);
        let (status, log) = server.terminate();
        assert!(status.success(), "{log}");
        delete([0]);
    }
}
