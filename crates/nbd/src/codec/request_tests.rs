//! Requests: what is accepted, what is refused in sync, and what ends the connection.

use super::super::meta::ContextSet;
use super::*;

const LIMITS: Limits = Geometry {
    bytes: 1 << 20,
    logical_block: 512,
    physical_block: 4096,
    read_only: false,
};

fn header(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

fn one(limits: &Limits, bytes: &[u8]) -> Event {
    let (consumed, event) = Decoder::default().next(bytes, limits);
    assert_eq!(consumed, HEADER_BYTES);
    event
}

/// The error of the request with cookie 7 that was refused.
fn refusal_of(event: &Event) -> Option<u32> {
    match event {
        Event::Refused(Refusal { to, error, why }) => {
            assert!(to.cookie == 7 && !why.is_empty());
            Some(*error)
        }
        _ => None,
    }
}

#[test]
fn every_command_is_decoded_with_its_fua_flag() {
    let cases = [
        (wire::CMD_READ, Command::Read),
        (wire::CMD_WRITE, Command::Write),
        (wire::CMD_TRIM, Command::Trim),
        (wire::CMD_WRITE_ZEROES, Command::WriteZeroes),
    ];
    for (code, command) in cases {
        for fua in [false, true] {
            let event = one(&LIMITS, &header(u16::from(fua), code, 7, 4096, 1024));
            let want = Request {
                cookie: 7,
                command,
                offset: 4096,
                length: 1024,
                fua,
                df: false,
                req_one: false,
            };
            assert_eq!(event, Event::Request(want));
        }
    }
    let flush = Request {
        cookie: 7,
        command: Command::Flush,
        offset: 0,
        length: 0,
        fua: false,
        df: false,
        req_one: false,
    };
    assert_eq!(
        one(&LIMITS, &header(0, wire::CMD_FLUSH, 7, 0, 0)),
        Event::Request(flush)
    );
}

#[test]
fn requests_become_ops_in_sectors() {
    let request = Request {
        cookie: 0,
        command: Command::Write,
        offset: 1536,
        length: 512,
        fua: true,
        df: false,
        req_one: false,
    };
    assert_eq!(
        request.op(),
        Op::Write {
            sector: 3,
            sectors: 1,
            fua: true
        }
    );
    let request = Request {
        command: Command::WriteZeroes,
        fua: false,
        ..request
    };
    assert_eq!(
        request.op(),
        Op::WriteZeroes {
            sector: 3,
            sectors: 1,
            fua: false
        }
    );
    let request = Request {
        command: Command::Trim,
        fua: true,
        ..request
    };
    assert_eq!(
        request.op(),
        Op::Discard {
            sector: 3,
            sectors: 1,
            fua: true
        }
    );
}

#[test]
fn write_zeroes_takes_no_hole_and_fast_zero_and_no_other_command_does() {
    for flag in [wire::CMD_FLAG_NO_HOLE, wire::CMD_FLAG_FAST_ZERO] {
        let zeroes = one(&LIMITS, &header(flag, wire::CMD_WRITE_ZEROES, 7, 0, 512));
        assert!(matches!(zeroes, Event::Request(_)), "{zeroes:?}");
        let trim = one(&LIMITS, &header(flag, wire::CMD_TRIM, 7, 0, 512));
        assert_eq!(refusal_of(&trim), Some(wire::EINVAL));
    }
}

#[test]
fn write_zeroes_and_trim_may_be_larger_than_a_payload() {
    let limits = Limits {
        bytes: 1 << 40,
        ..LIMITS
    };
    for code in [wire::CMD_WRITE_ZEROES, wire::CMD_TRIM] {
        let event = one(&limits, &header(0, code, 7, 0, 3 << 30));
        assert!(
            matches!(event, Event::Request(r) if r.length == 3 << 30),
            "{event:?}"
        );
    }
}

#[test]
fn what_lies_outside_the_export_is_refused_with_the_error_clients_expect() {
    let end = LIMITS.bytes;
    for (code, error) in [
        (wire::CMD_READ, wire::EINVAL),
        (wire::CMD_TRIM, wire::EINVAL),
        (wire::CMD_WRITE, wire::ENOSPC),
        (wire::CMD_WRITE_ZEROES, wire::ENOSPC),
    ] {
        for offset in [end, end - 512, u64::MAX - 511] {
            let event = one(&LIMITS, &header(0, code, 7, offset, 1024));
            assert_eq!(refusal_of(&event), Some(error));
        }
    }
}

#[test]
fn unaligned_empty_and_oversized_requests_are_refused() {
    for (offset, length) in [(1, 512), (0, 511), (256, 256), (0, 0)] {
        for code in [
            wire::CMD_READ,
            wire::CMD_WRITE,
            wire::CMD_TRIM,
            wire::CMD_WRITE_ZEROES,
        ] {
            let event = one(&LIMITS, &header(0, code, 7, offset, length));
            assert_eq!(
                refusal_of(&event),
                Some(wire::EINVAL),
                "{code} {offset} {length}"
            );
        }
    }
    let large = Limits {
        logical_block: 4096,
        bytes: 1 << 40,
        ..LIMITS
    };
    assert_eq!(
        refusal_of(&one(&large, &header(0, wire::CMD_READ, 7, 512, 512))),
        Some(wire::EINVAL)
    );
    let read = header(0, wire::CMD_READ, 7, 0, PAYLOAD_BYTES_MAX + 4096);
    assert_eq!(refusal_of(&one(&large, &read)), Some(wire::EINVAL));
    assert_eq!(
        refusal_of(&one(&large, &header(0, wire::CMD_FLUSH, 7, 0, 512))),
        Some(wire::EINVAL)
    );
}

#[test]
fn a_read_only_export_refuses_every_change_and_still_reads_and_flushes() {
    let limits = Limits {
        read_only: true,
        ..LIMITS
    };
    for code in [wire::CMD_WRITE, wire::CMD_TRIM, wire::CMD_WRITE_ZEROES] {
        assert_eq!(
            refusal_of(&one(&limits, &header(0, code, 7, 0, 512))),
            Some(wire::EPERM)
        );
    }
    let read = one(&limits, &header(0, wire::CMD_READ, 7, 0, 512));
    assert!(matches!(read, Event::Request(_)));
    let flush = one(&limits, &header(0, wire::CMD_FLUSH, 7, 0, 0));
    assert!(matches!(flush, Event::Request(_)));
}

#[test]
fn unknown_commands_and_flags_are_refused_and_the_session_goes_on() {
    let mut bytes = header(0, 99, 7, 0, 0);
    bytes.extend(header(1 << 9, wire::CMD_READ, 7, 0, 512));
    bytes.extend(header(0, wire::CMD_READ, 8, 0, 512));
    let mut decoder = Decoder::default();
    let mut at = 0;
    let mut step = || {
        let (consumed, event) = decoder.next(&bytes[at..], &LIMITS);
        at += consumed;
        event
    };
    assert_eq!(refusal_of(&step()), Some(wire::EINVAL));
    assert_eq!(refusal_of(&step()), Some(wire::EINVAL));
    assert!(matches!(step(), Event::Request(r) if r.cookie == 8));
    assert_eq!(step(), Event::NeedMore);
}

#[test]
fn the_payload_of_a_refused_write_is_skipped() {
    let mut bytes = header(0, wire::CMD_WRITE, 7, LIMITS.bytes, 1024);
    bytes.extend([0xff; 1024]);
    bytes.extend(header(0, wire::CMD_READ, 8, 0, 512));
    for step in [1, 13, 600, 4096] {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for piece in bytes.chunks(step) {
            let mut at = 0;
            while at < piece.len() {
                let (consumed, event) = decoder.next(&piece[at..], &LIMITS);
                at += consumed;
                if event != Event::NeedMore {
                    events.push(event);
                }
            }
        }
        assert_eq!(refusal_of(&events[0]), Some(wire::ENOSPC));
        assert!(matches!(events[1], Event::Request(r) if r.cookie == 8));
        assert_eq!(events.len(), 2);
    }
}

#[test]
fn payload_may_be_taken_from_the_input_and_past_the_decoder() {
    let mut bytes = header(0, wire::CMD_WRITE, 7, 0, 1024);
    bytes.extend([0xaa; 100]);
    let mut decoder = Decoder::default();
    let (consumed, _) = decoder.next(&bytes, &LIMITS);
    assert_eq!(
        decoder.next(&bytes[consumed..], &LIMITS),
        (0, Event::Payload { bytes: 100 })
    );
    decoder.consume_payload(100);
    assert_eq!(decoder.payload_bytes_left(), 924);
    decoder.consume_payload(924);
    assert_eq!(decoder.payload_bytes_left(), 0);
    let (_, event) = decoder.next(&header(0, wire::CMD_DISC, 9, 0, 0), &LIMITS);
    assert_eq!(event, Event::Disconnect);
}

#[test]
fn a_bad_magic_or_an_oversized_write_ends_the_session_for_good() {
    let mut bad = header(0, wire::CMD_READ, 7, 0, 512);
    bad[0] = 0;
    let oversized = header(0, wire::CMD_WRITE, 7, 0, PAYLOAD_BYTES_MAX + 1);
    let length = u64::from(PAYLOAD_BYTES_MAX) + 1;
    let to = ReplyTo {
        cookie: 7,
        offset: 0,
    };
    for (bytes, want) in [
        (bad, Violation::Magic(0x0060_9513)),
        (oversized, Violation::Oversized { to, length }),
    ] {
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.next(&bytes, &LIMITS),
            (HEADER_BYTES, Event::Violated(want))
        );
        let good = header(0, wire::CMD_READ, 7, 0, 512);
        assert_eq!(decoder.next(&good, &LIMITS), (0, Event::Violated(want)));
    }
}

fn session(headers: Headers) -> Session {
    let contexts = ContextSet::selected_by(&["base:allocation"]);
    Session { headers, contexts }
}

fn extended_request(flags: u16, command: u16, offset: u64, length: u64) -> Vec<u8> {
    let mut out = wire::EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(7_u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

#[test]
fn block_status_needs_a_selected_context_and_df_needs_structured_replies() {
    let status = header(wire::CMD_FLAG_REQ_ONE, wire::CMD_BLOCK_STATUS, 7, 0, 4096);
    let df = header(wire::CMD_FLAG_DF, wire::CMD_READ, 7, 0, 4096);
    assert_eq!(refusal_of(&one(&LIMITS, &status)), Some(wire::EINVAL));
    assert_eq!(refusal_of(&one(&LIMITS, &df)), Some(wire::EINVAL));
    let mut decoder = Decoder::new(session(Headers::Structured));
    let (_, event) = decoder.next(&status, &LIMITS);
    assert!(matches!(event, Event::Request(r) if r.req_one), "{event:?}");
    let (_, event) = decoder.next(&df, &LIMITS);
    assert!(matches!(event, Event::Request(r) if r.df), "{event:?}");
}

#[test]
fn a_read_only_export_is_cached_and_described() {
    let limits = Limits {
        read_only: true,
        ..LIMITS
    };
    let mut decoder = Decoder::new(session(Headers::Structured));
    for code in [wire::CMD_CACHE, wire::CMD_BLOCK_STATUS] {
        let (_, event) = decoder.next(&header(0, code, 7, 0, 1 << 20), &limits);
        assert!(matches!(event, Event::Request(_)), "{event:?}");
    }
}

#[test]
fn extended_headers_carry_lengths_of_64_bits_where_nothing_is_transferred() {
    let limits = Limits {
        bytes: 1 << 46,
        ..LIMITS
    };
    let mut decoder = Decoder::new(session(Headers::Extended));
    for code in [
        wire::CMD_TRIM,
        wire::CMD_WRITE_ZEROES,
        wire::CMD_BLOCK_STATUS,
        wire::CMD_CACHE,
    ] {
        let (_, event) = decoder.next(&extended_request(0, code, 0, 1 << 45), &limits);
        assert!(
            matches!(event, Event::Request(r) if r.length == 1 << 45),
            "{event:?}"
        );
    }
    let (_, event) = decoder.next(&extended_request(0, wire::CMD_READ, 0, 1 << 33), &limits);
    assert_eq!(refusal_of(&event), Some(wire::EINVAL));
    let (_, event) = decoder.next(
        &extended_request(0, wire::CMD_TRIM, 512, u64::MAX - 511),
        &limits,
    );
    assert_eq!(refusal_of(&event), Some(wire::EINVAL));
}

#[test]
fn an_extended_payload_is_taken_off_the_stream_whatever_it_belongs_to() {
    let flag = wire::CMD_FLAG_PAYLOAD_LEN;
    let mut bytes = extended_request(0, wire::CMD_WRITE, 0, 512);
    for code in [wire::CMD_BLOCK_STATUS, wire::CMD_READ, 99] {
        bytes.extend(extended_request(flag, code, 0, 24));
        bytes.extend([0xff; 24]);
    }
    bytes.extend(extended_request(flag, wire::CMD_WRITE, 0, 512));
    let mut decoder = Decoder::new(session(Headers::Extended));
    let mut at = 0;
    for _ in 0..4 {
        let (consumed, event) = decoder.next(&bytes[at..], &LIMITS);
        assert_eq!(refusal_of(&event), Some(wire::EINVAL));
        at += consumed;
    }
    let (_, event) = decoder.next(&bytes[at..], &LIMITS);
    assert!(
        matches!(event, Event::Request(r) if r.length == 512),
        "{event:?}"
    );
    assert_eq!(decoder.payload_bytes_left(), 512);
    let (length, mut decoder) = (1 << 40, Decoder::new(session(Headers::Extended)));
    let (_, event) = decoder.next(&extended_request(flag, wire::CMD_WRITE, 0, length), &LIMITS);
    assert!(
        matches!(event, Event::Violated(Violation::Oversized { .. })),
        "{event:?}"
    );
}

#[test]
fn a_compact_request_after_extended_headers_ends_the_session() {
    let mut decoder = Decoder::new(session(Headers::Extended));
    let mut bytes = header(0, wire::CMD_READ, 7, 0, 512);
    bytes.extend([0; 4]);
    let (_, event) = decoder.next(&bytes, &LIMITS);
    assert_eq!(
        event,
        Event::Violated(Violation::Magic(wire::REQUEST_MAGIC))
    );
}
