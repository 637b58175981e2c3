//! The entry point for fuzzers and mutation tests: one call drives a whole session on given bytes and
//! asserts what must hold whatever they are. It panics only where the codec is wrong.

use crate::codec::{
    Command, Decoder, Directory, Event, ExportEntry, ExportInfo, ExportState, Handshake, Limits,
    PAYLOAD_BYTES_MAX, ParkEnd, Progress, Session, Tls,
};
use blkmq::io::Geometry;

#[cfg(any(test, fuzzing))]
pub use crate::server::tls_fuzz::tls_stream;

/// An answer to one option never grows beyond this with the directory used here.
const ANSWER_BYTES_MAX: usize = 4096;

struct TwoExports;

fn geometry(read_only: bool) -> Geometry {
    Geometry {
        bytes: 1 << 30,
        logical_block: 512,
        physical_block: 4096,
        read_only,
    }
}

impl Directory for TwoExports {
    type Export = Geometry;

    fn find(&self, name: &str) -> ExportState<(Geometry, ExportInfo)> {
        let read_only = match name {
            "" | "disk" => false,
            "locked" => true,
            "opening" => return ExportState::Opening(name.to_owned()),
            _ => return ExportState::Absent,
        };
        let info = ExportInfo {
            name: name.to_owned(),
            description: "a disk".to_owned(),
            geometry: geometry(read_only),
        };
        ExportState::Open((info.geometry, info))
    }

    fn list(&self) -> Vec<ExportEntry> {
        let listed = |name: &str| ExportEntry {
            name: name.to_owned(),
            description: String::new(),
        };
        vec![listed("disk"), listed("locked")]
    }
}

/// Everything a session did, for comparing one way of cutting the input with another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Bytes the server would have sent in the handshake.
    pub answers: Vec<u8>,
    /// The requests, refusals and the end, printed.
    pub events: Vec<String>,
    /// Payload bytes seen.
    pub payload: u64,
}

/// Runs a session on `input`, handed over in pieces of at most `step` bytes.
pub fn session(input: &[u8], step: usize) -> Trace {
    let step = step.max(1);
    let mut trace = Trace::default();
    let mut handshake = Handshake::new(Tls::Offered);
    let mut at = 0;
    while at < input.len() {
        let end = input.len().min(at + step);
        let before = trace.answers.len();
        let (consumed, progress) =
            handshake.receive(&input[at..end], &TwoExports, &mut trace.answers);
        assert!(consumed <= end - at, "consumed more than was given");
        assert!(
            trace.answers.len() - before <= ANSWER_BYTES_MAX,
            "answer without bound"
        );
        at += consumed;
        match progress {
            Progress::NeedMore => assert!(consumed > 0, "no progress"),
            Progress::Close(reason) => {
                trace.events.push(format!("{reason:?}"));
                return trace;
            }
            Progress::Park(name) => {
                assert!(consumed > 0, "no progress");
                trace.events.push(format!("parked for {name}"));
                let (again, progress) = handshake.receive(&[], &TwoExports, &mut trace.answers);
                assert_eq!((again, progress), (0, Progress::Park(name)));
                if let Some(reason) = handshake.give_up(ParkEnd::Late, &mut trace.answers) {
                    trace.events.push(format!("{reason:?}"));
                    return trace;
                }
            }
            // What follows in a real session is decrypted first: here it stands for itself.
            Progress::StartTls => assert!(consumed > 0, "no progress"),
            Progress::Transmission(limits, session) => {
                trace.events.push(format!("{session:?}"));
                transmission(&input[at..], step, session, &limits, &mut trace);
                return trace;
            }
        }
    }
    trace
}

/// Runs the transmission phase on `input`, handed over in pieces of at most `step` bytes.
pub fn transmission(
    input: &[u8],
    step: usize,
    session: Session,
    limits: &Limits,
    trace: &mut Trace,
) {
    let step = step.max(1);
    let mut decoder = Decoder::new(session);
    let mut at = 0;
    while at < input.len() {
        let end = input.len().min(at + step);
        let (consumed, event) = decoder.next(&input[at..end], limits);
        assert!(consumed <= end - at, "consumed more than was given");
        at += consumed;
        match event {
            Event::NeedMore => assert!(consumed > 0, "no progress"),
            Event::Payload { bytes } => {
                assert!(bytes > 0 && bytes <= end - at, "payload outside the input");
                decoder.consume_payload(bytes as u32);
                trace.payload += bytes as u64;
                at += bytes;
            }
            Event::Request(request) => {
                let end = request.offset + request.length;
                assert!(end <= limits.bytes, "request outside the export");
                let moved = matches!(request.command, Command::Read | Command::Write);
                assert!(
                    !moved || request.length <= u64::from(PAYLOAD_BYTES_MAX),
                    "oversized payload"
                );
                let writes = request.op().changes();
                assert!(!(writes && limits.read_only), "write to a read-only export");
                assert!(
                    request.command != Command::BlockStatus || !session.contexts.is_empty(),
                    "a status of nothing"
                );
                let due = match request.command {
                    Command::Write => request.payload_bytes(),
                    _ => 0,
                };
                assert_eq!(
                    decoder.payload_bytes_left(),
                    due,
                    "payload of another length"
                );
                trace.events.push(format!("{request:?}"));
            }
            Event::Refused(refusal) => trace.events.push(format!("{refusal:?}")),
            Event::Disconnect | Event::Violated(_) => {
                trace.events.push(format!("{event:?}"));
                assert_eq!(
                    decoder.next(&input[at..], limits),
                    (0, event),
                    "the end is final"
                );
                return;
            }
        }
    }
}
