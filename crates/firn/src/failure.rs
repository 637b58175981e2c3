//! The one error of the binary: what a person or a script is told.
//!
//! Every failure has a stable code (for problem documents and scripts), an HTTP status, and a
//! text that names the operation, the thing and the remedy. Richer errors of the crates below end
//! here; nothing above this needs to know them.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// What went wrong, for people and for scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Stable word: part of the API.
    pub(crate) code: String,
    /// HTTP status.
    pub(crate) status: u16,
    /// Operation, thing, cause and remedy.
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: &str, status: u16, text: impl Into<String>) -> Self {
        Failure {
            code: code.to_owned(),
            status,
            text: text.into(),
        }
    }

    /// What the user asked for makes no sense.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Failure::new("invalid", 400, text)
    }

    /// A failure of the machine below: `operation` on `path`.
    pub(crate) fn io(operation: &str, path: &Path, source: &io::Error) -> Self {
        use io::ErrorKind as Io;
        let remedy = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => {
                "; free space, or choose smaller --log-size and --cache-size"
            }
            Io::PermissionDenied | Io::ReadOnlyFilesystem => {
                "; check the owner and mode of the directory, or choose another"
            }
            _ => "",
        };
        let code = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded => "disk-full",
            Io::PermissionDenied | Io::ReadOnlyFilesystem => "no-permission",
            _ => "disk-failed",
        };
        Failure::new(
            code,
            500,
            format!("cannot {operation} {}: {source}{remedy}", path.display()),
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        use store::Kind;
        let (code, status) = match error.kind() {
            Kind::Denied => ("store-denied", 502),
            Kind::Unsupported => ("store-unsupported", 501),
            Kind::Invalid => ("invalid", 400),
            Kind::Foreign => ("foreign-format", 500),
            Kind::Unavailable | Kind::Unknown => ("store-unavailable", 503),
            _ => ("store-failed", 502),
        };
        Failure::new(code, status, error.chain())
    }
}

impl From<volume::OpenError> for Failure {
    fn from(error: volume::OpenError) -> Self {
        use volume::OpenError as E;
        let status = match &error {
            E::Options(_) | E::Invalid(_) => 400,
            E::NoSuchVolume(_) => 404,
            E::Exists(_) | E::Held { .. } | E::Fenced(_) | E::InUse(_) => 409,
            E::Store(_) => 503,
            _ => 500,
        };
        Failure::new(error.code(), status, error.to_string())
    }
}
