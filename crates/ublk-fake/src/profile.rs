//! The kernel that the fake simulates: its flags, and the rules that changed between kernels.
//!
//! Each difference has a name here and is asked for by that name; no other file compares
//! versions.

use ublk::sys;

/// A kernel's version of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// For reports.
    pub name: &'static str,
    /// The flags that the driver knows.
    pub features: u64,
    /// Whether all tags of a queue belong to one task: the one that fetched the last of them.
    /// Commands that others gave, or that a queue got which never became ready, are not cancelled
    /// when their ring closes; the kernel warns, and they keep the character device open until
    /// the device is stopped.
    pub task_per_queue: bool,
    /// Whether START and END compare the process with the one that opened the device.
    pub checks_pid: bool,
    /// Whether START_USER_RECOVERY resets all tags, and so is refused where nothing was fetched
    /// since the last one.
    pub recovery_resets_tags: bool,
    /// Whether the driver notices a server's exit by the release of the character device; else by
    /// the cancellation of an idle tag.
    pub exit_on_release: bool,
    /// Whether ADD refuses combinations of recovery flags that make no sense.
    pub validates_recovery_flags: bool,
    /// Whether a transfer in the window counts as complete also beyond the end of the request, and
    /// the window exists without user copy.
    pub unchecked_window: bool,
    /// The kinds of parameters that the driver knows, a mask of `PARAM_` bits.
    pub params: u32,
    /// The distance of descriptors of devices that asked for one; others have 24 bytes, and do not
    /// say so.
    pub descriptor_bytes: u16,
}

impl Profile {
    /// Linux 6.12: one task per queue, no zero copy.
    pub const V6_12: Profile = Profile {
        name: "6.12",
        features: 0x1fe,
        task_per_queue: true,
        checks_pid: false,
        recovery_resets_tags: true,
        exit_on_release: false,
        validates_recovery_flags: false,
        unchecked_window: true,
        params: 0xf,
        descriptor_bytes: 0,
    };

    /// Linux 6.17: zero copy, tags with tasks of their own.
    pub const V6_17: Profile = Profile {
        name: "6.17",
        features: 0x7fff,
        task_per_queue: false,
        checks_pid: true,
        recovery_resets_tags: false,
        exit_on_release: true,
        validates_recovery_flags: true,
        unchecked_window: false,
        params: 0x3f,
        descriptor_bytes: 0,
    };

    /// Linux 7.2.
    pub const V7_2: Profile = Profile {
        name: "7.2",
        features: 0xf_ffff,
        params: 0x7f,
        ..Profile::V6_17
    };

    /// Linux 7.3, as far as its descriptors go; it was not compared with the kernel.
    pub const V7_3: Profile = Profile {
        name: "7.3",
        features: 0x1f_ffff,
        descriptor_bytes: 64,
        ..Profile::V7_2
    };

    /// Every profile that is compared with its kernel, oldest first.
    pub const ALL: [Profile; 3] = [Profile::V6_12, Profile::V6_17, Profile::V7_2];

    /// Whether the driver knows all of these flags.
    pub fn has(&self, flags: u64) -> bool {
        self.features & flags == flags
    }

    /// The flags that the driver sets whether they were asked for or not.
    pub(super) fn forced_flags(&self) -> u64 {
        let always = sys::F_COMPLETE_IN_TASK | sys::F_IOCTL_ENCODE;
        let newer = sys::F_PER_IO_TASK | sys::F_REGISTER_ANYWHERE | sys::F_SAFE_STOP;
        always | newer & self.features
    }
}
