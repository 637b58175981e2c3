//! The features that a spec wants and a device does not have, with the reasons.

use std::fmt;

use crate::features::Features;
use crate::spec::{Capability, DataMode};

/// A feature that a spec wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestedFeature {
    /// A data mode that is better than the chosen one.
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

/// Why a wanted feature was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingReason {
    /// The kernel does not offer it; this version and newer ones do.
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
    /// This capability excludes it.
    Excluded(Capability),
    /// It needs this capability.
    Needs(Capability),
    /// The kernel has its own limit.
    Limit,
    /// The device was added without it, by another server.
    AddedWithout,
}

/// A feature that was wanted and not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingFeature {
    /// The feature.
    pub feature: RequestedFeature,
    /// The reason.
    pub reason: MissingReason,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.feature {
            RequestedFeature::Mode(mode) => write!(f, "data mode {mode}")?,
            RequestedFeature::Capability(capability) => {
                write!(f, "{}", Features::from_bits(capability.flag()))?;
            }
            RequestedFeature::Flags(flags) => write!(f, "flags {flags}")?,
            RequestedFeature::Queues(granted) => write!(f, "more than {granted} queues")?,
            RequestedFeature::Params(types) => write!(f, "parameters of kinds {types:#x}")?,
            RequestedFeature::IoBytes(granted) => {
                write!(f, "requests of more than {granted} bytes")?
            }
        }
        match self.reason {
            MissingReason::KernelLacks { since } => {
                write!(f, ": the kernel lacks it (Linux {since} has it)")
            }
            MissingReason::Hidden => f.write_str(": hidden by the feature mask"),
            MissingReason::NotGranted => f.write_str(": offered, but not granted"),
            MissingReason::Handler => f.write_str(": the handler does not serve it"),
            MissingReason::Excluded(by) => {
                write!(f, ": excluded by {}", Features::from_bits(by.flag()))
            }
            MissingReason::Needs(other) => {
                write!(f, ": needs {}", Features::from_bits(other.flag()))
            }
            MissingReason::Limit => f.write_str(": the kernel's limit"),
            MissingReason::AddedWithout => f.write_str(": the device was added without it"),
        }
    }
}
