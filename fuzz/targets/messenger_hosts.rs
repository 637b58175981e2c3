//! Bytes of an untrusted peer to whole hosts without sockets: one that accepted, one that connected, and an
//! open session whose peer holds every key. The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/messenger/tests/support/fuzz.rs"]
mod host;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    match first % 4 {
        0 => host::accepting(rest),
        1 => host::connecting(rest),
        2 => host::open_session(rest),
        _ => host::bodies(rest),
    }
});
