//! (a) The second look, lock-free against a lock: threads that complete and run queues.
//!
//! As in the published case each thread completes requests of its own hardware queue and asks
//! after every one whether that queue must run. Nothing is parked, so every question comes to the
//! second look. With a lock, that look is taken under one lock of the device, as the kernel did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier as Gathering, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::{Admission, Barrier, QueueHandle};

use crate::cases::{device, queue};
use crate::{ROUND, ROUNDS, median};

/// How the second look is made.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Look {
    Fences,
    Membarrier(Barrier),
    Spin,
    Mutex,
}

impl Look {
    pub(crate) fn all() -> Vec<Look> {
        let mut all = vec![Look::Fences];
        all.extend(Barrier::membarrier().map(Look::Membarrier));
        all.extend([Look::Spin, Look::Mutex]);
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Look::Fences => "lock-free, fences",
            Look::Membarrier(_) => "lock-free, membarrier",
            Look::Spin => "spin lock",
            Look::Mutex => "mutex",
        }
    }

    /// The rest of the path is the same for all; the locks get the cheaper form, to be fair.
    pub(crate) fn barrier(self) -> Barrier {
        match self {
            Look::Fences => Barrier::fences(),
            Look::Membarrier(barrier) => barrier,
            Look::Spin | Look::Mutex => Barrier::detect(),
        }
    }
}

/// The locks that all queues of a device would share.
#[derive(Default)]
struct Locks {
    spin: AtomicBool,
    mutex: Mutex<()>,
}

/// Asks whether a queue must run.
pub(crate) struct Looker {
    look: Look,
    queue: QueueHandle<u64>,
    locks: Arc<Locks>,
    waited: std::cell::Cell<Duration>,
}

impl Looker {
    pub(crate) fn new(look: Look, queue: QueueHandle<u64>) -> Looker {
        Looker {
            look,
            queue,
            locks: Arc::default(),
            waited: std::cell::Cell::default(),
        }
    }

    pub(crate) fn must_run(&self) -> bool {
        match self.look {
            Look::Fences | Look::Membarrier(_) => self.queue.must_run(),
            Look::Spin => self.queue.has_pending() || self.look_spinning(),
            Look::Mutex => self.queue.has_pending() || self.look_locked(),
        }
    }

    fn look_spinning(&self) -> bool {
        let spin = &self.locks.spin;
        if spin.swap(true, Ordering::Acquire) {
            let start = Instant::now();
            while spin.load(Ordering::Relaxed) || spin.swap(true, Ordering::Acquire) {
                std::hint::spin_loop();
            }
            self.waited.set(self.waited.get() + start.elapsed());
        }
        let must_run = self.queue.has_pending();
        spin.store(false, Ordering::Release);
        must_run
    }

    fn look_locked(&self) -> bool {
        let _held = match self.locks.mutex.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let start = Instant::now();
                let held = self.locks.mutex.lock().expect("nobody panics under it");
                self.waited.set(self.waited.get() + start.elapsed());
                held
            }
        };
        self.queue.has_pending()
    }
}

/// What one round brought.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    /// Share of all threads' time spent waiting for the lock.
    waiting: f64,
}

/// One round. `requests`: each question follows a request admitted and completed; else the
/// threads only ask.
fn round(look: Look, threads: usize, requests: bool) -> Rate {
    let device = device(look.barrier());
    let locks = Arc::new(Locks::default());
    let (start, stop) = (Gathering::new(threads + 1), AtomicBool::new(false));
    let (done, waited, elapsed) = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let mut queue = queue(&device, 128);
                let mut looker = Looker::new(look, queue.handle());
                looker.locks = Arc::clone(&locks);
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    start.wait();
                    let mut count = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..16 {
                            if requests && let Admission::Run(request) = queue.admit(count) {
                                request.complete_with(|_| ());
                            }
                            if looker.must_run() {
                                queue.run(|request| request.complete(Ok(())));
                            }
                        }
                        count += 16;
                    }
                    (count, looker.waited.get())
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let (mut done, mut waited) = (0, Duration::ZERO);
        for worker in workers {
            let (count, its) = worker.join().expect("a worker does not fail");
            done += count;
            waited += its;
        }
        (done, waited, begun.elapsed())
    });
    Rate {
        per_second: done as f64 / elapsed.as_secs_f64(),
        waiting: waited.as_secs_f64() / (elapsed.as_secs_f64() * threads as f64),
    }
}

fn rates(looks: &[Look], threads: usize, requests: bool) -> Vec<Rate> {
    let mut rounds = vec![Vec::new(); looks.len()];
    for _ in 0..ROUNDS {
        for (look, rounds) in looks.iter().zip(&mut rounds) {
            rounds.push(round(*look, threads, requests));
        }
    }
    let middle = |rounds: Vec<Rate>| Rate {
        per_second: median(rounds.iter().map(|rate| rate.per_second).collect()),
        waiting: median(rounds.iter().map(|rate| rate.waiting).collect()),
    };
    rounds.into_iter().map(middle).collect()
}

pub(crate) fn table() {
    let looks = Look::all();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("(a) the second look of \"must this queue run?\", {cores} processors");
    println!(
        "    more threads than processors: a lock's holder can be switched out while it holds"
    );
    println!("    the lock, and every other thread then waits or spins for its next turn\n");
    let mut p13 = Vec::new();
    for (what, requests) in [("requests/s", true), ("looks/s", false)] {
        println!("| threads | second look | {what} | time waiting | against mutex |");
        println!("|---:|---|---:|---:|---:|");
        let mut last = Vec::new();
        for threads in [1, 2, 4, 8] {
            last = rates(&looks, threads, requests);
            let mutex = last[looks.len() - 1].per_second;
            for (look, rate) in looks.iter().zip(&last) {
                let (name, per_second) = (look.name(), rate.per_second / 1e6);
                let (waiting, ratio) = (rate.waiting * 100.0, rate.per_second / mutex);
                println!(
                    "| {threads} | {name} | {per_second:.2} M | {waiting:.0} % | {ratio:.2}x |"
                );
            }
        }
        println!();
        p13.extend(ratios(what, &looks, &last));
    }
    println!("P13, 8 threads, target 4.2x:");
    p13.iter().for_each(|line| println!("{line}"));
}

/// How the lock-free looks compare with both locks.
fn ratios(what: &str, looks: &[Look], rates: &[Rate]) -> Vec<String> {
    let (locks, free): (Vec<_>, Vec<_>) = looks
        .iter()
        .zip(rates)
        .partition(|(look, _)| matches!(look, Look::Spin | Look::Mutex));
    let line = |(look, rate): &(&Look, &Rate)| {
        let against = locks.iter().map(|(lock, locked)| {
            format!(
                "{:.1}x the {}",
                rate.per_second / locked.per_second,
                lock.name()
            )
        });
        format!(
            "- {what}, {}: {}",
            look.name(),
            against.collect::<Vec<_>>().join(", ")
        )
    };
    free.iter().map(line).collect()
}
