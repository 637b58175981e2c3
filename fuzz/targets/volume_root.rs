//! A volume's root: what bytes cannot do to the decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::root(input));
