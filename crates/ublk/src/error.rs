//! The one error type of this crate: the operation, the device (and queue and tag), the kernel's errno,
//! and the remedy.
//!
//! The kernel's errno is kept as it is. [`Error::kernel`] is the only place that interprets it: what it
//! means for the operation, and the remedy.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening `/dev/ublk-control` or its ring.
    Open,
    /// Reading the kernel's features.
    Features,
    /// Checking a device spec and choosing flags.
    Negotiate,
    /// Adding a device.
    Add,
    /// Deleting a device.
    Delete,
    /// Starting its disk.
    Start,
    /// Stopping its disk.
    Stop,
    /// Stopping its disk, unless it is in use.
    TryStop,
    /// Setting the disk's parameters.
    SetParams,
    /// Reading the disk's parameters.
    GetParams,
    /// Reading state and flags.
    Info,
    /// Starting recovery by a new server.
    StartRecovery,
    /// Ending recovery: the new server gets the disk.
    EndRecovery,
    /// Changing the size of a live disk.
    Resize,
    /// Quiescing: the server leaves, the disk stays.
    Quiesce,
    /// Opening `/dev/ublkcN`.
    OpenChar,
    /// Mapping a queue's descriptors.
    Map,
    /// Attaching queues to their reactors.
    Attach,
    /// FETCH of a tag.
    Fetch,
    /// Listing the devices.
    List,
    /// The exit of the server.
    Exit,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "opening the control device",
            Operation::Features => "reading features",
            Operation::Negotiate => "negotiating",
            Operation::Add => "adding",
            Operation::Delete => "deleting",
            Operation::Start => "starting",
            Operation::Stop => "stopping",
            Operation::TryStop => "stopping (unless in use)",
            Operation::SetParams => "setting parameters of",
            Operation::GetParams => "reading parameters of",
            Operation::Info => "reading the state of",
            Operation::StartRecovery => "starting recovery of",
            Operation::EndRecovery => "ending recovery of",
            Operation::Resize => "resizing",
            Operation::Quiesce => "quiescing",
            Operation::OpenChar => "opening the character device of",
            Operation::Map => "mapping descriptors of",
            Operation::Attach => "attaching the queues of",
            Operation::Fetch => "fetching",
            Operation::List => "listing devices",
            Operation::Exit => "closing",
        })
    }
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The driver is not loaded.
    NoDriver,
    /// This process lacks a privilege.
    PermissionDenied,
    /// The kernel is too old for the request.
    Unsupported,
    /// No more devices, or no memory for one.
    LimitReached,
    /// Another process has the number or the device.
    InUse,
    /// The request is not valid.
    Invalid,
    /// The device is not ready, or a process holds it. Worth another try.
    Busy,
    /// There is no such device, or not any more.
    NotFound,
    /// It did not complete in time, and was cancelled.
    TimedOut,
    /// It did not complete, not even after it was cancelled.
    Stuck,
    /// The caller cancelled it.
    Cancelled,
    /// The kernel did not grant a required feature.
    NotGranted,
    /// The handler cannot serve what the kernel granted.
    HandlerMismatch,
    /// The control thread or a reactor has ended.
    Closed,
    /// Another errno of the kernel.
    Kernel,
}

/// An operation that failed, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    operation: Operation,
    device: Option<u32>,
    queue: Option<u16>,
    tag: Option<u16>,
    kind: ErrorKind,
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
        if let Some(queue) = self.queue {
            write!(f, ", queue {queue}")?;
        }
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
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
    /// An error of this library, without an errno.
    pub(crate) fn new(
        operation: Operation,
        kind: ErrorKind,
        detail: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error {
            operation,
            device: None,
            queue: None,
            tag: None,
            kind,
            errno: None,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    /// A spec that is not valid.
    pub(crate) fn invalid(
        detail: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error::new(Operation::Negotiate, ErrorKind::Invalid, detail, remedy)
    }

    /// An errno of the kernel (positive), with what it means for this operation.
    pub fn kernel(operation: Operation, device: Option<u32>, errno: i32) -> Error {
        let ErrnoMeaning {
            kind,
            detail,
            remedy,
        } = meaning(operation, errno);
        Error::new(operation, kind, detail, remedy)
            .on_device(device)
            .with_errno(errno)
    }

    /// A command that was cancelled at its deadline, and then completed.
    pub fn timed_out(operation: Operation, device: Option<u32>, waited: Duration) -> Error {
        let detail = format!("it did not complete in {} ms", waited.as_millis());
        Error::new(
            operation,
            ErrorKind::TimedOut,
            detail,
            timeout_remedy(operation),
        )
        .on_device(device)
    }

    /// A command that did not complete even when it was cancelled.
    pub fn stuck(operation: Operation, device: Option<u32>, waited: Duration) -> Error {
        let detail = format!(
            "it did not complete in {} ms, nor when it was cancelled",
            waited.as_millis()
        );
        let remedy = "look for hung tasks in the kernel log; other commands use a new ring";
        Error::new(operation, ErrorKind::Stuck, detail, remedy).on_device(device)
    }

    pub(crate) fn on_device(mut self, device: impl Into<Option<u32>>) -> Error {
        self.device = device.into();
        self
    }

    pub(crate) fn with_errno(mut self, errno: i32) -> Error {
        self.errno = Some(errno);
        self
    }

    pub(crate) fn on_queue(mut self, queue: u16, tag: Option<u16>) -> Error {
        (self.queue, self.tag) = (Some(queue), tag);
        self
    }

    /// The operation that failed.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The device, where the operation was for one.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// What can be done about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The queue, where the operation was for one.
    pub fn queue(&self) -> Option<u16> {
        self.queue
    }

    /// The tag, where the operation was for one.
    pub fn tag(&self) -> Option<u16> {
        self.tag
    }

    /// The kernel's errno, positive.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// What to do, in words for a person.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

fn timeout_remedy(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => {
            "a process still has the character device open or mapped: end the old server, or \
             delete without waiting"
        }
        Operation::Start | Operation::EndRecovery => {
            "not every tag was fetched: see what the reactors report"
        }
        Operation::Stop => "a request is not completed: see what the server waits for",
        _ => "try again, or allow it more time",
    }
}

/// What an errno means.
struct ErrnoMeaning {
    kind: ErrorKind,
    detail: &'static str,
    remedy: &'static str,
}

const fn means(kind: ErrorKind, detail: &'static str, remedy: &'static str) -> ErrnoMeaning {
    ErrnoMeaning {
        kind,
        detail,
        remedy,
    }
}

/// What an errno means for the operation that got it.
fn meaning(operation: Operation, errno: i32) -> ErrnoMeaning {
    for_new_device(operation, errno)
        .or_else(|| for_existing_device(operation, errno))
        .unwrap_or_else(|| for_any_operation(errno))
}

/// Opening and adding.
fn for_new_device(operation: Operation, errno: i32) -> Option<ErrnoMeaning> {
    use Operation as Op;
    Some(match (operation, errno) {
        (Op::Open, libc::ENOENT) => means(
            ErrorKind::NoDriver,
            "there is no /dev/ublk-control",
            "load the driver (modprobe ublk_drv); it needs Linux 6.5 or newer with \
             CONFIG_BLK_DEV_UBLK",
        ),
        (Op::Open, libc::ENXIO | libc::ENODEV) => means(
            ErrorKind::NoDriver,
            "nothing answers at /dev/ublk-control",
            "load the driver (modprobe ublk_drv)",
        ),
        (Op::Open, libc::EACCES | libc::EPERM) => means(
            ErrorKind::PermissionDenied,
            "/dev/ublk-control may not be opened",
            "run as root, or give this user the device node",
        ),
        (Op::Features, libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) => means(
            ErrorKind::Unsupported,
            "the driver does not report its features",
            "it needs Linux 6.5 or newer",
        ),
        (Op::Add, libc::EEXIST) => means(
            ErrorKind::InUse,
            "the number is taken by another device",
            "choose another number, or adopt or remove the device that has it",
        ),
        (Op::Add, libc::EACCES | libc::ENOSPC) => means(
            ErrorKind::LimitReached,
            "no more devices",
            "delete devices that nobody serves, or raise ublks_max of the module ublk_drv",
        ),
        (Op::Add, libc::EINVAL) => means(
            ErrorKind::Invalid,
            "the kernel refuses the combination of flags, queues and depth",
            "compare the flags with the kernel's features",
        ),
        (Op::OpenChar, libc::EBUSY) => means(
            ErrorKind::InUse,
            "another process has it open",
            "end the other server first; a device has one server",
        ),
        (Op::OpenChar, libc::ENOENT | libc::ENODEV | libc::ENXIO) => means(
            ErrorKind::NotFound,
            "its node is missing, or it is being deleted",
            "see that devtmpfs or udev makes /dev/ublkcN here, also inside a container; a device that is \
             deleted goes when nobody has it open any more",
        ),
        _ => return None,
    })
}

/// What is done to a device that was added.
fn for_existing_device(operation: Operation, errno: i32) -> Option<ErrnoMeaning> {
    use Operation as Op;
    Some(match (operation, errno) {
        (Op::Start, libc::EEXIST) => means(
            ErrorKind::Busy,
            "it is live, or a process still has its old disk open",
            "unmount and close it, then start again",
        ),
        (Op::Start | Op::EndRecovery, libc::EINVAL) => means(
            ErrorKind::Invalid,
            "the driver does not take this process for its server, or parameters are missing",
            "start it from the process that opened its character device; in a container with a \
             process id namespace this needs a newer kernel",
        ),
        (Op::SetParams, libc::EACCES) => means(
            ErrorKind::Busy,
            "parameters are fixed once the disk was started",
            "delete the device and add it again",
        ),
        (Op::SetParams, libc::EINVAL) => means(
            ErrorKind::Invalid,
            "the kernel refuses the disk's parameters",
            "compare block sizes, limits and alignments with the kernel's rules",
        ),
        (Op::TryStop, libc::EBUSY) => means(
            ErrorKind::Busy,
            "a process has the disk open",
            "unmount and close it, or stop it regardless",
        ),
        (Op::Quiesce, libc::EBUSY) => means(
            ErrorKind::Busy,
            "waiting requests have every tag of a queue, and the driver can cancel none",
            "close its reactors, and recover it",
        ),
        (Op::StartRecovery, libc::EINVAL) => means(
            ErrorKind::Invalid,
            "it was not added with recovery; or (before Linux 6.16) another recovery was started, and given \
             up or not ended yet",
            "see that no other server is taking it over; if none is, delete it",
        ),
        (Op::Fetch, _) => means(
            ErrorKind::Kernel,
            "the driver refuses FETCH",
            "a queue is fetched once, from one thread, in the device's data mode; see that nothing \
             else serves this device",
        ),
        _ => return None,
    })
}

fn for_any_operation(errno: i32) -> ErrnoMeaning {
    match errno {
        libc::EBUSY => means(
            ErrorKind::Busy,
            "it is not ready for this yet",
            "try again once its last server is gone",
        ),
        libc::ENODEV => means(
            ErrorKind::NotFound,
            "there is no such device, or it has no disk",
            "list the devices that exist",
        ),
        libc::EOPNOTSUPP => means(
            ErrorKind::Unsupported,
            "this kernel does not offer it",
            "use a newer kernel",
        ),
        libc::EACCES | libc::EPERM => means(
            ErrorKind::PermissionDenied,
            "the kernel refuses it to this process",
            "run as root (CAP_SYS_ADMIN)",
        ),
        libc::ENOMEM => means(
            ErrorKind::LimitReached,
            "the kernel has no memory for it",
            "use fewer queues or tags",
        ),
        libc::EMFILE | libc::ENFILE => means(
            ErrorKind::LimitReached,
            "too many open files",
            "raise the limit (ulimit -n)",
        ),
        libc::ESHUTDOWN => means(
            ErrorKind::Closed,
            "the control thread has ended",
            "open the control device again",
        ),
        libc::ECANCELED => means(ErrorKind::Cancelled, "it was cancelled", "issue it again"),
        _ => means(
            ErrorKind::Kernel,
            "the kernel refuses it",
            "see the kernel log",
        ),
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
        assert_eq!(error.kind(), ErrorKind::InUse);
    }

    #[test]
    fn what_an_operator_can_mend_has_a_remedy() {
        let cases = [
            (
                Operation::Open,
                libc::ENOENT,
                ErrorKind::NoDriver,
                "modprobe ublk_drv",
            ),
            (
                Operation::Open,
                libc::EACCES,
                ErrorKind::PermissionDenied,
                "root",
            ),
            (
                Operation::Features,
                libc::ENODEV,
                ErrorKind::Unsupported,
                "6.5",
            ),
            (
                Operation::Add,
                libc::EACCES,
                ErrorKind::LimitReached,
                "ublks_max",
            ),
            (
                Operation::Add,
                libc::EEXIST,
                ErrorKind::InUse,
                "another number",
            ),
            (
                Operation::Add,
                libc::EPERM,
                ErrorKind::PermissionDenied,
                "root",
            ),
            (
                Operation::OpenChar,
                libc::EBUSY,
                ErrorKind::InUse,
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
        assert_eq!(error.kind(), ErrorKind::Kernel);
        assert_eq!(error.errno(), Some(libc::EDOM));
    }
}
