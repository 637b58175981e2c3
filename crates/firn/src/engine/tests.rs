//! The engine with its real I/O executor, over a store that loses requests and answers.
//!
//! The simulator proves the engine against such stores; these tests prove the executor: every
//! request gets one outcome, and an unknown one is reported as unknown. A small transport moves
//! the bytes with blocking calls.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::task::Waker;
use std::time::Instant;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Piece, Place, Plan, Step};
use object_store::memory::InMemory;
use store::{FaultKind, FaultPlan, FaultyStore, ObjectStoreAdapter, Rate, RetryPolicy, RetryStore};
use tokio::runtime::Runtime;
use volume::{OpenError, OpenMode, Volume, VolumeSpec};

use std::result::Result;

use super::*;
use crate::cli::args::{LogIo, ServeArgs};
use crate::local_files::Progress;
use crate::units::{Size, TimeSpan};

const DEADLINE: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;

#[test]
fn a_log_has_many_segments_and_none_is_too_large_or_small() {
    for log_bytes in [64 << 20, 1 << 30, 4 << 30, 1 << 40] {
        let segment = segment_bytes(log_bytes);
        assert!((SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment));
        assert!(log_bytes / segment >= 32, "{log_bytes}");
    }
}

struct NoProgress;

impl Progress for NoProgress {
    fn on_filled(&mut self, _done_bytes: u64, _total_bytes: u64) {}
}

/// Moves bytes between a request and the files.
struct Client {
    volume: Volume,
    files: Vec<BackendFile>,
}

impl Client {
    fn file(&self, id: FileId) -> std::fs::File {
        let file = self.files.iter().find(|file| file.id == id).unwrap();
        file.fd.try_clone().unwrap().into()
    }

    fn write(&self, block: u64, data: &[u8]) -> Result<(), ErrorKind> {
        let op = Op::Write {
            sector: block * 8,
            sectors: 8,
            fua: false,
        };
        self.complete(|waker| match self.volume.begin(&op, waker) {
            Step::Write(plan) => {
                for Piece { at, len, place } in plan.pieces().to_vec() {
                    let Place::At { file, offset } = place else {
                        panic!("a write to a hole")
                    };
                    let part = &data[at as usize..(at + len) as usize];
                    self.file(file).write_all_at(part, offset).unwrap();
                }
                self.volume.written(plan, Ok(()), waker)
            }
            step => step,
        })
    }

    fn read(&self, block: u64) -> Result<Vec<u8>, ErrorKind> {
        let op = Op::Read {
            sector: block * 8,
            sectors: 8,
        };
        let mut data = vec![0xEE; BLOCK as usize];
        self.complete(|waker| match self.volume.begin(&op, waker) {
            Step::Read(plan) => {
                for Piece { at, len, place } in plan.pieces().to_vec() {
                    let part = &mut data[at as usize..(at + len) as usize];
                    match place {
                        Place::Hole => part.fill(0),
                        Place::At { file, offset } => {
                            self.file(file).read_exact_at(part, offset).unwrap();
                        }
                    }
                }
                self.volume.read(plan, Ok(()), waker)
            }
            step => step,
        })?;
        Ok(data)
    }

    /// Begins again for as long as the request is parked.
    fn complete<R, W, S: std::fmt::Debug>(
        &self,
        mut begin: impl FnMut(&Waker) -> Step<R, W, S>,
    ) -> Result<(), ErrorKind> {
        let started = Instant::now();
        loop {
            match begin(Waker::noop()) {
                Step::Done(result) => return result,
                Step::Park(why) => {
                    assert!(started.elapsed() < DEADLINE, "parked for {why:?}");
                    thread::sleep(Duration::from_millis(1));
                }
                Step::Sync(sync) => panic!("neither was asked to be durable: {sync:?}"),
                Step::Read(_) | Step::Write(_) | Step::Status(_) => {
                    panic!("a step of the other kind")
                }
            }
        }
    }
}

fn settings(dir: &Path) -> Settings {
    let flags = ServeArgs {
        cache: Some(dir.join("cache")),
        ring_dir: Some(dir.join("rings")),
        log_size: Some(Size(64 << 20)),
        cache_size: Some(Size(1 << 20)),
        rpo: Some(TimeSpan(Duration::from_millis(50))),
        log_io: Some(LogIo::Buffered),
        ..ServeArgs::default()
    };
    Settings::new(&[], flags).unwrap()
}

/// Repeats a control operation whose outcome the store left open.
fn retry_until_certain<T>(mut attempt: impl FnMut() -> Result<T, OpenError>) -> T {
    let started = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(OpenError::Store(_)) if started.elapsed() < DEADLINE => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn start(runtime: &Runtime, dir: &Path, store: &SharedStore) -> (Engine, Client) {
    let settings = settings(dir);
    let files = CacheDir::open(&settings, &mut NoProgress).unwrap();
    let started = Engine::start(
        &settings,
        Arc::clone(store),
        files,
        runtime.handle(),
        None,
        None,
    );
    let engine = runtime.block_on(started).unwrap();
    let host = &engine.host;
    let spec = VolumeSpec {
        name: "demo".into(),
        bytes: BLOCKS * BLOCK,
        block: 512,
    };
    retry_until_certain(
        || match runtime.block_on(host.create_volume(spec.clone())) {
            Ok(_) | Err(OpenError::Exists(_)) => Ok(()),
            Err(error) => Err(error),
        },
    );
    let volume =
        retry_until_certain(|| runtime.block_on(host.open_volume("demo", OpenMode::default())));
    let client = Client {
        volume,
        files: engine.export_files.clone(),
    };
    (engine, client)
}

fn content(block: u64, round: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(block << 32 | round);
    std::iter::repeat_with(|| rng.u8(..))
        .take(BLOCK as usize)
        .collect()
}

#[test]
fn a_store_that_loses_requests_and_answers_loses_no_bytes() {
    let plan = FaultPlan {
        refuse: Rate(100),
        lose_request: Rate(100),
        lose_answer: Rate(150),
        delay: Rate(100),
        delay_max: Duration::from_millis(5),
    };
    let memory = ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory");
    let faults = Arc::new(FaultyStore::new(memory, 42, plan));
    let policy = RetryPolicy {
        pause_first: Duration::from_millis(1),
        pause_max: Duration::from_millis(10),
        deadline: Duration::from_millis(200),
        ..RetryPolicy::default()
    };
    let store: SharedStore = Arc::new(RetryStore::new(Arc::clone(&faults), policy));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("rings")).unwrap();

    let mut rng = fastrand::Rng::with_seed(7);
    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
    for generation in 0..4 {
        let (mut engine, client) = start(&runtime, dir.path(), &store);
        for block in 0..BLOCKS {
            let wanted = expected
                .get(&block)
                .map_or_else(|| vec![0; BLOCK as usize], |round| content(block, *round));
            assert!(
                client.read(block).unwrap() == wanted,
                "generation {generation}: {block}"
            );
        }
        for round in generation * 1000..generation * 1000 + 300 {
            let block = rng.u64(..BLOCKS);
            client.write(block, &content(block, round)).unwrap();
            expected.insert(block, round);
            if round % 60 == 59 {
                runtime.block_on(engine.host.sync(&client.volume)).unwrap();
            }
        }
        retry_until_certain(|| runtime.block_on(engine.host.close_volume(&client.volume)));
        drop(client);
        engine.stop(None);
        drop(engine);
        // Every other time only the store is left.
        if generation % 2 == 1 {
            std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
        }
    }
    for kind in FaultKind::ALL {
        assert_eq!(
            faults.count(kind) > 0,
            kind != FaultKind::Outage,
            "{kind:?} fired"
        );
    }
}
