//! What a hot request costs this crate in memory: nothing. Counted, not believed.
//!
//! A queue and the request engine run on a port that keeps operations in memory of its own, in the place of
//! reactor and driver; every allocation of the whole process is counted while thousands of
//! requests come, move and are answered. `UBLK_HOT_REQUESTS` makes it a load for a profiler.

#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{
    Backend, FileId, Geometry, MoveError, MoveResult, Op as Ask, Piece, Place, Plan, Step, StepOf,
};
use blkmq::{Device, DeviceOptions};
use reactor::{
    Buf, BufferPurpose, Command, Completion, DioAlign, FileIndex, Op, OpId, Port, Token,
};
use smallvec::{SmallVec, smallvec};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use ublk::queue::{Counters, Descriptors, QueueObserver, QueueParts, QueueSource, Share};
use ublk::sys::{self, IoDescriptor};
use ublk::{BackendFile, BackendHandler};
use zerocopy::IntoBytes;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const DEPTH: u16 = 32;

/// A disk whose every request is one piece of the log, as most of a volume's are.
struct Plain;

#[derive(Debug)]
struct SinglePiecePlan(SmallVec<[Piece; 4]>);

impl Plan for SinglePiecePlan {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

fn plan(sector: u64, sectors: u32) -> SinglePiecePlan {
    let place = Place::At {
        file: FileId::LOG,
        offset: sector * 512,
    };
    let len = sectors * 512;
    SinglePiecePlan(smallvec![Piece { at: 0, len, place }])
}

impl Backend for Plain {
    type Read = SinglePiecePlan;
    type Write = SinglePiecePlan;
    type Sync = ();

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: 1 << 30,
            logical_block: 512,
            physical_block: 4096,
            read_only: false,
        }
    }

    fn begin(&self, op: &Ask, _: &Waker) -> StepOf<Self> {
        match *op {
            Ask::Read { sector, sectors } => Step::Read(plan(sector, sectors)),
            Ask::Write {
                sector, sectors, ..
            } => Step::Write(plan(sector, sectors)),
            _ => Step::Done(Ok(())),
        }
    }

    fn read(&self, _: SinglePiecePlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, _: SinglePiecePlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn poll_sync(&self, (): (), _: &Waker) -> StepOf<Self> {
        Step::Done(Ok(()))
    }

    fn on_request_failed(&self, _: &MoveError) {}
}

/// A port whose operations end when the test says. It never grows while requests are counted.
struct Table {
    ops: Vec<(Token, Op)>,
    armed: Vec<u32>,
    files: u32,
}

impl Port for Table {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.ops.push((token, op));
        OpId::for_test(0)
    }
    fn arm(&mut self, number: u32, _: Command) {
        self.armed.push(number);
    }
    fn hold_until_submitted(&mut self, buf: Buf) {
        panic!("{buf:?} for a request that is not copied");
    }
    fn cancel(&mut self, _: OpId) {}
    fn request_buffer(&mut self, _: Token, len: usize, _: BufferPurpose) -> Option<Buf> {
        panic!("a buffer of {len} bytes for a request that is not copied");
    }
    fn reserve_len(&self) -> usize {
        1 << 20
    }
    fn register(&mut self, _: Arc<OwnedFd>) -> FileIndex {
        self.files += 1;
        FileIndex::for_test(self.files)
    }
    fn close(&mut self, _: FileIndex) {}
    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        Some((0..count as u16).collect())
    }
    fn release_buffer_slots(&mut self, _: &[u16]) {}
    fn request_turn(&mut self) {}
    fn waker(&self, _: u64) -> Waker {
        Waker::noop().clone()
    }
    fn detach(&mut self) {}
}

struct PanickingObserver;

impl QueueObserver for PanickingObserver {
    fn on_fetch_failed(&self, _: u16, _: u16, errno: i32) {
        panic!("a fetch failed with {errno}");
    }
}

/// A queue over [`Plain`], its driver's memory and its port.
struct Rig {
    source: QueueSource<BackendHandler<Plain>>,
    port: Table,
    ended: Vec<(Token, Op)>,
    answered: Vec<u32>,
    memory: File,
    counters: Arc<Counters>,
}

impl Rig {
    fn new(flags: u64) -> Rig {
        let memory = File::from(reactor::memfd(c"driver", 1 << 20).unwrap());
        let device = Device::new("disk", DeviceOptions::default());
        let log = BackendFile {
            id: FileId::LOG,
            fd: Arc::new(reactor::memfd(c"log", 1 << 20).unwrap()),
            align: DioAlign::NONE,
        };
        let counters = Arc::<Counters>::default();
        let parts = QueueParts {
            device: 0,
            queue: 0,
            depth: DEPTH,
            share: Share::WHOLE,
            char_device: Arc::new(memory.try_clone().unwrap().into()),
            descriptors: Descriptors::map(&memory, 0, DEPTH, 0).unwrap(),
            flags: flags | sys::F_PER_IO_TASK,
            io_bytes_max: 1 << 20,
            slots_max: DEPTH,
            pool: None,
            counters: Arc::clone(&counters),
            observer: Arc::new(PanickingObserver),
        };
        let serve = BackendHandler::new(Arc::new(Plain), &device, vec![log], DEPTH);
        let room = 4 * usize::from(DEPTH);
        let mut rig = Rig {
            source: QueueSource::new(parts, serve),
            port: Table {
                ops: Vec::with_capacity(room),
                armed: Vec::with_capacity(room),
                files: 0,
            },
            ended: Vec::with_capacity(room),
            answered: Vec::with_capacity(room),
            memory,
            counters,
        };
        rig.source.on_attached(&mut rig.port);
        rig
    }

    /// What the driver says about every tag's request.
    fn describe(&self, op: u8) {
        for tag in 0..DEPTH {
            let descriptor = IoDescriptor {
                op_flags: u32::from(op),
                sectors: 8,
                sector: u64::from(tag) * 8,
                addr: 0,
            };
            let at = u64::from(tag) * size_of::<IoDescriptor>() as u64;
            self.memory.write_all_at(descriptor.as_bytes(), at).unwrap();
        }
    }

    /// Ends all that is in flight: fetches bring requests, and whatever moves bytes has moved them.
    fn turn(&mut self) {
        std::mem::swap(&mut self.port.armed, &mut self.answered);
        let mut ends = self.answered.drain(..);
        self.source.on_armed_completions(&mut self.port, |_| {
            ends.next().map(|number| (number, sys::RESULT_OK))
        });
        drop(ends);
        std::mem::swap(&mut self.port.ops, &mut self.ended);
        for (token, op) in self.ended.drain(..) {
            let completion = match op {
                Op::ReadFixed { .. } | Op::WriteFixed { .. } => Completion::Fixed(Ok(())),
                other => panic!("{other:?}"),
            };
            self.source.on_completion(&mut self.port, token, completion);
        }
    }

    fn requests(&self) -> u64 {
        self.counters.stats().requests
    }

    /// Serves about `count` requests and says how often anything was allocated.
    fn serve(&mut self, count: u64) -> usize {
        let until = self.requests() + count;
        let region = Region::new(ALLOCATOR);
        while self.requests() < until {
            self.turn();
        }
        let change = region.change();
        change.allocations + change.reallocations
    }
}

#[test]
fn a_zero_copy_request_allocates_no_memory() {
    let asked = std::env::var("UBLK_HOT_REQUESTS").ok();
    let count = asked.map_or(10_000, |text| text.parse().unwrap());
    let mut rig = Rig::new(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY);
    for op in [sys::OP_READ, sys::OP_WRITE] {
        rig.describe(op);
        // What grows once, for the deepest queue there was, grows here.
        rig.serve(4 * u64::from(DEPTH));
        assert_eq!(rig.serve(count), 0, "operation {op}");
    }
    let stats = rig.counters.stats();
    assert_eq!(
        (stats.fallbacks, stats.copied),
        (0, 0),
        "all went without a copy"
    );
    assert!(stats.uncopied >= 2 * count);
}
