//! Owns readers of snapshots: each opens one, reads all of it once, has that judged and closes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::Op;

use super::{Asked, World};
use crate::disk::{IoResult, SECTOR};
use crate::faults::Fault;
use crate::node::{PointAsk, Volume};
use crate::trace::Violation;
use crate::transport::{PieceId, ReqId, Transport, TransportEvent};
use crate::world::ProcessEvent;

/// Who reads a snapshot.
pub(in crate::world) struct Reader {
    pub(super) machine: usize,
    snapshot: usize,
    device: Arc<Volume>,
    transport: Transport<Volume>,
    image: Vec<u8>,
    left: u64,
    unread: BTreeSet<u64>,
    /// By request, which sectors.
    asked: std::collections::BTreeMap<ReqId, std::ops::Range<u64>>,
}

impl World {
    pub(super) fn start_reader(&mut self, machine: usize, snapshot: usize, device: Arc<Volume>) {
        let sectors = self.profile.sectors;
        let mut reader = Reader {
            machine,
            snapshot,
            device: Arc::clone(&device),
            transport: Transport::new(device),
            image: vec![0; sectors as usize * SECTOR],
            left: sectors,
            unread: BTreeSet::new(),
            asked: Default::default(),
        };
        let mut at = 0;
        while at < sectors {
            let len = (8 * self.points.rng.within(1, 32)).min(sectors - at);
            let id = ReqId(self.next_req);
            self.next_req += 1;
            reader.asked.insert(id, at..at + len);
            let op = Op::Read {
                sector: at,
                sectors: len as u32,
            };
            reader.transport.start(id, op, Vec::new());
            at += len;
        }
        let number = self.points.next;
        self.points.next += 1;
        self.points.readers.insert(number, reader);
    }

    /// Moves and answers of the readers. True if there were any.
    pub(in crate::world) fn pump_readers(&mut self) -> Result<bool, Violation> {
        let numbers: Vec<u64> = self.points.readers.keys().copied().collect();
        let mut is_busy = false;
        for number in numbers {
            is_busy |= self.pump_reader(number)?;
        }
        Ok(is_busy)
    }

    fn pump_reader(&mut self, number: u64) -> Result<bool, Violation> {
        let Some(reader) = self.points.readers.get_mut(&number) else {
            return Ok(false);
        };
        let machine = reader.machine;
        let seen = std::mem::take(&mut reader.transport.seen);
        let moves = std::mem::take(&mut reader.transport.moves);
        let mut woken = Vec::new();
        while let Some(req) = reader.transport.next_woken() {
            woken.push(req.0);
        }
        let is_busy = !(seen.is_empty() && moves.is_empty() && woken.is_empty());
        for needed in moves {
            self.submit_reader_move(machine, number, needed);
        }
        for req in woken {
            let delay = self.wake_delay();
            let resume = ProcessEvent::ResumeReader {
                reader: number,
                req,
            };
            self.at_process(machine, delay, resume);
        }
        for event in seen {
            if let TransportEvent::Done(id, result) = event {
                self.on_part_read(number, id, result)?;
            }
        }
        Ok(is_busy)
    }

    pub(in crate::world) fn resume_reader(&mut self, reader: u64, req: ReqId) {
        if let Some(reader) = self.points.readers.get_mut(&reader) {
            reader.transport.resume(req);
        }
    }

    pub(in crate::world) fn on_reader_moved(
        &mut self,
        reader: u64,
        req: ReqId,
        piece: PieceId,
        result: IoResult,
    ) {
        if let Some(reader) = self.points.readers.get_mut(&reader) {
            reader.transport.on_moved(req, piece, result);
        }
    }

    fn on_part_read(
        &mut self,
        number: u64,
        id: ReqId,
        result: Result<Vec<u8>, ErrorKind>,
    ) -> Result<(), Violation> {
        self.trace.record(&[13, id.0, u64::from(result.is_ok())]);
        let Some(reader) = self.points.readers.get_mut(&number) else {
            return Ok(());
        };
        let range = reader.asked.remove(&id).expect("answered once");
        reader.left -= range.end - range.start;
        match result {
            Ok(bytes) => {
                let at = range.start as usize * SECTOR;
                reader.image[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Err(kind) => {
                reader.unread.extend(range);
                let nth = reader.snapshot;
                let is_deleted = self.points.snapshots[nth].deletions > 0;
                if !is_deleted && !self.profile.errors_allowed() {
                    let name = self.snapshot_name(nth);
                    let detail = format!("{name} cannot be read, and nobody deleted it: {kind}");
                    return Err(Violation::new("S6 snapshot is kept", detail));
                }
            }
        }
        match self.points.readers.get(&number) {
            Some(reader) if reader.left == 0 => self.on_read(number),
            _ => Ok(()),
        }
    }

    /// All of it was read, or what could be.
    fn on_read(&mut self, number: u64) -> Result<(), Violation> {
        let Some(reader) = self.points.readers.remove(&number) else {
            return Ok(());
        };
        self.judge_snapshot(reader.snapshot, &reader.image, &reader.unread)?;
        self.count(Fault::SnapshotRead);
        let taker = self.points.snapshots[reader.snapshot].attachment;
        if self.attachments[taker].machine != reader.machine {
            self.count(Fault::SnapshotReadElsewhere);
        }
        let device = reader.device;
        drop(reader.transport);
        self.ask_point(reader.machine, Asked::Close, PointAsk::Close(device));
        Ok(())
    }
}
