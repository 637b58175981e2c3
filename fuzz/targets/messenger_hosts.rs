//! Bytes of a stranger to whole hosts without sockets: one that accepted, one that connected, and an
//! open session whose peer holds every key. The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use messenger::harness;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    match first % 4 {
        0 => harness::accepting(rest),
        1 => harness::connecting(rest),
        2 => harness::open_session(rest),
        _ => harness::bodies(rest),
    }
});
