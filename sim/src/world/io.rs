//! How requests of the engine and moves of the transport reach disk, memory and store, and how
//! their ends come back.
//!
//! What belongs to a dead process is dropped here, where it comes back; the disk and the store
//! themselves decide what of it still takes effect.

use std::collections::BTreeMap;

use blkmq::io::FileId;

use super::{Event, ProcessEvent, World};
use crate::disk::{Io, IoError, IoId, IoResult, Origin};
use crate::faults::Fault;
use crate::node::{self, Computation, ComputeKind, DiskOp, Request, RequestId, RequestOp};
use crate::store::CallId;
use crate::trace::Violation;
use crate::transport::{Direction, Move, PieceId, ReqId};

/// Who waits for an operation.
#[derive(Clone)]
pub(super) enum IoOwner {
    /// The engine.
    Engine(RequestId),
    /// A transport's request. For a write, where it goes on if it was short.
    Move {
        attachment: usize,
        req: ReqId,
        piece: PieceId,
        rest: Option<(u64, Vec<u8>)>,
    },
    /// A reader of a snapshot.
    Reader {
        reader: u64,
        req: ReqId,
        piece: PieceId,
    },
}

impl std::fmt::Debug for IoOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IoOwner::Engine(id) => write!(f, "for the engine's {}", id.0),
            IoOwner::Reader { reader, req, .. } => {
                write!(f, "for reader {reader} request {}", req.0)
            }
            IoOwner::Move {
                attachment,
                req,
                rest,
                ..
            } => {
                let at = rest.as_ref().map_or(0, |(offset, _)| *offset);
                write!(f, "for v{attachment} request {} (written at {at})", req.0)
            }
        }
    }
}

/// The memory file: it lives and dies with the process, and nothing of it is ever torn.
#[derive(Debug, Default)]
pub(super) struct Memory {
    bytes: Vec<u8>,
    next: u64,
    pending: BTreeMap<u64, (IoOwner, MemoryOp)>,
}

#[derive(Clone, Debug)]
enum MemoryOp {
    Read(u64, u64),
    Write(u64, Vec<u8>),
    Sync,
}

impl Memory {
    /// What is left of it when the process is gone.
    pub(super) fn lost_with_process(&self) -> Memory {
        Memory {
            next: self.next,
            ..Memory::default()
        }
    }

    fn apply(&mut self, op: MemoryOp) -> Vec<u8> {
        let grow = |bytes: &mut Vec<u8>, end: u64| {
            if bytes.len() < end as usize {
                bytes.resize(end as usize, crate::disk::POISON);
            }
        };
        match op {
            MemoryOp::Read(offset, len) => {
                grow(&mut self.bytes, offset + len);
                self.bytes[offset as usize..(offset + len) as usize].to_vec()
            }
            MemoryOp::Write(offset, data) => {
                grow(&mut self.bytes, offset + data.len() as u64);
                self.bytes[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
                Vec::new()
            }
            MemoryOp::Sync => Vec::new(),
        }
    }
}

fn is_memory(op: &DiskOp) -> bool {
    match op {
        DiskOp::Read { file, .. }
        | DiskOp::Write { file, .. }
        | DiskOp::Zero { file, .. }
        | DiskOp::Sync { file } => *file == FileId::MEMORY,
    }
}

impl World {
    /// Starts what the engine asks for.
    pub(super) fn submit(&mut self, machine: usize, request: Request) {
        self.trace.record(&[5, request.id.0]);
        self.trace.log(self.now, || {
            format!("m{machine} engine asks {:?}", node::brief(&request.op))
        });
        match request.op {
            RequestOp::Disk(op) if is_memory(&op) => {
                let op = match op {
                    DiskOp::Read { offset, len, .. } => MemoryOp::Read(offset, len as u64),
                    DiskOp::Write { offset, data, .. } => MemoryOp::Write(offset, data),
                    DiskOp::Zero { offset, len, .. } => {
                        MemoryOp::Write(offset, vec![0; len as usize])
                    }
                    DiskOp::Sync { .. } => MemoryOp::Sync,
                };
                self.start_memory(machine, IoOwner::Engine(request.id), op);
            }
            RequestOp::Disk(op) => {
                let io = match op {
                    DiskOp::Read { file, offset, len } => Io::Read {
                        file: file.0,
                        offset,
                        len: len as u64,
                    },
                    DiskOp::Write { file, offset, data } => Io::Write {
                        file: file.0,
                        offset,
                        data: data.into(),
                    },
                    DiskOp::Zero { file, offset, len } => Io::Write {
                        file: file.0,
                        offset,
                        data: vec![0; len as usize].into(),
                    },
                    DiskOp::Sync { file } => Io::Sync { file: file.0 },
                };
                self.start_disk(machine, Origin::Engine, IoOwner::Engine(request.id), io);
            }
            RequestOp::Compute(work) => self.compute(machine, request.id, work),
            RequestOp::Store(op) => {
                let author = self.machines[machine].process;
                let call = self.store.submit(author, node::call(op));
                self.callers.insert(call, (author, request.id));
                let there = self.latency(self.profile.store_ns / 2);
                let back = self.latency(self.profile.store_ns / 2);
                self.at(there, Event::Deliver(call));
                self.at(there + back, Event::Answer(call));
                if self.store.is_redelivered(call) {
                    let late = self.latency(self.profile.store_ns * 4);
                    self.at(there + back + late, Event::Redeliver(call));
                }
            }
        }
    }

    /// Computes at once, and lets the time pass that it takes. What a client waits for has a processor of
    /// its own; all else shares one.
    fn compute(&mut self, machine: usize, id: RequestId, work: Computation) {
        let cost = (work.bytes() * self.profile.compute_ns) >> 10;
        if cost > 0 {
            self.faults.count(Fault::Computing);
        }
        let there = &mut self.machines[machine];
        if work.kind() == ComputeKind::Checkpoint {
            there.checkpoint_until = self.now + cost;
            there.checkpoint_ns += cost;
        }
        let ends_at = if work.kind().is_awaited() {
            self.now + cost
        } else {
            there.background_until = there.background_until.max(self.now) + cost;
            there.background_until
        };
        // The engine contains a panic here; for the world it is one.
        if let Err(error) = work.run() {
            panic!("{}", error.0);
        }
        let delay = ends_at - self.now + self.wake_delay();
        self.at_process(machine, delay, ProcessEvent::Computed(id));
    }

    /// Starts what a transport needs.
    pub(super) fn submit_move(&mut self, attachment: usize, needed: Move) {
        let Move {
            req,
            piece,
            file,
            offset,
            what,
        } = needed;
        let memory = file == FileId::MEMORY;
        let machine = self.attachments[attachment].machine;
        match what {
            Direction::Read(len) => {
                let owner = IoOwner::Move {
                    attachment,
                    req,
                    piece,
                    rest: None,
                };
                if memory {
                    self.start_memory(machine, owner, MemoryOp::Read(offset, len));
                } else {
                    self.start_disk(
                        machine,
                        Origin::Client,
                        owner,
                        Io::Read {
                            file: file.0,
                            offset,
                            len,
                        },
                    );
                }
            }
            Direction::Write(data) => {
                assert!(!memory, "writes go to the log");
                let rest = Some((offset, data.clone()));
                let owner = IoOwner::Move {
                    attachment,
                    req,
                    piece,
                    rest,
                };
                let io = Io::Write {
                    file: file.0,
                    offset,
                    data: data.into(),
                };
                self.start_disk(machine, Origin::Client, owner, io);
            }
        }
    }

    /// Starts what a reader of a snapshot needs.
    pub(super) fn submit_reader_move(&mut self, machine: usize, reader: u64, needed: Move) {
        let Move {
            req,
            piece,
            file,
            offset,
            what,
        } = needed;
        let Direction::Read(len) = what else {
            panic!("a reader of a snapshot writes");
        };
        let owner = IoOwner::Reader { reader, req, piece };
        if file == FileId::MEMORY {
            return self.start_memory(machine, owner, MemoryOp::Read(offset, len));
        }
        let file = file.0;
        let io = Io::Read { file, offset, len };
        self.start_disk(machine, Origin::Client, owner, io);
    }

    fn start_disk(&mut self, machine: usize, origin: Origin, owner: IoOwner, io: Io) {
        // A sync takes longer than a write, and is overtaken by writes that it need not cover.
        let typical = match io {
            Io::Sync { .. } => self.profile.disk_ns * 4,
            Io::Read { .. } | Io::Write { .. } => self.profile.disk_ns,
        };
        let slow = origin == Origin::Client
            && matches!(io, Io::Read { .. })
            && self.latency.draw_rate(self.profile.slow_reads);
        let typical = if slow { typical * 100 } else { typical };
        let id = self.machines[machine].disk.submit(origin, io);
        self.machines[machine].owners.insert(id, owner);
        let delay = self.latency(typical);
        self.at(delay, Event::Disk(machine, id));
    }

    fn start_memory(&mut self, machine: usize, owner: IoOwner, op: MemoryOp) {
        self.machines[machine].memory.next += 1;
        let id = self.machines[machine].memory.next;
        self.machines[machine]
            .memory
            .pending
            .insert(id, (owner, op));
        let delay = self.latency(self.profile.wake_ns);
        self.at(delay, Event::Memory(machine, id));
    }

    /// A disk operation completes, unless its process died.
    pub(super) fn on_disk_done(&mut self, machine: usize, id: IoId) -> Result<(), Violation> {
        let Some(owner) = self.machines[machine].owners.remove(&id) else {
            return Ok(());
        };
        let Some(result) = self.machines[machine].disk.finish(id) else {
            return Ok(());
        };
        self.trace.record(&[6, id.0, u64::from(result.is_ok())]);
        self.trace.log(self.now, || {
            let result = result.as_ref().map(Vec::len);
            format!("disk {} {owner:?}: {result:?}", id.0)
        });
        self.complete_io(machine, owner, result)
    }

    pub(super) fn on_memory_done(&mut self, machine: usize, id: u64) -> Result<(), Violation> {
        let Some((owner, op)) = self.machines[machine].memory.pending.remove(&id) else {
            return Ok(());
        };
        self.trace.record(&[7, id]);
        let bytes = self.machines[machine].memory.apply(op);
        self.complete_io(machine, owner, Ok(bytes))
    }

    fn complete_io(
        &mut self,
        machine: usize,
        owner: IoOwner,
        result: IoResult,
    ) -> Result<(), Violation> {
        match owner {
            IoOwner::Engine(id) => {
                if let Some(node) = &mut self.machines[machine].node {
                    node.on_disk_done(id, result);
                }
                Ok(())
            }
            IoOwner::Reader { reader, req, piece } => {
                self.on_reader_moved(reader, req, piece, result);
                Ok(())
            }
            IoOwner::Move {
                attachment,
                req,
                piece,
                rest,
            } => {
                if let (Err(IoError::Short(done)), Some((offset, data))) = (&result, rest)
                    && self.chance.coin()
                {
                    // A transport may go on with the rest instead of failing.
                    let rest = data[*done as usize..].to_vec();
                    let offset = offset + done;
                    let owner = IoOwner::Move {
                        attachment,
                        req,
                        piece,
                        rest: Some((offset, rest.clone())),
                    };
                    let io = Io::Write {
                        file: FileId::LOG.0,
                        offset,
                        data: rest.into(),
                    };
                    self.start_disk(machine, Origin::Client, owner, io);
                    return Ok(());
                }
                self.on_moved(attachment, req, piece, result)
            }
        }
    }

    /// A call's answer arrives, if its caller still lives.
    pub(super) fn answer(&mut self, id: CallId) {
        let Some(result) = self.store.answer(id) else {
            return;
        };
        let Some((process, request)) = self.callers.remove(&id) else {
            return;
        };
        self.trace.record(&[8, id.0, u64::from(result.is_ok())]);
        self.trace.log(self.now, || {
            format!("store {} {}", id.0, node::brief_result(&result))
        });
        if let Some(machine) = self.machine_of(process)
            && let Some(node) = &mut self.machines[machine].node
        {
            node.on_store_done(request, result);
        }
    }
}
