//! Zero-copy devices without user copy, on a real kernel: a request that finds its buffer slot
//! taken is registered by hand into one that is taken for it alone, and given back afterwards.
//!
//! The library asks for user copy beside zero-copy wherever the kernel has it, and such a request
//! is then copied. Here a feature mask hides user copy, so that nothing can be copied: null_02 and
//! generic_09 of the kernel's own tests, which register every buffer by hand.
#![allow(clippy::unwrap_used, unsafe_code)]

mod servers;

use servers::client::{Load, completed};
use servers::driver;
use servers::world::{
    DEADLINE, Scratch, Serve, Server, Table, delete, kernel_has, state, until, until_state, wanted,
};
use ublk::sys;

/// All features of 7.2, but for user copy.
const WITHOUT_USER_COPY: &str = "0xfff7f";

fn runs_here() -> bool {
    wanted(Table::All) && kernel_has(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER, "zero-copy")
}

/// 32 tags of each queue share one slot, and one is for those that find it taken.
fn serve<'a>(program: &'a str, more: &str) -> Serve<'a> {
    let more = format!("--slots 1 {more}");
    Serve {
        program,
        mode: "zero-copy",
        more: more.split_whitespace().map(String::from).collect(),
        variables: vec![("FIRN_UBLK_FEATURE_MASK", WITHOUT_USER_COPY)],
        ..Serve::default()
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
fn verified(server: &Server) -> Load<'static> {
    let mut load = Load {
        depth: 32,
        ..Load::verified(server.blocks())
    };
    load.block = "512";
    load.more.retain(|word| !word.starts_with("--bsrange"));
    load.more.push("--bsrange=512-64k");
    load
}

/// generic_09.
#[test]
fn requests_whose_slot_is_taken_are_registered_by_hand_and_data_verifies() {
    if !runs_here() {
        return;
    }
    for (queues, more) in [
        (1, ""),
        (2, "--direct"),
        (1, "--stripe 4096"),
        (2, "--reactors 3 --spread"),
    ] {
        let scratch = Scratch::new();
        let legs = if more.contains("stripe") { 2 } else { 1 };
        let mut server = Serve {
            queues,
            files: (0..legs)
                .map(|leg| scratch.file(&format!("leg{leg}"), 16))
                .collect(),
            ..serve("file", more)
        }
        .start();
        verified(&server).run();
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
    let more = vec!["--norandommap", "--io_size=16m", "--bsrange=4k-256k"];
    let pattern = "randrw";
    Load {
        pattern,
        more,
        depth: 32,
        ..Load::verified(server.blocks())
    }
    .run();
    registers(&mut server);
    server.exits_cleanly();
}

/// Waits until a load is under way.
fn busy(server: &Server) {
    let before = completed(&server.block(0));
    until("the load is under way", DEADLINE, || {
        completed(&server.block(0)) > before + 100
    });
}

#[test]
fn a_device_with_registered_requests_is_deleted_and_its_server_killed_under_load() {
    if !runs_here() {
        return;
    }
    for kill in [false, true] {
        let scratch = Scratch::new();
        let mut server = Serve {
            files: vec![scratch.file("disk", 16)],
            ..serve("file", "")
        }
        .start();
        let load = Load {
            depth: 32,
            ..Load::endless(server.blocks())
        }
        .start();
        busy(&server);
        registers(&mut server);
        if kill {
            server.kill();
            load.failed();
            until_state(0, sys::STATE_DEAD);
            delete([0]);
        } else {
            driver::delete_async(0);
            load.failed();
            let (_, said) = server.terminate();
            assert!(!said.contains("panicked"), "{said}");
        }
        until("the number is free", DEADLINE, || state(0).is_none());
    }
}

#[test]
fn a_device_with_registered_requests_is_taken_over_under_load_and_data_verifies() {
    if !runs_here() {
        return;
    }
    for kill in [false, true] {
        let scratch = Scratch::new();
        let first = Serve {
            recovery: "reissue",
            files: vec![scratch.file("disk", 16)],
            ..serve("file", "--leave")
        };
        let mut next = first.clone();
        next.more.push("--recover".into());
        let server = first.start();
        let load = Load {
            depth: 32,
            ..Load::paced(server.blocks())
        };
        let load = load.start();
        busy(&server);
        if kill {
            server.kill();
        } else {
            let (status, said) = server.terminate();
            assert!(status.success(), "{said}");
        }
        let mut server = next.start();
        load.succeeded();
        verified(&server).run();
        registers(&mut server);
        let (status, said) = server.terminate();
        assert!(status.success(), "{said}");
        delete([0]);
    }
}
