//! Sequential readers, and how far ahead of each of them the store is read.
//!
//! Owns the streams of a host and the number of requests in flight for them; memory only, under one short lock. A
//! stream's window grows while its reader has to wait, up to what the store delivers (bandwidth times delay), and
//! shrinks while it does not. A window is never larger than what its reader has read in sequence, so a reader
//! that stops has caused at most as many bytes to be fetched in vain. All windows together are at most a quarter
//! of the memory file.
//!
//! Read-ahead must not delay clients' reads: its requests are few, and fewer while clients wait for the store.

use blkmq::io::SECTOR_BYTES;

use crate::jobs::Signal;
use crate::lock::lock;
use crate::log::ring::TailId;
use crate::store::fetch::table::FetchTable;
use crate::sync::Mutex;
use crate::units::Span;

/// Streams of a host: the least recently used gives way.
const STREAMS_MAX: usize = 32;
/// Reads in sequence after which a reader counts as sequential.
const READS_MIN: u32 = 2;
/// How far a read may be from the end of its stream, in lengths of that read: several reads are in flight, and
/// not in order.
const DISORDER_READS: u64 = 8;
/// The same, at most.
const DISORDER_SECTORS_MAX: u64 = (4 << 20) / SECTOR_BYTES;
/// The smallest window, unless less than that was read.
const WINDOW_SECTORS_MIN: u64 = (256 << 10) / SECTOR_BYTES;
/// Requests in flight.
const REQUESTS_MAX: usize = 16;
/// The same while clients wait for the store.
const REQUESTS_BESIDE_CLIENTS_MAX: usize = 4;

/// A sequential reader.
#[derive(Debug)]
struct Stream {
    tail: TailId,
    /// The sector at which the next read is expected.
    next: u64,
    /// The sector up to which the store was read.
    ahead: u64,
    window: u64,
    /// Reads in sequence so far.
    reads: u32,
    /// Sectors of them.
    sectors: u64,
    /// Sectors read since its reader last had to wait.
    calm_sectors: u64,
    used_at: u64,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Stream>,
    /// Reads seen so far.
    clock: u64,
    requests: usize,
}

/// The streams of a host, and the requests in flight for them.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The largest sum of all windows, in sectors.
    sectors_max: u64,
    state: Mutex<State>,
    request_ended: Signal,
}

impl Stream {
    fn is_at(&self, tail: TailId, span: Span) -> bool {
        let disorder = (span.sectors() * DISORDER_READS).min(DISORDER_SECTORS_MAX);
        self.tail == tail && span.start.abs_diff(self.next) <= disorder
    }

    /// Takes the reader's next read; returns what to fetch now.
    fn advance(&mut self, span: Span, has_waited: bool, window_max: u64) -> Option<Span> {
        // A read that had to wait is seen a second time.
        let progress = span.end.checked_sub(self.next).filter(|more| *more > 0)?;
        self.next = span.end;
        self.reads = self.reads.saturating_add(1);
        self.sectors += progress;
        self.calm_sectors += progress;
        if self.reads < READS_MIN {
            return None;
        }
        if has_waited {
            self.window *= 2;
            self.calm_sectors = 0;
        } else if self.calm_sectors > 2 * self.window {
            self.window -= self.window / 8;
            self.calm_sectors = 0;
        }
        let most = window_max.min(self.sectors);
        self.window = self.window.max(WINDOW_SECTORS_MIN).min(most);
        let from = self.ahead.max(self.next);
        let end = self.next + self.window;
        // Fetched in halves of a window, so that neighbours share a request.
        if from + self.window / 2 > end {
            return None;
        }
        self.ahead = end;
        Some(Span { start: from, end })
    }
}

impl Streams {
    pub(crate) fn new(memory_bytes: u64) -> Streams {
        Streams {
            sectors_max: memory_bytes / 4 / SECTOR_BYTES,
            state: Mutex::default(),
            request_ended: Signal::default(),
        }
    }

    /// Takes a client's read of stored data; `has_waited`: not all of it was cached. Returns what to fetch now.
    pub(crate) fn observe(&self, tail: TailId, span: Span, has_waited: bool) -> Option<Span> {
        let mut state = lock(&self.state);
        state.clock += 1;
        let clock = state.clock;
        let sequential = state.streams.iter().filter(|stream| stream.window > 0);
        let window_max = self.sectors_max / sequential.count().max(1) as u64;
        let found = state.streams.iter_mut().find(|it| it.is_at(tail, span));
        if let Some(stream) = found {
            stream.used_at = clock;
            return stream.advance(span, has_waited, window_max);
        }
        if state.streams.len() == STREAMS_MAX {
            let streams = state.streams.iter().enumerate();
            let oldest = streams.min_by_key(|(_, stream)| stream.used_at);
            if let Some((at, _)) = oldest {
                state.streams.swap_remove(at);
            }
        }
        state.streams.push(Stream {
            tail,
            next: span.end,
            ahead: span.end,
            window: 0,
            reads: 0,
            sectors: span.sectors(),
            calm_sectors: 0,
            used_at: clock,
        });
        None
    }

    /// Waits until one more request may be made.
    pub(crate) async fn admit(&self, fetches: &FetchTable) {
        self.request_ended
            .wait_until(|| {
                let clients_wait = fetches.has_client_requests();
                let most = match clients_wait && !canary::active!("read_ahead_first") {
                    true => REQUESTS_BESIDE_CLIENTS_MAX,
                    false => REQUESTS_MAX,
                };
                let mut state = lock(&self.state);
                (state.requests < most).then(|| state.requests += 1)
            })
            .await;
    }

    /// A request for read-ahead, or one that clients waited for, ended.
    pub(crate) fn on_fetched(&self, is_ahead: bool) {
        if is_ahead {
            lock(&self.state).requests -= 1;
        }
        self.request_ended.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Epoch, VolumeId};

    const TAIL: TailId = TailId {
        volume: VolumeId([1; 16]),
        since: Epoch(0),
    };
    const BLOCK: u64 = 8;

    fn read(ahead: &Streams, start: u64, has_waited: bool) -> Option<Span> {
        ahead.observe(TAIL, Span::new(start, BLOCK), has_waited)
    }

    #[test]
    fn reads_in_no_order_cause_no_read_ahead() {
        let ahead = Streams::new(64 << 20);
        let mut at = 0_u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            assert_eq!(read(&ahead, (at >> 20) * BLOCK, true), None);
        }
    }

    #[test]
    fn no_more_is_read_ahead_than_was_read_in_sequence() {
        let ahead = Streams::new(64 << 20);
        let mut asked = 0;
        for nth in 0..20_000 {
            if let Some(span) = read(&ahead, nth * BLOCK, true) {
                assert!(span.start >= asked, "nothing is asked for twice");
                asked = span.end;
            }
            let done = (nth + 1) * BLOCK;
            assert!(asked <= done + done, "{asked} of {done}");
            assert!(asked <= done + (64 << 20) / 4 / SECTOR_BYTES);
        }
        assert!(asked > 20_000 * BLOCK + (8 << 20) / SECTOR_BYTES, "it grew");
    }

    #[test]
    fn a_window_shrinks_while_its_reader_does_not_wait() {
        let ahead = Streams::new(64 << 20);
        for nth in 0..20_000 {
            read(&ahead, nth * BLOCK, true);
        }
        let window = || lock(&ahead.state).streams[0].window;
        let before = window();
        for nth in 20_000..400_000 {
            read(&ahead, nth * BLOCK, false);
        }
        assert!(window() < before / 4, "{} of {before}", window());
        assert!(window() >= WINDOW_SECTORS_MIN);
    }

    #[test]
    fn reads_in_flight_beside_each_other_are_one_stream() {
        let ahead = Streams::new(64 << 20);
        let mut asked = 0;
        for eight in 0..64 {
            for within in [1, 0, 3, 2, 5, 7, 6, 4] {
                let span = Span::new((eight * 8 + within) * 2048, 2048);
                asked = ahead
                    .observe(TAIL, span, true)
                    .map_or(asked, |span| span.end);
            }
        }
        assert_eq!(lock(&ahead.state).streams.len(), 1);
        assert!(asked > 64 * 8 * 2048);
    }
}
