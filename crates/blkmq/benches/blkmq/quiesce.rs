//! (c) Quiesce and cancel under load: how long, and how many grace periods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::error::ErrorKind;
use blkmq::{Admission, Barrier, Device, Queue};

use crate::barriers;
use crate::null::{NullTransport, device};

const DEADLINE: Duration = Duration::from_secs(10);
/// Quiesces per row, over all devices.
const QUIESCES: usize = 1_280;

/// Keeps every queue busy until told to stop, and counts what it served.
fn load(mut queues: Vec<(Queue<u64>, Arc<NullTransport>)>, stop: &AtomicBool, served: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for (queue, transport) in &mut queues {
            match queue.admit(0) {
                Admission::Run(request) => {
                    request.complete_with(|_| ());
                    served.fetch_add(1, Ordering::Relaxed);
                }
                Admission::Parked | Admission::Refused => thread::yield_now(),
            }
            if transport.kicked.swap(false, Ordering::Acquire) {
                let ran = queue.run(|request| {
                    request.complete_with(|_| ());
                });
                served.fetch_add(ran as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Waits until the owner has served a request since this call: it is running, and busy.
fn wait_for_load(served: &AtomicU64) {
    let before = served.load(Ordering::Relaxed);
    while served.load(Ordering::Relaxed) == before {
        thread::yield_now();
    }
}

fn row(form: &str, barrier: Barrier, devices: usize, queues_each: usize) {
    let devices: Vec<Arc<Device>> = (0..devices).map(|_| device(barrier)).collect();
    let queues = devices.iter().flat_map(|device| {
        (0..queues_each).map(move |_| {
            let transport = Arc::new(NullTransport::default());
            (
                device.add_queue(
                    128,
                    Arc::clone(&transport) as _,
                    Arc::clone(&transport) as _,
                ),
                transport,
            )
        })
    });
    let (queues, stop): (Vec<_>, _) = (queues.collect(), AtomicBool::new(false));
    let (mut latencies, served) = (Vec::new(), AtomicU64::new(0));
    let cancelled = thread::scope(|scope| {
        let owner = scope.spawn(|| load(queues, &stop, &served));
        for _ in 0..QUIESCES / devices.len() {
            for device in &devices {
                wait_for_load(&served);
                let start = Instant::now();
                let quiesced = device.quiesce();
                quiesced
                    .wait(DEADLINE)
                    .expect("every request of this bench completes");
                latencies.push(start.elapsed());
                drop(quiesced);
            }
        }
        let quiesced: u64 = devices
            .iter()
            .map(|device| device.counts().grace_periods)
            .sum();
        assert_eq!(
            quiesced,
            latencies.len() as u64,
            "one grace period per quiesce"
        );
        wait_for_load(&served);
        let start = Instant::now();
        for device in &devices {
            assert!(device.cancel(ErrorKind::Closed));
        }
        let cancelled = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        owner.join().expect("the owner does not fail");
        cancelled
    });
    latencies.sort();
    let grace: u64 = devices
        .iter()
        .map(|device| device.counts().grace_periods)
        .sum();
    println!(
        "| {form} | {} x {queues_each} | {:.1} us | {:.1} us | {grace} / {} | {:.0} us | {} |",
        devices.len(),
        latencies[latencies.len() / 2].as_nanos() as f64 / 1e3,
        latencies[latencies.len() * 99 / 100].as_nanos() as f64 / 1e3,
        latencies.len() + devices.len(),
        cancelled.as_nanos() as f64 / 1e3,
        served.load(Ordering::Relaxed),
    );
}

pub(crate) fn table() {
    println!("\n(c) quiesce and drain under load, one owner thread for all queues\n");
    println!(
        "| barriers | devices x queues | quiesce, median | p99 | grace periods / transitions | \
         cancel of all | requests served meanwhile |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|");
    for (form, barrier) in barriers() {
        for (devices, queues_each) in [(1, 1), (1, 24), (128, 24)] {
            row(form, barrier, devices, queues_each);
        }
    }
}
