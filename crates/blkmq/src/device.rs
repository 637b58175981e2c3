//! A device: what its control side holds to add queues, quiesce, cancel, re-arm and remove it.
//!
//! The calls say what they promise; how a transition works is in `state.rs`. Most of them may
//! sleep, and none of those runs on a ring thread: [`Device::request_cancel`] posts the work to a
//! [`ControlThread`] instead.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::barrier::Barrier;
use crate::error::ErrorKind;
use crate::hw_queue::{Completer, HwQueue, Kick};
use crate::queue::Queue;
use crate::quiesce::QuiesceGuard;
use crate::state::{DeviceCounts, DeviceState, QueueLoad};

/// Where ring threads post the work that may sleep.
pub trait ControlThread: Send + Sync {
    /// Called on a ring thread; must not wait. The control thread calls [`CancelWork::run`].
    fn post(&self, work: CancelWork);
}

/// How a device is made.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// The form of the paired barriers; by default what the kernel offers.
    pub barrier: Barrier,
    /// How long a request may stay parked; by default without limit (S10).
    pub park_timeout: Option<Duration>,
    /// Where [`Device::request_cancel`] posts its work. Needed by devices with ring threads.
    pub control: Option<Arc<dyn ControlThread>>,
}

impl fmt::Debug for DeviceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceOptions")
            .field("barrier", &self.barrier)
            .field("park_timeout", &self.park_timeout)
            .finish_non_exhaustive()
    }
}

/// A device and its hardware queues.
pub struct Device {
    state: Arc<DeviceState>,
    control: Option<Arc<dyn ControlThread>>,
}

impl Device {
    /// A device without queues. `name` is for reports.
    pub fn new(name: impl Into<String>, options: DeviceOptions) -> Arc<Device> {
        let state = DeviceState::new(name.into(), options.barrier, options.park_timeout);
        Arc::new(Device {
            state: Arc::new(state),
            control: options.control,
        })
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        self.state.name()
    }

    /// Adds a hardware queue of `depth` tags (1 to 4096). It starts with the device's state: on a
    /// quiesced device it parks, on a cancelled one it refuses. Send the queue to the thread that
    /// will own it; drop it to remove it. May sleep.
    pub fn add_queue<T: Send + 'static>(
        &self,
        depth: u16,
        completer: Arc<dyn Completer<T>>,
        kick: Arc<dyn Kick>,
    ) -> Queue<T> {
        let device = Arc::clone(&self.state);
        self.state.add_queue(
            |id| Queue::new(HwQueue::new(id, device, depth, completer, kick)),
            Queue::any_queue,
        )
    }

    /// Shuts the gate: when this returns, no request is admitted any more. The guard says what is
    /// still in flight, and waits for it; dropping the guard opens the gate again. Nests: the gate
    /// opens when the last guard is dropped. May sleep, for as long as another transition takes.
    pub fn quiesce(&self) -> QuiesceGuard {
        QuiesceGuard::new(Arc::clone(&self.state))
    }

    /// Cancels the device: parked and future requests complete with `error`, by their owners;
    /// requests in flight are left to their holders. Decided once: returns whether this call did
    /// it. On a device that is already cancelled or removed it does nothing. May sleep.
    pub fn cancel(&self, error: ErrorKind) -> bool {
        self.state.cancel_if(error, || true)
    }

    /// Requests a cancel from a thread that must not sleep. The first of all callers posts the
    /// work to the control thread. Returns whether this call did.
    pub fn request_cancel(&self, error: ErrorKind) -> bool {
        let Some(epoch) = self.state.claim_cancel() else {
            return false;
        };
        let work = CancelWork {
            device: Arc::clone(&self.state),
            error,
            epoch,
        };
        match &self.control {
            Some(control) => control.post(work),
            None => work.run(),
        }
        true
    }

    /// Ends a cancel, for the device and all its queues together. Returns whether the device was
    /// cancelled. May sleep.
    pub fn rearm(&self) -> bool {
        self.state.rearm()
    }

    /// Removes the device: cancels it with [`ErrorKind::Closed`] unless it is cancelled already.
    /// Every later cancel or re-arm does nothing. May sleep.
    pub fn remove(&self) {
        self.state.remove();
    }

    /// Transitions so far, and requests that were dropped. May sleep.
    pub fn counts(&self) -> DeviceCounts {
        self.state.counts()
    }

    /// What every queue holds now. May sleep.
    pub fn load(&self) -> Vec<QueueLoad> {
        self.state.load()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.state.name())
            .finish_non_exhaustive()
    }
}

/// A cancel that a ring thread posted to the control thread.
pub struct CancelWork {
    device: Arc<DeviceState>,
    error: ErrorKind,
    epoch: u64,
}

impl CancelWork {
    /// Cancels the device, unless it was re-armed since. On the control thread: may sleep.
    pub fn run(self) {
        self.device.cancel_claimed(self.error, self.epoch);
    }
}

impl fmt::Debug for CancelWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CancelWork({} with {:?})",
            self.device.name(),
            self.error
        )
    }
}
