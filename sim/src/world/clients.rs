//! The clients of a world: what they ask, and what is concluded from the answers.

use blkmq::error::ErrorKind;
use blkmq::io::Op;

use super::{Attachment, AttachmentPhase, Phase, ProcessEvent, World};
use crate::faults::Fault;
use crate::oracle::history::{History, ReadWindow, Value};
use crate::oracle::stamp::Stamp;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::trace::Violation;
use crate::transport::{ReqId, TransportEvent};
use crate::workload::{self, Action, Generator, Shape, op_range};

/// The longest wait of a FLUSH, in typical disk operations: two rounds and a checkpoint, of which each
/// sync may be eighty times slower than a typical write.
const FLUSH_DISK_TIMES: u64 = 2000;
/// And in typical wakings.
const FLUSH_WAKES: u64 = 200;

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
        Client::new(self.rng.clone(), Box::new(StoppedGenerator))
    }
}

/// A generator at its end.
#[derive(Debug)]
struct StoppedGenerator;

impl Generator for StoppedGenerator {
    fn next(&mut self, _: &mut Rng) -> Action {
        Action::Stop
    }
}

/// Who issued a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Issuer {
    Client(usize),
    /// The scan after a recovery; so many tries so far.
    Scan(u32),
}

/// A request and what must be remembered to judge its answer.
#[derive(Clone, Debug)]
pub(super) struct IssuedRequest {
    pub(super) attachment: usize,
    pub(super) issuer: Issuer,
    pub(super) op: Op,
    /// Commits when it was issued.
    pub(super) commits: u64,
    /// Commits acknowledged when it was issued: what a flush covers.
    pub(super) acked: u64,
    /// Where in the history it took effect.
    pub(super) position: Option<u64>,
    /// Stamped on what it writes: the process it was issued to first.
    pub(super) generation: u64,
    /// The device issues it again: its first server died.
    pub(super) is_reissued: bool,
    pub(super) issued_at: u64,
    /// How long checkpoints of its machine had been encoded by then.
    pub(super) encoded_ns: u64,
}

impl IssuedRequest {
    fn is_of(&self, nth: usize) -> bool {
        matches!(self.issuer, Issuer::Client(client) if client == nth)
    }
}

impl Attachment {
    pub(super) fn new(seed: u64, machine: u64, line: u64, profile: &Profile) -> Attachment {
        let shape = Shape {
            sectors: profile.sectors,
            block: profile.block,
        };
        let client = |n: u64| {
            let name = match line.checked_sub(profile.volumes) {
                None => format!("client {} {n}", machine * profile.volumes + line),
                Some(fork) => format!("client of fork {machine} {fork} {n}"),
            };
            let mut rng = Rng::stream(seed, &name);
            let generator = workload::draw(&mut rng, shape);
            Client::new(rng, generator)
        };
        Attachment {
            machine: machine as usize,
            line: line as usize,
            number: line,
            order: 0,
            wanted: machine == 0 && line < profile.volumes,
            has_let_go: false,
            had_root: false,
            asked_at: 0,
            phase: AttachmentPhase::Down,
            history: History::new(line, profile.sectors),
            restored: None,
            is_torn: false,
            idle_boots: 0,
            hidden: None,
            transport: None,
            clients: (0..profile.clients).map(client).collect(),
            image: Vec::new(),
            scan_left: 0,
            pending: Default::default(),
            unread: Default::default(),
            synced: false,
            completions: Default::default(),
            claim: None,
        }
    }

    /// The same volume without its process. Its clients act no more.
    pub(super) fn copy(&self) -> Attachment {
        Attachment {
            history: self.history.clone(),
            hidden: self.hidden.clone(),
            restored: self.restored.clone(),
            transport: None,
            clients: self.clients.iter().map(Client::copy).collect(),
            image: Vec::new(),
            pending: Default::default(),
            unread: Default::default(),
            completions: self.completions.clone(),
            claim: self.claim.clone(),
            ..*self
        }
    }

    /// The process is gone, and with it everything in flight.
    pub(super) fn forget_process(&mut self) {
        self.phase = AttachmentPhase::Down;
        self.transport = None;
        for (nth, client) in self.clients.iter_mut().enumerate() {
            let kept = self.pending.values();
            client.in_flight = kept.filter(|kept| kept.is_of(nth)).count();
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
        self.act_on_points(attachment);
        let mut pause = 0;
        match action {
            Action::Op(op) => self.issue(attachment, client, op),
            Action::Sync => self.start_sync(attachment, Some(client)),
            Action::Drain => self.attachments[attachment].clients[client].draining = true,
            Action::Pause(ns) => pause = ns,
            Action::Stop => {}
        }
        if self.chance.draw_rate(self.profile.outage) && !self.store.outage {
            self.begin_outage();
        }
        let think = self.latency(self.profile.think_ns);
        self.arm(attachment, client, pause + think);
    }

    fn issue(&mut self, attachment: usize, client: usize, op: Op) {
        let id = ReqId(self.next_req);
        self.next_req += 1;
        self.attachments[attachment].clients[client].in_flight += 1;
        let here = &self.attachments[attachment];
        let generation = self.machines[here.machine].process;
        let issued = IssuedRequest {
            attachment,
            issuer: Issuer::Client(client),
            op,
            commits: here.history.len(),
            acked: here.history.acked(),
            position: None,
            generation,
            is_reissued: false,
            issued_at: self.now,
            encoded_ns: self.machines[here.machine].encoded_ns(self.now),
        };
        if let Op::Write { .. } = op {
            let history = &mut self.attachments[attachment].history;
            history.issue(id.0, op_range(&op));
        }
        self.send(id, issued);
    }

    /// The bytes of a write: they depend on nothing that changes.
    fn payload(&self, id: ReqId, issued: &IssuedRequest) -> Vec<u8> {
        let mut payload = Vec::new();
        let (Op::Write { .. }, Issuer::Client(client)) = (issued.op, issued.issuer) else {
            return payload;
        };
        for sector in op_range(&issued.op) {
            let stamp = Stamp {
                volume: self.attachments[issued.attachment].number,
                sector,
                client: client as u64,
                write: id.0,
                generation: issued.generation,
            };
            stamp.write_to(&mut payload);
        }
        payload
    }

    pub(super) fn send(&mut self, id: ReqId, issued: IssuedRequest) {
        let attachment = issued.attachment;
        self.trace.record(&[3, id.0, attachment as u64]);
        self.trace.log(self.now, || {
            let (by, op) = (issued.issuer, issued.op);
            format!("v{attachment} request {} {by:?} {op:?}", id.0)
        });
        let (op, payload) = (issued.op, self.payload(id, &issued));
        self.requests.insert(id, issued);
        if let Some(transport) = &mut self.attachments[attachment].transport {
            transport.start(id, op, payload);
        }
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
                if issued.is_reissued && history.hides_completed(op_range(&issued.op), id.0) {
                    self.faults.count(Fault::ReissuedOverCompleted);
                }
                let position = history.commit(op_range(&issued.op), value);
                issued.position = Some(position);
                self.points.note_commit(attachment);
                self.trace.record(&[1, id.0, position]);
                self.trace.log(self.now, || {
                    format!("v{attachment} commit {position} = {}", id.0)
                });
                Ok(())
            }
            TransportEvent::Done(id, result) => self.on_answer(id, result),
        }
    }

    fn on_answer(
        &mut self,
        id: ReqId,
        result: Result<Vec<u8>, ErrorKind>,
    ) -> Result<(), Violation> {
        let issued = self.requests.remove(&id).expect("answered once");
        self.trace.record(&[2, id.0, u64::from(result.is_ok())]);
        self.trace.log(self.now, || {
            let result = result.as_ref().map(Vec::len);
            format!("v{} answer {} {result:?}", issued.attachment, id.0)
        });
        if let Err(kind) = result {
            self.judge_error(&issued, id, kind)?;
        }
        match issued.issuer {
            Issuer::Scan(tries) => self.on_scanned(&issued, result, tries),
            Issuer::Client(client) => {
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
        // Its root was read while its image was, and says that it is not this host's.
        let is_scan = self.profile.unchecked > 0 && matches!(issued.issuer, Issuer::Scan(_));
        if is_scan && kind == ErrorKind::Fenced {
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
        if issued.op == Op::Flush {
            self.judge_wait(issued)?;
        }
        let here = &mut self.attachments[issued.attachment];
        let (history, completions) = (&mut here.history, &mut here.completions);
        let mut write = |fua: bool| {
            let Some(position) = issued.position else {
                let detail = format!("{:?} was completed but never took effect", issued.op);
                return Err(Violation::new("S1 process crash", detail));
            };
            history.complete(position);
            completions.note(self.now, history.acked());
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
            Op::Status { .. } | Op::Prefetch { .. } => Ok(()),
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

    /// A FLUSH waits for the disk and for what a checkpoint holds: not for the store, and not for what is
    /// being computed beside.
    fn judge_wait(&mut self, issued: &IssuedRequest) -> Result<(), Violation> {
        let machine = &self.machines[self.attachments[issued.attachment].machine];
        if machine.paused_until > issued.issued_at {
            return Ok(());
        }
        // A checkpoint is in its way; what is computed beside it is not.
        let computed = machine.checkpoint_ns.saturating_sub(issued.encoded_ns);
        let waited = self.now - issued.issued_at;
        self.flush_ns = self.flush_ns.max(waited);
        let bound =
            FLUSH_DISK_TIMES * self.profile.disk_ns + FLUSH_WAKES * self.profile.wake_ns + computed;
        if waited <= bound {
            return Ok(());
        }
        let detail = format!(
            "a FLUSH took {} us, where a disk operation takes {} us, beside {} us of computing",
            waited / 1000,
            self.profile.disk_ns / 1000,
            computed / 1000
        );
        Err(Violation::new("longest wait of a FLUSH", detail))
    }

    /// The volume's clients may begin.
    pub(super) fn serve(&mut self, attachment: usize) {
        self.attachments[attachment].phase = AttachmentPhase::Serving;
        self.reissue_all(attachment);
        for client in 0..self.attachments[attachment].clients.len() {
            let think = self.latency(self.profile.think_ns);
            self.arm(attachment, client, think);
        }
        if self.attachments.iter().all(Attachment::is_settled) {
            self.all_serving();
        }
    }
}
