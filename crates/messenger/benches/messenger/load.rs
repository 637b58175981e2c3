//! One run: senders, a messenger, an echoing peer on loopback, and what was measured.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use messenger::auth::{Credentials, NoneForm};
use messenger::outqueue::{LockStats, SITES, Site};
use messenger::{Bounds, Config, Connection, Event, Handler, Message, Messenger, Refusal, Target};

/// Which lock the senders take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    One,
    Split,
    SplitAgain,
}

/// What is offered.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) senders: u32,
    pub(crate) size: usize,
    /// Messages a second over all senders; 0: as fast as they go.
    pub(crate) rate: u32,
}

pub(crate) const LOADS: [Load; 5] = [
    Load {
        name: "A: 64 senders x 4 KiB, 20,000/s",
        senders: 64,
        size: 4 << 10,
        rate: 20_000,
    },
    Load {
        name: "B: 16 senders x 64 KiB, 12,000/s",
        senders: 16,
        size: 64 << 10,
        rate: 12_000,
    },
    Load {
        name: "C: overload, 4 senders x 4 KiB",
        senders: 4,
        size: 4 << 10,
        rate: 0,
    },
    Load {
        name: "D: one sender x 4 KiB, 5,000/s",
        senders: 1,
        size: 4 << 10,
        rate: 5_000,
    },
    Load {
        name: "E: idle, one sender x 4 KiB, 100/s",
        senders: 1,
        size: 4 << 10,
        rate: 100,
    },
];

const KEEPALIVES_PER_S: u32 = 200;

/// What one run measured. Times in nanoseconds, sorted.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) sends: Vec<u64>,
    pub(crate) keepalives: Vec<u64>,
    pub(crate) round_trips: Vec<u64>,
    /// Sends that began more than a millisecond after they were due.
    pub(crate) late: u64,
    pub(crate) full: u64,
    pub(crate) seconds: f64,
    /// The locks of the send path, added up: out-queue, inbox, and the one lock.
    pub(crate) locks: LockStats,
    /// Time the senders, and the two I/O threads, were runnable and did not run.
    pub(crate) senders_delay_ns: u64,
    pub(crate) io_delay_ns: u64,
}

/// Sends every message's tid back.
struct Echo;

impl Handler for Echo {
    fn event(&self, connection: &Connection, event: Event) {
        if let Event::Message(m) = event {
            let _ = connection.try_send(Message::data(2, m.tid, Bytes::new()));
        }
    }
}

#[derive(Default)]
struct Answers {
    times: Mutex<Vec<u64>>,
    count: AtomicU64,
    opened: Mutex<bool>,
    changed: Condvar,
    recording: AtomicBool,
}

struct Client {
    answers: Arc<Answers>,
    start: Instant,
}

impl Handler for Client {
    fn event(&self, _: &Connection, event: Event) {
        match event {
            Event::Opened { .. } => {
                *self.answers.opened.lock().expect("no holder panics") = true;
                self.answers.changed.notify_all();
            }
            Event::Message(m) => {
                self.answers.count.fetch_add(1, Relaxed);
                if self.answers.recording.load(Relaxed) {
                    let time = nanos(self.start.elapsed()).saturating_sub(m.tid);
                    self.answers
                        .times
                        .lock()
                        .expect("no holder panics")
                        .push(time);
                }
            }
            _ => {}
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn messenger(name: &str) -> Messenger {
    let bounds = Bounds {
        bytes_max: 64 << 20,
        count_max: 100_000,
        ..Bounds::default()
    };
    let config = Config {
        bounds,
        keepalive_interval: None,
        ..Config::default()
    };
    let credentials = Credentials::None {
        name: name.to_owned(),
        form: NoneForm::Monitor,
    };
    Messenger::start(config, credentials).expect("the messenger starts")
}

/// Runs one load with one variant.
pub(crate) fn run(load: &Load, variant: Variant, time: Duration) -> Measurement {
    let (mut a, b) = (messenger("a"), messenger("b"));
    a.use_one_lock(variant == Variant::One);
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let addr = b
        .listen(loopback, Arc::new(Echo))
        .expect("loopback can be listened on");
    let start = Instant::now();
    let answers = Arc::new(Answers::default());
    let client = Client {
        answers: Arc::clone(&answers),
        start,
    };
    let connection = a
        .open(Target::lossless(addr), Arc::new(client))
        .expect("it opens");
    let mut opened = answers.opened.lock().expect("no holder panics");
    while !*opened {
        opened = answers.changed.wait(opened).expect("no holder panics");
    }
    drop(opened);
    answers.recording.store(true, Relaxed);
    let io_before = io_delay();
    let begun = Instant::now();
    let sender_times = send_all(load, &connection, start, time);
    let seconds = begun.elapsed().as_secs_f64();
    let io_delay_ns = io_delay() - io_before;
    let count = sender_times.sends.len() as u64;
    // The rest of the answers, so that a run leaves nothing to the next.
    let deadline = Instant::now() + Duration::from_secs(20);
    while answers.count.load(Relaxed) < count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (queue, one) = connection.lock_stats();
    let locks = add(add(queue, a.inbox_stats()), one.unwrap_or_default());
    a.shutdown();
    b.shutdown();
    let mut round_trips = std::mem::take(&mut *answers.times.lock().expect("no holder panics"));
    round_trips.sort_unstable();
    Measurement {
        round_trips,
        seconds,
        locks,
        io_delay_ns,
        ..sender_times
    }
}

fn send_all(load: &Load, connection: &Connection, start: Instant, time: Duration) -> Measurement {
    let payload = Bytes::from(vec![0x5a; load.size]);
    let barrier = Barrier::new(load.senders as usize + 1);
    let sender_times: Vec<SenderTimes> = std::thread::scope(|scope| {
        let keepalives = scope.spawn(|| {
            barrier.wait();
            let pace = Pace::new(0, 1, KEEPALIVES_PER_S, time);
            pace.run(|| connection.keepalive().is_ok())
        });
        let senders: Vec<_> = (0..load.senders)
            .map(|i| {
                let (payload, barrier) = (payload.clone(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let pace = Pace::new(i, load.senders, load.rate, time);
                    pace.run(|| send(connection, &payload, start))
                })
            })
            .collect();
        let all = std::iter::once(keepalives).chain(senders);
        all.map(|t| t.join().expect("a sender does not panic"))
            .collect()
    });
    let (keepalives, senders) = sender_times
        .split_first()
        .expect("there is the keepalive thread");
    let sorted = |sender_times: &[SenderTimes]| {
        let mut times: Vec<u64> = sender_times
            .iter()
            .flat_map(|f| f.times.iter().copied())
            .collect();
        times.sort_unstable();
        times
    };
    Measurement {
        sends: sorted(senders),
        keepalives: sorted(std::slice::from_ref(keepalives)),
        round_trips: Vec::new(),
        late: senders.iter().map(|f| f.late).sum(),
        full: senders.iter().map(|f| f.refused).sum(),
        seconds: 0.0,
        locks: LockStats::default(),
        senders_delay_ns: senders.iter().map(|f| f.delay_ns).sum(),
        io_delay_ns: 0,
    }
}

/// One send; whether it was taken. The message is made before, as callers do.
fn send(connection: &Connection, payload: &Bytes, start: Instant) -> bool {
    let tid = nanos(start.elapsed());
    match connection.try_send(Message::data(1, tid, payload.clone())) {
        Ok(_) => true,
        Err(e) if e.reason == Refusal::Full => false,
        Err(e) => panic!("{e}"),
    }
}

/// What one caller felt.
struct SenderTimes {
    times: Vec<u64>,
    late: u64,
    refused: u64,
    delay_ns: u64,
}

/// A schedule of calls.
struct Pace {
    first: Duration,
    interval: Option<Duration>,
    time: Duration,
}

impl Pace {
    fn new(index: u32, of: u32, rate: u32, time: Duration) -> Self {
        let interval = (rate > 0).then(|| Duration::from_secs(1) * of / rate);
        let first = interval.unwrap_or_default() * index / of;
        Self {
            first,
            interval,
            time,
        }
    }

    fn run(&self, mut call: impl FnMut() -> bool) -> SenderTimes {
        // The default slack would make every caller up to 50 us late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut sender_times = SenderTimes {
            times: Vec::new(),
            late: 0,
            refused: 0,
            delay_ns: 0,
        };
        let (begin, delay) = (Instant::now(), run_delay("/proc/thread-self/schedstat"));
        // Since when calls have followed one another without a pause.
        let (mut due, mut busy_since) = (begin + self.first, begin);
        while begin.elapsed() < self.time {
            let now = Instant::now();
            if due > now && self.interval.is_some() {
                std::thread::sleep(due - now);
                busy_since = Instant::now();
            }
            let called = Instant::now();
            // Coordinated omission: a call that fell due while an earlier one was still under way
            // has waited since it was due. One that is late because this thread was not run has
            // not waited for a send: that is counted as late.
            let blocked = self.interval.is_some() && due >= busy_since;
            let since = if blocked { due.min(called) } else { called };
            sender_times.late += u64::from(called.saturating_duration_since(due).as_millis() > 0);
            if call() {
                sender_times.times.push(nanos(since.elapsed()));
            } else {
                sender_times.refused += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            due += self.interval.unwrap_or_default();
        }
        if self.interval.is_none() {
            sender_times.late = 0;
        }
        sender_times.delay_ns = run_delay("/proc/thread-self/schedstat") - delay;
        sender_times
    }
}

/// The time a thread was runnable and waited for a processor.
fn run_delay(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

fn io_delay() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter(|t| {
            let name = std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
            name.trim() == "messenger-io"
        })
        .map(|t| run_delay(&t.path().join("schedstat").to_string_lossy()))
        .sum()
}

pub(crate) fn add(mut a: LockStats, b: LockStats) -> LockStats {
    for (a, b) in a.0.iter_mut().zip(b.0) {
        a.takes += b.takes;
        a.contended += b.contended;
        a.wait_ns += b.wait_ns;
        a.wait_max_ns = a.wait_max_ns.max(b.wait_max_ns);
        a.held_ns += b.held_ns;
        a.held_samples += b.held_samples;
        a.held_max_ns = a.held_max_ns.max(b.held_max_ns);
        for i in 0..SITES {
            a.waited_for_ns[i] += b.waited_for_ns[i];
        }
    }
    a
}

/// The sites that belong to a caller's thread.
pub(crate) fn is_caller_site(site: Site) -> bool {
    matches!(site, Site::Send | Site::Keepalive | Site::Post)
}
