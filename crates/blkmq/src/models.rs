//! Loom models: every interleaving, and every value a weak memory may show, of small programs.
//!
//! Each model is a sentence of the contract. `canaries` breaks the code in one place at a time and
//! checks that the named model notices. `cargo xtask models` runs them. Completions are recorded with the standard library's
//! types: loom does not see them, so they add no interleavings; they are read after a join.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod canaries;
mod cancel;
mod gate;
mod tags;

use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use crate::error::ErrorKind;
use crate::{AdmittedRequest, Completer, Device, DeviceOptions, Kick, Queue};

type Outcome = (u32, Result<(), ErrorKind>);

/// A transport: it counts kicks and notes completions. As with an eventfd, who hears a kick comes
/// after who gave it.
struct Rig {
    kicks: AtomicUsize,
    done: Mutex<Vec<Outcome>>,
}

impl Completer<u32> for Rig {
    fn complete(&self, payload: u32, result: Result<(), ErrorKind>) {
        self.done.lock().unwrap().push((payload, result));
    }
}

impl Kick for Rig {
    fn kick(&self) {
        self.kicks.fetch_add(1, AcqRel);
    }
}

impl Rig {
    fn device() -> Arc<Device> {
        Device::new("model", DeviceOptions::default())
    }

    fn queue(device: &Arc<Device>, depth: u16) -> (Arc<Rig>, Queue<u32>) {
        let rig = Arc::new(Rig {
            kicks: AtomicUsize::new(0),
            done: Mutex::default(),
        });
        let queue = device.add_queue(depth, Arc::clone(&rig) as _, Arc::clone(&rig) as _);
        (rig, queue)
    }

    /// What the owner does when it is woken: a run for every kick, and only for a kick.
    fn serve(&self, queue: &mut Queue<u32>, mut go: impl FnMut(AdmittedRequest<u32>)) {
        while self.hear() > 0 {
            queue.run(&mut go);
        }
    }

    /// How many kicks there were since the last time.
    fn hear(&self) -> usize {
        self.kicks.swap(0, AcqRel)
    }

    /// Every completion so far, in the order of the requests' numbers.
    fn done(&self) -> Vec<Outcome> {
        let mut done = self.done.lock().unwrap().clone();
        done.sort_by_key(|(number, _)| *number);
        done
    }
}

fn finish(request: AdmittedRequest<u32>) {
    request.complete(Ok(()));
}

/// Runs a model; `preemptions` bounds the switches that nobody asked for, where there is a bound.
fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}
