//! Tells what is damaged from what the disk did not give for a moment.
//!
//! Owns how often what failed is read again, and when an error is the place's and not the file's. What it holds for damaged was
//! read wrong twice, or could not be read twice by itself, with a pause in between, while another place of the file could be
//! read. It gives up nothing itself.

use blkmq::io::FileId;

use super::is_wanted;
use crate::codec::Checksum;
use crate::engine::Engine;
use crate::log::layout::BLOCK_BYTES;

/// Failures alike that are believed: one may be the way into memory, or a disk that was busy with itself.
const FAILURES_OF_DAMAGED: u32 = 2;

/// Bytes of a file that are right or not as a whole, and how reads of them failed.
#[derive(Debug)]
pub(super) struct Doubt {
    offset: u64,
    bytes: u64,
    /// None: any content of theirs is right.
    checksum: Option<Checksum>,
    wrong: u32,
    unread: u32,
    /// Of the last failure.
    pub(super) cause: String,
}

impl Doubt {
    /// Nothing was read so far.
    pub(super) fn new(offset: u64, bytes: u64, checksum: Option<Checksum>) -> Doubt {
        Doubt {
            offset,
            bytes,
            checksum,
            wrong: 0,
            unread: 0,
            cause: String::new(),
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether this is not what was written there.
    pub(super) fn is_wrong(&mut self, content: &[u8]) -> bool {
        let is_wrong = self
            .checksum
            .is_some_and(|checksum| Checksum::of(content) != checksum);
        if is_wrong {
            self.wrong += 1;
            "its bytes fail their checksum".clone_into(&mut self.cause);
        }
        is_wrong
    }

    /// Reads the bytes by themselves. `None`: they are right.
    pub(super) async fn read(&mut self, engine: &Engine, file: FileId) -> Option<Failure> {
        let read = engine.port.read(file, self.offset, self.bytes as usize);
        match read.await {
            Ok(content) => self.is_wrong(&content).then_some(Failure::Wrong),
            Err(error) => {
                self.unread += 1;
                self.cause = error.cause;
                Some(Failure::Unread)
            }
        }
    }

    fn is_damaged(&self) -> bool {
        self.wrong.max(self.unread) >= FAILURES_OF_DAMAGED
    }
}

/// How a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Wrong,
    Unread,
}

/// The file itself could not be read, or the scrub is not to go on just now: nothing is known of what was in doubt.
#[derive(Debug)]
pub(super) struct Unclear;

/// Reads what failed again, each by itself, until it was right once or is damaged, and leaves what is damaged. `last` is how the last
/// read failed, `elsewhere` a place of the file that could be read before.
pub(super) async fn settle(
    engine: &Engine,
    (file, elsewhere): (FileId, Option<u64>),
    mut doubts: Vec<Doubt>,
    last: Failure,
) -> Result<Vec<Doubt>, Unclear> {
    let mut has_error = last == Failure::Unread;
    loop {
        let is_settled = doubts.iter().all(Doubt::is_damaged);
        if has_error {
            if !is_settled {
                engine.port.sleep(engine.options.retry_ns).await;
            }
            prove_readable(engine, file, elsewhere).await?;
        }
        if is_settled {
            return Ok(doubts);
        }
        has_error = false;
        let mut failed = Vec::with_capacity(doubts.len());
        for mut doubt in doubts {
            if !doubt.is_damaged() {
                let Some(failure) = doubt.read(engine, file).await else {
                    continue;
                };
                has_error |= failure == Failure::Unread;
            }
            failed.push(doubt);
        }
        doubts = failed;
    }
}

/// An error is a place's only while the rest of the file can be read.
async fn prove_readable(
    engine: &Engine,
    file: FileId,
    elsewhere: Option<u64>,
) -> Result<(), Unclear> {
    if canary::active!("scrub_takes_an_outage_for_damage") {
        return Ok(());
    }
    if !is_wanted(engine) {
        return Err(Unclear);
    }
    let offset = elsewhere.ok_or(Unclear)?;
    match engine.port.read(file, offset, BLOCK_BYTES as usize).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Unclear),
    }
}
