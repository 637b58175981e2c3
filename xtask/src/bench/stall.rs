//! NBD clients that never reconnect, verify what they read, and note their longest request.
//!
//! Each client has a volume of its own and so many requests under way, each in a range of blocks of its own: so two
//! requests for one block are never under way together, and a read knows which bytes it must bring.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

const BLOCK_BYTES: usize = 4096;

/// Blocks that each request of a client goes round.
const BLOCKS: u64 = 256;

const READ: u16 = 0;
const WRITE: u16 = 1;

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPT_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// What all clients note, and what they are told.
#[derive(Debug)]
pub(super) struct Notes {
    /// The period that goes on.
    period: AtomicUsize,
    /// The longest request that ended in each period, in nanoseconds.
    longest_ns: Vec<AtomicU64>,
    requests: AtomicU64,
    stop: AtomicBool,
}

impl Notes {
    pub(super) fn new(periods: usize) -> Notes {
        Notes {
            period: AtomicUsize::new(0),
            longest_ns: (0..periods).map(|_| AtomicU64::new(0)).collect(),
            requests: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    pub(super) fn begin(&self, period: usize) {
        self.period.store(period, Ordering::SeqCst);
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(super) fn longest(&self, period: usize) -> Duration {
        Duration::from_nanos(self.longest_ns[period].load(Ordering::SeqCst))
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn on_answered(&self, took: Duration) {
        let at = self.period.load(Ordering::SeqCst);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.longest_ns[at].fetch_max(ns, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
    }
}

/// A client.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) export: String,
    /// Requests under way.
    pub(super) depth: usize,
    /// Between an answer and the next request.
    pub(super) pause: Duration,
}

/// One of the requests that a client has under way.
struct Slot {
    round: u64,
    started: Instant,
}

impl Client {
    /// Bytes of the volume that it uses.
    pub(super) fn bytes(&self) -> u64 {
        self.depth as u64 * BLOCKS * BLOCK_BYTES as u64
    }

    /// Writes and reads until it is told to stop. Ends at once with the first wrong byte, or if the connection ends.
    pub(super) fn run(&self, socket: &Path, notes: &Notes) -> Result<(), Failure> {
        let mut stream = connect(socket, &self.export)?;
        let now = Instant::now();
        let slot = || Slot {
            round: 0,
            started: now,
        };
        let mut slots: Vec<Slot> = (0..self.depth).map(|_| slot()).collect();
        for (at, slot) in slots.iter_mut().enumerate() {
            send(&mut stream, at, slot)?;
        }
        let mut under_way = self.depth;
        while under_way > 0 {
            let at = receive(&mut stream, &slots)
                .map_err(|error| format!("a client of {}: {error}", self.export))?;
            notes.on_answered(slots[at].started.elapsed());
            slots[at].round += 1;
            if notes.stop.load(Ordering::SeqCst) {
                under_way -= 1;
                continue;
            }
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
            send(&mut stream, at, &mut slots[at])?;
        }
        Ok(())
    }
}

/// Writes a block that says this number, or, `is_there`, reads it and checks what it says.
pub(super) fn mark(
    socket: &Path,
    export: &str,
    (number, is_there): (u64, bool),
) -> Result<(), Failure> {
    let mut stream = connect(socket, export)?;
    let round = 2 * number + u64::from(is_there);
    let started = Instant::now();
    let mut slots = [Slot { round, started }];
    send(&mut stream, 0, &mut slots[0])?;
    receive(&mut stream, &slots).map(drop)
}

/// Each block is written in one round and read in the next.
fn offset(slot: usize, round: u64) -> u64 {
    (slot as u64 * BLOCKS + round / 2 % BLOCKS) * BLOCK_BYTES as u64
}

fn content(slot: usize, round: u64) -> Vec<u8> {
    let stamp = (slot as u64) << 48 | (round / 2);
    stamp.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

fn is_write(round: u64) -> bool {
    round.is_multiple_of(2)
}

fn send(stream: &mut UnixStream, at: usize, slot: &mut Slot) -> io::Result<()> {
    let kind = if is_write(slot.round) { WRITE } else { READ };
    let mut bytes = Vec::with_capacity(28 + BLOCK_BYTES);
    bytes.extend(REQUEST_MAGIC.to_be_bytes());
    bytes.extend(0_u16.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((at as u64).to_be_bytes());
    bytes.extend(offset(at, slot.round).to_be_bytes());
    bytes.extend((BLOCK_BYTES as u32).to_be_bytes());
    if kind == WRITE {
        bytes.extend(content(at, slot.round));
    }
    slot.started = Instant::now();
    stream.write_all(&bytes)
}

/// Which request was answered.
fn receive(stream: &mut UnixStream, slots: &[Slot]) -> Result<usize, Failure> {
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let at = word(12) as usize;
    if word(0) != REPLY_MAGIC || word(4) != 0 || at >= slots.len() {
        return Err(format!("the answer is {head:?}").into());
    }
    let round = slots[at].round;
    if !is_write(round) {
        let mut data = vec![0; BLOCK_BYTES];
        stream.read_exact(&mut data)?;
        if data != content(at, round) {
            return Err(format!("block {at} of round {round} has other bytes").into());
        }
    }
    Ok(at)
}

fn connect(socket: &Path, export: &str) -> Result<UnixStream, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let mut bytes = Vec::new();
    // Fixed newstyle, without the zeroes at the end.
    bytes.extend(3_u32.to_be_bytes());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(OPT_EXPORT_NAME.to_be_bytes());
    bytes.extend((export.len() as u32).to_be_bytes());
    bytes.extend(export.as_bytes());
    stream.write_all(&bytes)?;
    let mut granted = [0; 10];
    stream.read_exact(&mut granted)?;
    Ok(stream)
}
