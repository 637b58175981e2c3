//! A queue with its driver's memory and its port, over any backend, in the place of reactor and driver: for
//! tests and benches that count what a request costs.
//!
//! Nothing here allocates or searches while a turn is served, so that what is counted is the server's.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report; not every test uses all"
)]

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
use ublk::queue::{
    Counters, Descriptors, QueueObserver, QueueParts, QueueSource, QueueStats, Share,
};
use ublk::sys::{self, IoDescriptor};
use ublk::{BackendFile, BackendHandler};
use zerocopy::IntoBytes;

/// Requests of a turn.
pub(crate) const DEPTH: u16 = 32;
pub(crate) const READ: u8 = sys::OP_READ;
pub(crate) const WRITE: u8 = sys::OP_WRITE;

/// A disk without an engine.
#[derive(Clone, Copy)]
pub(crate) enum PlainDisk {
    /// Requests are done at once.
    AtOnce,
    /// The bytes of each request are one piece of the log, as most of a volume's are.
    OnePiece,
}

#[derive(Debug)]
pub(crate) struct SinglePiecePlan([Piece; 1]);

impl Plan for SinglePiecePlan {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

impl Backend for PlainDisk {
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
        let plan = |sector: u64, sectors: u32| {
            let place = Place::At {
                file: FileId::LOG,
                offset: sector * 512,
            };
            let len = sectors * 512;
            SinglePiecePlan([Piece { at: 0, len, place }])
        };
        match (*self, *op) {
            (PlainDisk::OnePiece, Ask::Read { sector, sectors }) => {
                Step::Read(plan(sector, sectors))
            }
            (
                PlainDisk::OnePiece,
                Ask::Write {
                    sector, sectors, ..
                },
            ) => Step::Write(plan(sector, sectors)),
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

/// A port whose operations end when the turn is served.
struct TurnPort {
    ops: Vec<(Token, Op)>,
    armed: Vec<u32>,
    files: u32,
    turn_time_ns: u64,
}

impl Port for TurnPort {
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
    fn turn_time_ns(&mut self) -> u64 {
        self.turn_time_ns
    }
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

/// A queue over a backend, its driver's memory and its port.
pub(crate) struct Rig<B: Backend> {
    source: QueueSource<BackendHandler<B>>,
    port: TurnPort,
    ended: Vec<(Token, Op)>,
    answered: Vec<u32>,
    memory: File,
    counters: Arc<Counters>,
    served: u64,
}

impl<B: Backend + 'static> Rig<B> {
    pub(crate) fn new(backend: Arc<B>) -> Rig<B> {
        let memory = File::from(reactor::memfd(c"driver", 1 << 20).unwrap());
        let device = Device::new("disk", DeviceOptions::default());
        let log = BackendFile {
            id: FileId::LOG,
            fd: Arc::new(reactor::memfd(c"log", 1 << 20).unwrap()),
            align: DioAlign::NONE,
        };
        let counters = Arc::<Counters>::default();
        let flags = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY | sys::F_PER_IO_TASK;
        let parts = QueueParts {
            device: 0,
            queue: 0,
            depth: DEPTH,
            share: Share::WHOLE,
            char_device: Arc::new(memory.try_clone().unwrap().into()),
            descriptors: Descriptors::map(&memory, 0, DEPTH, 0).unwrap(),
            flags,
            io_bytes_max: 1 << 20,
            slots_max: DEPTH,
            pool: None,
            counters: Arc::clone(&counters),
            observer: Arc::new(PanickingObserver),
        };
        let handler = BackendHandler::new(backend, &device, vec![log], DEPTH);
        let room = 64 * usize::from(DEPTH);
        let mut rig = Rig {
            source: QueueSource::new(parts, handler),
            port: TurnPort {
                ops: Vec::with_capacity(room),
                armed: Vec::with_capacity(room),
                files: 0,
                turn_time_ns: 0,
            },
            ended: Vec::with_capacity(room),
            answered: Vec::with_capacity(room),
            memory,
            counters,
            served: 0,
        };
        rig.source.on_attached(&mut rig.port);
        rig
    }

    /// What the driver says about every tag's request; `sector_of` says where it begins.
    pub(crate) fn describe(&self, op: u8, sectors: u32, sector_of: impl Fn(u16) -> u64) {
        for tag in 0..DEPTH {
            let descriptor = IoDescriptor {
                op_flags: u32::from(op),
                sectors,
                sector: sector_of(tag),
                addr: 0,
            };
            let at = u64::from(tag) * size_of::<IoDescriptor>() as u64;
            self.memory.write_all_at(descriptor.as_bytes(), at).unwrap();
        }
    }

    /// Serves one request of every tag: fetches bring requests, and whatever moves bytes has moved them.
    ///
    /// # Panics
    /// If one of them was not answered, or not without a copy.
    pub(crate) fn serve(&mut self) {
        self.port.turn_time_ns = reactor::monotonic_ns();
        std::mem::swap(&mut self.port.armed, &mut self.answered);
        let mut ends = self.answered.drain(..);
        self.source.on_armed_completions(&mut self.port, |_| {
            ends.next().map(|number| (number, sys::RESULT_OK))
        });
        drop(ends);
        self.port.turn_time_ns = reactor::monotonic_ns();
        std::mem::swap(&mut self.port.ops, &mut self.ended);
        for (token, _) in self.ended.drain(..) {
            let moved = Completion::Fixed(Ok(()));
            self.source.on_completion(&mut self.port, token, moved);
        }
        self.served += u64::from(DEPTH);
        let stats = self.stats();
        assert_eq!(stats.requests, self.served, "each was answered");
        assert_eq!((stats.fallbacks, stats.copied), (0, 0), "without a copy");
    }

    pub(crate) fn stats(&self) -> QueueStats {
        self.counters.stats()
    }
}
