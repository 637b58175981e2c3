//! From a spec to a device whose tags are with the driver.

use std::fmt;
use std::time::{Duration, Instant};

use reactor::Handle;

use super::delete;
use super::live::Live;
use super::serving::{Origin, Serving, open_char};
use crate::control::{Control, QUICK};
use crate::error::{Error, Kind, Operation};
use crate::negotiate::{self, Dropped, Granted, What, Why};
use crate::queue::{Handler, Pool, Share};
use crate::spec::{Capability, DeviceSpec, Modes};
use crate::sys::{DeviceInfo, Params};

/// How long others (udev) may keep a new character device open.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// What the queues of a device are given, beside their handlers.
pub struct Options {
    /// Buffer slots that a zero-copy queue takes at most of its ring's 16,384. Requests beyond
    /// them go the slower way of user copy, so this is how many large requests of one queue are
    /// expected at once, not its depth.
    pub slots_max: u16,
    /// The tags of each queue are shared out to all reactors, instead of whole queues (6.16): one
    /// queue that one processor keeps busy then has all of them at work. A handler is made for
    /// every share, and requests of one queue are answered in no common order.
    pub spread: bool,
    /// Where the memory of a get-data queue's writes comes from, by queue; from its reactor's
    /// pool if not from here.
    pub pool: Option<MakePool>,
}

/// Makes the pool of a queue.
pub type MakePool = Box<dyn Fn(u16) -> Box<dyn Pool>>;

impl Default for Options {
    fn default() -> Options {
        Options {
            slots_max: 64,
            spread: false,
            pool: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("slots_max", &self.slots_max)
            .field("spread", &self.spread)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Adds a device for handlers that serve these modes ([`Handler::MODES`]). It has a number
    /// and flags, and no disk yet.
    pub fn add(&self, spec: &DeviceSpec, serves: Modes) -> Result<Added, Error> {
        let ask = negotiate::ask(spec, self.offer(), serves)?;
        let params = spec.disk.params(spec.io_bytes_max)?;
        let wanted = DeviceInfo {
            queues: spec.queues,
            depth: spec.depth,
            io_bytes_max: spec.io_bytes_max,
            device: spec.id.unwrap_or(u32::MAX),
            server_flags: spec.server_flags,
            flags: ask.flags.bits(),
            ..DeviceInfo::default()
        };
        let info = self.add_device(&wanted, QUICK)?;
        let id = info.device;
        let described = negotiate::grant(spec, ask, self.offer(), &info).and_then(|granted| {
            // What the kernel cut from the request size is cut from the disk's, too.
            let wanted = spec.disk.params(granted.io_bytes_max).unwrap_or(params);
            self.describe(id, granted, &wanted)
        });
        match described {
            Ok((granted, params)) => Ok(Added {
                control: self.clone(),
                id,
                granted,
                params,
            }),
            Err(error) => {
                take_away(self, id);
                Err(error)
            }
        }
    }
}

impl Control {
    /// Sets what the disk looks like, and sees what the kernel took of it: what it does not know
    /// it leaves out without a word.
    fn describe(
        &self,
        id: u32,
        mut granted: Granted,
        wanted: &Params,
    ) -> Result<(Granted, Params), Error> {
        self.set_params(id, wanted)?;
        let taken = self.params(id)?;
        let missing = wanted.types & !taken.types;
        if missing != 0 {
            granted.dropped.push(Dropped {
                what: What::Params(missing),
                why: Why::NotGranted,
            });
        }
        Ok((granted, taken))
    }
}

impl Options {
    /// How many share a queue's tags.
    pub(super) fn shares(&self, granted: &Granted, reactors: usize) -> u16 {
        if !self.spread {
            return 1;
        }
        u16::try_from(reactors).map_or(granted.depth, |count| count.min(granted.depth))
    }

    /// Queue and share of each source that a device has.
    pub(super) fn seats(
        &self,
        granted: &Granted,
        reactors: usize,
    ) -> impl Iterator<Item = (u16, Share)> + use<> {
        let (queues, step) = (granted.queues, self.shares(granted, reactors));
        let shares = move |queue| (0..step).map(move |first| (queue, Share { first, step }));
        (0..queues).flat_map(shares)
    }
}

/// Removes a device that nobody has opened yet.
fn take_away(control: &Control, id: u32) {
    if let Err(undone) = delete(control, id, QUICK) {
        tracing::warn!(%undone, "ublk: taking away a device that was just added");
    }
}

/// A device that has no server and no disk yet.
#[derive(Debug)]
pub struct Added {
    control: Control,
    id: u32,
    granted: Granted,
    params: Params,
}

impl Added {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it has.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// What its disk will look like, in the driver's words.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Opens the device and puts its queues on the reactors, queue `n` on the `n`-th of them and
    /// so on in turn, with the handler that `build` makes for it; or all queues on all reactors
    /// ([`Options::spread`]). Where it fails the device is deleted.
    pub fn arm<H: Handler + Send>(
        self,
        reactors: &[Handle],
        options: &Options,
        mut build: impl FnMut(u16) -> H,
    ) -> Result<Armed, Error> {
        let (control, id) = (self.control.clone(), self.id);
        let opened = suits::<H>(&self.granted, (reactors, options), id)
            .and_then(|()| open_char(&control, id, Instant::now() + OPEN_WITHIN));
        let char_device = match opened {
            Ok(char_device) => char_device,
            Err(error) => {
                take_away(&control, id);
                return Err(error);
            }
        };
        let seats = options.seats(&self.granted, reactors.len());
        let handlers = seats.map(|(queue, _)| build(queue)).collect();
        let device = (&control, id, &self.granted);
        Serving::attach(
            device,
            char_device,
            (reactors, options),
            handlers,
            Origin::Added,
        )
        .map(|serving| Armed { serving })
        .inspect_err(|error| {
            // Once queues were attached, they took it away themselves.
            if error.operation() == Operation::Map {
                take_away(&control, id);
            }
        })
    }

    /// Deletes it.
    pub fn delete(self, within: Duration) -> Result<(), Error> {
        delete(&self.control, self.id, within)
    }
}

/// Whether these handlers and reactors can serve the device at all.
pub(super) fn suits<H: Handler>(
    granted: &Granted,
    (reactors, options): (&[Handle], &Options),
    id: u32,
) -> Result<(), Error> {
    if options.spread && !granted.has(Capability::PerIoTask) {
        let error = Error::new(
            Operation::Arm,
            Kind::NotGranted,
            "its queues cannot be shared by several threads",
            "use Linux 6.16 or newer, or serve every queue by one reactor",
        );
        return Err(error.on(id));
    }
    if reactors.is_empty() {
        let remedy = "give it at least one";
        let error = Error::new(
            Operation::Arm,
            Kind::Invalid,
            "there is no reactor for it",
            remedy,
        );
        return Err(error.on(id));
    }
    if reactors.iter().any(|reactor| reactor.post(|_| ()).is_err()) {
        let remedy = "give it reactors that run";
        let error = Error::new(
            Operation::Arm,
            Kind::Closed,
            "a reactor has stopped",
            remedy,
        );
        return Err(error.on(id));
    }
    if H::MODES.has(granted.mode) {
        return Ok(());
    }
    Err(Error::new(
        Operation::Arm,
        Kind::Handler,
        format!(
            "its data mode is {}, and this handler serves {}",
            granted.mode,
            H::MODES
        ),
        "add it for the modes of the handler that is to serve it",
    )
    .on(id))
}

/// A device whose tags are on their way to the driver.
#[derive(Debug)]
pub struct Armed {
    pub(super) serving: Serving,
}

impl Armed {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.serving.id
    }

    /// What it has.
    pub fn granted(&self) -> &Granted {
        &self.serving.granted
    }

    /// Brings up the disk, as soon as every tag is fetched. Where it fails, because a tag is
    /// refused or at the deadline, a device that was added here is deleted.
    pub fn start(self, within: Duration) -> Result<Live, Error> {
        let serving = self.serving;
        let server = std::process::id();
        let cancel = serving.watcher.cancel();
        match serving.control.start(serving.id, server, within, cancel) {
            Ok(()) => Ok(Live::new(serving)),
            Err(error) => Err(serving.undo(error)),
        }
    }
}
