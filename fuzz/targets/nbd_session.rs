//! A client's side of a whole NBD session: the same bytes mean the same however they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let whole = nbd::fuzz::session(input, input.len());
    assert_eq!(whole, nbd::fuzz::session(input, 1));
    assert_eq!(whole, nbd::fuzz::session(input, 7));
});
