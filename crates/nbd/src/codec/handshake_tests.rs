//! The handshake, option by option: what is answered, and when the connection ends.

use super::super::meta::MetaContext;
use super::super::{ExportEntry, ExportInfo, clip};
use super::*;
use blkmq::io::Geometry;

#[path = "parked_tests.rs"]
mod parked;

struct Disks(Vec<ExportInfo>);

impl Directory for Disks {
    type Export = String;
    fn find(&self, name: &str) -> ExportState<(String, ExportInfo)> {
        let found = self.0.iter().find(|info| info.name == name);
        found.map_or(ExportState::Absent, |info| {
            ExportState::Open((info.name.clone(), info.clone()))
        })
    }
    fn list(&self) -> Vec<ExportEntry> {
        let line = |i: &ExportInfo| ExportEntry {
            name: i.name.clone(),
            description: i.description.clone(),
        };
        self.0.iter().map(line).collect()
    }
}

fn disks() -> Disks {
    let geometry = Geometry {
        bytes: 1 << 30,
        logical_block: 512,
        physical_block: 4096,
        read_only: false,
    };
    let disk = |name: &str, read_only| ExportInfo {
        name: name.to_owned(),
        description: "scratch".to_owned(),
        geometry: Geometry {
            read_only,
            ..geometry
        },
    };
    Disks(vec![disk("demo", false), disk("old", true)])
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((wanted.len() as u16).to_be_bytes());
    wanted
        .iter()
        .for_each(|kind| out.extend(kind.to_be_bytes()));
    out
}

/// The reply to an option.
struct Reply {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

/// Splits what the server sent into its replies.
fn replies(mut bytes: &[u8]) -> Vec<Reply> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(u64_at(bytes, 0), Some(wire::OPTION_REPLY_MAGIC));
        let length = u32_at(bytes, 16).unwrap() as usize;
        let data = bytes[20..20 + length].to_vec();
        out.push(Reply {
            option: u32_at(bytes, 8).unwrap(),
            kind: u32_at(bytes, 12).unwrap(),
            data,
        });
        bytes = &bytes[20 + length..];
    }
    out
}

/// "demo" in such a session.
fn transmission_to_demo(session: Session) -> Progress<String> {
    Progress::Transmission("demo".to_owned(), session)
}

/// Feeds the flags and then `bytes` in pieces of `step`; the answers and the last progress.
fn run(flags: u32, bytes: &[u8], step: usize) -> (Vec<u8>, Progress<String>) {
    run_with(Tls::Absent, flags, bytes, step)
}

fn run_with(tls: Tls, flags: u32, bytes: &[u8], step: usize) -> (Vec<u8>, Progress<String>) {
    let mut all = flags.to_be_bytes().to_vec();
    all.extend(bytes);
    let mut handshake = Handshake::new(tls);
    let mut out = Vec::new();
    let mut last = Progress::NeedMore;
    let mut at = 0;
    while at < all.len() && matches!(last, Progress::NeedMore | Progress::StartTls) {
        let end = all.len().min(at + step);
        let (consumed, progress) = handshake.receive(&all[at..end], &disks(), &mut out);
        at += consumed;
        last = progress;
    }
    (out, last)
}

const BOTH: u32 = wire::CLIENT_FIXED_NEWSTYLE | wire::CLIENT_NO_ZEROES;

#[test]
fn go_tells_all_asked_facts_and_enters_transmission() {
    let data = info_data("demo", &[wire::INFO_NAME, wire::INFO_DESCRIPTION]);
    for step in [1, 7, 4096] {
        let (out, last) = run(BOTH, &option(wire::OPT_GO, &data), step);
        assert_eq!(last, transmission_to_demo(Session::default()));
        let replies = replies(&out);
        let facts: Vec<_> = replies
            .iter()
            .filter(|r| r.kind == wire::REP_INFO)
            .map(|r| u16::from_be_bytes([r.data[0], r.data[1]]))
            .collect();
        let want = [
            wire::INFO_EXPORT,
            wire::INFO_NAME,
            wire::INFO_DESCRIPTION,
            wire::INFO_BLOCK_SIZE,
        ];
        assert_eq!(facts, want);
        assert_eq!(replies[1].data[2..], *b"demo");
        assert_eq!(replies[2].data[2..], *b"scratch");
        assert_eq!(replies.last().map(|r| r.kind), Some(wire::REP_ACK));
    }
}

#[test]
fn info_tells_the_same_and_the_negotiation_goes_on() {
    let data = info_data("old", &[]);
    let mut bytes = option(wire::OPT_INFO, &data);
    bytes.extend(option(wire::OPT_ABORT, &[]));
    let (out, last) = run(BOTH, &bytes, 4096);
    assert_eq!(last, Progress::Close(CloseReason::Aborted));
    let replies = replies(&out);
    let flags = u16::from_be_bytes([replies[0].data[10], replies[0].data[11]]);
    assert!(flags & wire::FLAG_READ_ONLY != 0 && flags & wire::FLAG_SEND_TRIM == 0);
    let kinds: Vec<_> = replies.iter().map(|r| (r.option, r.kind)).collect();
    let info = (wire::OPT_INFO, wire::REP_INFO);
    let done = (wire::OPT_INFO, wire::REP_ACK);
    assert_eq!(kinds, [info, info, done, (wire::OPT_ABORT, wire::REP_ACK)]);
}

#[test]
fn list_names_every_export_and_refuses_data() {
    let mut bytes = option(wire::OPT_LIST, b"x");
    bytes.extend(option(wire::OPT_LIST, b""));
    let (out, last) = run(BOTH, &bytes, 4096);
    assert_eq!(last, Progress::NeedMore);
    let replies = replies(&out);
    assert_eq!(replies[0].kind, wire::REP_ERR_INVALID);
    assert_eq!(replies[1].data, b"\0\0\0\x04demoscratch");
    assert_eq!(replies[2].data, b"\0\0\0\x03oldscratch");
    assert_eq!(replies[3].kind, wire::REP_ACK);
}

#[test]
fn export_name_answers_with_and_without_the_zeroes() {
    for (flags, length) in [(BOTH, 10), (wire::CLIENT_FIXED_NEWSTYLE, 134), (0, 134)] {
        let (out, last) = run(flags, &option(wire::OPT_EXPORT_NAME, b"demo"), 4096);
        assert_eq!(last, transmission_to_demo(Session::default()));
        assert_eq!(out.len(), length);
        assert_eq!(u64_at(&out, 0), Some(1 << 30));
    }
    let (out, last) = run(BOTH, &option(wire::OPT_EXPORT_NAME, b"none"), 4096);
    assert_eq!(
        (out.len(), last),
        (0, Progress::Close(CloseReason::UnknownExport))
    );
}

#[test]
fn unknown_options_are_answered_unsupported_and_the_negotiation_goes_on() {
    for unknown in [4, 12, 12345] {
        let mut bytes = option(unknown, b"whatever");
        bytes.extend(option(wire::OPT_GO, &info_data("demo", &[])));
        let (out, last) = run(BOTH, &bytes, 4096);
        assert_eq!(replies(&out)[0].kind, wire::REP_ERR_UNSUP);
        assert_eq!(last, transmission_to_demo(Session::default()));
    }
}

#[test]
fn malformed_and_unknown_names_are_refused_and_the_negotiation_goes_on() {
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let mut not_utf8 = info_data("demo", &[]);
    not_utf8[5] = 0xff;
    let mut cut = info_data("demo", &[wire::INFO_NAME]);
    cut.pop();
    let mut lying = info_data("demo", &[]);
    lying[..4].copy_from_slice(&4000_u32.to_be_bytes());
    let cases = [
        (info_data("nobody", &[]), wire::REP_ERR_UNKNOWN),
        (info_data(&long, &[]), wire::REP_ERR_TOO_BIG),
        (not_utf8, wire::REP_ERR_INVALID),
        (cut, wire::REP_ERR_INVALID),
        (lying, wire::REP_ERR_INVALID),
        (vec![], wire::REP_ERR_INVALID),
        (vec![0, 0, 0], wire::REP_ERR_INVALID),
    ];
    for (data, error) in cases {
        let (out, last) = run(BOTH, &option(wire::OPT_GO, &data), 4096);
        assert_eq!(replies(&out)[0].kind, error);
        assert_eq!(last, Progress::NeedMore);
    }
}

#[test]
fn oversized_options_are_skipped_or_end_the_session_without_being_stored() {
    let mut bytes = option(wire::OPT_INFO, &vec![0; OPTION_BYTES_MAX as usize + 1]);
    bytes.extend(option(wire::OPT_GO, &info_data("demo", &[])));
    let (out, last) = run(BOTH, &bytes, 1000);
    assert_eq!(replies(&out)[0].kind, wire::REP_ERR_TOO_BIG);
    assert_eq!(last, transmission_to_demo(Session::default()));

    let mut header = option(wire::OPT_GO, &[]);
    header[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    let (out, last) = run(BOTH, &header, 4096);
    assert_eq!(replies(&out)[0].kind, wire::REP_ERR_TOO_BIG);
    let reason = CloseReason::Oversized {
        option: wire::OPT_GO,
        length: u32::MAX,
    };
    assert_eq!(last, Progress::Close(reason));
}

#[test]
fn flags_not_offered_bad_magic_and_old_clients_with_new_options_end_the_session() {
    let (_, last) = run(1 << 7, &option(wire::OPT_LIST, &[]), 4096);
    assert_eq!(last, Progress::Close(CloseReason::ClientFlags(1 << 7)));
    let (_, last) = run(BOTH, &[0; 16], 4096);
    assert_eq!(last, Progress::Close(CloseReason::Magic(0)));
    let (_, last) = run(0, &option(wire::OPT_LIST, &[]), 4096);
    assert_eq!(last, Progress::Close(CloseReason::NotFixed(wire::OPT_LIST)));
}

fn contexts_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        out.extend((query.len() as u32).to_be_bytes());
        out.extend(query.as_bytes());
    }
    out
}

fn kinds(out: &[u8]) -> Vec<u32> {
    replies(out).iter().map(|reply| reply.kind).collect()
}

fn names(out: &[u8]) -> Vec<String> {
    let contexts = replies(out).into_iter();
    contexts
        .filter(|reply| reply.kind == wire::REP_META_CONTEXT)
        .map(|reply| String::from_utf8(reply.data[4..].to_vec()).unwrap())
        .collect()
}

#[test]
fn structured_replies_are_agreed_on_once_and_bring_the_df_flag() {
    let mut bytes = option(wire::OPT_STRUCTURED_REPLY, b"x");
    bytes.extend(option(wire::OPT_STRUCTURED_REPLY, b""));
    bytes.extend(option(wire::OPT_STRUCTURED_REPLY, b""));
    bytes.extend(option(wire::OPT_EXPORT_NAME, b"demo"));
    let (out, last) = run(BOTH, &bytes, 5);
    let session = Session {
        headers: Headers::Structured,
        ..Session::default()
    };
    assert_eq!(last, transmission_to_demo(session));
    let (options, export) = out.split_at(out.len() - 10);
    let want = [wire::REP_ERR_INVALID, wire::REP_ACK, wire::REP_ERR_INVALID];
    assert_eq!(kinds(options), want);
    let flags = u16::from_be_bytes([export[8], export[9]]);
    assert!(flags & wire::FLAG_SEND_DF != 0);
}

#[test]
fn extended_headers_take_precedence_and_know_go_alone() {
    let mut bytes = option(wire::OPT_STRUCTURED_REPLY, b"");
    bytes.extend(option(wire::OPT_EXTENDED_HEADERS, b""));
    bytes.extend(option(wire::OPT_STRUCTURED_REPLY, b""));
    let go = [bytes.clone(), option(wire::OPT_GO, &info_data("demo", &[]))].concat();
    let (out, last) = run(BOTH, &go, 4096);
    let session = Session {
        headers: Headers::Extended,
        ..Session::default()
    };
    assert_eq!(last, transmission_to_demo(session));
    let want = [wire::REP_ACK, wire::REP_ACK, wire::REP_ERR_EXT_HEADER_REQD];
    assert_eq!(kinds(&out)[..3], want);
    bytes.extend(option(wire::OPT_EXPORT_NAME, b"demo"));
    let (_, last) = run(BOTH, &bytes, 4096);
    assert_eq!(last, Progress::Close(CloseReason::ExtendedNeedsGo));
}

#[test]
fn metadata_contexts_are_listed_by_namespace_and_selected_by_name() {
    for (queries, want) in [
        (&[][..], &["base:allocation", "firn:dirty"][..]),
        (&["base:"], &["base:allocation"]),
        (&["firn:dirty", "qemu:"], &["firn:dirty"]),
        (&["base:alloc"], &[]),
    ] {
        let data = contexts_data("demo", queries);
        let (out, _) = run(BOTH, &option(wire::OPT_LIST_META_CONTEXT, &data), 3);
        assert_eq!(names(&out), want, "{queries:?}");
    }
    let select = |queries: &[&str], export: &str| {
        let mut bytes = option(wire::OPT_STRUCTURED_REPLY, b"");
        let data = contexts_data(export, queries);
        bytes.extend(option(wire::OPT_SET_META_CONTEXT, &data));
        bytes.extend(option(wire::OPT_GO, &info_data("demo", &[])));
        let Progress::Transmission(_, session) = run(BOTH, &bytes, 4096).1 else {
            panic!("no transmission");
        };
        session.contexts.iter().collect::<Vec<_>>()
    };
    let both = [MetaContext::Allocation, MetaContext::Dirty];
    assert_eq!(
        select(&["base:allocation", "x:y", "firn:dirty"], "demo"),
        both
    );
    assert_eq!(select(&["firn:dirty"], "demo"), both[1..]);
    // A namespace selects nothing, and what was selected for another export does not count.
    assert_eq!(select(&["base:"], "demo"), []);
    assert_eq!(select(&["base:allocation"], "old"), []);
}

#[test]
fn metadata_contexts_need_structured_replies_and_a_known_export() {
    let good = contexts_data("demo", &["base:allocation"]);
    let (out, _) = run(BOTH, &option(wire::OPT_SET_META_CONTEXT, &good), 4096);
    assert_eq!(kinds(&out), [wire::REP_ERR_INVALID]);
    let mut lying = good.clone();
    lying[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    for (data, error) in [
        (contexts_data("nobody", &[]), wire::REP_ERR_UNKNOWN),
        (lying, wire::REP_ERR_INVALID),
        (good[..9].to_vec(), wire::REP_ERR_INVALID),
        ([&good[..], b"x"].concat(), wire::REP_ERR_INVALID),
    ] {
        // A failed selection also ends the one before it.
        let mut bytes = option(wire::OPT_STRUCTURED_REPLY, b"");
        bytes.extend(option(wire::OPT_SET_META_CONTEXT, &good));
        bytes.extend(option(wire::OPT_SET_META_CONTEXT, &data));
        bytes.extend(option(wire::OPT_EXPORT_NAME, b"demo"));
        let (out, last) = run(BOTH, &bytes, 4096);
        assert_eq!(kinds(&out[..out.len() - 10]).last(), Some(&error));
        let session = Session {
            headers: Headers::Structured,
            ..Session::default()
        };
        assert_eq!(last, transmission_to_demo(session));
    }
}

#[test]
fn where_tls_is_required_nothing_else_is_answered_before_it() {
    for asked in [wire::OPT_LIST, wire::OPT_GO, wire::OPT_STRUCTURED_REPLY, 77] {
        let (out, _) = run_with(Tls::Required, BOTH, &option(asked, b""), 4096);
        assert_eq!(kinds(&out), [wire::REP_ERR_TLS_REQD]);
    }
    let bytes = option(wire::OPT_EXPORT_NAME, b"demo");
    let (out, last) = run_with(Tls::Required, BOTH, &bytes, 4096);
    assert_eq!(
        (out.len(), last),
        (0, Progress::Close(CloseReason::TlsRequired))
    );
}

#[test]
fn what_was_agreed_on_before_tls_does_not_hold_behind_it() {
    let mut bytes = option(wire::OPT_STRUCTURED_REPLY, b"");
    let selected = contexts_data("demo", &["base:allocation"]);
    bytes.extend(option(wire::OPT_SET_META_CONTEXT, &selected));
    bytes.extend(option(wire::OPT_STARTTLS, b""));
    bytes.extend(option(wire::OPT_STARTTLS, b""));
    bytes.extend(option(wire::OPT_EXPORT_NAME, b"demo"));
    let (out, last) = run_with(Tls::Offered, BOTH, &bytes, 4096);
    assert_eq!(last, transmission_to_demo(Session::default()));
    let kinds = kinds(&out[..out.len() - 10]);
    assert_eq!(
        kinds[kinds.len() - 2..],
        [wire::REP_ACK, wire::REP_ERR_INVALID]
    );
}

#[test]
fn overlong_names_and_descriptions_are_cut_between_characters() {
    let text = "é".repeat(NAME_BYTES_MAX);
    assert_eq!(clip(&text).len(), NAME_BYTES_MAX);
    assert_eq!(clip(&format!("a{text}")).len(), NAME_BYTES_MAX - 1);
}
