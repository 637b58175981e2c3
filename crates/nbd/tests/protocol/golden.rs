//! Golden bytes: what is on the wire, written out by hand from the protocol document, so that a
//! change of a constant on both sides of the codec cannot go unseen.

use nbd::codec::{Handshake, simple_reply};
use nbd::fuzz;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("fixtures are hex digits"))
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

#[test]
fn the_greeting_is_fixed_newstyle_without_zeroes() {
    assert_eq!(
        Handshake::greeting().to_vec(),
        hex("4e42444d41474943 49484156454f5054 0003")
    );
}

#[test]
fn go_is_answered_byte_for_byte() {
    let client = hex("00000003
         49484156454f5054 00000007 0000000c  00000004 6469736b 0001 0003");
    let server = hex(
        "0003e889045565a9 00000007 00000003 0000000c  0000 0000000040000000 0d6d
         0003e889045565a9 00000007 00000003 0000000e  0003 00000200 00001000 02000000
         0003e889045565a9 00000007 00000001 00000000",
    );
    let trace = fuzz::session(&client, usize::MAX >> 1);
    assert_eq!(trace.answers, server);
}

#[test]
fn a_read_only_export_drops_the_flags_of_changing_commands() {
    let client = hex("00000003 49484156454f5054 00000001 00000006 6c6f636b6564");
    let trace = fuzz::session(&client, 3);
    assert_eq!(trace.answers, hex("0000000040000000 050f"));
}

#[test]
fn unknown_options_are_answered_byte_for_byte() {
    let client = hex("00000003 49484156454f5054 0000000c 00000000");
    let trace = fuzz::session(&client, 1);
    let mut want = hex("0003e889045565a9 0000000c 80000001 00000017");
    want.extend(b"option is not supported");
    assert_eq!(trace.answers, want);
}

#[test]
fn requests_are_decoded_byte_for_byte() {
    let mut client = hex("00000003 49484156454f5054 00000001 00000004 6469736b");
    client.extend(hex(
        "25609513 0001 0001 0102030405060708 0000000000001000 00000200",
    ));
    client.extend([0x5a; 512]);
    client.extend(hex(
        "25609513 0000 0006 1102030405060708 0000000000001000 00000200",
    ));
    client.extend(hex(
        "25609513 0000 0003 2102030405060708 0000000000000000 00000000",
    ));
    client.extend(hex(
        "25609513 0000 0002 0000000000000000 0000000000000000 00000000",
    ));
    let trace = fuzz::session(&client, 5);
    let request = |cookie: u64, command: &str, offset: u64, length: u32, fua: bool| {
        format!(
            "Request {{ cookie: {cookie}, command: {command}, offset: {offset}, \
             length: {length}, fua: {fua}, df: false, req_one: false }}"
        )
    };
    let want = [
        "Session { headers: Simple, contexts: ContextSet(0) }".to_owned(),
        request(0x0102_0304_0506_0708, "Write", 4096, 512, true),
        request(0x1102_0304_0506_0708, "WriteZeroes", 4096, 512, false),
        request(0x2102_0304_0506_0708, "Flush", 0, 0, false),
        "Disconnect".to_owned(),
    ];
    assert_eq!(trace.events, want);
    assert_eq!(trace.payload, 512);
}

#[test]
fn contexts_and_extended_headers_are_agreed_on_byte_for_byte() {
    let mut client = hex("00000003
         49484156454f5054 0000000b 00000000
         49484156454f5054 0000000a 0000001f
         00000004 6469736b 00000001 0000000f 626173653a616c6c6f636174696f6e
         49484156454f5054 00000007 0000000a  00000004 6469736b 0000");
    client.extend(hex(
        "21e41c71 0008 0007 0102030405060708 0000000000001000 0000000020000000
         21e41c71 0020 0001 1112131415161718 0000000000001000 0000000000000200",
    ));
    client.extend([0x5a; 512]);
    let server = hex("0003e889045565a9 0000000b 00000001 00000000
         0003e889045565a9 0000000a 00000004 00000013
         00000001 626173653a616c6c6f636174696f6e
         0003e889045565a9 0000000a 00000001 00000000
         0003e889045565a9 00000007 00000003 0000000c  0000 0000000040000000 0ded
         0003e889045565a9 00000007 00000003 0000000e  0003 00000200 00001000 02000000
         0003e889045565a9 00000007 00000001 00000000");
    let trace = fuzz::session(&client, 11);
    assert_eq!(trace.answers, server);
    let want = [
        "Session { headers: Extended, contexts: ContextSet(2) }",
        "Request { cookie: 72623859790382856, command: BlockStatus, offset: 4096, \
         length: 536870912, fua: false, df: false, req_one: true }",
        "Request { cookie: 1230066625199609624, command: Write, offset: 4096, \
         length: 512, fua: false, df: false, req_one: false }",
    ];
    assert_eq!(trace.events, want);
    assert_eq!(trace.payload, 512);
}

#[test]
fn simple_replies_are_sixteen_bytes() {
    let reply = simple_reply(0x0102_0304_0506_0708, 28);
    assert_eq!(reply.to_vec(), hex("67446698 0000001c 0102030405060708"));
}
