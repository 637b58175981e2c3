//! A page or a node of a volume's index: what bytes cannot do to the decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::index_block(input));
