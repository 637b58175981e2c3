//! Replies, byte for byte: simple ones, chunks, and chunks with extended headers.

use super::*;
use blkmq::io::Extent;

const TO: ReplyTo = ReplyTo {
    cookie: 0x0102_0304_0506_0708,
    offset: 0x1000,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes = digits.chunks(2);
    bytes.map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn bytes_of(push: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out);
    out
}

#[test]
fn success_is_a_simple_reply_but_for_extended_headers() {
    let simple = hex("67446698 00000000 0102030405060708");
    for headers in [Headers::Simple, Headers::Structured] {
        assert_eq!(bytes_of(|out| headers.push_success(out, TO)), simple);
    }
    let extended = hex("6e8a278c 0001 0000 0102030405060708 0000000000001000 0000000000000000");
    let out = bytes_of(|out| Headers::Extended.push_success(out, TO));
    assert_eq!(out, extended);
}

#[test]
fn errors_carry_a_message_and_their_offset_where_there_is_a_place() {
    let error = |headers: Headers, at| bytes_of(|out| headers.push_error(out, TO, 5, "no", at));
    let simple = hex("67446698 00000005 0102030405060708");
    assert_eq!(error(Headers::Simple, Some(0x1200)), simple);
    let structured = hex("668e33ef 0001 8001 0102030405060708 00000008  00000005 0002 6e6f");
    assert_eq!(error(Headers::Structured, None), structured);
    let extended = hex(
        "6e8a278c 0001 8002 0102030405060708 0000000000001000 0000000000000010
         00000005 0002 6e6f 0000000000001200",
    );
    assert_eq!(error(Headers::Extended, Some(0x1200)), extended);
}

#[test]
fn data_and_holes_say_where_they_are() {
    let data = bytes_of(|out| {
        Headers::Structured.push_data_header(out, TO, Position::Inner, 0x1000, 512);
    });
    let want = hex("668e33ef 0000 0001 0102030405060708 00000208  0000000000001000");
    assert_eq!(data, want);
    let hole = bytes_of(|out| Headers::Extended.push_hole(out, TO, Position::Last, 0x1200, 4096));
    let want = hex(
        "6e8a278c 0001 0002 0102030405060708 0000000000001000 000000000000000c
         0000000000001200 00001000",
    );
    assert_eq!(hole, want);
}

fn extents() -> Extents {
    let mut extents = Extents::default();
    for (sectors, allocated, dirty) in [(8, true, true), (8, true, false), (16, false, false)] {
        extents.push(Extent {
            sectors,
            allocated,
            dirty,
        });
    }
    extents
}

#[test]
fn a_status_has_one_chunk_per_context_with_what_is_alike_joined() {
    let contexts = ContextSet::selected_by(&["base:allocation", "firn:dirty"]);
    let out = bytes_of(|out| {
        Headers::Structured.push_status(out, TO, contexts, &extents(), false);
    });
    let want = hex("668e33ef 0000 0005 0102030405060708 00000014
         00000001  00002000 00000000  00002000 00000003
         668e33ef 0001 0005 0102030405060708 00000014
         00000002  00001000 00000001  00003000 00000000");
    assert_eq!(out, want);
}

#[test]
fn an_extended_status_has_lengths_of_64_bits_and_req_one_has_one_extent() {
    let contexts = ContextSet::selected_by(&["base:allocation"]);
    let mut extents = Extents::default();
    extents.push(Extent {
        sectors: 1 << 40,
        allocated: false,
        dirty: false,
    });
    extents.push(Extent {
        sectors: 1,
        allocated: true,
        dirty: false,
    });
    let out = bytes_of(|out| Headers::Extended.push_status(out, TO, contexts, &extents, true));
    let want = hex(
        "6e8a278c 0001 0006 0102030405060708 0000000000001000 0000000000000018
         00000001 00000001  0002000000000000 0000000000000003",
    );
    assert_eq!(out, want);
}
