//! Loom models: every interleaving, and every value a weak memory may show, of small programs.
//!
//! Each model is a sentence of the contract. `canaries` activates one canary at a time and checks
//! that the named model fails. `cargo xtask models` runs them. Completions are recorded with the
//! standard library's types: loom does not see them, so they add no interleavings; they are read
//! after a join.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "models start threads and child processes"
)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod canaries;
mod cancel;
mod gate;
mod tags;

use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use crate::error::ErrorKind;
use crate::{Admission, AdmittedRequest, Completer, Device, DeviceOptions, Kick, Queue};

type Outcome = (u32, Result<(), ErrorKind>);

/// A transport that counts kicks and records completions. As with an eventfd, reading a kick
/// happens after it was sent.
struct TestTransport {
    kicks: AtomicUsize,
    done: Mutex<Vec<Outcome>>,
}

impl Completer<u32> for TestTransport {
    fn complete(&self, payload: u32, result: Result<(), ErrorKind>) {
        self.done.lock().unwrap().push((payload, result));
    }
}

impl Kick for TestTransport {
    fn kick(&self) {
        self.kicks.fetch_add(1, AcqRel);
    }
}

impl TestTransport {
    fn device() -> Arc<Device> {
        Device::new("model", DeviceOptions::default())
    }

    fn queue(device: &Arc<Device>, depth: u16) -> (Arc<TestTransport>, Queue<u32>) {
        let transport = Arc::new(TestTransport {
            kicks: AtomicUsize::new(0),
            done: Mutex::default(),
        });
        let queue = device.add_queue(
            depth,
            Arc::clone(&transport) as _,
            Arc::clone(&transport) as _,
        );
        (transport, queue)
    }

    /// A device with one queue.
    fn device_and_queue(depth: u16) -> (Arc<Device>, Arc<TestTransport>, Queue<u32>) {
        let device = TestTransport::device();
        let (transport, queue) = TestTransport::queue(&device, depth);
        (device, transport, queue)
    }

    /// Runs the kicks that are left, and returns every completion.
    fn finish(&self, queue: &mut Queue<u32>) -> Vec<Outcome> {
        self.run_kicked(queue, complete);
        self.done()
    }

    /// What the owner does when it is woken: it runs the queue for each kick, and only for a kick.
    fn run_kicked(&self, queue: &mut Queue<u32>, mut handle: impl FnMut(AdmittedRequest<u32>)) {
        while self.take_kicks() > 0 {
            queue.run(&mut handle);
        }
    }

    /// How many kicks came since the last call.
    fn take_kicks(&self) -> usize {
        self.kicks.swap(0, AcqRel)
    }

    /// Every completion so far, in the order of the requests' numbers.
    fn done(&self) -> Vec<Outcome> {
        let mut done = self.done.lock().unwrap().clone();
        done.sort_by_key(|(number, _)| *number);
        done
    }
}

/// Admits a request, which nothing may hold up.
fn admit_open(queue: &mut Queue<u32>, number: u32) -> AdmittedRequest<u32> {
    match queue.admit(number) {
        Admission::Run(request) => request,
        other => panic!("the gate is open: {other:?}"),
    }
}

/// Offers a request, which runs if it is admitted.
fn admit(queue: &mut Queue<u32>, number: u32, go: impl FnOnce(AdmittedRequest<u32>)) {
    match queue.admit(number) {
        Admission::Run(request) => go(request),
        Admission::Parked | Admission::Refused => {}
    }
}

fn complete(request: AdmittedRequest<u32>) {
    request.complete(Ok(()));
}

/// Runs a model; `preemptions` bounds the involuntary switches, if given.
fn check_model(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}
