//! The one error of this crate: what was tried, on which device, what the kernel said, and what
//! to do about it.
//!
//! The kernel's errno is kept as it was given. What it means for the operation that got it, and
//! the remedy, is told in one place, [`Error::kernel`]; nothing else here interprets numbers.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening `/dev/ublk-control` or its ring.
    Open,
    /// Asking for the kernel's features.
    Features,
    /// Checking a device spec and choosing flags.
    Negotiate,
    /// Adding a device.
    Add,
    /// Deleting one.
    Delete,
    /// Bringing up its disk.
    Start,
    /// Taking its disk down.
    Stop,
    /// The same, unless it is in use.
    TryStop,
    /// Setting what the disk looks like.
    SetParams,
    /// Reading that.
    GetParams,
    /// Reading state and flags.
    Info,
    /// Reading a queue's processors.
    Affinity,
    /// Announcing a new server.
    StartRecovery,
    /// Handing the disk to it.
    EndRecovery,
    /// Changing the size of a live disk.
    Resize,
    /// Taking the server away from a live disk.
    Quiesce,
    /// Registering shared memory.
    RegisterShared,
    /// Forgetting it.
    UnregisterShared,
    /// Opening `/dev/ublkcN`.
    OpenChar,
    /// Mapping a queue's descriptors.
    Map,
    /// Attaching queues to their reactors.
    Arm,
    /// Fetching tags.
    Fetch,
    /// Finding the devices there are.
    List,
    /// Leaving.
    Exit,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "opening the control device",
            Operation::Features => "asking for features",
            Operation::Negotiate => "negotiating",
            Operation::Add => "adding",
            Operation::Delete => "deleting",
            Operation::Start => "starting",
            Operation::Stop => "stopping",
            Operation::TryStop => "stopping (unless in use)",
            Operation::SetParams => "setting parameters",
            Operation::GetParams => "reading parameters",
            Operation::Info => "reading the state",
            Operation::Affinity => "reading a queue's processors",
            Operation::StartRecovery => "beginning recovery",
            Operation::EndRecovery => "ending recovery",
            Operation::Resize => "resizing",
            Operation::Quiesce => "quiescing",
            Operation::RegisterShared => "registering shared memory",
            Operation::UnregisterShared => "unregistering shared memory",
            Operation::OpenChar => "opening the character device",
            Operation::Map => "mapping descriptors",
            Operation::Arm => "arming",
            Operation::Fetch => "fetching tags",
            Operation::List => "listing devices",
            Operation::Exit => "leaving",
        })
    }
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The driver is not there: load it.
    NoDriver,
    /// This process may not: get the privilege.
    Denied,
    /// The kernel is too old for what was asked.
    TooOld,
    /// No more devices, or no memory for one.
    Limit,
    /// The number, or the device, belongs to somebody else.
    Taken,
    /// What was asked makes no sense as it stands.
    Invalid,
    /// Not now: somebody still holds the device. Worth another try.
    Busy,
    /// There is no such device (any more).
    Gone,
    /// It did not end in time; it was cancelled.
    Late,
    /// It did not end, not even after being cancelled.
    Stuck,
    /// The caller cancelled it.
    Cancelled,
    /// The kernel did not grant what was required.
    NotGranted,
    /// The handler cannot serve what was granted.
    Handler,
    /// This side has ended.
    Closed,
    /// Anything else that the kernel said.
    Kernel,
}

/// An operation that failed, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    operation: Operation,
    device: Option<u32>,
    kind: Kind,
    errno: Option<i32>,
    detail: Cow<'static, str>,
    remedy: Cow<'static, str>,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ublk: {}", self.operation)?;
        if let Some(device) = self.device {
            write!(f, " device {device}")?;
        }
        write!(f, ": {}", self.detail)?;
        if let Some(errno) = self.errno {
            let text = std::io::Error::from_raw_os_error(errno);
            write!(f, " ({text})")?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl Error {
    /// An error of this library's own, with no errno.
    pub(crate) fn new(
        operation: Operation,
        kind: Kind,
        detail: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error {
            operation,
            device: None,
            kind,
            errno: None,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    /// A spec that makes no sense.
    pub(crate) fn invalid(
        detail: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error::new(Operation::Negotiate, Kind::Invalid, detail, remedy)
    }

    /// What the kernel answered, with what it means for this operation. `errno` is positive.
    pub fn kernel(operation: Operation, device: Option<u32>, errno: i32) -> Error {
        let (kind, detail, remedy) = meaning(operation, errno);
        Error {
            operation,
            device,
            kind,
            errno: Some(errno),
            detail: Cow::Borrowed(detail),
            remedy: Cow::Borrowed(remedy),
        }
    }

    /// A command that was cancelled at its deadline and ended then.
    pub fn late(operation: Operation, device: Option<u32>, waited: Duration) -> Error {
        let detail = format!("not done after {} ms", waited.as_millis());
        Error::new(operation, Kind::Late, detail, late_remedy(operation)).on(device)
    }

    /// A command that did not even end when it was cancelled.
    pub fn stuck(operation: Operation, device: Option<u32>, waited: Duration) -> Error {
        let detail = format!(
            "not done after {} ms, and cancelling did not end it",
            waited.as_millis()
        );
        let remedy = "the kernel holds on to it; other commands go on over a fresh ring. \
             Look for hung tasks in the kernel log";
        Error::new(operation, Kind::Stuck, detail, remedy).on(device)
    }

    pub(crate) fn on(mut self, device: impl Into<Option<u32>>) -> Error {
        self.device = device.into();
        self
    }

    /// What was tried.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The device, where the operation was for one.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// What can be done about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The kernel's own errno, positive.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// What to do, for the person who reads it.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

fn late_remedy(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => {
            "somebody still has the character device open or mapped: end the old server, or \
             delete without waiting"
        }
        Operation::Start | Operation::EndRecovery => {
            "not every tag was fetched: see what the reactors report"
        }
        Operation::Stop => "a request is not completed: see what the server waits for",
        _ => "try again, or allow it more time",
    }
}

/// What an errno means for the operation that got it.
#[expect(clippy::too_many_lines, reason = "a table, not steps")]
fn meaning(operation: Operation, errno: i32) -> (Kind, &'static str, &'static str) {
    use Operation as Op;
    match (operation, errno) {
        (Op::Open, libc::ENOENT) => (
            Kind::NoDriver,
            "there is no /dev/ublk-control",
            "load the driver (modprobe ublk_drv); it needs Linux 6.5 or newer with \
             CONFIG_BLK_DEV_UBLK",
        ),
        (Op::Open, libc::ENXIO | libc::ENODEV) => (
            Kind::NoDriver,
            "nothing answers at /dev/ublk-control",
            "load the driver (modprobe ublk_drv)",
        ),
        (Op::Open, libc::EACCES | libc::EPERM) => (
            Kind::Denied,
            "/dev/ublk-control may not be opened",
            "run as root, or give this user the device node",
        ),
        (Op::Features, libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) => (
            Kind::TooOld,
            "the driver does not tell its features",
            "it needs Linux 6.5 or newer",
        ),
        (Op::Add, libc::EEXIST) => (
            Kind::Taken,
            "the number is taken by another device",
            "choose another number, or adopt or remove the device that has it",
        ),
        (Op::Add, libc::EACCES | libc::ENOSPC) => (
            Kind::Limit,
            "no more devices",
            "delete devices that nobody serves, or raise ublks_max of the module ublk_drv",
        ),
        (Op::Add, libc::EINVAL) => (
            Kind::Invalid,
            "the kernel refuses the combination of flags, queues and depth",
            "compare the flags with the kernel's features",
        ),
        (Op::OpenChar, libc::EBUSY) => (
            Kind::Taken,
            "another process has it open",
            "end the other server first; a device has one server",
        ),
        (Op::OpenChar, libc::ENOENT | libc::ENODEV | libc::ENXIO) => (
            Kind::Gone,
            "its node is missing, or it is being deleted",
            "see that devtmpfs or udev makes /dev/ublkcN here, also inside a container; a device that is \
             deleted goes when nobody has it open any more",
        ),
        (Op::Start, libc::EEXIST) => (
            Kind::Busy,
            "it is live, or somebody still has its old disk open",
            "unmount and close it, then start again",
        ),
        (Op::Start | Op::EndRecovery, libc::EINVAL) => (
            Kind::Invalid,
            "the driver does not take this process for its server, or parameters are missing",
            "start it from the process that opened its character device; in a container with a \
             process id namespace this needs a newer kernel",
        ),
        (Op::SetParams, libc::EACCES) => (
            Kind::Busy,
            "parameters are fixed once the disk was started",
            "delete the device and add it anew",
        ),
        (Op::SetParams, libc::EINVAL) => (
            Kind::Invalid,
            "the kernel refuses the disk's parameters",
            "compare block sizes, limits and alignments with the kernel's rules",
        ),
        (Op::TryStop, libc::EBUSY) => (
            Kind::Busy,
            "somebody has the disk open",
            "unmount and close it, or stop it regardless",
        ),
        (Op::Quiesce, libc::EBUSY) => (
            Kind::Busy,
            "requests that wait have every tag of a queue, and none can be taken back",
            "close its reactors, and recover it",
        ),
        (Op::StartRecovery, libc::EINVAL) => (
            Kind::Invalid,
            "it was not added with recovery; or (before Linux 6.16) a recovery of it was begun, and given \
             up or not ended yet",
            "see that no other server is taking it over; if none is, delete it",
        ),
        (_, libc::EBUSY) => (
            Kind::Busy,
            "it is not ready for this yet",
            "try again once its last server is gone",
        ),
        (_, libc::ENODEV) => (Kind::Gone, "there is no such device, or no disk on it", ""),
        (_, libc::EOPNOTSUPP) => (
            Kind::TooOld,
            "this kernel does not offer it",
            "use a newer kernel",
        ),
        (_, libc::EACCES | libc::EPERM) => (
            Kind::Denied,
            "the kernel refuses it to this process",
            "run as root (CAP_SYS_ADMIN)",
        ),
        (_, libc::ENOMEM) => (
            Kind::Limit,
            "the kernel has no memory for it",
            "use fewer queues or tags",
        ),
        (_, libc::EMFILE | libc::ENFILE) => (
            Kind::Limit,
            "too many open files",
            "raise the limit (ulimit -n)",
        ),
        (_, libc::ESHUTDOWN) => (
            Kind::Closed,
            "the control thread has ended",
            "open the control device anew",
        ),
        (_, libc::ECANCELED) => (Kind::Cancelled, "it was cancelled", ""),
        _ => (Kind::Kernel, "the kernel refuses it", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_operation_device_reason_and_remedy() {
        let error = Error::kernel(Operation::Add, Some(7), libc::EEXIST);
        let text = error.to_string();
        assert!(
            text.starts_with("ublk: adding device 7: the number is taken"),
            "{text}"
        );
        assert!(text.contains("File exists"), "{text}");
        assert!(text.contains("choose another number"), "{text}");
        assert_eq!(error.errno(), Some(libc::EEXIST));
        assert_eq!(error.kind(), Kind::Taken);
    }

    #[test]
    fn what_an_operator_can_mend_has_a_remedy() {
        let cases = [
            (
                Operation::Open,
                libc::ENOENT,
                Kind::NoDriver,
                "modprobe ublk_drv",
            ),
            (Operation::Open, libc::EACCES, Kind::Denied, "root"),
            (Operation::Features, libc::ENODEV, Kind::TooOld, "6.5"),
            (Operation::Add, libc::EACCES, Kind::Limit, "ublks_max"),
            (Operation::Add, libc::EEXIST, Kind::Taken, "another number"),
            (Operation::Add, libc::EPERM, Kind::Denied, "root"),
            (
                Operation::OpenChar,
                libc::EBUSY,
                Kind::Taken,
                "other server",
            ),
        ];
        for (operation, errno, kind, remedy) in cases {
            let error = Error::kernel(operation, None, errno);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.remedy().contains(remedy), "{error}");
        }
    }

    #[test]
    fn an_errno_that_means_nothing_special_is_kept() {
        let error = Error::kernel(Operation::Quiesce, Some(1), libc::EDOM);
        assert_eq!(error.kind(), Kind::Kernel);
        assert_eq!(error.errno(), Some(libc::EDOM));
    }
}
