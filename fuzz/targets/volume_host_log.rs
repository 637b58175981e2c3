//! Records, low marks and pins: what bytes cannot do to their decoders.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::fuzzing::host_log(input));
