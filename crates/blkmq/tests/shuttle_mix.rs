//! Larger mixes than loom can exhaust, under shuttle's random and priority-based schedulers.
//!
//! Two queues with live owner threads, submitters, an engine that wakes parked requests, and a
//! control side that quiesces, cancels and re-arms. A lost kick leaves an owner asleep, which
//! shuttle reports as a deadlock. A failing schedule is printed and can be replayed.
//!
//! `cargo xtask models` runs them.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive the core with threads and clocks"
)]
#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::{
    Admission, AdmittedRequest, Completer, Device, DeviceOptions, Kick, ParkReason, Queue,
};
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::sync::{Mutex, mpsc};
use shuttle::{future::block_on, rand, thread};

const REQUESTS: u32 = 4;

struct Transport {
    wakeup: Mutex<mpsc::Sender<()>>,
    done: Mutex<Vec<(u32, Result<(), ErrorKind>)>>,
}

impl Completer<u32> for Transport {
    fn complete(&self, number: u32, result: Result<(), ErrorKind>) {
        self.done.lock().unwrap().push((number, result));
        // The owner also wakes to see that its work is done.
        let _ = self.wakeup.lock().unwrap().send(());
    }
}

impl Kick for Transport {
    fn kick(&self) {
        let _ = self.wakeup.lock().unwrap().send(());
    }
}

/// What the mix shares: the engine's inbox, and the mark of a drained gate.
struct Mix {
    engine: Mutex<mpsc::Sender<Waker>>,
    shut: AtomicBool,
}

impl Mix {
    /// One try at a request: it may park for any reason, or complete, here or elsewhere.
    fn go(&self, request: AdmittedRequest<u32>, elsewhere: &mut Vec<thread::JoinHandle<()>>) {
        assert!(!self.shut.load(SeqCst), "run while quiesced");
        match rand::Rng::gen_range(&mut rand::thread_rng(), 0..6) {
            0 => self.park(request, ParkReason::Fetch),
            1 => self.park(request, ParkReason::Space),
            2 => self.park(request, ParkReason::Sync),
            3 => elsewhere.push(thread::spawn(move || request.complete(Ok(())))),
            _ => request.complete(Ok(())),
        }
    }

    fn park(&self, request: AdmittedRequest<u32>, reason: ParkReason) {
        self.engine
            .lock()
            .unwrap()
            .send(request.waker().clone())
            .unwrap();
        request.park(reason);
    }
}

/// Owns a queue until all its requests are complete.
fn own_queue(mut queue: Queue<u32>, transport: &Transport, wakeup: &mpsc::Receiver<()>, mix: &Mix) {
    let mut elsewhere = Vec::new();
    for number in 0..REQUESTS {
        if let Admission::Run(request) = queue.admit(number) {
            mix.go(request, &mut elsewhere);
        }
    }
    while transport.done.lock().unwrap().len() < 2 * REQUESTS as usize {
        wakeup.recv().unwrap();
        queue.run(|request| mix.go(request, &mut elsewhere));
    }
    elsewhere
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn mix() {
    let device = Device::new("mixed", DeviceOptions::default());
    let (to_engine, engine_inbox) = mpsc::channel::<Waker>();
    let mix = Arc::new(Mix {
        engine: Mutex::new(to_engine),
        shut: AtomicBool::new(false),
    });
    let engine = thread::spawn(move || engine_inbox.iter().for_each(Waker::wake));
    let mut threads = Vec::new();
    let mut transports = Vec::new();
    for _ in 0..2 {
        let (to_wakeup, wakeup) = mpsc::channel();
        let transport = Arc::new(Transport {
            wakeup: Mutex::new(to_wakeup),
            done: Mutex::new(Vec::new()),
        });
        let queue = device.add_queue(2, Arc::clone(&transport) as _, Arc::clone(&transport) as _);
        let handle = queue.handle();
        threads.push(thread::spawn(move || {
            (REQUESTS..2 * REQUESTS).for_each(|number| handle.submit(number));
        }));
        let (mix, its) = (Arc::clone(&mix), Arc::clone(&transport));
        threads.push(thread::spawn(move || own_queue(queue, &its, &wakeup, &mix)));
        transports.push(transport);
    }
    let canceller = {
        let device = Arc::clone(&device);
        thread::spawn(move || {
            assert!(device.cancel(ErrorKind::Closed));
            assert!(device.rearm());
        })
    };
    let quiesced = device.quiesce();
    block_on(quiesced.drain());
    mix.shut.store(true, SeqCst);
    thread::yield_now();
    mix.shut.store(false, SeqCst);
    drop(quiesced);
    threads
        .into_iter()
        .chain([canceller])
        .for_each(|thread| thread.join().unwrap());
    drop(mix);
    engine.join().unwrap();
    for transport in transports {
        let mut done = transport.done.lock().unwrap().clone();
        done.sort_by_key(|(number, _)| *number);
        let numbers: Vec<u32> = done.iter().map(|(number, _)| *number).collect();
        assert_eq!(
            numbers,
            (0..2 * REQUESTS).collect::<Vec<_>>(),
            "each exactly once"
        );
        let allowed = [Ok(()), Err(ErrorKind::Closed)];
        assert!(
            done.iter().all(|(_, result)| allowed.contains(result)),
            "{done:?}"
        );
    }
    assert_eq!(device.counts().grace_periods, 2, "one quiesce, one cancel");
}

#[test]
fn a_mix_of_everything_loses_nothing_under_random_schedules() {
    shuttle::check_random(mix, 12_000);
}

#[test]
fn a_mix_of_everything_loses_nothing_under_priority_schedules() {
    shuttle::check_pct(mix, 6_000, 3);
}
