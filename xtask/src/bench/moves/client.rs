//! A client that follows its volume: where its connection ends, it connects anew wherever the volume is served.
//!
//! Each thread is one connection with one request under way, in blocks of its own, so it knows what every read must
//! bring: the newest of its writes that was answered, or that it sent again. It ends at the first other byte. A request
//! without an answer is sent again on the next connection, as a kernel's client does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::bench::nbd_load::shake_hands;

pub(super) const BLOCK_BYTES: usize = 4096;

/// Between two attempts to connect: short beside the stall, and little work for the servers.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A request that takes longer is taken for one that never ends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

const READ: u16 = 0;
const WRITE: u16 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) answered: Instant,
    /// From the first time that it was sent.
    pub(super) took: Duration,
    pub(super) is_read: bool,
    /// Which server answered.
    pub(super) server: usize,
}

/// What all threads share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    /// The sockets of all servers so far; the newest is asked first.
    sockets: Mutex<Vec<PathBuf>>,
    samples: Mutex<Vec<Sample>>,
}

impl Shared {
    /// Adds a server and returns its number.
    pub(super) fn add_server(&self, socket: PathBuf) -> usize {
        let mut sockets = lock(&self.sockets);
        sockets.push(socket);
        sockets.len() - 1
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// What was answered since the last call.
    pub(super) fn take_samples(&self) -> Vec<Sample> {
        std::mem::take(&mut *lock(&self.samples))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// One connection's load.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) export: &'static str,
    /// Which of how many threads this is.
    pub(super) at: u64,
    pub(super) of: u64,
    /// Blocks of the working set of all threads.
    pub(super) blocks: u64,
    /// Blocks from one of the working set to the next.
    pub(super) stride: u64,
    /// Of a hundred requests.
    pub(super) reads: u32,
    /// Between an answer and the next request.
    pub(super) pause: Duration,
}

impl Client {
    /// Writes and reads until it is told to stop.
    pub(super) fn run(&self, shared: &Shared) -> Result<(), Failure> {
        let own = self.blocks / self.of;
        let mut versions = vec![0_u32; usize::try_from(own)?];
        let mut random = fastrand::Rng::with_seed(self.at);
        // All of them once, so that every read has something to find.
        let mut unwritten = 0..own;
        let mut link = None;
        while !shared.is_stopped() {
            let next = unwritten.next();
            let nth = next.unwrap_or_else(|| random.u64(0..own));
            let is_read = next.is_none() && random.u32(0..100) < self.reads;
            let version = versions[nth as usize] + u32::from(!is_read);
            let place = (nth * self.of + self.at) * self.stride;
            let first_sent = Instant::now();
            let server = self.exchange(shared, &mut link, (place, version, is_read))?;
            let Some(server) = server else {
                return Ok(());
            };
            versions[nth as usize] = version;
            let answered = Instant::now();
            lock(&shared.samples).push(Sample {
                answered,
                took: answered - first_sent,
                is_read,
                server,
            });
            if next.is_none() {
                std::thread::sleep(self.pause);
            }
        }
        Ok(())
    }

    /// Has a request answered, by whichever server has the volume. `None`: it was told to stop.
    fn exchange(
        &self,
        shared: &Shared,
        link: &mut Option<(UnixStream, usize)>,
        request: (u64, u32, bool),
    ) -> Result<Option<usize>, Failure> {
        loop {
            if link.is_none() {
                *link = self.connect(shared)?;
            }
            let Some((stream, server)) = link else {
                return Ok(None);
            };
            match ask(stream, request) {
                Ok(Answer::Done) => return Ok(Some(*server)),
                Ok(Answer::Wrong(why)) => return Err(why.into()),
                Err(_) => *link = None,
            }
        }
    }

    fn connect(&self, shared: &Shared) -> Result<Option<(UnixStream, usize)>, Failure> {
        let until = Instant::now() + REQUEST_TIMEOUT;
        while !shared.is_stopped() {
            let sockets = lock(&shared.sockets).clone();
            for (server, socket) in sockets.iter().enumerate().rev() {
                let Ok(mut stream) = UnixStream::connect(socket) else {
                    continue;
                };
                stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
                if shake_hands(&mut stream, self.export).is_ok() {
                    return Ok(Some((stream, server)));
                }
            }
            if Instant::now() > until {
                return Err(format!("nobody serves {}", self.export).into());
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        Ok(None)
    }
}

enum Answer {
    Done,
    Wrong(String),
}

/// Sends a request for a block and waits for its answer. Half of a block's bytes cannot be compressed.
fn ask(
    stream: &mut UnixStream,
    (place, version, is_read): (u64, u32, bool),
) -> std::io::Result<Answer> {
    let kind = if is_read { READ } else { WRITE };
    let mut bytes = Vec::with_capacity(28 + BLOCK_BYTES);
    bytes.extend(REQUEST_MAGIC.to_be_bytes());
    bytes.extend(0_u16.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(place.to_be_bytes());
    bytes.extend((place * BLOCK_BYTES as u64).to_be_bytes());
    bytes.extend((BLOCK_BYTES as u32).to_be_bytes());
    if !is_read {
        bytes.extend(content(place, version));
    }
    stream.write_all(&bytes)?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let (magic, rest) = head.split_at(4);
    let (error, handle) = rest.split_at(4);
    if magic != REPLY_MAGIC.to_be_bytes() || handle != place.to_be_bytes() {
        return Ok(Answer::Wrong(format!("the answer is {head:?}")));
    }
    if error != [0; 4] {
        // The volume is leaving.
        return Err(std::io::ErrorKind::ConnectionAborted.into());
    }
    if is_read {
        let mut data = vec![0; BLOCK_BYTES];
        stream.read_exact(&mut data)?;
        if data != content(place, version) {
            let found = u64::from_le_bytes(data[..8].try_into().unwrap_or_default());
            return Ok(Answer::Wrong(format!(
                "block {place} should have version {version} and begins with {found:#x}"
            )));
        }
    }
    Ok(Answer::Done)
}

fn content(place: u64, version: u32) -> Vec<u8> {
    let stamp = place << 32 | u64::from(version);
    let mut content = stamp.to_le_bytes().repeat(BLOCK_BYTES / 8);
    let mut random = fastrand::Rng::with_seed(stamp);
    random.fill(&mut content[BLOCK_BYTES / 2..]);
    content
}
