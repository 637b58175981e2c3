//! The handshake of a client that asks for an export which is being opened.

use std::cell::RefCell;

use super::*;

type Found = ExportState<(String, ExportInfo)>;

/// The export "demo", in a state that changes.
struct Demo(RefCell<Found>);

impl Demo {
    fn opening() -> Demo {
        Demo(RefCell::new(ExportState::Opening("demo".to_owned())))
    }

    fn open(&self) {
        self.0.replace(disks().find("demo"));
    }
}

impl Directory for Demo {
    type Export = String;

    fn find(&self, name: &str) -> Found {
        match name {
            "" | "demo" => self.0.borrow().clone(),
            _ => ExportState::Absent,
        }
    }

    fn list(&self) -> Vec<ExportEntry> {
        disks().list()
    }
}

/// Every option that names an export.
fn options() -> [(u32, Vec<u8>); 5] {
    let contexts = contexts_data("demo", &["base:allocation"]);
    [
        (wire::OPT_EXPORT_NAME, b"demo".to_vec()),
        (wire::OPT_INFO, info_data("demo", &[wire::INFO_NAME])),
        (wire::OPT_GO, info_data("demo", &[])),
        (wire::OPT_LIST_META_CONTEXT, contexts.clone()),
        (wire::OPT_SET_META_CONTEXT, contexts),
    ]
}

fn structured() -> Vec<u8> {
    let flags = BOTH.to_be_bytes();
    [&flags[..], &option(wire::OPT_STRUCTURED_REPLY, b"")].concat()
}

/// Feeds `bytes` in pieces of `step`; what was not consumed when the handshake parks or ends.
fn feed<'b>(
    handshake: &mut Handshake,
    demo: &Demo,
    mut bytes: &'b [u8],
    (step, out): (usize, &mut Vec<u8>),
) -> (&'b [u8], Progress<String>) {
    let mut last = Progress::NeedMore;
    while !bytes.is_empty() && last == Progress::NeedMore {
        let piece = &bytes[..bytes.len().min(step)];
        let (consumed, progress) = handshake.receive(piece, demo, out);
        bytes = &bytes[consumed..];
        last = progress;
    }
    (bytes, last)
}

/// A handshake that waits for "demo" behind this option.
fn parked(number: u32, data: &[u8], step: usize) -> (Handshake, Demo) {
    let (mut handshake, demo) = (Handshake::default(), Demo::opening());
    let bytes = [structured(), option(number, data)].concat();
    let mut out = Vec::new();
    let (left, last) = feed(&mut handshake, &demo, &bytes, (step, &mut out));
    assert_eq!(last, Progress::Park("demo".to_owned()), "option {number}");
    assert!(left.is_empty() && handshake.is_parked());
    assert_eq!(
        kinds(&out),
        [wire::REP_ACK],
        "nothing but the first is answered"
    );
    (handshake, demo)
}

#[test]
fn an_option_about_an_export_that_is_being_opened_is_answered_when_it_is_open_as_if_it_had_been() {
    for (number, data) in options() {
        for step in [1, 7, 4096] {
            let (mut handshake, demo) = parked(number, &data, step);
            let mut out = Vec::new();
            let behind = option(wire::OPT_LIST, b"");
            let (consumed, progress) = handshake.receive(&behind, &demo, &mut out);
            assert_eq!((consumed, progress), (0, Progress::Park("demo".to_owned())));
            assert!(out.is_empty());
            demo.open();
            let (consumed, progress) = handshake.receive(&behind, &demo, &mut out);
            assert_eq!(consumed, 0, "what comes behind it is another's turn");
            let mut usual = Handshake::default();
            let bytes = [structured(), option(number, &data)].concat();
            let mut expected = Vec::new();
            let (_, last) = feed(&mut usual, &demo, &bytes, (4096, &mut expected));
            assert_eq!(progress, last);
            assert_eq!(out, expected[20..], "option {number}");
        }
    }
}

#[test]
fn an_export_that_could_not_be_opened_is_refused_to_who_waits_and_the_negotiation_goes_on() {
    for (number, data) in options() {
        let (mut handshake, demo) = parked(number, &data, 4096);
        demo.0.replace(ExportState::Absent);
        let mut out = Vec::new();
        let (_, progress) = handshake.receive(&[], &demo, &mut out);
        if number == wire::OPT_EXPORT_NAME {
            assert_eq!(progress, Progress::Close(CloseReason::UnknownExport));
            continue;
        }
        assert_eq!(progress, Progress::NeedMore);
        let refused = &replies(&out)[0];
        assert_eq!(
            (refused.option, refused.kind),
            (number, wire::REP_ERR_UNKNOWN)
        );
        assert_eq!(refused.data, UNOPENED_EXPORT.as_bytes());
        demo.open();
        let go = option(wire::OPT_GO, &info_data("", &[]));
        let (_, progress) = handshake.receive(&go, &demo, &mut out);
        assert!(matches!(progress, Progress::Transmission(..)));
    }
}

#[test]
fn a_wait_that_is_given_up_is_answered_with_the_reason_once() {
    let reasons = [
        (ParkEnd::Late, wire::REP_ERR_UNKNOWN, "try again later"),
        (ParkEnd::Crowded, wire::REP_ERR_UNKNOWN, "too many clients"),
        (ParkEnd::Stopping, wire::REP_ERR_SHUTDOWN, "the server ends"),
    ];
    for (number, data) in options() {
        for (why, error, text) in reasons {
            let (mut handshake, demo) = parked(number, &data, 4096);
            let mut out = Vec::new();
            let ended = handshake.give_up(why, &mut out);
            assert!(!handshake.is_parked());
            if number == wire::OPT_EXPORT_NAME {
                assert_eq!(ended, Some(CloseReason::UnopenedExport));
                let (_, progress) = handshake.receive(&[], &demo, &mut out);
                assert_eq!(progress, Progress::Close(CloseReason::UnopenedExport));
                assert!(out.is_empty());
                continue;
            }
            assert_eq!(ended, None);
            let refused = &replies(&out)[0];
            assert_eq!((refused.option, refused.kind), (number, error));
            assert!(String::from_utf8_lossy(&refused.data).contains(text));
            assert_eq!(handshake.give_up(why, &mut out), None);
            assert_eq!(kinds(&out).len(), 1);
            let abort = option(wire::OPT_ABORT, b"");
            let (_, progress) = handshake.receive(&abort, &demo, &mut out);
            assert_eq!(progress, Progress::Close(CloseReason::Aborted));
        }
    }
}

#[test]
fn nobody_waits_for_an_unknown_export_or_before_tls_where_that_is_required() {
    let demo = Demo::opening();
    let unknown = option(wire::OPT_GO, &info_data("nobody", &[]));
    let known = option(wire::OPT_GO, &info_data("demo", &[]));
    for (tls, asked, error) in [
        (Tls::Offered, unknown, wire::REP_ERR_UNKNOWN),
        (Tls::Required, known, wire::REP_ERR_TLS_REQD),
    ] {
        let mut handshake = Handshake::new(tls);
        let bytes = [&BOTH.to_be_bytes()[..], &asked].concat();
        let mut out = Vec::new();
        let (_, progress) = feed(&mut handshake, &demo, &bytes, (4096, &mut out));
        assert_eq!(progress, Progress::NeedMore);
        assert_eq!(kinds(&out), [error]);
    }
}
