//! From what a spec wants to what the kernel grants. Everything that was wanted and not granted is
//! reported.
//!
//! The driver masks flags that it does not know, without an error, and clears flags that exclude each
//! other. So a negotiation has two halves: [`choose_flags`] chooses the flags before a device is added, [`check_grant`]
//! compares them with what the driver granted. A wanted feature that was not granted is in
//! [`Grant::missing`], with the reason. Pure: nothing here asks the kernel or reads the
//! environment.

mod missing;

pub use missing::{MissingFeature, MissingReason, RequestedFeature};

use crate::error::{Error, ErrorKind, Operation};
use crate::features::Features;
use crate::spec::{Capability, DataMode, DeviceSpec, ModeChoice, Modes, Want};
use crate::sys;

/// The features that a kernel offers, and those of them that the feature mask hides.
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
    fn missing_reason(&self, flags: u64) -> MissingReason {
        let lacking = Features::from_bits(flags).without(self.features);
        if self.hidden.has(lacking.bits()) {
            MissingReason::Hidden
        } else {
            MissingReason::KernelLacks {
                since: lacking.since(),
            }
        }
    }
}

/// The flags for ADD_DEV, and the features that are known to be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagChoice {
    /// The data mode that these flags mean.
    pub mode: DataMode,
    /// Flags for the driver.
    pub flags: Features,
    /// Wanted features that the flags do not ask for.
    pub missing: Vec<MissingFeature>,
}

/// What the driver granted to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its flags, as the driver reports them, without those that the feature mask hides.
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
    /// Wanted features that were not granted, with reasons.
    pub missing: Vec<MissingFeature>,
}

impl Grant {
    /// Whether it has this capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.flags.has(capability.flag())
    }

    /// The flags that decide the data mode, without zero-copy flags that this device has and this
    /// server does not use.
    pub(crate) fn data_flags(&self) -> u64 {
        match self.mode {
            DataMode::ZeroCopy => self.flags.bits(),
            _ => self.flags.bits() & !(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER),
        }
    }

    /// Whether a request's data can be read and written on the character device, whatever the
    /// mode.
    pub fn has_user_copy(&self) -> bool {
        self.flags.has(sys::F_USER_COPY)
    }
}

/// Chooses the data mode and the flags to ask for. `modes` are those of the handler.
pub fn choose_flags(spec: &DeviceSpec, offer: &Offer, modes: Modes) -> Result<FlagChoice, Error> {
    spec.check()?;
    let mut missing = Vec::new();
    let mode = choose_mode(spec.mode, offer, modes, &mut missing)?;
    let mut flags = mode.flags();
    if mode == DataMode::ZeroCopy {
        // Beside zero copy, so that each request may choose.
        flags |= offer.features.bits() & sys::F_USER_COPY;
    }
    flags |= choose_capabilities(spec, offer, &mut missing)?;
    let lacking = Features::from_bits(spec.flags).without(offer.features);
    if lacking != Features::NONE {
        let reason = offer.missing_reason(lacking.bits());
        let feature = RequestedFeature::Flags(lacking);
        missing.push(MissingFeature { feature, reason });
    }
    flags |= spec.flags & offer.features.bits();
    Ok(FlagChoice {
        mode,
        flags: Features::from_bits(flags),
        missing,
    })
}

fn choose_mode(
    choice: ModeChoice,
    offer: &Offer,
    modes: Modes,
    missing: &mut Vec<MissingFeature>,
) -> Result<DataMode, Error> {
    let obstacle = |mode: DataMode| {
        if !modes.has(mode) {
            Some(MissingReason::Handler)
        } else if !offer.features.has(mode.flags()) {
            Some(offer.missing_reason(mode.flags()))
        } else {
            None
        }
    };
    if let ModeChoice::Only(mode) = choice {
        return match obstacle(mode) {
            None => Ok(mode),
            Some(reason) => Err(mode_error(mode, reason, modes)),
        };
    }
    for mode in DataMode::LADDER {
        match obstacle(mode) {
            None => return Ok(mode),
            Some(reason) => missing.push(MissingFeature {
                feature: RequestedFeature::Mode(mode),
                reason,
            }),
        }
    }
    Err(Error::new(
        Operation::Negotiate,
        ErrorKind::HandlerMismatch,
        format!(
            "the handler serves {}, and this kernel offers none of them",
            if modes == Modes::NONE {
                "no data mode".to_owned()
            } else {
                modes.to_string()
            }
        ),
        "serve copy as well: every kernel has it",
    ))
}

fn mode_error(mode: DataMode, reason: MissingReason, modes: Modes) -> Error {
    let (kind, detail, remedy) = match reason {
        MissingReason::Handler => (
            ErrorKind::HandlerMismatch,
            format!("the handler does not serve data mode {mode}"),
            format!("use one of: {modes}"),
        ),
        MissingReason::Hidden => (
            ErrorKind::Unsupported,
            format!("data mode {mode} is hidden by the feature mask"),
            format!("use auto, or unset {}", crate::spec::MASK_VARIABLE),
        ),
        MissingReason::KernelLacks { since } => (
            ErrorKind::Unsupported,
            format!("this kernel lacks data mode {mode}"),
            format!("use Linux {since} or newer, or data mode auto"),
        ),
        _ => (
            ErrorKind::NotGranted,
            format!("the kernel offered data mode {mode} and did not grant it"),
            "use data mode auto".to_owned(),
        ),
    };
    Error::new(Operation::Negotiate, kind, detail, remedy)
}

fn choose_capabilities(
    spec: &DeviceSpec,
    offer: &Offer,
    missing: &mut Vec<MissingFeature>,
) -> Result<u64, Error> {
    let mut flags = 0;
    // Recovery is first in the list, before the capabilities that need it.
    for capability in Capability::ALL {
        let want = spec.wants.of(capability);
        if want == Want::Avoid {
            continue;
        }
        let Some(reason) = obstacle(spec, offer, capability, flags) else {
            flags |= capability.flag();
            continue;
        };
        if want == Want::Require {
            return Err(capability_error(capability, reason));
        }
        let feature = RequestedFeature::Capability(capability);
        missing.push(MissingFeature { feature, reason });
    }
    Ok(flags)
}

fn obstacle(
    spec: &DeviceSpec,
    offer: &Offer,
    capability: Capability,
    so_far: u64,
) -> Option<MissingReason> {
    if !offer.features.has(capability.flag()) {
        return Some(offer.missing_reason(capability.flag()));
    }
    if let Some(other) = capability
        .needs()
        .filter(|other| so_far & other.flag() == 0)
    {
        return Some(MissingReason::Needs(other));
    }
    // The driver takes one of the two; what is required wins, then what loses nothing.
    let fail_io = spec.wants.of(Capability::FailIo);
    let wins = |other: Want| {
        other == Want::Require
            && spec.wants.of(Capability::Reissue) != Want::Require
            && offer.features.has(sys::F_RECOVERY_FAIL_IO)
    };
    match capability {
        Capability::Reissue if wins(fail_io) => Some(MissingReason::Excluded(Capability::FailIo)),
        Capability::FailIo if so_far & sys::F_RECOVERY_REISSUE != 0 => {
            Some(MissingReason::Excluded(Capability::Reissue))
        }
        _ => None,
    }
}

fn capability_error(capability: Capability, reason: MissingReason) -> Error {
    let name = Features::from_bits(capability.flag());
    let (kind, detail, remedy) = match reason {
        MissingReason::KernelLacks { since } => (
            ErrorKind::Unsupported,
            format!("this kernel lacks {name}, which is required"),
            format!("use Linux {since} or newer, or do not require it"),
        ),
        MissingReason::Hidden => (
            ErrorKind::Unsupported,
            format!("{name} is required, and hidden by the feature mask"),
            format!("unset {}", crate::spec::MASK_VARIABLE),
        ),
        MissingReason::Excluded(other) => (
            ErrorKind::Invalid,
            format!(
                "{name} and {} exclude each other",
                Features::from_bits(other.flag())
            ),
            "require one of them".to_owned(),
        ),
        MissingReason::Needs(other) => (
            ErrorKind::Invalid,
            format!("{name} needs {}", Features::from_bits(other.flag())),
            "require or prefer that as well".to_owned(),
        ),
        _ => (
            ErrorKind::NotGranted,
            format!("the kernel offered {name}, which is required, and did not grant it"),
            "do not require it".to_owned(),
        ),
    };
    Error::new(Operation::Negotiate, kind, detail, remedy)
}

/// Compares what was asked for with the device that the driver made of it. On an error the
/// caller deletes the device again.
pub fn check_grant(
    spec: &DeviceSpec,
    ask: FlagChoice,
    offer: &Offer,
    info: &sys::DeviceInfo,
) -> Result<Grant, Error> {
    let lacking = ask.flags.without(Features::from_bits(info.flags));
    let in_mode = DataMode::of_flags(info.flags);
    if in_mode != ask.mode || lacking.bits() & ask.mode.flags() != 0 {
        return Err(
            mode_error(ask.mode, MissingReason::NotGranted, Modes::ALL).on_device(info.device)
        );
    }
    let mut missing = ask.missing;
    for capability in Capability::ALL {
        if !lacking.has(capability.flag()) {
            continue;
        }
        if spec.wants.of(capability) == Want::Require {
            return Err(
                capability_error(capability, MissingReason::NotGranted).on_device(info.device)
            );
        }
        missing.push(MissingFeature {
            feature: RequestedFeature::Capability(capability),
            reason: MissingReason::NotGranted,
        });
    }
    let capabilities = Capability::ALL.iter().fold(0, |all, one| all | one.flag());
    let others = lacking.without(Features::from_bits(capabilities));
    if others != Features::NONE {
        missing.push(MissingFeature {
            feature: RequestedFeature::Flags(others),
            reason: MissingReason::NotGranted,
        });
    }
    limits(spec, info, &mut missing);
    Ok(make_grant(info, offer, ask.mode, ask.flags, missing))
}

fn limits(spec: &DeviceSpec, info: &sys::DeviceInfo, missing: &mut Vec<MissingFeature>) {
    if info.queues < spec.queues {
        missing.push(MissingFeature {
            feature: RequestedFeature::Queues(info.queues),
            reason: MissingReason::Limit,
        });
    }
    if info.io_bytes_max < spec.io_bytes_max {
        missing.push(MissingFeature {
            feature: RequestedFeature::IoBytes(info.io_bytes_max),
            reason: MissingReason::Limit,
        });
    }
}

fn make_grant(
    info: &sys::DeviceInfo,
    offer: &Offer,
    mode: DataMode,
    asked: Features,
    missing: Vec<MissingFeature>,
) -> Grant {
    let flags = Features::from_bits(info.flags);
    // Some flags are set whether they were asked for or not: a mask hides those, too.
    let hidden = offer.hidden.without(asked);
    Grant {
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
        missing,
    }
}

/// The grant of a device that another server added, for taking it over. The spec can request nothing
/// any more; a wanted feature that the device lacks is reported, or an error if it is required.
pub fn inherit(
    spec: &DeviceSpec,
    offer: &Offer,
    modes: Modes,
    info: &sys::DeviceInfo,
) -> Result<Grant, Error> {
    let mode = mode_of(info)?;
    let refused = |detail: String, kind| {
        Error::new(
            Operation::Negotiate,
            kind,
            detail,
            "delete the device and add it again, or serve it as it was added",
        )
        .on_device(info.device)
    };
    if !modes.has(mode) {
        let detail = format!("it was added for {mode}, and the handler serves {modes}");
        return Err(refused(detail, ErrorKind::HandlerMismatch));
    }
    if let ModeChoice::Only(wanted) = spec.mode
        && wanted != mode
    {
        let detail = format!("it was added for {mode}, not {wanted}");
        return Err(refused(detail, ErrorKind::NotGranted));
    }
    let flags = Features::from_bits(info.flags);
    let mut missing = Vec::new();
    for capability in Capability::ALL {
        let want = spec.wants.of(capability);
        if want == Want::Avoid || flags.has(capability.flag()) {
            continue;
        }
        if want == Want::Require {
            let name = Features::from_bits(capability.flag());
            let detail = format!("it was added without {name}, which is required");
            return Err(refused(detail, ErrorKind::NotGranted));
        }
        missing.push(MissingFeature {
            feature: RequestedFeature::Capability(capability),
            reason: MissingReason::AddedWithout,
        });
    }
    limits(spec, info, &mut missing);
    Ok(make_grant(info, offer, mode, flags, missing))
}

/// Flags of devices that need a server which does more than this library.
const UNSERVED_FLAGS: u64 = sys::F_BATCH_IO
    | sys::F_ZONED
    | sys::F_UNPRIVILEGED
    | sys::F_INTEGRITY
    | sys::F_SHARED_ZERO_COPY;

/// The mode in which this library can serve a device that another server added.
fn mode_of(info: &sys::DeviceInfo) -> Result<DataMode, Error> {
    let flags = Features::from_bits(info.flags);
    let foreign = flags & Features::from_bits(UNSERVED_FLAGS);
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
        ErrorKind::NotGranted,
        format!("it was added with {flags}, which this library does not serve"),
        "delete it and add it again",
    )
    .on_device(info.device))
}

#[cfg(test)]
mod tests;
