//! What is wanted of a ublk device at any kernel: what is granted was wanted and given.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ublk_fake::fuzzing::negotiate(input));
