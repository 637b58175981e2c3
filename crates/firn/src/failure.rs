//! The one error of the binary, and the table of its stable codes.
//!
//! A [`FailureCode`] decides the HTTP status, the exit status of a command, the title and the
//! general remedy; no other place may choose one of them. The detail of a [`Failure`] names the
//! operation, the object, the cause and what to do. Errors of the crates below are converted here,
//! so that nothing above needs to know them.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// What the table says about one code.
struct Row {
    name: &'static str,
    /// HTTP status of the problem document.
    status: u16,
    /// Exit status of a command that fails with this code.
    exit: u8,
    title: &'static str,
    remedy: &'static str,
}

macro_rules! failure_codes {
    ($($code:ident, $name:literal, $status:literal, $exit:ident, $title:literal, $remedy:literal;)*) => {
        /// Why an operation failed, as a stable code: part of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum FailureCode { $($code,)* }

        impl FailureCode {
            const ALL: &[FailureCode] = &[$(FailureCode::$code,)*];

            fn row(self) -> Row {
                match self {
                    $(FailureCode::$code => Row {
                        name: $name,
                        status: $status,
                        exit: $exit,
                        title: $title,
                        remedy: $remedy,
                    },)*
                }
            }
        }
    };
}

/// Exit status of a command line that makes no sense; clap uses the same.
const USAGE: u8 = 2;
/// Exit status of every other failure.
const FAILED: u8 = 1;

failure_codes! {
    AddressInUse, "address-in-use", 500, FAILED, "Cannot listen on an address",
        "Stop the other server, or choose another address with --api or --nbd.";
    AttachedOtherwise, "attached-otherwise", 409, FAILED, "The volume is attached with other options",
        "Detach the volume first, or leave the differing option out.";
    BadOptions, "bad-options", 400, FAILED, "The engine's options contradict each other",
        "Correct the sizes that the server was started with.";
    BaseGone, "base-gone", 409, FAILED, "The store lacks the state that a tail continues",
        "Fork the tail's writes alone with --without-base.";
    CacheInUse, "cache-in-use", 409, FAILED, "Another server uses the cache directory",
        "Stop the other server, or name another directory with --cache.";
    Corrupt, "corrupt", 500, FAILED, "A structure fails its checksum",
        "Look for errors of the disk or of the store; the detail names the structure.";
    Damaged, "damaged", 500, FAILED, "The store lacks something that a volume needs",
        "Put the objects that are named back from a backup, or from older versions of them.";
    DiskFailed, "disk-failed", 500, FAILED, "A local file cannot be used",
        "Look for the cause in the kernel log.";
    DiskFull, "disk-full", 500, FAILED, "A local disk is full",
        "Free space, or choose smaller --log-size and --cache-size.";
    Doctor, "doctor", 500, FAILED, "This machine cannot run a server as asked",
        "Correct the findings marked BAD.";
    ForeignFormat, "foreign-format", 500, FAILED, "A file or object is not firn's",
        "Choose another directory or prefix.";
    HoldEnded, "hold-ended", 409, FAILED, "The volume does not go on where its disk left off",
        "Unmount the disk, remove it with `firn detach --force VOLUME`, and attach the volume anew.";
    HostCloned, "host-cloned", 409, FAILED, "A copy of the cache directory is in use",
        "Stop all but one, and give each of the others an empty cache directory.";
    HostRetired, "host-retired", 409, FAILED, "The host was retired in the store",
        "Give it an empty cache directory.";
    Internal, "internal", 500, FAILED, "The server failed",
        "See the server's log.";
    Invalid, "invalid", 400, FAILED, "The request makes no sense",
        "Correct the value that the detail names.";
    LeftOut, "left-out", 409, FAILED, "The volume is left out, because starts ended while it was being opened",
        "Open it by hand with `firn attach VOLUME` once the cause is gone.";
    LogPoisoned, "log-poisoned", 500, FAILED, "A sync of the log failed",
        "Stop the server, and move to another disk with `firn rescue log --to DIR`.";
    MountFailed, "mount-failed", 500, FAILED, "The disk was not mounted",
        "Correct what the detail names, then ask again: the volume stays attached until then.";
    NewerFormat, "newer-format", 500, FAILED, "A structure has a newer format",
        "Use a newer firn.";
    NoDirectIo, "no-direct-io", 500, FAILED, "The file system has no direct I/O",
        "Use --log-io auto or buffered, or another file system.";
    NoPermission, "no-permission", 500, FAILED, "A local file or address may not be used",
        "Check the owner and mode of the directory, or choose another.";
    NoSandbox, "no-sandbox", 500, FAILED, "The server cannot restrict itself",
        "Use a kernel with Landlock, or --sandbox auto.";
    NoSuchMethod, "no-such-method", 405, FAILED, "The path does not take this method",
        "See /v1/openapi.json.";
    NoSuchPath, "no-such-path", 404, FAILED, "There is nothing at this path",
        "See /v1/openapi.json.";
    NoSuchSnapshot, "no-such-snapshot", 404, FAILED, "There is no such snapshot",
        "See `firn snapshot list VOLUME`.";
    NoSuchTail, "no-such-tail", 404, FAILED, "There is no such tail",
        "See `firn rescue list`.";
    NoSuchVolume, "no-such-volume", 404, FAILED, "There is no volume of this name",
        "See `firn volume list`.";
    NotAllowed, "not-allowed", 403, FAILED, "The caller's role does not reach this",
        "Ask with a token of a higher role, or as the server's user.";
    NotAttached, "not-attached", 409, FAILED, "The volume is not attached here",
        "Nothing needs to be done.";
    NotAuthenticated, "not-authenticated", 401, FAILED, "The server does not know the caller",
        "Use the server's Unix socket, or name a token with --token-file.";
    NotFirn, "not-firn", 502, FAILED, "The answer is not a firn server's",
        "Check the address; client and server should have the same version.";
    NotJson, "not-json", 415, FAILED, "The request's body is not JSON",
        "Send JSON with content-type: application/json.";
    NotOpenYet, "not-open-yet", 409, FAILED, "The volume could not be opened yet",
        "Wait until the store answers, or detach with --force.";
    NotReady, "not-ready", 503, FAILED, "Something cannot be served yet",
        "See `firn volume list`; the detail says what is missing.";
    NoTransport, "no-transport", 500, FAILED, "The server has no listener for this transport",
        "Start the server with --nbd.";
    Output, "output", 500, FAILED, "The result cannot be written",
        "Check where standard output leads.";
    RootMissing, "root-missing", 500, FAILED, "A volume's root is gone from the store",
        "Put the object back from a backup or an older version of it, or see `firn check VOLUME --rebuild`.";
    ServerUnreachable, "server-unreachable", 503, FAILED, "The server does not answer",
        "Start one with `firn serve`, or name another with --api.";
    SnapshotExists, "snapshot-exists", 409, FAILED, "A snapshot of this name exists",
        "Choose another name.";
    StateGone, "state-gone", 409, FAILED, "A volume has gone on since a list of it was begun",
        "Begin again, or take a snapshot and ask about that.";
    StoreDenied, "store-denied", 502, FAILED, "The store refuses access",
        "Check the credentials, or the permissions of the directory.";
    StoreFailed, "store-failed", 503, FAILED, "A request to the store failed",
        "Try again once the store works.";
    StoreUnavailable, "store-unavailable", 503, FAILED, "The store does not answer",
        "Try again once the store can be reached.";
    StoreUnsupported, "store-unsupported", 501, FAILED, "The store lacks a function",
        "Use a store with conditional PUT, or --single-writer.";
    StoreWentBack, "store-went-back", 409, FAILED, "The store was set back to an older copy",
        "Put the newer objects back, or go on from the older with an empty cache directory.";
    TailWanted, "tail-wanted", 409, FAILED, "The volume still waits for the tail",
        "Open the volume, or drop the tail with --force.";
    TimedOut, "timed-out", 504, FAILED, "The time that the command was given is over",
        "The server goes on with what it was asked: look with `firn volume show` or `firn snapshot list`, or give more with --timeout.";
    TooLarge, "too-large", 413, FAILED, "The request is too large",
        "Send what /v1/openapi.json describes.";
    TooManyRequests, "too-many-requests", 429, FAILED, "More requests come than the server takes",
        "Try again after the time that the answer names.";
    TooSlow, "too-slow", 408, FAILED, "The request did not arrive in time",
        "Send it as a whole.";
    TransferFailed, "transfer-failed", 500, FAILED, "Bytes could not be copied",
        "Correct what the detail names, then run the command again.";
    UblkDenied, "ublk-denied", 500, FAILED, "This process may not use ublk",
        "Give the server the privilege, or use --transport nbd.";
    UblkFailed, "ublk-failed", 500, FAILED, "The ublk driver failed",
        "See the kernel log, or use --transport nbd.";
    UblkLimit, "ublk-limit", 503, FAILED, "The ublk driver has no room for another device",
        "Detach a disk, or raise the limit ublks_max of the module.";
    UblkMissing, "ublk-missing", 501, FAILED, "The ublk driver is not loaded",
        "Load it with `modprobe ublk_drv`, or use --transport nbd.";
    UblkStuck, "ublk-stuck", 504, FAILED, "The ublk driver did not answer in time",
        "See the kernel log, then try again.";
    UblkUnsupported, "ublk-unsupported", 501, FAILED, "This kernel cannot do what was asked of ublk",
        "Leave the option out, or use a newer kernel.";
    Unknown, "unknown", 500, FAILED, "The server reports a failure that this firn does not know",
        "Use a client of the server's version.";
    UpgradeRefused, "upgrade-refused", 409, FAILED, "The server was not upgraded",
        "Correct what the detail names; the server goes on as it was.";
    UpgradeUnderWay, "upgrade-under-way", 409, FAILED, "An upgrade is under way",
        "Wait until it has ended: GET /v1/upgrade.";
    Usage, "usage", 400, USAGE, "The command line makes no sense",
        "See --help.";
    VolumeBusy, "volume-busy", 409, FAILED, "Another command works on the volume or snapshot",
        "Try again when that has ended.";
    VolumeDeleted, "volume-deleted", 410, FAILED, "Another host has deleted the volume",
        "Detach it here.";
    VolumeExists, "volume-exists", 409, FAILED, "A volume of this name exists",
        "Choose another name.";
    VolumeFenced, "volume-fenced", 409, FAILED, "Another host has taken the volume over",
        "Use the volume on that host.";
    VolumeHeld, "volume-held", 409, FAILED, "Another host has the volume open",
        "Detach it there, or declare the loss with `firn attach VOLUME --take-over`.";
    VolumeInUse, "volume-in-use", 409, FAILED, "The volume is in use",
        "Unmount, disconnect or detach it first.";
    WrongHost, "wrong-host", 403, FAILED, "The request names another host or comes from another page",
        "Use an IP address or localhost, and this server's own page.";
}

impl FailureCode {
    /// The code that has this name, as a problem document of a server may carry it.
    pub(crate) fn from_name(name: &str) -> Self {
        let mut all = Self::ALL.iter();
        all.find(|code| code.name() == name)
            .map_or(FailureCode::Unknown, |code| *code)
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    pub(crate) fn status(self) -> u16 {
        self.row().status
    }

    pub(crate) fn exit_status(self) -> u8 {
        self.row().exit
    }

    pub(crate) fn title(self) -> &'static str {
        self.row().title
    }

    pub(crate) fn remedy(self) -> &'static str {
        self.row().remedy
    }
}

/// What went wrong, for people and for scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: FailureCode,
    /// Operation, object, cause and remedy.
    pub(crate) detail: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Failure {
            code,
            detail: detail.into(),
        }
    }

    /// A value that makes no sense.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Failure::new(FailureCode::Invalid, detail)
    }

    /// A step of the server's own that should never fail.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Failure::new(FailureCode::Internal, detail)
    }

    /// The same failure, found on the command line before anything was touched.
    pub(crate) fn into_usage(self) -> Self {
        Failure::new(FailureCode::Usage, self.detail)
    }

    /// A file operation that failed: `operation` on `path`.
    pub(crate) fn io(operation: &str, path: &Path, source: &io::Error) -> Self {
        use io::ErrorKind as Io;
        let (code, remedy) = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => (
                FailureCode::DiskFull,
                "; free space, or choose smaller --log-size and --cache-size",
            ),
            Io::PermissionDenied | Io::ReadOnlyFilesystem => (
                FailureCode::NoPermission,
                "; check the owner and mode of the directory, or choose another",
            ),
            _ => (FailureCode::DiskFailed, ""),
        };
        Failure::new(
            code,
            format!("cannot {operation} {}: {source}{remedy}", path.display()),
        )
    }

    /// A place at which the server cannot listen; `what` is served there, `flag` says another one.
    pub(crate) fn listen(
        what: &str,
        place: &impl fmt::Display,
        flag: &str,
        source: &io::Error,
    ) -> Self {
        use io::ErrorKind as Io;
        let (code, cause) = match source.kind() {
            Io::PermissionDenied | Io::ReadOnlyFilesystem => (
                FailureCode::NoPermission,
                "a port below 1024 needs CAP_NET_BIND_SERVICE, a socket a directory that this \
                 user may write to",
            ),
            Io::AddrInUse => (FailureCode::AddressInUse, "is another server running?"),
            Io::AddrNotAvailable => (
                FailureCode::AddressInUse,
                "no network interface of this machine has this address",
            ),
            _ => (FailureCode::AddressInUse, "it is no place for a socket"),
        };
        Failure::new(
            code,
            format!(
                "cannot listen for {what} on {place}: {source}; {cause}. Choose another address \
                 with {flag}"
            ),
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        use store::Kind;
        let code = match error.kind() {
            Kind::Denied => FailureCode::StoreDenied,
            Kind::Unsupported => FailureCode::StoreUnsupported,
            Kind::OutOfRange | Kind::Invalid => FailureCode::Invalid,
            Kind::Incompatible => FailureCode::ForeignFormat,
            Kind::Unavailable | Kind::Unknown => FailureCode::StoreUnavailable,
            _ => FailureCode::StoreFailed,
        };
        Failure::new(code, error.chain())
    }
}

impl From<volume::OpenError> for Failure {
    fn from(error: volume::OpenError) -> Self {
        use volume::OpenError as E;
        use volume::hostlog::stop::Stop;
        let code = match &error {
            E::Options(_) => FailureCode::BadOptions,
            E::Foreign(_) => FailureCode::ForeignFormat,
            E::Newer { .. } => FailureCode::NewerFormat,
            E::Corrupt(_) => FailureCode::Corrupt,
            E::Disk(_) => FailureCode::DiskFailed,
            E::Store(_) => FailureCode::StoreFailed,
            E::NoSuchVolume(_) | E::NotInTrash(_) => FailureCode::NoSuchVolume,
            // The name is free, and the detail says which one it has.
            E::Renamed { name, .. } | E::RenamedAndGone { name, .. } if name.contains('@') => {
                FailureCode::NoSuchSnapshot
            }
            E::Renamed { .. } | E::RenamedAndGone { .. } => FailureCode::NoSuchVolume,
            E::Renaming { .. } => FailureCode::VolumeBusy,
            E::NoSuchSnapshot(_) => FailureCode::NoSuchSnapshot,
            E::Exists(name) if name.contains('@') => FailureCode::SnapshotExists,
            E::Exists(_) => FailureCode::VolumeExists,
            E::Held { .. } => FailureCode::VolumeHeld,
            E::Fenced(_) => FailureCode::VolumeFenced,
            E::Deleted(_) => FailureCode::VolumeDeleted,
            E::RootMissing(_) => FailureCode::RootMissing,
            E::StoreWentBack { .. } => FailureCode::StoreWentBack,
            E::BaseGone { .. } => FailureCode::BaseGone,
            E::StateGone(_) => FailureCode::StateGone,
            E::HoldEnded(_) => FailureCode::HoldEnded,
            E::HostStopped(Stop::Cloned(_)) => FailureCode::HostCloned,
            E::HostStopped(Stop::Retired(_)) => FailureCode::HostRetired,
            E::HostStopped(Stop::SetBack(_)) => FailureCode::StoreWentBack,
            E::HostStopped(Stop::Damaged(_)) => FailureCode::Corrupt,
            E::HostStopped(Stop::LocalLog) => FailureCode::LogPoisoned,
            E::InUse(_) => FailureCode::VolumeInUse,
            E::Busy(_) | E::TooManyPoints(..) => FailureCode::VolumeBusy,
            E::Invalid(_) => FailureCode::Invalid,
            E::Poisoned => FailureCode::LogPoisoned,
            _ => FailureCode::Internal,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ublk::Error> for Failure {
    fn from(error: ublk::Error) -> Self {
        use ublk::error::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NoDriver => FailureCode::UblkMissing,
            ErrorKind::PermissionDenied => FailureCode::UblkDenied,
            ErrorKind::Unsupported | ErrorKind::NotGranted | ErrorKind::HandlerMismatch => {
                FailureCode::UblkUnsupported
            }
            ErrorKind::LimitReached => FailureCode::UblkLimit,
            ErrorKind::Invalid => FailureCode::Invalid,
            ErrorKind::Busy => FailureCode::VolumeInUse,
            ErrorKind::TimedOut | ErrorKind::Stuck => FailureCode::UblkStuck,
            _ => FailureCode::UblkFailed,
        };
        Failure::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_is_unique_and_has_a_status_a_title_and_a_remedy() {
        let mut names = BTreeSet::new();
        for &code in FailureCode::ALL {
            let name = code.name();
            assert!(names.insert(name), "{name} stands for two failures");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'),
                "{name}"
            );
            assert!((400..600).contains(&code.status()), "{name}");
            assert_eq!(code.exit_status() == USAGE, code == FailureCode::Usage);
            assert!(!code.title().is_empty(), "{name}");
            assert!(code.remedy().ends_with('.'), "{name}");
            assert_eq!(FailureCode::from_name(name), code);
        }
        assert_eq!(
            FailureCode::from_name("of-a-newer-server"),
            FailureCode::Unknown
        );
    }

    #[test]
    fn an_address_that_cannot_be_had_is_blamed_on_what_keeps_it() {
        let failed = |kind: io::ErrorKind| Failure::listen("NBD", &"here", "--nbd", &kind.into());
        let refused = failed(io::ErrorKind::PermissionDenied);
        assert_eq!(refused.code, FailureCode::NoPermission);
        assert!(!refused.detail.contains("another server"), "{refused}");
        let taken = failed(io::ErrorKind::AddrInUse);
        assert_eq!(taken.code, FailureCode::AddressInUse);
        assert!(taken.detail.contains("another server"), "{taken}");
        let foreign = failed(io::ErrorKind::AddrNotAvailable);
        assert!(foreign.detail.contains("no network interface"), "{foreign}");
    }

    #[test]
    fn the_openapi_document_lists_every_code() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("api/openapi.json")).unwrap();
        let listed = &document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
        let names: Vec<&str> = FailureCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(*listed, serde_json::json!(names));
    }
}
