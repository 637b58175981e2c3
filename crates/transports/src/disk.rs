//! A volume as a ublk device: its backend, and the calls that put its queues on reactors.
//!
//! Everything here waits for the driver, so it runs on threads that may wait. Which device it is and what it
//! is to be comes as an argument, and what is granted goes back as it is.

use std::sync::Arc;
use std::time::Duration;

use blkmq::io::{Backend, Geometry};
use reactor::Handle;
use serve::BackendFile;
use serve::latency::Latencies;
use ublk::control::ControlDevice;
use ublk::device::{self, LiveDevice, OpenRequest, Origin, QueueOptions};
use ublk::{BackendHandler, DeviceSpec, Error, Modes};
use volume::Volume;

use crate::volume_view::VolumeView;

/// What the queues of one disk serve it with.
#[derive(Debug)]
pub struct DiskBackend {
    view: Arc<VolumeView>,
    device: Arc<blkmq::Device>,
    files: Vec<BackendFile>,
    latencies: Arc<Latencies>,
}

impl DiskBackend {
    /// The disk of a volume. Its requests are admitted through `device`, `files` are all that the
    /// volume's plans may name, and how long requests take is counted in `latencies`.
    pub fn new(
        volume: Volume,
        read_only: bool,
        device: Arc<blkmq::Device>,
        files: Vec<BackendFile>,
        latencies: Arc<Latencies>,
    ) -> DiskBackend {
        DiskBackend {
            view: Arc::new(VolumeView { volume, read_only }),
            device,
            files,
            latencies,
        }
    }

    /// The disk's geometry: the volume's, as it is now.
    pub fn geometry(&self) -> Geometry {
        self.view.geometry()
    }

    /// Adds a device as the spec says, and serves it on these reactors, its queues in turn. If this
    /// fails, no device is left.
    // Never inlined, nor the other: a caller into which it is inlined compiles the queues once more, and all
    // that they do with a request, as little optimized as it is itself; and that copy then serves.
    #[inline(never)]
    pub fn add(
        &self,
        control: &ControlDevice,
        spec: &DeviceSpec,
        reactors: &[Handle],
        within: Duration,
    ) -> Result<LiveDevice, Error> {
        let added = device::add(control, spec, Modes::ALL)?;
        let depth = added.grant().depth;
        let options = QueueOptions::default();
        let attached = added.attach(reactors, &options, |_| self.handler(depth))?;
        attached.start(within)
    }

    /// Recovers a device of this depth, or adds it, and serves it: see [`device::open_or_recover`].
    #[inline(never)]
    pub fn open_or_recover(
        &self,
        request: OpenRequest<'_>,
        depth: u16,
    ) -> Result<(LiveDevice, Origin), Error> {
        device::open_or_recover(request, |_| self.handler(depth))
    }

    fn handler(&self, depth: u16) -> BackendHandler<VolumeView> {
        let (view, latencies) = (Arc::clone(&self.view), Arc::clone(&self.latencies));
        BackendHandler::observed(view, &self.device, self.files.clone(), depth, latencies)
    }
}
