//! What a client sends to a connection with TLS: a handshake of any bytes, and records that were cut, damaged or mixed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| nbd::fuzz::tls_stream(input));
