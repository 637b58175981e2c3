//! (a) The second check of "must this queue run?", lock-free against a lock: threads that complete
//! and run queues.
//!
//! As in the published case each thread completes requests of its own hardware queue and asks
//! after each whether that queue must run. Nothing is parked, so every question needs the second
//! check. With a lock, that check is done under one lock of the device, as blk-mq did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier as Rendezvous, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::{Admission, Barrier, QueueHandle};

use crate::null::{device, queue};
use crate::{ROUND, ROUNDS, median};

/// How the second check is done.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Check {
    Fences,
    Membarrier(Barrier),
    Spin,
    Mutex,
}

impl Check {
    pub(crate) fn all() -> Vec<Check> {
        let mut all = vec![Check::Fences];
        all.extend(Barrier::membarrier().map(Check::Membarrier));
        all.extend([Check::Spin, Check::Mutex]);
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Check::Fences => "lock-free, fences",
            Check::Membarrier(_) => "lock-free, membarrier",
            Check::Spin => "spin lock",
            Check::Mutex => "mutex",
        }
    }

    /// The rest of the path is the same for all; the locks get the cheaper form, to be fair.
    pub(crate) fn barrier(self) -> Barrier {
        match self {
            Check::Fences => Barrier::fences(),
            Check::Membarrier(barrier) => barrier,
            Check::Spin | Check::Mutex => Barrier::detect(),
        }
    }
}

/// The locks that all queues of a device would share.
#[derive(Default)]
struct Locks {
    spin: AtomicBool,
    mutex: Mutex<()>,
}

/// Asks whether a queue must run, in one of these ways.
pub(crate) struct Checker {
    check: Check,
    queue: QueueHandle<u64>,
    locks: Arc<Locks>,
    lock_wait: std::cell::Cell<Duration>,
}

impl Checker {
    pub(crate) fn new(check: Check, queue: QueueHandle<u64>) -> Checker {
        Checker {
            check,
            queue,
            locks: Arc::default(),
            lock_wait: std::cell::Cell::default(),
        }
    }

    pub(crate) fn must_run(&self) -> bool {
        match self.check {
            Check::Fences | Check::Membarrier(_) => self.queue.must_run(),
            Check::Spin => self.queue.has_pending() || self.check_spinning(),
            Check::Mutex => self.queue.has_pending() || self.check_locked(),
        }
    }

    fn check_spinning(&self) -> bool {
        let spin = &self.locks.spin;
        if spin.swap(true, Ordering::Acquire) {
            let start = Instant::now();
            while spin.load(Ordering::Relaxed) || spin.swap(true, Ordering::Acquire) {
                std::hint::spin_loop();
            }
            self.lock_wait.set(self.lock_wait.get() + start.elapsed());
        }
        let must_run = self.queue.has_pending();
        spin.store(false, Ordering::Release);
        must_run
    }

    fn check_locked(&self) -> bool {
        let _held = match self.locks.mutex.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let start = Instant::now();
                let held = self.locks.mutex.lock().expect("no holder panics");
                self.lock_wait.set(self.lock_wait.get() + start.elapsed());
                held
            }
        };
        self.queue.has_pending()
    }
}

/// The result of one round.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    /// Share of all threads' time spent waiting for the lock.
    waiting: f64,
}

/// One round. `requests`: each question follows a request admitted and completed; else the
/// threads only ask.
fn round(check: Check, threads: usize, requests: bool) -> Rate {
    let device = device(check.barrier());
    let locks = Arc::new(Locks::default());
    let (start, stop) = (Rendezvous::new(threads + 1), AtomicBool::new(false));
    let (done, waited, elapsed) = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let mut queue = queue(&device, 128);
                let mut checker = Checker::new(check, queue.handle());
                checker.locks = Arc::clone(&locks);
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    start.wait();
                    let mut count = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..16 {
                            if requests && let Admission::Run(request) = queue.admit(count) {
                                request.complete_with(|_| ());
                            }
                            if checker.must_run() {
                                queue.run(|request| request.complete(Ok(())));
                            }
                        }
                        count += 16;
                    }
                    (count, checker.lock_wait.get())
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

fn rates(checks: &[Check], threads: usize, requests: bool) -> Vec<Rate> {
    let mut rounds = vec![Vec::new(); checks.len()];
    for _ in 0..ROUNDS {
        for (check, rounds) in checks.iter().zip(&mut rounds) {
            rounds.push(round(*check, threads, requests));
        }
    }
    let middle = |rounds: Vec<Rate>| Rate {
        per_second: median(rounds.iter().map(|rate| rate.per_second).collect()),
        waiting: median(rounds.iter().map(|rate| rate.waiting).collect()),
    };
    rounds.into_iter().map(middle).collect()
}

/// The same for a program to read; names have nothing in them that JSON would escape.
fn print_figure(what: &str, threads: usize, check: Check, rate: Rate) {
    println!(
        "@figure {{\"table\":\"must-run\",\"what\":\"{what}\",\"threads\":{threads},\"check\":\"{}\",\
         \"per_second\":{:.0},\"waiting\":{:.4}}}",
        check.name(),
        rate.per_second,
        rate.waiting
    );
}

pub(crate) fn table(figures: bool) {
    let checks = Check::all();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("(a) the second check of \"must this queue run?\", {cores} processors");
    println!(
        "    more threads than processors: a lock's holder can be switched out while it holds"
    );
    println!("    the lock, and every other thread then waits or spins for its next turn\n");
    let mut p13 = Vec::new();
    for (what, requests) in [("requests/s", true), ("checks/s", false)] {
        println!("| threads | second check | {what} | time waiting | against mutex |");
        println!("|---:|---|---:|---:|---:|");
        let mut last = Vec::new();
        for threads in [1, 2, 4, 8] {
            last = rates(&checks, threads, requests);
            let mutex = last[checks.len() - 1].per_second;
            for (check, rate) in checks.iter().zip(&last) {
                let (name, per_second) = (check.name(), rate.per_second / 1e6);
                let (waiting, ratio) = (rate.waiting * 100.0, rate.per_second / mutex);
                println!(
                    "| {threads} | {name} | {per_second:.2} M | {waiting:.0} % | {ratio:.2}x |"
                );
                if figures {
                    print_figure(what, threads, *check, *rate);
                }
            }
        }
        println!();
        p13.extend(ratios(what, &checks, &last));
    }
    println!("P13, 8 threads, target 4.2x:");
    p13.iter().for_each(|line| println!("{line}"));
}

/// How the lock-free checks compare with both locks.
fn ratios(what: &str, checks: &[Check], rates: &[Rate]) -> Vec<String> {
    let (locks, free): (Vec<_>, Vec<_>) = checks
        .iter()
        .zip(rates)
        .partition(|(check, _)| matches!(check, Check::Spin | Check::Mutex));
    let line = |(check, rate): &(&Check, &Rate)| {
        let against = locks.iter().map(|(lock, locked)| {
            format!(
                "{:.1}x the {}",
                rate.per_second / locked.per_second,
                lock.name()
            )
        });
        format!(
            "- {what}, {}: {}",
            check.name(),
            against.collect::<Vec<_>>().join(", ")
        )
    };
    free.iter().map(line).collect()
}
