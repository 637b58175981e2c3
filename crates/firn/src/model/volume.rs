//! A volume as the API shows it: its health, its export, its disk, how far its writes have got.
//!
//! Types only; the names of fields and values are part of the API.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::space::VolumeSpace;

/// A volume as the store describes it and, if this server has it open, its present state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: u32,
    pub(crate) state: VolumeState,
    /// Which opening of the volume this is; rises each time another server opens it.
    pub(crate) epoch: u64,
    /// The other host that has it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// Only for a volume that is open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watermarks: Option<Watermarks>,
    /// Why the last upload failed, while uploads fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upload_error: Option<String>,
    /// By how much the recovery point is missed, in seconds; only while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) overdue_seconds: Option<f64>,
    /// Snapshots that only the log of this server has, and the store not yet; only if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log_snapshots: Option<u64>,
    /// Bytes that were given up since the volume was opened, because the log could not be read; only
    /// if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) damaged_bytes: Option<u64>,
    /// What it takes in the store; only for a volume that compaction has surveyed since it was opened here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) space: Option<VolumeSpace>,
    /// How it is served; only for a volume that is open or waits here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<Health>,
    /// Why it cannot be opened yet, or is left out; only for a volume that this server is to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<String>,
    /// How it is reached over NBD; only for a volume that is open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nbd: Option<NbdInfo>,
    /// The disk that it is attached as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<DiskInfo>,
}

/// How something is served, from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HealthLevel {
    #[default]
    Ok,
    /// It is served, but a promise is weaker than it should be.
    Degraded,
    /// It is not served.
    Stuck,
}

impl HealthLevel {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            HealthLevel::Ok => "ok",
            HealthLevel::Degraded => "degraded",
            HealthLevel::Stuck => "stuck",
        }
    }
}

/// How something is served, and why not better.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    pub(crate) status: HealthLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// What kind of failure it is, where that decides what helps: another kind is another remedy.
    #[serde(skip)]
    pub(crate) kind: Option<store::Kind>,
}

/// A volume as an NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NbdInfo {
    pub(crate) uris: Vec<String>,
    /// The number of connections.
    pub(crate) connections: usize,
}

/// A volume as a ublk disk: what was asked for, and what the kernel granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DiskInfo {
    /// The path that programs open: `/dev/ublkbN`.
    pub(crate) device: String,
    pub(crate) data_mode_asked: DataMode,
    pub(crate) data_mode: DataMode,
    /// Options that were asked for and not granted.
    pub(crate) dropped: Vec<DroppedOption>,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    /// By queue: the thread that serves it.
    pub(crate) threads: Vec<String>,
    /// Counts of its queues since this server has the disk.
    pub(crate) requests: RequestCounts,
    pub(crate) read_only: bool,
    pub(crate) part_scan: bool,
    /// How long a request may stay parked before it fails; absent: without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) park_timeout_seconds: Option<f64>,
}

/// How a disk's requests were served: the data mode says what was granted, these say what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestCounts {
    /// Requests that the kernel handed over.
    pub(crate) taken: u64,
    /// Transfers straight between a request's pages and a file.
    pub(crate) uncopied: u64,
    /// Transfers through the server's memory.
    pub(crate) copied: u64,
    /// Requests that failed by a fault of the server itself.
    pub(crate) faults: u64,
}

/// An option that was asked for and not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DroppedOption {
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

/// How the bytes of a disk's requests are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DataMode {
    /// The first mode below that the kernel offers.
    Auto,
    /// Straight between the request's pages and the log or cache (Linux 6.16).
    ZeroCopy,
    /// Copied by the server with reads and writes of the char device (Linux 6.5).
    UserCopy,
    /// Copied by the kernel, into a buffer taken when a write arrives (Linux 6.0).
    GetData,
    /// Copied by the kernel, into a buffer kept for each tag (Linux 6.0).
    Copy,
}

impl DataMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DataMode::Auto => "auto",
            DataMode::ZeroCopy => "zero-copy",
            DataMode::UserCopy => "user-copy",
            DataMode::GetData => "get-data",
            DataMode::Copy => "copy",
        }
    }
}

/// Whether a volume can be used on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VolumeState {
    /// Served by this server.
    Open,
    /// Not open on any host.
    Closed,
    /// Open on another host.
    Held,
    /// Taken over by another host: this one writes no more.
    Fenced,
    /// A sync of the log failed: read-only.
    Poisoned,
}

impl VolumeState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            VolumeState::Open => "open",
            VolumeState::Closed => "closed",
            VolumeState::Held => "held",
            VolumeState::Fenced => "fenced",
            VolumeState::Poisoned => "poisoned",
        }
    }
}

/// How far a volume's writes have got, as positions in its history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watermarks {
    /// The newest completed write: survives the death of the server.
    pub(crate) acknowledged: Watermark,
    /// Survives loss of power.
    pub(crate) flushed: Watermark,
    /// Survives the loss of this host.
    pub(crate) stored: Watermark,
}

/// One of a volume's watermarks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watermark {
    pub(crate) lsn: u64,
    /// How long the oldest newer write has waited to reach this watermark; zero if none waits.
    pub(crate) age_seconds: f64,
}

/// Answer to `GET /v1/volumes`: a part of the list, by name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeList {
    pub(crate) volumes: Vec<Volume>,
    /// Behind what the next part begins, as `after`; none: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    /// Volumes that this server is to serve and cannot open yet, or leaves out, of the names that the part covers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) waiting: Vec<WaitingVolume>,
    /// Why the store could not be asked: then only volumes that are open here are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store_error: Option<String>,
}

/// A volume that a server is to serve and cannot open yet; it retries by itself, but for one that it leaves out.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WaitingVolume {
    pub(crate) name: String,
    /// Why the last attempt failed.
    pub(crate) why: String,
    /// The same as a stable word.
    pub(crate) code: String,
    pub(crate) since_seconds: f64,
}
