//! What travels over the HTTP API, shared by the server and the command line.
//!
//! Names here are part of the API: `api/openapi.json` describes them, and a test compares the two.
//! Sizes are bytes, ages are seconds.

use serde::{Deserialize, Serialize};

/// A volume as the store knows it, and, where this server has it open, as it stands now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: u32,
    pub(crate) state: State,
    /// Which opening of the volume this is; rises each time another server opens it.
    pub(crate) epoch: u64,
    /// The other host that has it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// Only of a volume that is open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watermarks: Option<Watermarks>,
    /// Why the last upload failed, while uploads fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upload_error: Option<String>,
}

/// Whether a volume can be used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// Served by this server.
    Open,
    /// In the store, and open nowhere.
    Closed,
    /// Open on another host.
    Held,
    /// Taken over by another host: nothing is written here any more.
    Fenced,
    /// A sync of the log failed: reads only.
    Poisoned,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Closed => "closed",
            State::Held => "held",
            State::Fenced => "fenced",
            State::Poisoned => "poisoned",
        }
    }
}

/// How far a volume's writes have got, as positions in its history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watermarks {
    /// The newest completed write: survives the death of the server.
    pub(crate) acknowledged: Mark,
    /// Survives loss of power.
    pub(crate) flushed: Mark,
    /// Survives the loss of this host.
    pub(crate) stored: Mark,
}

/// One rung of the ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) lsn: u64,
    /// How long something newer than this rung has been waiting for it; zero if nothing is.
    pub(crate) age_seconds: f64,
}

/// Answer to `GET /v1/volumes`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeList {
    pub(crate) volumes: Vec<Volume>,
}

/// Body of `POST /v1/volumes`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateVolume {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    #[serde(default = "default_block_size")]
    pub(crate) block_size: u32,
}

fn default_block_size() -> u32 {
    512
}

/// Body of `POST /v1/volumes/{name}/attach`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<String>,
}

/// Where a volume can be reached.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) transport: String,
    /// The one to use.
    pub(crate) uri: String,
    /// All of them.
    pub(crate) uris: Vec<String>,
}

/// A failed request, RFC 9457 (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) status: u16,
    pub(crate) detail: String,
    /// Stable word for scripts.
    pub(crate) code: String,
}
