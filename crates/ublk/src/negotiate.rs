//! From what a spec wants to what the kernel granted, with nothing lost on the way.
//!
//! The driver masks what it does not know, silently, and clears what does not go together. So a
//! negotiation has two halves: [`ask`] chooses the flags before a device is added, [`grant`]
//! compares them with what came back. Whatever was wanted and is not there is in
//! [`Granted::dropped`], with the reason. Pure: nothing here asks the kernel or reads the
//! environment.

use std::fmt;

use crate::error::{Error, Kind, Operation};
use crate::features::Features;
use crate::spec::{Capability, DataMode, DeviceSpec, ModeChoice, Modes, Want};
use crate::sys;

/// What a kernel offers, and what is hidden of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    features: Features,
    hidden: Features,
}

impl Offer {
    /// The kernel's features, seen through a mask.
    pub fn new(kernel: Features, mask: u64) -> Offer {
        let features = kernel & Features::from_bits(mask);
        Offer {
            features,
            hidden: kernel.without(features),
        }
    }

    /// What may be used.
    pub fn features(&self) -> Features {
        self.features
    }

    /// What the kernel has and the mask hides.
    pub fn hidden(&self) -> Features {
        self.hidden
    }

    /// Why these flags cannot be had.
    fn why_not(&self, flags: u64) -> Why {
        let missing = Features::from_bits(flags).without(self.features);
        if self.hidden.has(missing.bits()) {
            Why::Hidden
        } else {
            Why::KernelLacks {
                since: missing.since(),
            }
        }
    }
}

/// What was wanted and is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A better data mode.
    Mode(DataMode),
    /// A capability.
    Capability(Capability),
    /// Flags that the spec named by number.
    Flags(Features),
    /// Queues beyond this number.
    Queues(u16),
    /// Requests larger than this many bytes.
    IoBytes(u32),
    /// Parameters of the disk: a mask of `PARAM_` bits.
    Params(u32),
}

/// Why it is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The kernel does not offer it; this one and newer ones do.
    KernelLacks {
        /// A version of Linux.
        since: &'static str,
    },
    /// The feature mask hides it.
    Hidden,
    /// The kernel offered it, and then did not grant it.
    NotGranted,
    /// The handler does not serve it.
    Handler,
    /// It does not go with this.
    Excluded(Capability),
    /// It needs this.
    Needs(Capability),
    /// The kernel has its own limit.
    Limit,
    /// The device was added without it, by another server.
    AddedWithout,
}

/// Something that was wanted and is not there, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// What.
    pub what: What,
    /// Why.
    pub why: Why,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Mode(mode) => write!(f, "data mode {mode}")?,
            What::Capability(capability) => {
                write!(f, "{}", Features::from_bits(capability.flag()))?;
            }
            What::Flags(flags) => write!(f, "flags {flags}")?,
            What::Queues(granted) => write!(f, "more than {granted} queues")?,
            What::Params(types) => write!(f, "parameters of kinds {types:#x}")?,
            What::IoBytes(granted) => write!(f, "requests of more than {granted} bytes")?,
        }
        match self.why {
            Why::KernelLacks { since } => write!(f, ": the kernel lacks it (Linux {since} has it)"),
            Why::Hidden => f.write_str(": hidden by the feature mask"),
            Why::NotGranted => f.write_str(": offered, but not granted"),
            Why::Handler => f.write_str(": the handler does not serve it"),
            Why::Excluded(by) => write!(f, ": excluded by {}", Features::from_bits(by.flag())),
            Why::Needs(other) => write!(f, ": needs {}", Features::from_bits(other.flag())),
            Why::Limit => f.write_str(": the kernel's limit"),
            Why::AddedWithout => f.write_str(": the device was added without it"),
        }
    }
}

/// The flags to ask for, and what was dropped already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The data mode that these flags mean.
    pub mode: DataMode,
    /// Flags for the driver.
    pub flags: Features,
    /// What was wanted and is not asked for.
    pub dropped: Vec<Dropped>,
}

/// What a device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its flags, as the driver tells them, less what the feature mask hides.
    pub flags: Features,
    /// How its data move.
    pub mode: DataMode,
    /// Its hardware queues.
    pub queues: u16,
    /// Its tags per queue.
    pub depth: u16,
    /// Its largest request in bytes.
    pub io_bytes_max: u32,
    /// Distance of its descriptors in bytes.
    pub descriptor_bytes: u16,
    /// The flags that were asked for.
    pub asked: Features,
    /// What was wanted and is not there, with reasons.
    pub dropped: Vec<Dropped>,
}

impl Granted {
    /// Whether it has this capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.flags.has(capability.flag())
    }

    /// The flags that decide how data move, without those that this device has and does not use:
    /// buffers that somebody else's server would have registered by hand.
    pub(crate) fn data_flags(&self) -> u64 {
        match self.mode {
            DataMode::ZeroCopy => self.flags.bits(),
            _ => self.flags.bits() & !(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER),
        }
    }

    /// Whether a request's data can be read and written on the character device, whatever the
    /// mode.
    pub fn user_copy(&self) -> bool {
        self.flags.has(sys::F_USER_COPY)
    }
}

/// Chooses the data mode and the flags to ask for. `serves` are the handler's modes.
pub fn ask(spec: &DeviceSpec, offer: &Offer, serves: Modes) -> Result<Ask, Error> {
    spec.check()?;
    let mut dropped = Vec::new();
    let mode = choose_mode(spec.mode, offer, serves, &mut dropped)?;
    let mut flags = mode.flags();
    if mode == DataMode::ZeroCopy {
        // Beside zero copy, so that each request may choose.
        flags |= offer.features.bits() & sys::F_USER_COPY;
    }
    flags |= choose_capabilities(spec, offer, &mut dropped)?;
    let missing = Features::from_bits(spec.flags).without(offer.features);
    if missing != Features::NONE {
        let why = offer.why_not(missing.bits());
        let what = What::Flags(missing);
        dropped.push(Dropped { what, why });
    }
    flags |= spec.flags & offer.features.bits();
    Ok(Ask {
        mode,
        flags: Features::from_bits(flags),
        dropped,
    })
}

fn choose_mode(
    choice: ModeChoice,
    offer: &Offer,
    serves: Modes,
    dropped: &mut Vec<Dropped>,
) -> Result<DataMode, Error> {
    let obstacle = |mode: DataMode| {
        if !serves.has(mode) {
            Some(Why::Handler)
        } else if !offer.features.has(mode.flags()) {
            Some(offer.why_not(mode.flags()))
        } else {
            None
        }
    };
    if let ModeChoice::Only(mode) = choice {
        return match obstacle(mode) {
            None => Ok(mode),
            Some(why) => Err(mode_refused(mode, why, serves)),
        };
    }
    for mode in DataMode::LADDER {
        match obstacle(mode) {
            None => return Ok(mode),
            Some(why) => dropped.push(Dropped {
                what: What::Mode(mode),
                why,
            }),
        }
    }
    Err(Error::new(
        Operation::Negotiate,
        Kind::Handler,
        format!(
            "the handler serves {}, and this kernel offers none of them",
            if serves == Modes::NONE {
                "no data mode".to_owned()
            } else {
                serves.to_string()
            }
        ),
        "serve copy as well: every kernel has it",
    ))
}

fn mode_refused(mode: DataMode, why: Why, serves: Modes) -> Error {
    let (kind, detail, remedy) = match why {
        Why::Handler => (
            Kind::Handler,
            format!("the handler does not serve data mode {mode}"),
            format!("use one of: {serves}"),
        ),
        Why::Hidden => (
            Kind::TooOld,
            format!("data mode {mode} is hidden by the feature mask"),
            format!("use auto, or unset {}", crate::spec::MASK_VARIABLE),
        ),
        Why::KernelLacks { since } => (
            Kind::TooOld,
            format!("this kernel lacks data mode {mode}"),
            format!("use Linux {since} or newer, or data mode auto"),
        ),
        _ => (
            Kind::NotGranted,
            format!("the kernel offered data mode {mode} and did not grant it"),
            "use data mode auto".to_owned(),
        ),
    };
    Error::new(Operation::Negotiate, kind, detail, remedy)
}

fn choose_capabilities(
    spec: &DeviceSpec,
    offer: &Offer,
    dropped: &mut Vec<Dropped>,
) -> Result<u64, Error> {
    let mut flags = 0;
    // Recovery comes first in the list, and what needs it later.
    for capability in Capability::ALL {
        let want = spec.wants.of(capability);
        if want == Want::Avoid {
            continue;
        }
        let Some(why) = obstacle(spec, offer, capability, flags) else {
            flags |= capability.flag();
            continue;
        };
        if want == Want::Require {
            return Err(capability_refused(capability, why));
        }
        let what = What::Capability(capability);
        dropped.push(Dropped { what, why });
    }
    Ok(flags)
}

fn obstacle(spec: &DeviceSpec, offer: &Offer, capability: Capability, so_far: u64) -> Option<Why> {
    if !offer.features.has(capability.flag()) {
        return Some(offer.why_not(capability.flag()));
    }
    if let Some(other) = capability
        .needs()
        .filter(|other| so_far & other.flag() == 0)
    {
        return Some(Why::Needs(other));
    }
    // The driver takes one of the two; what is required wins, then what loses nothing.
    let fail_io = spec.wants.of(Capability::FailIo);
    let wins = |other: Want| {
        other == Want::Require
            && spec.wants.of(Capability::Reissue) != Want::Require
            && offer.features.has(sys::F_RECOVERY_FAIL_IO)
    };
    match capability {
        Capability::Reissue if wins(fail_io) => Some(Why::Excluded(Capability::FailIo)),
        Capability::FailIo if so_far & sys::F_RECOVERY_REISSUE != 0 => {
            Some(Why::Excluded(Capability::Reissue))
        }
        _ => None,
    }
}

fn capability_refused(capability: Capability, why: Why) -> Error {
    let name = Features::from_bits(capability.flag());
    let (kind, detail, remedy) = match why {
        Why::KernelLacks { since } => (
            Kind::TooOld,
            format!("this kernel lacks {name}, which is required"),
            format!("use Linux {since} or newer, or do not require it"),
        ),
        Why::Hidden => (
            Kind::TooOld,
            format!("{name} is required, and hidden by the feature mask"),
            format!("unset {}", crate::spec::MASK_VARIABLE),
        ),
        Why::Excluded(other) => (
            Kind::Invalid,
            format!(
                "{name} and {} exclude each other",
                Features::from_bits(other.flag())
            ),
            "require one of them".to_owned(),
        ),
        Why::Needs(other) => (
            Kind::Invalid,
            format!("{name} needs {}", Features::from_bits(other.flag())),
            "require or prefer that as well".to_owned(),
        ),
        _ => (
            Kind::NotGranted,
            format!("the kernel offered {name}, which is required, and did not grant it"),
            "do not require it".to_owned(),
        ),
    };
    Error::new(Operation::Negotiate, kind, detail, remedy)
}

/// Compares what was asked for with the device that the driver made of it. On an error the
/// caller deletes the device again.
pub fn grant(
    spec: &DeviceSpec,
    ask: Ask,
    offer: &Offer,
    info: &sys::DeviceInfo,
) -> Result<Granted, Error> {
    let missing = ask.flags.without(Features::from_bits(info.flags));
    let in_mode = DataMode::of_flags(info.flags);
    if in_mode != ask.mode || missing.bits() & ask.mode.flags() != 0 {
        return Err(mode_refused(ask.mode, Why::NotGranted, Modes::ALL).on(info.device));
    }
    let mut dropped = ask.dropped;
    for capability in Capability::ALL {
        if !missing.has(capability.flag()) {
            continue;
        }
        if spec.wants.of(capability) == Want::Require {
            return Err(capability_refused(capability, Why::NotGranted).on(info.device));
        }
        dropped.push(Dropped {
            what: What::Capability(capability),
            why: Why::NotGranted,
        });
    }
    let capabilities = Capability::ALL.iter().fold(0, |all, one| all | one.flag());
    let others = missing.without(Features::from_bits(capabilities));
    if others != Features::NONE {
        dropped.push(Dropped {
            what: What::Flags(others),
            why: Why::NotGranted,
        });
    }
    limits(spec, info, &mut dropped);
    Ok(granted(info, offer, ask.mode, ask.flags, dropped))
}

fn limits(spec: &DeviceSpec, info: &sys::DeviceInfo, dropped: &mut Vec<Dropped>) {
    if info.queues < spec.queues {
        dropped.push(Dropped {
            what: What::Queues(info.queues),
            why: Why::Limit,
        });
    }
    if info.io_bytes_max < spec.io_bytes_max {
        dropped.push(Dropped {
            what: What::IoBytes(info.io_bytes_max),
            why: Why::Limit,
        });
    }
}

fn granted(
    info: &sys::DeviceInfo,
    offer: &Offer,
    mode: DataMode,
    asked: Features,
    dropped: Vec<Dropped>,
) -> Granted {
    let flags = Features::from_bits(info.flags);
    // Some flags are set whether they were asked for or not: a mask hides those, too.
    let hidden = offer.hidden.without(asked);
    Granted {
        flags: flags.without(hidden),
        mode,
        queues: info.queues,
        depth: info.depth,
        io_bytes_max: info.io_bytes_max,
        descriptor_bytes: match info.descriptor_bytes {
            0 => size_of::<sys::IoDescriptor>() as u16,
            bytes => bytes,
        },
        asked,
        dropped,
    }
}

/// What a device has that another server added: for taking it over. The spec can ask for
/// nothing any more; what it wants and the device lacks is told, or an error where it is
/// required.
pub fn inherit(
    spec: &DeviceSpec,
    offer: &Offer,
    serves: Modes,
    info: &sys::DeviceInfo,
) -> Result<Granted, Error> {
    let mode = mode_of(info)?;
    let refused = |detail: String, kind| {
        Error::new(
            Operation::Negotiate,
            kind,
            detail,
            "delete the device and add it anew, or serve it as it was added",
        )
        .on(info.device)
    };
    if !serves.has(mode) {
        let detail = format!("it was added for {mode}, and the handler serves {serves}");
        return Err(refused(detail, Kind::Handler));
    }
    if let ModeChoice::Only(wanted) = spec.mode
        && wanted != mode
    {
        let detail = format!("it was added for {mode}, not {wanted}");
        return Err(refused(detail, Kind::NotGranted));
    }
    let flags = Features::from_bits(info.flags);
    let mut dropped = Vec::new();
    for capability in Capability::ALL {
        let want = spec.wants.of(capability);
        if want == Want::Avoid || flags.has(capability.flag()) {
            continue;
        }
        if want == Want::Require {
            let name = Features::from_bits(capability.flag());
            let detail = format!("it was added without {name}, which is required");
            return Err(refused(detail, Kind::NotGranted));
        }
        dropped.push(Dropped {
            what: What::Capability(capability),
            why: Why::AddedWithout,
        });
    }
    limits(spec, info, &mut dropped);
    Ok(granted(info, offer, mode, flags, dropped))
}

/// Flags of devices that ask more of their server than is done here.
const FOREIGN: u64 = sys::F_BATCH_IO
    | sys::F_ZONED
    | sys::F_UNPRIVILEGED
    | sys::F_INTEGRITY
    | sys::F_SHARED_ZERO_COPY;

/// The mode in which a device that somebody added can be served here.
fn mode_of(info: &sys::DeviceInfo) -> Result<DataMode, Error> {
    let flags = Features::from_bits(info.flags);
    let foreign = flags & Features::from_bits(FOREIGN);
    let has = |flag| flags.has(flag);
    if foreign == Features::NONE {
        let fallback = has(sys::F_USER_COPY) || has(sys::F_ZERO_COPY);
        if has(sys::F_AUTO_BUFFER) && fallback {
            return Ok(DataMode::ZeroCopy);
        }
        if has(sys::F_USER_COPY) {
            return Ok(DataMode::UserCopy);
        }
        if !has(sys::F_ZERO_COPY) && !has(sys::F_AUTO_BUFFER) {
            return Ok(DataMode::of_flags(info.flags));
        }
    }
    Err(Error::new(
        Operation::Negotiate,
        Kind::NotGranted,
        format!("it was added with {flags}, which cannot be served here"),
        "delete it and add it anew",
    )
    .on(info.device))
}

#[cfg(test)]
mod tests;
