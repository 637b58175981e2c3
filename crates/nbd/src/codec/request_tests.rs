//! Requests: what is accepted, what is refused in sync, and what ends the connection.

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
    let (consumed, event) = Decoder::new().next(bytes, limits);
    assert_eq!(consumed, HEADER_BYTES);
    event
}

fn refused(error: u32) -> Event {
    Event::Refused(Refusal { cookie: 7, error })
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
        assert_eq!(trim, refused(wire::EINVAL));
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
            assert_eq!(
                one(&LIMITS, &header(0, code, 7, offset, 1024)),
                refused(error)
            );
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
            assert_eq!(event, refused(wire::EINVAL), "{code} {offset} {length}");
        }
    }
    let large = Limits {
        logical_block: 4096,
        bytes: 1 << 40,
        ..LIMITS
    };
    assert_eq!(
        one(&large, &header(0, wire::CMD_READ, 7, 512, 512)),
        refused(wire::EINVAL)
    );
    let read = header(0, wire::CMD_READ, 7, 0, PAYLOAD_BYTES_MAX + 4096);
    assert_eq!(one(&large, &read), refused(wire::EINVAL));
    assert_eq!(
        one(&large, &header(0, wire::CMD_FLUSH, 7, 0, 512)),
        refused(wire::EINVAL)
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
            one(&limits, &header(0, code, 7, 0, 512)),
            refused(wire::EPERM)
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
    let mut decoder = Decoder::new();
    let mut at = 0;
    let mut step = || {
        let (consumed, event) = decoder.next(&bytes[at..], &LIMITS);
        at += consumed;
        event
    };
    assert_eq!(step(), refused(wire::EINVAL));
    assert_eq!(step(), refused(wire::EINVAL));
    assert!(matches!(step(), Event::Request(r) if r.cookie == 8));
    assert_eq!(step(), Event::NeedMore);
}

#[test]
fn the_payload_of_a_refused_write_is_skipped() {
    let mut bytes = header(0, wire::CMD_WRITE, 7, LIMITS.bytes, 1024);
    bytes.extend([0xff; 1024]);
    bytes.extend(header(0, wire::CMD_READ, 8, 0, 512));
    for step in [1, 13, 600, 4096] {
        let mut decoder = Decoder::new();
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
        assert_eq!(events[0], refused(wire::ENOSPC));
        assert!(matches!(events[1], Event::Request(r) if r.cookie == 8));
        assert_eq!(events.len(), 2);
    }
}

#[test]
fn payload_may_be_taken_from_the_input_and_past_the_decoder() {
    let mut bytes = header(0, wire::CMD_WRITE, 7, 0, 1024);
    bytes.extend([0xaa; 100]);
    let mut decoder = Decoder::new();
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
    let length = PAYLOAD_BYTES_MAX + 1;
    for (bytes, want) in [
        (bad, Violation::Magic(0x0060_9513)),
        (oversized, Violation::Oversized { cookie: 7, length }),
    ] {
        let mut decoder = Decoder::new();
        assert_eq!(
            decoder.next(&bytes, &LIMITS),
            (HEADER_BYTES, Event::Violated(want))
        );
        let good = header(0, wire::CMD_READ, 7, 0, 512);
        assert_eq!(decoder.next(&good, &LIMITS), (0, Event::Violated(want)));
    }
}
