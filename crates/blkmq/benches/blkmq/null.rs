//! The transport that does nothing: what is left to measure is the core.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::error::ErrorKind;
use blkmq::{Barrier, Completer, Device, DeviceOptions, Kick, Queue};

/// Does nothing with completions, and remembers that it was kicked.
#[derive(Default)]
pub(crate) struct NullTransport {
    pub(crate) kicked: AtomicBool,
}

impl Completer<u64> for NullTransport {
    fn complete(&self, payload: u64, _: Result<(), ErrorKind>) {
        black_box(payload);
    }
}

impl Kick for NullTransport {
    fn kick(&self) {
        self.kicked.store(true, Ordering::Release);
    }
}

pub(crate) fn device(barrier: Barrier) -> Arc<Device> {
    Device::new(
        "bench",
        DeviceOptions {
            barrier,
            ..Default::default()
        },
    )
}

pub(crate) fn queue(device: &Arc<Device>, depth: u16) -> Queue<u64> {
    let transport = Arc::new(NullTransport::default());
    device.add_queue(depth, Arc::clone(&transport) as _, transport)
}
