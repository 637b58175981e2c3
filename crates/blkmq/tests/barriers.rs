//! Both forms of the barriers under real threads, real processors and real preemption.
//!
//! The models prove the fences and cannot express `membarrier(2)`; the argument for it stands in
//! `src/barrier.rs`, and this is its stress test. A control thread quiesces, waits for the drain,
//! touches what requests touch, and opens the gate again, while an owner admits, parks and runs
//! and another thread completes. A request that runs behind a shut gate loses one of two updates;
//! a request or a drain that is lost lets a deadline pass.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive the core with threads and clocks"
)]
#![cfg(not(any(feature = "loom", feature = "shuttle")))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use blkmq::error::ErrorKind;
use blkmq::{Admission, AdmittedRequest, Barrier, Completer, Device, DeviceOptions, Kick, Queue};

const DEADLINE: Duration = Duration::from_secs(20);
const QUIESCES: u64 = 20_000;
const DEPTH: u16 = 4;

/// What requests and the control thread both touch: two plain steps, so an overlap shows.
#[derive(Default)]
struct Shared {
    updates: AtomicU64,
    completed: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn update(&self) {
        let before = self.updates.load(Relaxed);
        std::hint::spin_loop();
        self.updates.store(before + 1, Relaxed);
    }
}

impl Completer<()> for Shared {
    fn complete(&self, (): (), result: Result<(), ErrorKind>) {
        assert_eq!(result, Ok(()));
        self.completed.fetch_add(1, Relaxed);
    }
}

struct Wakeup {
    kicked: AtomicBool,
    owner: Thread,
}

impl Kick for Wakeup {
    fn kick(&self) {
        self.kicked.store(true, SeqCst);
        self.owner.unpark();
    }
}

/// Admits until too many are parked, then sleeps until it is kicked.
fn own_queue(
    mut queue: Queue<()>,
    wakeup: &Wakeup,
    shared: &Shared,
    others: &mpsc::Sender<AdmittedRequest<()>>,
) -> u64 {
    let (mut ran, mut parked) = (0, 0);
    let go = |request: AdmittedRequest<()>, ran: &mut u64| {
        *ran += 1;
        // The owner does the update; every second completion is another thread's.
        shared.update();
        if ran.is_multiple_of(2) {
            others
                .send(request)
                .expect("the completer outlives the owner");
        } else {
            request.complete(Ok(()));
        }
    };
    loop {
        if wakeup.kicked.swap(false, SeqCst) {
            parked -= queue.run(|request| go(request, &mut ran));
        }
        if shared.stop.load(Relaxed) && parked == 0 {
            return ran;
        }
        if parked < DEPTH.into() && !shared.stop.load(Relaxed) {
            match queue.admit(()) {
                Admission::Run(request) => go(request, &mut ran),
                Admission::Parked => parked += 1,
                Admission::Refused => unreachable!("nobody cancels"),
            }
        } else if !wakeup.kicked.load(SeqCst) {
            thread::park_timeout(DEADLINE);
        }
    }
}

fn stress(barrier: Barrier) {
    let shared = Arc::new(Shared::default());
    let device = Device::new(
        "stressed",
        DeviceOptions {
            barrier,
            ..Default::default()
        },
    );
    let (to_completer, from_owner) = mpsc::channel::<AdmittedRequest<()>>();
    let completer = thread::spawn(move || from_owner.iter().for_each(|r| r.complete(Ok(()))));
    let owner = {
        let (device, shared) = (Arc::clone(&device), Arc::clone(&shared));
        thread::spawn(move || {
            let wakeup = Arc::new(Wakeup {
                kicked: AtomicBool::new(false),
                owner: thread::current(),
            });
            let queue = device.add_queue(DEPTH, Arc::clone(&shared) as _, Arc::clone(&wakeup) as _);
            own_queue(queue, &wakeup, &shared, &to_completer)
        })
    };
    for _ in 0..QUIESCES {
        let quiesced = device.quiesce();
        quiesced
            .wait(DEADLINE)
            .expect("every request completes, and the last one wakes the drain");
        shared.update();
        let before = shared.completed.load(Relaxed);
        drop(quiesced);
        let start = Instant::now();
        while shared.completed.load(Relaxed) == before {
            assert!(
                start.elapsed() < DEADLINE,
                "parked requests were not run again"
            );
            thread::yield_now();
        }
    }
    shared.stop.store(true, Relaxed);
    owner.thread().unpark();
    let ran = owner.join().expect("the owner did not fail");
    completer.join().expect("the completer did not fail");
    assert_eq!(
        shared.completed.load(Relaxed),
        ran,
        "every request completes once"
    );
    assert_eq!(
        shared.updates.load(Relaxed),
        ran + QUIESCES,
        "something ran behind a shut gate"
    );
    assert_eq!(device.counts().grace_periods, QUIESCES);
}

#[test]
fn fences_keep_requests_out_and_lose_none() {
    stress(Barrier::fences());
}

#[test]
fn membarrier_keeps_requests_out_and_loses_none() {
    match Barrier::membarrier() {
        Some(barrier) => stress(barrier),
        None => println!("skipped: this kernel or sandbox refuses membarrier(2)"),
    }
}
