//! What can go wrong with a store operation, classed by what the caller can do about it.
//!
//! An error names the operation, the store's object and, where there is one, the remedy. Its
//! [`Kind`] is for control flow. `Display` never repeats the source: print the chain.

use std::error::Error as StdError;
use std::fmt;

/// What the caller can do about a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// There is no such object. Certain.
    NotFound,
    /// The condition of a conditional write did not hold: another writer was first. Certainly not
    /// applied by *this* request; a caller whose earlier request ended [`Kind::Unknown`] reads back
    /// before it decides.
    PreconditionFailed,
    /// The write may or may not have been applied: a time-out, a 500, a connection that broke
    /// after sending. Read back before deciding anything.
    Unknown,
    /// Certainly not applied, or the read failed. Worth trying again later.
    Unavailable,
    /// The bucket is not there. Certainly not applied, and it says nothing about the object: a
    /// bucket that comes back may still have it.
    NoBucket,
    /// The store refuses these credentials, or the file's permissions do.
    Denied,
    /// The store cannot do this (for example conditional PUT), or firn was built without it.
    Unsupported,
    /// The object ends before the range that was asked for does.
    OutOfRange,
    /// The request makes no sense: a bad key, a bad URL.
    Invalid,
    /// What is there is not a store that this version of firn can use.
    Incompatible,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Opening the store.
    Open,
    /// Checking what the store offers.
    Probe,
    /// Reading an object.
    Get,
    /// Reading a part of an object.
    GetRange,
    /// Writing an object without condition.
    Put,
    /// Creating an object that must not exist.
    Create,
    /// Replacing an object of a known version.
    Update,
    /// Removing an object.
    Delete,
    /// Listing keys.
    List,
}

impl Op {
    /// Whether it changes the store, so that a lost answer leaves its outcome unknown.
    pub fn writes(self) -> bool {
        match self {
            Op::Put | Op::Create | Op::Update | Op::Delete => true,
            Op::Open | Op::Probe | Op::Get | Op::GetRange | Op::List => false,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Probe => "probe",
            Op::Get => "get",
            Op::GetRange => "get range",
            Op::Put => "put",
            Op::Create => "create",
            Op::Update => "update",
            Op::Delete => "delete",
            Op::List => "list",
        })
    }
}

/// A failed store operation.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    op: Op,
    object: String,
    detail: String,
    overload: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `op` on `object` (a key, a path or a URL).
    pub fn new(kind: Kind, op: Op, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Error {
            kind,
            op,
            object: object.into(),
            detail: detail.into(),
            overload: false,
            source: None,
        }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks it as a sign that the store has too much to do.
    #[must_use]
    pub fn overloaded(mut self) -> Self {
        self.overload = true;
        self
    }

    /// Whether fewer requests at once would help: the store said so (429, 503), or was silent for
    /// too long.
    pub fn is_overload(&self) -> bool {
        self.overload
    }

    /// What can be done about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What was asked.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The key, path or URL it was asked of.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The message followed by all its causes, on one line: for logs and for clients.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.op, self.object, self.detail)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}
