//! A set of the driver's flags, with names. Bits without a name are kept and never refused, because a
//! newer kernel may set them.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use crate::sys;

/// The driver's flags: what a kernel offers, what was asked for, what was granted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

/// A flag of the driver.
struct Flag {
    bit: u64,
    /// Its name in the driver's documentation.
    name: &'static str,
    /// The first kernel that has it.
    since: &'static str,
}

const fn flag(bit: u64, name: &'static str, since: &'static str) -> Flag {
    Flag { bit, name, since }
}

const FLAGS: [Flag; 21] = [
    flag(sys::F_ZERO_COPY, "zero-copy", "6.15"),
    flag(sys::F_COMPLETE_IN_TASK, "complete-in-task", "6.0"),
    flag(sys::F_NEED_GET_DATA, "get-data", "6.0"),
    flag(sys::F_RECOVERY, "recovery", "6.1"),
    flag(sys::F_RECOVERY_REISSUE, "recovery-reissue", "6.1"),
    flag(sys::F_UNPRIVILEGED, "unprivileged", "6.3"),
    flag(sys::F_IOCTL_ENCODE, "ioctl-encode", "6.4"),
    flag(sys::F_USER_COPY, "user-copy", "6.5"),
    flag(sys::F_ZONED, "zoned", "6.6"),
    flag(sys::F_RECOVERY_FAIL_IO, "recovery-fail-io", "6.13"),
    flag(sys::F_UPDATE_SIZE, "update-size", "6.16"),
    flag(sys::F_AUTO_BUFFER, "auto-buffer", "6.16"),
    flag(sys::F_QUIESCE, "quiesce", "6.16"),
    flag(sys::F_PER_IO_TASK, "per-io-task", "6.16"),
    flag(sys::F_REGISTER_ANYWHERE, "register-anywhere", "6.17"),
    flag(sys::F_BATCH_IO, "batch-io", "7.0"),
    flag(sys::F_INTEGRITY, "integrity", "7.0"),
    flag(sys::F_SAFE_STOP, "safe-stop", "7.0"),
    flag(sys::F_NO_PART_SCAN, "no-part-scan", "7.0"),
    flag(sys::F_SHARED_ZERO_COPY, "shared-zero-copy", "7.1"),
    flag(sys::F_DESCRIPTOR_BYTES, "descriptor-bytes", "7.3"),
];

impl Features {
    /// No flag.
    pub const NONE: Features = Features(0);

    /// From the driver's number; every bit is kept.
    pub const fn from_bits(bits: u64) -> Features {
        Features(bits)
    }

    /// The driver's number.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of these are set.
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    /// These without those.
    pub const fn without(self, those: Features) -> Features {
        Features(self.0 & !those.0)
    }

    /// The bits without a name: those of a kernel newer than this library.
    pub fn unknown(self) -> Features {
        let named = FLAGS.iter().fold(0, |all, flag| all | flag.bit);
        Features(self.0 & !named)
    }

    /// One entry per set bit, the lowest first; a bit without a name is `bit-N`.
    pub fn names(self) -> impl Iterator<Item = String> {
        (0..u64::BITS)
            .map(|bit| 1_u64 << bit)
            .filter(move |bit| self.0 & bit != 0)
            .map(|bit| match FLAGS.iter().find(|flag| flag.bit == bit) {
                Some(flag) => flag.name.to_owned(),
                None => format!("bit-{}", bit.trailing_zeros()),
            })
    }

    /// The first kernel that knows all of these flags, for messages.
    pub(crate) fn since(self) -> &'static str {
        let known = FLAGS.iter().rev().filter(|flag| self.0 & flag.bit != 0);
        let number = |since: &str| {
            let (major, minor) = since.split_once('.').unwrap_or((since, "0"));
            (major.parse::<u32>().ok(), minor.parse::<u32>().ok())
        };
        known
            .map(|flag| flag.since)
            .max_by_key(|since| number(since))
            .unwrap_or("6.0")
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Features;

    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} ({self})", self.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for name in self.names() {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_the_kernel_has_its_name_at_its_bit() {
        for (at, flag) in FLAGS.iter().enumerate() {
            assert_eq!(flag.bit, 1 << at);
        }
        let all = Features::from_bits((1 << FLAGS.len()) - 1);
        assert_eq!(all.unknown(), Features::NONE);
        assert!(all.names().all(|name| !name.starts_with("bit-")));
    }

    #[test]
    fn bits_of_newer_kernels_are_carried_and_shown() {
        let features = Features::from_bits(1 << 40 | sys::F_USER_COPY);
        assert_eq!(features.bits(), 1 << 40 | sys::F_USER_COPY);
        assert_eq!(features.unknown().bits(), 1 << 40);
        assert_eq!(features.to_string(), "user-copy, bit-40");
    }

    #[test]
    fn flags_know_their_first_kernel() {
        let zero_copy = Features::from_bits(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER);
        assert_eq!(zero_copy.since(), "6.16");
        assert_eq!(Features::from_bits(sys::F_RECOVERY_FAIL_IO).since(), "6.13");
    }
}
