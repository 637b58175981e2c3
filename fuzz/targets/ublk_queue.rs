//! Lives of ublk devices over the fake driver: no choice loses a request or a byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ublk_fake::fuzzing::device_lifecycle(input));
