//! What travels over the HTTP API, shared by the server and the command line.
//!
//! Names here are part of the API: `api/openapi.json` describes them, and a test compares the two.
//! Sizes are bytes, ages are seconds.

use clap::ValueEnum;
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
    /// How it is reached over NBD; only of a volume that is open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nbd: Option<Nbd>,
    /// The disk that it is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<Disk>,
}

/// A volume as an NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nbd {
    pub(crate) uris: Vec<String>,
    /// Clients now.
    pub(crate) connections: usize,
}

/// A volume as a ublk disk: what was asked for, and what was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// As programs open it: `/dev/ublkbN`.
    pub(crate) device: String,
    pub(crate) data_mode_asked: DataMode,
    pub(crate) data_mode: DataMode,
    /// What was wished for and is not there.
    pub(crate) dropped: Vec<Dropped>,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    /// By queue: the thread that serves it.
    pub(crate) threads: Vec<String>,
    /// What its queues did since this server has the disk.
    pub(crate) requests: Requests,
    pub(crate) read_only: bool,
    pub(crate) part_scan: bool,
    /// How long a request may stay parked before it fails; absent: without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) park_timeout_seconds: Option<f64>,
}

/// How a disk's requests were served: the data mode is what was granted, this is what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests {
    /// That the kernel handed over.
    pub(crate) taken: u64,
    /// Whose bytes went straight between the request's pages and a file.
    pub(crate) uncopied: u64,
    /// Whose bytes passed through the server's memory.
    pub(crate) copied: u64,
    /// That failed for a fault of the server's own.
    pub(crate) faults: u64,
}

/// A wish that was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// How a volume is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// A block device of this machine, /dev/ublkbN.
    Ublk,
    /// A network block device.
    Nbd,
}

/// How a volume is to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransportChoice {
    /// A ublk disk where this machine offers it, else nbd.
    #[default]
    Auto,
    /// A block device of this machine, /dev/ublkbN.
    Ublk,
    /// A network block device.
    Nbd,
}

/// How the bytes of a disk's requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DataMode {
    /// The first of those below that the kernel offers.
    Auto,
    /// Straight between the request's pages and the log or cache (Linux 6.16).
    ZeroCopy,
    /// Copied by the server, piece by piece (Linux 6.5).
    UserCopy,
    /// Copied by the kernel, into a buffer taken when a write comes (Linux 6.0).
    GetData,
    /// Copied by the kernel, into buffers kept for each request that may come (Linux 6.0).
    Copy,
}

impl DataMode {
    pub(crate) fn word(self) -> &'static str {
        match self {
            DataMode::Auto => "auto",
            DataMode::ZeroCopy => "zero-copy",
            DataMode::UserCopy => "user-copy",
            DataMode::GetData => "get-data",
            DataMode::Copy => "copy",
        }
    }
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

/// Body of `POST /v1/volumes/{name}/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResizeRequest {
    pub(crate) size_bytes: u64,
}

/// Body of `POST /v1/volumes/{name}/attach`. All but the transport are wishes about a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AttachRequest {
    pub(crate) transport: TransportChoice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_mode: Option<DataMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u16>,
    pub(crate) read_only: bool,
    pub(crate) no_part_scan: bool,
    /// Zero: without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) park_timeout_seconds: Option<f64>,
}

/// Where a volume can be reached.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// What `auto` chose.
    pub(crate) transport: Transport,
    /// The disk, where the transport is ublk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    /// The NBD URI to use; absent where the server listens nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
    /// All NBD URIs.
    pub(crate) uris: Vec<String>,
}

/// Body of `POST /v1/volumes/{name}/detach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DetachRequest {
    /// Also if clients use it.
    pub(crate) force: bool,
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
    /// What usually helps; absent in documents of older servers.
    #[serde(default)]
    pub(crate) remedy: String,
}
