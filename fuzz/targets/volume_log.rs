//! Frames, superblock, segment headers and ring entries of the log: what bytes cannot do to the decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::log(input));
