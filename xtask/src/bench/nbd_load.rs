//! A load on one NBD export: a closed loop with so many requests in flight on one connection.
//!
//! It notes what fio's averages hide: bytes of each second, the seconds of a stall too, and how long
//! every single request took. What it writes compresses to a half, as in the plain client.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_FLUSH: u16 = 3;
/// A request that takes longer is taken for one that never ends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Content to write is taken from a pool of this size, at another place each time.
const POOL_BYTES: usize = 32 << 20;
const BLOCK_BYTES: usize = 4096;

/// What is asked of the export.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) writes: bool,
    pub(super) random: bool,
    /// Bytes of a request.
    pub(super) block: usize,
    /// Requests in flight.
    pub(super) depth: usize,
    /// Places are below this.
    pub(super) span: u64,
}

/// When it ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoadEnd {
    Time(Duration),
    Bytes(u64),
}

/// What came out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Bytes of each second that began.
    per_second: Vec<u64>,
    latencies: Vec<Duration>,
}

impl Outcome {
    pub(super) fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds
    }

    /// The slowest whole second, as a share of the mean.
    pub(super) fn slowest_second(&self) -> f64 {
        let whole = self.per_second.len().saturating_sub(1);
        let slowest = self.per_second[..whole].iter().min().copied().unwrap_or(0);
        slowest as f64 / (self.bytes as f64 / self.seconds)
    }

    /// The time that this share of the requests stay below.
    pub(super) fn percentile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let at = (self.latencies.len() as f64 * share) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get(at.min(last))
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn longest(&self) -> Duration {
        self.latencies.iter().max().copied().unwrap_or_default()
    }
}

/// A connection to an export.
pub(super) struct Connection {
    stream: UnixStream,
    pool: Vec<u8>,
    random: fastrand::Rng,
    next_place: u64,
    handle: u64,
}

impl Connection {
    pub(super) fn open(socket: &Path, export: &str) -> Result<Connection, Failure> {
        let mut stream = UnixStream::connect(socket)
            .map_err(|error| format!("cannot connect to {}: {error}", socket.display()))?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        shake_hands(&mut stream, export).map_err(|error| format!("export {export}: {error}"))?;
        Ok(Connection {
            stream,
            pool: Vec::new(),
            random: fastrand::Rng::with_seed(7),
            next_place: 0,
            handle: 0,
        })
    }

    /// Runs a load to its end; what is in flight then is waited for and counted.
    pub(super) fn run(&mut self, load: Load, until: LoadEnd) -> Result<Outcome, Failure> {
        self.make_content(load);
        let started = Instant::now();
        let mut outcome = Outcome::default();
        let mut in_flight = HashMap::new();
        let mut asked = 0_u64;
        let mut block = vec![0; load.block];
        loop {
            let goes_on = match until {
                LoadEnd::Time(time) => started.elapsed() < time,
                LoadEnd::Bytes(bytes) => asked < bytes,
            };
            if goes_on && in_flight.len() < load.depth {
                in_flight.insert(self.ask(load)?, Instant::now());
                asked += load.block as u64;
                continue;
            }
            if in_flight.is_empty() {
                break;
            }
            let handle = self.take_reply(load.writes, &mut block)?;
            let asked_at = in_flight.remove(&handle).ok_or("an answer to nothing")?;
            outcome.latencies.push(asked_at.elapsed());
            outcome.bytes += load.block as u64;
            let second = started.elapsed().as_secs() as usize;
            if outcome.per_second.len() <= second {
                outcome.per_second.resize(second + 1, 0);
            }
            outcome.per_second[second] += load.block as u64;
        }
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Makes what was written durable.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.send_request(COMMAND_FLUSH, 0, 0)?;
        self.take_reply(true, &mut []).map(drop)
    }

    /// From here on what it writes cannot be compressed.
    pub(super) fn write_noise(&mut self) {
        self.pool = vec![0; POOL_BYTES];
        self.random.fill(&mut self.pool);
    }

    /// Reads or writes these places, so many at a time.
    pub(super) fn visit(&mut self, places: &[u64], load: Load) -> Result<Outcome, Failure> {
        self.make_content(load);
        let started = Instant::now();
        let mut outcome = Outcome::default();
        let mut block = vec![0; load.block];
        let mut left = places.iter();
        let mut in_flight = HashMap::new();
        loop {
            if in_flight.len() < load.depth
                && let Some(place) = left.next()
            {
                in_flight.insert(self.ask_at(*place, load)?, Instant::now());
                continue;
            }
            if in_flight.is_empty() {
                break;
            }
            let handle = self.take_reply(load.writes, &mut block)?;
            let asked_at = in_flight.remove(&handle).ok_or("an answer to nothing")?;
            outcome.latencies.push(asked_at.elapsed());
            outcome.bytes += load.block as u64;
        }
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    fn make_content(&mut self, load: Load) {
        if load.writes && self.pool.is_empty() {
            // A connection that writes one small block must not wait for megabytes of content.
            let bytes = POOL_BYTES.min(load.block * 32);
            self.pool = half_random(bytes, &mut self.random);
        }
    }

    fn ask(&mut self, load: Load) -> io::Result<u64> {
        let block = load.block as u64;
        let place = if load.random {
            self.random.u64(0..load.span / block) * block
        } else {
            let place = self.next_place % load.span;
            self.next_place = place + block;
            place
        };
        self.ask_at(place, load)
    }

    fn ask_at(&mut self, place: u64, load: Load) -> io::Result<u64> {
        if !load.writes {
            return self.send_request(COMMAND_READ, place, load.block);
        }
        let handle = self.send_request(COMMAND_WRITE, place, load.block)?;
        let blocks = (self.pool.len() - load.block) / BLOCK_BYTES;
        let from = self.random.usize(0..=blocks) * BLOCK_BYTES;
        self.stream.write_all(&self.pool[from..from + load.block])?;
        Ok(handle)
    }

    fn send_request(&mut self, command: u16, place: u64, len: usize) -> io::Result<u64> {
        self.handle += 1;
        let len = u32::try_from(len).map_err(io::Error::other)?;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.handle.to_be_bytes());
        bytes.extend(place.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        self.stream.write_all(&bytes)?;
        Ok(self.handle)
    }

    fn take_reply(&mut self, brings_nothing: bool, block: &mut [u8]) -> Result<u64, Failure> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let (magic, rest) = reply.split_at(4);
        let (error, handle) = rest.split_at(4);
        if magic != 0x6744_6698_u32.to_be_bytes() || error != [0; 4] {
            return Err(format!("a request failed: {reply:x?}").into());
        }
        if !brings_nothing {
            self.stream.read_exact(block)?;
        }
        Ok(u64::from_be_bytes(handle.try_into()?))
    }
}

fn half_random(bytes: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut content = vec![0; bytes];
    for block in content.chunks_mut(BLOCK_BYTES) {
        let half = block.len() / 2;
        random.fill(&mut block[..half]);
    }
    content
}

/// The fixed newstyle handshake up to the transmission phase.
pub(super) fn shake_hands(stream: &mut UnixStream, export: &str) -> Result<(), Failure> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err("no NBD server is there".into());
    }
    // Fixed newstyle, no padding.
    stream.write_all(&3_u32.to_be_bytes())?;
    let name = u32::try_from(export.len())?;
    let mut option = b"IHAVEOPT".to_vec();
    option.extend(OPTION_GO.to_be_bytes());
    option.extend((name + 6).to_be_bytes());
    option.extend(name.to_be_bytes());
    option.extend(export.as_bytes());
    option.extend(0_u16.to_be_bytes());
    stream.write_all(&option)?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let word = |at: usize| {
            head[at..at + 4]
                .iter()
                .fold(0, |word: u32, byte| (word << 8) | u32::from(*byte))
        };
        let mut body = vec![0; word(16) as usize];
        stream.read_exact(&mut body)?;
        match word(12) {
            REPLY_ACK => return Ok(()),
            REPLY_INFO => {}
            other => return Err(format!("refused with {other:#x}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_second_counts_and_the_last_part_of_one_does_not() {
        let outcome = Outcome {
            bytes: 30,
            seconds: 3.0,
            per_second: vec![20, 0, 9, 1],
            latencies: Vec::new(),
        };
        assert!(outcome.slowest_second().abs() < 1e-9);
    }

    #[test]
    fn a_percentile_is_of_all_requests() {
        let mut outcome = Outcome {
            latencies: (0..100).rev().map(Duration::from_millis).collect(),
            ..Outcome::default()
        };
        assert_eq!(outcome.percentile(0.99), Duration::from_millis(99));
        assert_eq!(outcome.longest(), Duration::from_millis(99));
    }
}
