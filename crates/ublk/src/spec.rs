//! What a device is to be: its queues, its disk, its data mode, and which of the driver's capabilities
//! are required, preferred or avoided.
//!
//! A spec is data. [`crate::negotiate`] turns it into flags; nothing here talks to the kernel. The one
//! override from outside is the environment variable [`MODE_VARIABLE`].

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::features::Features;
use crate::sys;

mod disk;

pub use disk::{Cache, Discard, Disk, Segments};

/// Environment variable that forces a data mode; empty means unset.
pub const MODE_VARIABLE: &str = "FIRN_UBLK_DATA_MODE";

/// Environment variable with the mask of the kernel's features that may be used (a number, `0x…` or
/// decimal); empty means unset. 0x7fff makes a newer kernel look like 6.17, 0x1fe like 6.8 and 6.12.
pub const MASK_VARIABLE: &str = "FIRN_UBLK_FEATURE_MASK";

/// How the bytes of requests move between the driver and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataMode {
    /// The driver registers a request's pages in a buffer slot of the ring; nothing is copied (6.16).
    ZeroCopy,
    /// The server reads and writes a request's data on the character device (6.5).
    UserCopy,
    /// The server names a buffer when a write has arrived (6.0).
    GetData,
    /// Each tag has a buffer, and the driver copies (6.0).
    Copy,
}

impl DataMode {
    /// From the best mode to the one that every kernel has.
    pub const LADDER: [DataMode; 4] = [
        DataMode::ZeroCopy,
        DataMode::UserCopy,
        DataMode::GetData,
        DataMode::Copy,
    ];

    /// The flags that this mode needs.
    pub const fn flags(self) -> u64 {
        match self {
            DataMode::ZeroCopy => sys::F_ZERO_COPY | sys::F_AUTO_BUFFER,
            DataMode::UserCopy => sys::F_USER_COPY,
            DataMode::GetData => sys::F_NEED_GET_DATA,
            DataMode::Copy => 0,
        }
    }

    /// The mode of a device with these flags.
    pub const fn of_flags(flags: u64) -> DataMode {
        if flags & (sys::F_ZERO_COPY | sys::F_AUTO_BUFFER) != 0 {
            DataMode::ZeroCopy
        } else if flags & sys::F_USER_COPY != 0 {
            DataMode::UserCopy
        } else if flags & sys::F_NEED_GET_DATA != 0 {
            DataMode::GetData
        } else {
            DataMode::Copy
        }
    }

    /// Its name on the command line and in [`MODE_VARIABLE`].
    pub const fn name(self) -> &'static str {
        match self {
            DataMode::ZeroCopy => "zero-copy",
            DataMode::UserCopy => "user-copy",
            DataMode::GetData => "get-data",
            DataMode::Copy => "copy",
        }
    }
}

impl fmt::Display for DataMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which data mode to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The first of [`DataMode::LADDER`] that kernel and handler allow.
    #[default]
    Auto,
    /// This mode or an error.
    Only(DataMode),
}

impl FromStr for ModeChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<ModeChoice, Error> {
        if text == "auto" {
            return Ok(ModeChoice::Auto);
        }
        let mode = DataMode::LADDER
            .into_iter()
            .find(|mode| mode.name() == text);
        mode.map(ModeChoice::Only).ok_or_else(|| {
            Error::invalid(
                format!("there is no data mode {text:?}"),
                "use auto, zero-copy, user-copy, get-data or copy",
            )
        })
    }
}

impl fmt::Display for ModeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModeChoice::Auto => f.write_str("auto"),
            ModeChoice::Only(mode) => mode.fmt(f),
        }
    }
}

/// The data modes that a handler can serve.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Modes(u8);

impl Modes {
    /// Every mode.
    pub const ALL: Modes = Modes(0b1111);
    /// No mode; the beginning of a list.
    pub const NONE: Modes = Modes(0);

    /// These modes and one more.
    #[must_use]
    pub const fn and(self, mode: DataMode) -> Modes {
        Modes(self.0 | 1 << mode as u8)
    }

    /// Whether the mode is among them.
    pub const fn has(self, mode: DataMode) -> bool {
        self.0 & 1 << mode as u8 != 0
    }
}

impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for mode in DataMode::LADDER.into_iter().filter(|mode| self.has(*mode)) {
            write!(f, "{separator}{mode}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Debug for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Modes({self})")
    }
}

/// How much a capability matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// An error without it.
    Require,
    /// Used if it is granted; its absence is reported.
    Prefer,
    /// Not requested.
    Avoid,
}

/// An optional ability of the driver for a device, apart from its data mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// The disk outlives its server: requests wait for the next one.
    Recovery,
    /// The driver issues requests of a dead server again (else it fails them). Needs recovery.
    Reissue,
    /// Without a server, requests fail at once (else they wait). Needs recovery.
    FailIo,
    /// The size of a LIVE disk may change.
    Resize,
    /// The server can leave a LIVE disk in order. Needs recovery.
    Quiesce,
    /// The disk can be stopped on the condition that no process has it open.
    SafeStop,
    /// The kernel does not scan for partitions.
    NoPartScan,
    /// Tags of one queue may be served by several threads.
    PerIoTask,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Capability; 8] = [
        Capability::Recovery,
        Capability::Reissue,
        Capability::FailIo,
        Capability::Resize,
        Capability::Quiesce,
        Capability::SafeStop,
        Capability::NoPartScan,
        Capability::PerIoTask,
    ];

    /// Its flag.
    pub const fn flag(self) -> u64 {
        match self {
            Capability::Recovery => sys::F_RECOVERY,
            Capability::Reissue => sys::F_RECOVERY_REISSUE,
            Capability::FailIo => sys::F_RECOVERY_FAIL_IO,
            Capability::Resize => sys::F_UPDATE_SIZE,
            Capability::Quiesce => sys::F_QUIESCE,
            Capability::SafeStop => sys::F_SAFE_STOP,
            Capability::NoPartScan => sys::F_NO_PART_SCAN,
            Capability::PerIoTask => sys::F_PER_IO_TASK,
        }
    }

    /// The capability that it needs.
    pub const fn needs(self) -> Option<Capability> {
        match self {
            Capability::Reissue | Capability::FailIo | Capability::Quiesce => {
                Some(Capability::Recovery)
            }
            _ => None,
        }
    }
}

/// What is wanted of each capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants([Want; Capability::ALL.len()]);

impl Wants {
    /// No capability is requested.
    pub const NOTHING: Wants = Wants([Want::Avoid; Capability::ALL.len()]);

    /// What is wanted of one capability.
    pub fn of(&self, capability: Capability) -> Want {
        self.0[capability as usize]
    }

    /// The same, except for one capability.
    #[must_use]
    pub fn with(mut self, capability: Capability, want: Want) -> Wants {
        self.0[capability as usize] = want;
        self
    }
}

impl Default for Wants {
    /// What a server of volumes wants: the disk outlives the server and none of its requests fail. The
    /// driver may issue a write twice, so writes must be idempotent.
    fn default() -> Wants {
        Wants([Want::Prefer; Capability::ALL.len()])
            .with(Capability::FailIo, Want::Avoid)
            .with(Capability::NoPartScan, Want::Avoid)
    }
}

/// What a device is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its number, which decides its path. `None` takes any.
    pub id: Option<u32>,
    /// Hardware queues, at most; the kernel grants no more than it has processors.
    pub queues: u16,
    /// Tags per queue: requests that the server may have at once.
    pub depth: u16,
    /// Largest request in bytes.
    pub io_bytes_max: u32,
    /// Its data mode.
    pub mode: ModeChoice,
    /// What is wanted of each capability.
    pub wants: Wants,
    /// Flags to request by number, for which this library has no name.
    pub flags: u64,
    /// A number that the driver stores for the server, and returns with the device's state.
    pub server_flags: u64,
    /// The disk that its clients see.
    pub disk: Disk,
}

impl DeviceSpec {
    /// A device with one queue of 128 tags, requests up to 1 MiB, and this disk.
    pub fn new(disk: Disk) -> DeviceSpec {
        DeviceSpec {
            id: None,
            queues: 1,
            depth: 128,
            io_bytes_max: 1 << 20,
            mode: ModeChoice::Auto,
            wants: Wants::default(),
            flags: 0,
            server_flags: 0,
            disk,
        }
    }

    /// The same with the data mode that [`MODE_VARIABLE`] forces, if it is set.
    pub fn with_environment(self) -> Result<DeviceSpec, Error> {
        self.with_mode_of(std::env::var(MODE_VARIABLE).ok().as_deref())
    }

    /// [`DeviceSpec::with_environment`], given the variable's value.
    pub fn with_mode_of(mut self, value: Option<&str>) -> Result<DeviceSpec, Error> {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.mode = value.parse()?;
        }
        Ok(self)
    }

    /// Whether it is valid on any kernel.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(id) = self.id.filter(|id| *id >= sys::DEVICE_ID_MAX) {
            return Err(Error::invalid(
                format!("device number {id} is out of range"),
                format!("use one below {}", sys::DEVICE_ID_MAX),
            ));
        }
        range("queues", self.queues, sys::QUEUES_MAX)?;
        range("tags per queue", self.depth, sys::DEPTH_MAX)?;
        if !(4096..=sys::IO_BYTES_MAX).contains(&self.io_bytes_max)
            || !self.io_bytes_max.is_multiple_of(4096)
        {
            return Err(Error::invalid(
                format!(
                    "{} is not a valid size of the largest request",
                    self.io_bytes_max
                ),
                format!("use a multiple of 4096 up to {}", sys::IO_BYTES_MAX),
            ));
        }
        let named = Features::from_bits(self.flags & !FLAGS_BY_NUMBER);
        if named != Features::NONE {
            return Err(Error::invalid(
                format!("{named} cannot be asked for by number"),
                "use the data mode and the wants, which have names for what is served here",
            ));
        }
        self.disk.params(self.io_bytes_max).map(drop)
    }
}

/// Flags that may be requested by number: those that the driver always sets, the distance of
/// descriptors, which is taken from the device, and those without a name here. The last at the caller's
/// risk, because they may change how a device must be served. Flags with a name that are not in this
/// list need a server that does more: with shared memory, for example, the driver does not copy the
/// bytes of a request.
const FLAGS_BY_NUMBER: u64 = sys::F_COMPLETE_IN_TASK
    | sys::F_IOCTL_ENCODE
    | sys::F_REGISTER_ANYWHERE
    | sys::F_DESCRIPTOR_BYTES
    | !(sys::F_DESCRIPTOR_BYTES * 2 - 1);

fn range(what: &str, number: u16, max: u16) -> Result<(), Error> {
    if (1..=max).contains(&number) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{number} {what} are out of range"),
        format!("use 1 to {max}"),
    ))
}

/// The mask that [`MASK_VARIABLE`] sets; all bits where it is unset or empty.
pub fn mask_of(value: Option<&str>) -> Result<u64, Error> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(u64::MAX);
    };
    let parsed = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => value.parse(),
    };
    parsed.map_err(|_| {
        Error::invalid(
            format!("{MASK_VARIABLE} is {value:?}, which is not a number"),
            "use hexadecimal digits after 0x, or a decimal number",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn spec() -> DeviceSpec {
        DeviceSpec::new(Disk::new(1 << 30))
    }

    #[test]
    fn the_default_spec_makes_sense() {
        assert_eq!(spec().check(), Ok(()));
    }

    #[test]
    fn queues_depth_size_and_number_out_of_range_are_refused_with_the_range() {
        let wrong = [
            DeviceSpec {
                queues: 0,
                ..spec()
            },
            DeviceSpec {
                queues: 4097,
                ..spec()
            },
            DeviceSpec { depth: 0, ..spec() },
            DeviceSpec {
                depth: 4097,
                ..spec()
            },
            DeviceSpec {
                io_bytes_max: 0,
                ..spec()
            },
            DeviceSpec {
                io_bytes_max: 5000,
                ..spec()
            },
            DeviceSpec {
                io_bytes_max: 64 << 20,
                ..spec()
            },
            DeviceSpec {
                id: Some(1 << 20),
                ..spec()
            },
        ];
        for spec in wrong {
            let error = spec.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.remedy().starts_with("use "), "{error}");
        }
    }

    #[test]
    fn what_changes_how_a_device_is_served_cannot_be_asked_for_by_number() {
        for flags in [
            sys::F_BATCH_IO,
            sys::F_INTEGRITY,
            sys::F_SHARED_ZERO_COPY,
            sys::F_ZONED,
            sys::F_UNPRIVILEGED,
            sys::F_ZERO_COPY,
        ] {
            let error = DeviceSpec { flags, ..spec() }.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        for flags in [sys::F_DESCRIPTOR_BYTES, 1 << 40] {
            assert_eq!(DeviceSpec { flags, ..spec() }.check(), Ok(()));
        }
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        let forced = spec().with_mode_of(Some("get-data")).unwrap();
        assert_eq!(forced.mode, ModeChoice::Only(DataMode::GetData));
        assert_eq!(
            spec().with_mode_of(Some("")).unwrap().mode,
            ModeChoice::Auto
        );
        assert_eq!(spec().with_mode_of(None).unwrap().mode, ModeChoice::Auto);
        assert_eq!(mask_of(Some("")), Ok(u64::MAX));
        assert_eq!(mask_of(Some("0x7fff")), Ok(0x7fff));
        assert_eq!(mask_of(Some("510")), Ok(0x1fe));
    }

    #[test]
    fn a_variable_that_means_nothing_is_an_error_not_a_default() {
        let error = spec().with_mode_of(Some("zerocopy")).unwrap_err();
        assert!(error.to_string().contains("use auto, zero-copy"), "{error}");
        let error = mask_of(Some("7ffg")).unwrap_err();
        assert!(error.to_string().contains(MASK_VARIABLE), "{error}");
    }

    #[test]
    fn every_mode_reads_as_it_is_written() {
        for mode in DataMode::LADDER {
            assert_eq!(mode.name().parse(), Ok(ModeChoice::Only(mode)));
            assert_eq!(DataMode::of_flags(mode.flags()), mode);
        }
    }
}
