//! A disk in memory that is answered late and from another thread, and clients that compare what they
//! read with what they wrote.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkmq::io::Op;
use reactor::Port;
use ublk::queue::{Handler, QueueCx};
use ublk::{Answer, DataMode, Modes, Request};

use super::DEADLINE;

const PAGE: usize = 4096;

/// A disk's bytes, which outlive its servers.
pub type Bytes = Arc<Mutex<Vec<u8>>>;

/// Where requests wait to be answered, while it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: AtomicBool,
    holding: AtomicBool,
}

impl Gate {
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        self.holding.store(false, Ordering::SeqCst);
    }

    /// Closes it, and waits until a request waits there.
    pub fn wait_for_request(&self) {
        self.close();
        let deadline = Instant::now() + DEADLINE;
        while !self.holding.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "no request comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn holds_request(&self) -> bool {
        let closed = self.closed.load(Ordering::SeqCst);
        if closed {
            self.holding.store(true, Ordering::SeqCst);
        }
        closed
    }
}

/// Answers each request a millisecond late, and not while its gate is closed.
pub struct DelayedHandler {
    to: Sender<Request>,
}

impl DelayedHandler {
    /// A handler of one queue.
    pub fn new(bytes: &Bytes, gate: &Arc<Gate>) -> DelayedHandler {
        let (bytes, gate) = (Arc::clone(bytes), Arc::clone(gate));
        let (to, from) = channel::<Request>();
        // It ends with the handler.
        std::thread::spawn(move || {
            while let Ok(first) = from.recv() {
                let late = Instant::now() + Duration::from_millis(1);
                while Instant::now() < late || gate.holds_request() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for request in std::iter::once(first).chain(from.try_iter()) {
                    answer(&bytes, request);
                }
            }
        });
        DelayedHandler { to }
    }
}

impl Handler for DelayedHandler {
    const MODES: Modes = Modes::NONE.and(DataMode::Copy);

    fn on_request<P: Port>(&mut self, _: &mut QueueCx<'_, P>, request: Request) {
        // Whoever answers outlives this handler.
        let _ = self.to.send(request);
    }
}

fn answer(bytes: &Bytes, mut request: Request) {
    let mut disk = bytes.lock().unwrap();
    let (len, op) = (request.bytes() as usize, *request.op());
    if let Op::Read { sector, .. } | Op::Write { sector, .. } = op {
        let at = sector as usize * 512;
        let of_disk = &mut disk[at..at + len];
        let buf = request.buffer_mut().unwrap();
        match op {
            Op::Read { .. } => buf[..len].copy_from_slice(of_disk),
            _ => of_disk.copy_from_slice(&buf[..len]),
        }
    }
    request.answer(Answer::Done);
}

#[repr(align(4096))]
struct Page([u8; PAGE]);

/// Clients that write pages of their own, and read back each of them.
pub struct Clients {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Clients {
    /// So many of them, each with one request at a time.
    pub fn start(path: &Path, count: u64) -> Clients {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let threads = (0..count).map(|number| {
            let (disk, stop, rounds) = (
                options.open(path).unwrap(),
                Arc::clone(&stop),
                Arc::clone(&rounds),
            );
            std::thread::spawn(move || client(&disk, number, &stop, &rounds))
        });
        Clients {
            threads: threads.collect(),
            stop,
            rounds,
        }
    }

    /// Waits until every client has come round again, more or less.
    pub fn wait_for_progress(&self) {
        let count = |clients: &Clients| clients.rounds.load(Ordering::Relaxed);
        let (before, deadline) = (count(self), Instant::now() + DEADLINE);
        while count(self) < before + self.threads.len() as u64 {
            assert!(Instant::now() < deadline, "no request is answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends them, and says how often they came round. None of them may have seen an error or other
    /// bytes than it wrote.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Pages of one client.
const PAGES: u64 = 16;

fn client(disk: &File, number: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut written = [None; PAGES as usize];
    let place = |page: usize| (number * PAGES + page as u64) * PAGE as u64;
    let mut page = Page([0; PAGE]);
    for round in 1.. {
        let at = (round % PAGES) as usize;
        page.0.fill(0);
        let stamp = number << 48 | round;
        page.0[..8].copy_from_slice(&stamp.to_ne_bytes());
        page.0[PAGE - 8..].copy_from_slice(&stamp.to_ne_bytes());
        disk.write_all_at(&page.0, place(at)).unwrap();
        written[at] = Some(stamp);
        let last = stop.load(Ordering::Relaxed);
        // All of them at the end.
        for (at, stamp) in written.iter().enumerate() {
            let Some(stamp) = stamp.filter(|_| last || at as u64 == (round * 7) % PAGES) else {
                continue;
            };
            disk.read_exact_at(&mut page.0, place(at)).unwrap();
            for end in [&page.0[..8], &page.0[PAGE - 8..]] {
                assert_eq!(end, stamp.to_ne_bytes(), "page {at} of client {number}");
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
        if last {
            return;
        }
    }
}
