//! The clients of a world: what they ask, and what is concluded from the answers.

use std::ops::Range;

use blkmq::error::ErrorKind;
use blkmq::io::Op;

use super::{Attachment, AttachmentPhase, Event, Phase, ProcessEvent, World};
use crate::disk::SECTOR;
use crate::oracle::history::{History, ReadWindow, Value};
use crate::oracle::stamp::Stamp;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::trace::Violation;
use crate::transport::{ReqId, TransportEvent};
use crate::workload::{self, Action, Generator, Shape, op_range};

/// Times that a failed scan read is tried again before its sectors count as unreadable.
const SCAN_TRIES: u32 = 20;

/// A client: its generator and what it has in flight.
pub(super) struct Client {
    rng: Rng,
    generator: Box<dyn Generator>,
    pub(super) in_flight: usize,
    draining: bool,
    /// An event for it is in the heap.
    armed: bool,
}

impl Client {
    pub(super) fn new(rng: Rng, generator: Box<dyn Generator>) -> Client {
        Client {
            rng,
            generator,
            in_flight: 0,
            draining: false,
            armed: false,
        }
    }

    fn copy(&self) -> Client {
        Client::new(self.rng.clone(), Box::new(Mute))
    }
}

/// A generator at its end.
#[derive(Debug)]
struct Mute;

impl Generator for Mute {
    fn next(&mut self, _: &mut Rng) -> Action {
        Action::Stop
    }
}

/// Who issued a request.
#[derive(Clone, Copy, Debug)]
enum By {
    Client(usize),
    /// The scan after a recovery; so many tries so far.
    Scan(u32),
}

/// A request and what must be remembered to judge its answer.
#[derive(Clone, Debug)]
pub(super) struct IssuedRequest {
    pub(super) attachment: usize,
    by: By,
    pub(super) op: Op,
    /// Commits when it was issued.
    commits: u64,
    /// Commits acknowledged when it was issued: what a flush covers.
    acked: u64,
    /// Where in the history it took effect.
    position: Option<u64>,
}

impl Attachment {
    pub(super) fn new(seed: u64, machine: u64, line: u64, profile: &Profile) -> Attachment {
        let shape = Shape {
            sectors: profile.sectors,
            block: profile.block,
        };
        let client = |n: u64| {
            let mut rng = Rng::stream(
                seed,
                &format!("client {} {n}", machine * profile.volumes + line),
            );
            let generator = workload::draw(&mut rng, shape);
            Client::new(rng, generator)
        };
        Attachment {
            machine: machine as usize,
            line: line as usize,
            number: line,
            order: 0,
            wanted: machine == 0,
            has_let_go: false,
            phase: AttachmentPhase::Down,
            history: History::new(line, profile.sectors),
            transport: None,
            clients: (0..profile.clients).map(client).collect(),
            image: Vec::new(),
            scan_left: 0,
            unread: Default::default(),
            synced: false,
        }
    }

    /// The same volume without its process. Its clients act no more.
    pub(super) fn copy(&self) -> Attachment {
        Attachment {
            history: self.history.clone(),
            transport: None,
            clients: self.clients.iter().map(Client::copy).collect(),
            image: Vec::new(),
            unread: Default::default(),
            ..*self
        }
    }

    /// The process is gone, and with it everything in flight.
    pub(super) fn forget_process(&mut self) {
        self.phase = AttachmentPhase::Down;
        self.transport = None;
        for client in &mut self.clients {
            client.in_flight = 0;
            client.draining = false;
            client.armed = false;
        }
    }

    /// It is served, or nobody wants it to be.
    pub(super) fn is_settled(&self) -> bool {
        match self.phase {
            AttachmentPhase::Serving => true,
            AttachmentPhase::Down => !self.wanted,
            _ => false,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.clients.iter().all(|client| client.in_flight == 0)
    }
}

impl World {
    /// Makes sure that a client that may act will.
    pub(super) fn arm(&mut self, attachment: usize, client: usize, delay: u64) {
        let state = &mut self.attachments[attachment].clients[client];
        if !state.armed {
            state.armed = true;
            let machine = self.attachments[attachment].machine;
            self.at_process(machine, delay, ProcessEvent::Client { attachment, client });
        }
    }

    pub(super) fn run_client(&mut self, attachment: usize, client: usize) {
        let serving = self.attachments[attachment].phase == AttachmentPhase::Serving;
        let depth = self.profile.depth;
        let state = &mut self.attachments[attachment].clients[client];
        state.armed = false;
        let busy = state.in_flight >= depth || (state.draining && state.in_flight > 0);
        if !serving || busy || self.phase != Phase::Work {
            return;
        }
        state.draining = false;
        if self.actions_left == 0 {
            return;
        }
        let action = state.generator.next(&mut state.rng);
        if action == Action::Stop {
            return;
        }
        self.actions_left -= 1;
        let mut pause = 0;
        match action {
            Action::Op(op) => self.issue(attachment, client, op),
            Action::Sync => self.start_sync(attachment, Some(client)),
            Action::Drain => self.attachments[attachment].clients[client].draining = true,
            Action::Pause(ns) => pause = ns,
            Action::Stop => {}
        }
        if self.chance.draw_rate(self.profile.outage) && !self.store.outage {
            self.store.outage = true;
            let length = self.latency(self.profile.store_ns * 40);
            self.trace.log(self.now, || {
                format!("store outage for {} ms", length / 1_000_000)
            });
            self.at(length, Event::OutageEnd);
        }
        let think = self.latency(self.profile.think_ns);
        self.arm(attachment, client, pause + think);
    }

    fn issue(&mut self, attachment: usize, client: usize, op: Op) {
        let id = ReqId(self.next_req);
        self.next_req += 1;
        self.attachments[attachment].clients[client].in_flight += 1;
        let mut payload = Vec::new();
        if let Op::Write { .. } = op {
            for sector in op_range(&op) {
                let stamp = Stamp {
                    volume: self.attachments[attachment].number,
                    sector,
                    client: client as u64,
                    write: id.0,
                    generation: self.machines[self.attachments[attachment].machine].process,
                };
                stamp.write_to(&mut payload);
            }
            self.attachments[attachment]
                .history
                .issue(id.0, op_range(&op));
        }
        self.send(id, attachment, By::Client(client), op, payload);
    }

    fn send(&mut self, id: ReqId, attachment: usize, by: By, op: Op, payload: Vec<u8>) {
        let history = &self.attachments[attachment].history;
        let issued = IssuedRequest {
            attachment,
            by,
            op,
            commits: history.len(),
            acked: history.acked(),
            position: None,
        };
        self.trace.record(&[3, id.0, attachment as u64]);
        self.trace.log(self.now, || {
            format!("v{attachment} request {} {by:?} {op:?}", id.0)
        });
        self.requests.insert(id, issued);
        if let Some(transport) = &mut self.attachments[attachment].transport {
            transport.start(id, op, payload);
        }
    }

    /// Begins to read a volume's whole image back.
    pub(super) fn start_scan(&mut self, attachment: usize) {
        let sectors = self.profile.sectors;
        let state = &mut self.attachments[attachment];
        state.phase = AttachmentPhase::Scanning;
        state.image = vec![0; sectors as usize * SECTOR];
        state.unread.clear();
        state.scan_left = sectors;
        let mut at = 0;
        while at < sectors {
            let len = (8 * self.chance.within(1, 16)).min(sectors - at);
            self.scan(attachment, at..at + len, 0);
            at += len;
        }
    }

    pub(super) fn scan(&mut self, attachment: usize, range: Range<u64>, tries: u32) {
        let id = ReqId(self.next_req);
        self.next_req += 1;
        let sectors = u32::try_from(range.end - range.start).expect("drawn small");
        let op = Op::Read {
            sector: range.start,
            sectors,
        };
        self.send(id, attachment, By::Scan(tries), op, Vec::new());
    }

    /// Concludes from what a transport saw.
    pub(super) fn on_transport_event(
        &mut self,
        attachment: usize,
        seen: TransportEvent,
    ) -> Result<(), Violation> {
        match seen {
            TransportEvent::Committed(id, _) => {
                let issued = self.requests.get_mut(&id).expect("issued above");
                let value = match issued.op {
                    Op::Write { .. } => Value::Write(id.0),
                    _ => Value::Zero,
                };
                let here = &mut self.attachments[attachment];
                if here.phase == AttachmentPhase::Fenced {
                    let detail = format!("{:?} took effect on a host that knows it", issued.op);
                    return Err(Violation::new("S7 fenced", detail));
                }
                let history = &mut here.history;
                let position = history.commit(op_range(&issued.op), value);
                issued.position = Some(position);
                self.trace.record(&[1, id.0, position]);
                self.trace.log(self.now, || {
                    format!("v{attachment} commit {position} = {}", id.0)
                });
                Ok(())
            }
            TransportEvent::Done(id, result) => self.answered(id, result),
        }
    }

    fn answered(&mut self, id: ReqId, result: Result<Vec<u8>, ErrorKind>) -> Result<(), Violation> {
        let issued = self.requests.remove(&id).expect("answered once");
        self.trace.record(&[2, id.0, u64::from(result.is_ok())]);
        self.trace.log(self.now, || {
            let result = result.as_ref().map(Vec::len);
            format!("v{} answer {} {result:?}", issued.attachment, id.0)
        });
        if let Err(kind) = result {
            self.judge_error(&issued, id, kind)?;
        }
        match issued.by {
            By::Scan(tries) => self.on_scanned(&issued, result, tries),
            By::Client(client) => {
                self.answered += 1;
                self.judge(&issued, result)?;
                self.on_request_ended(issued.attachment, client);
                Ok(())
            }
        }
    }

    pub(super) fn on_request_ended(&mut self, attachment: usize, client: usize) {
        self.attachments[attachment].clients[client].in_flight -= 1;
        let think = self.latency(self.profile.think_ns);
        self.arm(attachment, client, think);
    }

    fn judge_error(
        &mut self,
        issued: &IssuedRequest,
        id: ReqId,
        kind: ErrorKind,
    ) -> Result<(), Violation> {
        self.errors += 1;
        if kind != ErrorKind::Invalid && self.is_challenged(issued.attachment) {
            if kind == ErrorKind::Fenced {
                self.on_fenced(issued.attachment);
            }
            return Ok(());
        }
        if self.profile.errors_allowed() && kind != ErrorKind::Invalid {
            return Ok(());
        }
        let detail = format!(
            "request {} {:?} failed in a world without I/O errors: {kind}",
            id.0, issued.op
        );
        Err(Violation::new("S10 no invented errors", detail))
    }

    fn judge(
        &mut self,
        issued: &IssuedRequest,
        result: Result<Vec<u8>, ErrorKind>,
    ) -> Result<(), Violation> {
        let Ok(bytes) = result else { return Ok(()) };
        let history = &mut self.attachments[issued.attachment].history;
        let mut write = |fua: bool| {
            let Some(position) = issued.position else {
                let detail = format!("{:?} was completed but never took effect", issued.op);
                return Err(Violation::new("S1 process crash", detail));
            };
            history.complete(position);
            if fua {
                history.on_flushed(position);
            }
            Ok(())
        };
        match issued.op {
            Op::Write { fua, .. } | Op::Discard { fua, .. } | Op::WriteZeroes { fua, .. } => {
                write(fua)
            }
            Op::Flush => {
                history.on_flushed(issued.acked);
                Ok(())
            }
            Op::Read { sector, .. } => {
                self.trace.record_bytes(&bytes[..bytes.len().min(64)]);
                let window = ReadWindow {
                    from: issued.commits,
                    to: history.len(),
                };
                history.check_read(sector, &bytes, window)
            }
        }
    }

    fn on_scanned(
        &mut self,
        issued: &IssuedRequest,
        result: Result<Vec<u8>, ErrorKind>,
        tries: u32,
    ) -> Result<(), Violation> {
        let range = op_range(&issued.op);
        let attachment = issued.attachment;
        let state = &mut self.attachments[attachment];
        match result {
            Ok(bytes) => {
                let at = range.start as usize * SECTOR;
                state.image[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Err(_) if tries < SCAN_TRIES && state.phase == AttachmentPhase::Scanning => {
                // The engine remembers a failed fetch for a while: try again after that.
                let (machine, sector) = (state.machine, range.start);
                let sectors = range.end - range.start;
                let rescan = ProcessEvent::Rescan {
                    attachment,
                    sector,
                    sectors,
                    tries: tries + 1,
                };
                self.at_process(machine, 200_000_000, rescan);
                return Ok(());
            }
            Err(_) => state.unread.extend(range.clone()),
        }
        state.scan_left -= range.end - range.start;
        if state.scan_left > 0 || state.phase != AttachmentPhase::Scanning {
            return Ok(());
        }
        self.scan_complete(attachment)
    }

    fn scan_complete(&mut self, attachment: usize) -> Result<(), Violation> {
        let state = &mut self.attachments[attachment];
        let image = std::mem::take(&mut state.image);
        let unread = std::mem::take(&mut state.unread);
        let (before, acked) = (state.history.len(), state.history.acked());
        let (found, own) = self.settle(attachment, &image, &unread)?;
        let state = &mut self.attachments[attachment];
        state.history.prune();
        let there = &self.machines[state.machine];
        let name = &self.lines[state.line].name;
        let silent = own && there.ring_gone && !there.disk.has_corrupted() && found < acked;
        if silent && !there.rings_reported.contains(name) {
            let detail = format!(
                "the rings vanished, {} acknowledged commits of volume {name} with them, and \
                 recovery did not say so",
                acked - found
            );
            return Err(Violation::new("S1 silent loss", detail));
        }
        self.settled += 1;
        self.trace.record(&[4, attachment as u64, found]);
        self.trace.record_bytes(&image);
        self.trace.log(self.now, || {
            format!("v{attachment} recovered: prefix {found} of {before}")
        });
        self.serve(attachment);
        Ok(())
    }

    /// The volume's clients may begin.
    pub(super) fn serve(&mut self, attachment: usize) {
        self.attachments[attachment].phase = AttachmentPhase::Serving;
        for client in 0..self.attachments[attachment].clients.len() {
            let think = self.latency(self.profile.think_ns);
            self.arm(attachment, client, think);
        }
        if self.attachments.iter().all(Attachment::is_settled) {
            self.all_serving();
        }
    }
}
