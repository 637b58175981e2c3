//! Why a client's request, or its whole connection, failed.

use std::io;

use crate::codec::wire;

/// Why a client's request, or its whole connection, failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection itself.
    #[error("the connection was lost {doing}: {source}")]
    Connection {
        /// What was done.
        doing: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server answers what no NBD server would; the connection is of no more use.
    #[error("the server does not keep to the NBD protocol: {0}")]
    Protocol(&'static str),
    /// The server does not let the client enter.
    #[error("the server refuses export {name:?}: {why}")]
    Refused {
        /// Name of the export.
        name: String,
        /// The option reply's type, `wire::REP_ERR_*`.
        error: u32,
        /// Why, in the server's words where it has some.
        why: String,
    },
    /// The server could not do what was asked; the connection goes on.
    #[error("{command} of {length} bytes at {offset} failed: {why}")]
    Failed {
        /// The command.
        command: &'static str,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// The protocol's error value.
        error: u32,
        /// Why, in the server's words where it has some.
        why: String,
    },
}

impl ClientError {
    pub(super) fn connection_lost(doing: &'static str) -> impl Fn(io::Error) -> ClientError {
        move |source| ClientError::Connection { doing, source }
    }
}

pub(super) fn command_name(command: u16) -> &'static str {
    match command {
        wire::CMD_READ => "a read",
        wire::CMD_WRITE => "a write",
        wire::CMD_FLUSH => "a flush",
        wire::CMD_WRITE_ZEROES => "writing zeroes",
        wire::CMD_BLOCK_STATUS => "asking for block status",
        _ => "a request",
    }
}

/// The protocol's error value in words.
pub(super) fn error_text(error: u32) -> String {
    let text = match error {
        wire::EPERM => "not permitted",
        5 => "input/output error",
        12 => "out of memory",
        wire::EINVAL => "invalid request",
        wire::ENOSPC => "no space left",
        95 => "not supported",
        wire::ESHUTDOWN => "the server is going away",
        _ => return format!("NBD error {error}"),
    };
    text.to_owned()
}
