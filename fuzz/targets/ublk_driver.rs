//! A ublk server that gives any command at any time: every client has one answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ublk_fake::fuzzing::commands(input));
