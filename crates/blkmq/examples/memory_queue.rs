//! One hardware queue with its owner thread: requests are admitted, one is parked and woken, the
//! device is quiesced, drained and opened again.
//!
//!     cargo run -p blkmq --example memory_queue
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an application has threads"
)]
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::{
    Admission, AdmittedRequest, Completer, Device, DeviceOptions, Kick, ParkReason, Queue,
};

/// A read of one sector of an array in memory.
struct Read {
    sector: usize,
    is_fetched: bool,
}

/// Prints completions.
struct Printer;

impl Completer<Read> for Printer {
    fn complete(&self, read: Read, result: Result<(), ErrorKind>) {
        println!("sector {}: {result:?}", read.sector);
    }
}

/// Wakes the owner by a channel, as a real transport does by an eventfd.
struct Wakeup(Mutex<Sender<()>>);

impl Kick for Wakeup {
    fn kick(&self) {
        // The owner may have left already; then nothing is to be run.
        let _ = self.0.lock().expect("no holder panics").send(());
    }
}

/// One step of a request: odd sectors have to be fetched first.
fn handle(mut request: AdmittedRequest<Read>) {
    let read = request.payload_mut();
    if read.sector.is_multiple_of(2) || read.is_fetched {
        return request.complete(Ok(()));
    }
    read.is_fetched = true;
    let waker = request.waker().clone();
    request.park(ParkReason::Fetch);
    thread::spawn(move || waker.wake());
}

/// Owns the queue: admits, and runs it after every kick, until all kickers are gone.
fn own_queue(mut queue: Queue<Read>, kicks: &Receiver<()>) {
    for sector in 0..4 {
        let read = Read {
            sector,
            is_fetched: false,
        };
        if let Admission::Run(request) = queue.admit(read) {
            handle(request);
        }
    }
    while kicks.recv_timeout(Duration::from_millis(200)).is_ok() {
        queue.run(handle);
    }
}

fn main() {
    let device = Device::new("memory", DeviceOptions::default());
    let (wakeup, kicks) = mpsc::channel();
    let kick = Arc::new(Wakeup(Mutex::new(wakeup)));
    let queue = device.add_queue(8, Arc::new(Printer), kick);
    let handle = queue.handle();
    let owner = thread::spawn(move || own_queue(queue, &kicks));

    let guard = device.quiesce();
    guard
        .wait(Duration::from_secs(1))
        .expect("requests in flight complete");
    println!("drained: {:?}", device.load());
    handle.submit(Read {
        sector: 100,
        is_fetched: false,
    });
    println!("sector 100 waits until the guard is dropped");
    drop(guard);
    owner.join().expect("the owner does not panic");
    println!("{:?}", device.counts());
}
