//! A pack's footer, a whole pack, and the chunks it names: what bytes cannot do to the decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::pack(input));
