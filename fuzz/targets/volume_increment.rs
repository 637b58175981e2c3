//! Increments: what bytes cannot do to their reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::increment(input));
