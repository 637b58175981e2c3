//! The documents of the HTTP API, shared by the server and the command line.
//!
//! Field names are part of the API: `api/openapi.json` describes them, and a test compares the two.
//! Sizes are in bytes, ages in seconds.

mod diff;
mod settings;
mod space;
mod trash;
mod volume;
mod warm_up;

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::access::Role;

pub(crate) use diff::{Diff, DiffKind, DiffRange, DiffSide};
pub(crate) use settings::{ChangeSettings, ChangeableSettings, PassedSettings};
pub(crate) use trash::{RestoreTrashed, TrashList, TrashedVolume};
pub(crate) use volume::{
    DataMode, DiskInfo, DroppedOption, Health, HealthLevel, NbdInfo, RequestCounts, Transport,
    TransportChoice, Volume, VolumeList, VolumeState, WaitingVolume, Watermark, Watermarks,
};
pub(crate) use warm_up::{HintList, HintRange, PrepareRange, PrepareRequest, Prepared};

/// Answer to `GET /v1/activity`: what was done since the volumes were opened. Who wants rates asks twice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Activity {
    /// When this was so, by a clock that never goes back.
    pub(crate) at_seconds: f64,
    /// Fraction of the log that holds data which the store lacks.
    pub(crate) log_pressure: f64,
    /// Bytes of the store that are cached on the local disk.
    pub(crate) cache_disk_bytes: u64,
    /// Requests to the store, of all kinds and outcomes.
    pub(crate) store_requests: u64,
    pub(crate) volumes: Vec<VolumeActivity>,
}

/// What was done with an open volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeActivity {
    pub(crate) name: String,
    pub(crate) watermarks: Watermarks,
    /// Operations that occurred.
    pub(crate) ops: Vec<OpActivity>,
}

/// What was done of one operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpActivity {
    /// read, write, flush, discard, write-zeroes, status or prefetch.
    pub(crate) op: String,
    /// Requests that were served.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    /// How long the served ones took together.
    pub(crate) seconds: f64,
    /// By how long they took. Buckets that hold nothing are left out.
    pub(crate) latencies: Vec<LatencyBucket>,
}

/// Requests that took equally long, to within a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencyBucket {
    /// They took less; absent for the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) below_us: Option<u64>,
    pub(crate) requests: u64,
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

/// Body of `POST /v1/volumes/{name}/rename`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenameRequest {
    /// The volume's name from then on.
    pub(crate) name: String,
}

/// Body of `POST /v1/volumes/{name}/attach`. All fields but the transport are options of a disk.
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
    /// Open the volume although another host has not let go of it: what that host has not uploaded
    /// is lost. Never kept: each loss is declared by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) take_over: bool,
    /// A number by which the caller detaches what only he attached. Never kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ticket: Option<u64>,
}

/// Where a volume can be reached.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// What `auto` chose.
    pub(crate) transport: Transport,
    /// The disk, if the transport is ublk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    /// The NBD URI to use; absent if the server has no NBD listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
    /// All NBD URIs.
    pub(crate) uris: Vec<String>,
    /// What was given up, if the volume was taken over from another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) given_up: Option<TakeOverLoss>,
}

/// What a take-over gives up: everything that the volume's last owner had not uploaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TakeOverLoss {
    /// The last owner: its name and directory.
    pub(crate) owner: String,
    /// Its identity.
    pub(crate) owner_host: String,
    /// The newest position in the store: what the owner wrote after it is lost.
    pub(crate) stored_lsn: u64,
    /// How old that position is.
    pub(crate) stored_age_seconds: f64,
    /// When the owner last wrote to the store, by its own clock.
    pub(crate) last_seen_unix_ms: u64,
}

/// Body of `POST /v1/volumes/{name}/detach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DetachRequest {
    /// Detach even if clients use it.
    pub(crate) force: bool,
    /// Another server waits for the volume: fewer requests to the store follow each other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) awaited: bool,
    /// Detach only what was attached with this number, by an attach that found it detached, and by nobody since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ticket: Option<u64>,
}

/// Body of `POST /v1/volumes/{name}/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSnapshot {
    /// What stands behind the `@`.
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) wait: SnapshotWait,
    /// When the snapshot was taken of which the volume is a copy, if it is one; the store has the new one when the
    /// request is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copied_unix_ms: Option<u64>,
}

/// Body of `POST /v1/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSnapshotGroup {
    /// `VOLUME@SNAPSHOT` of several volumes.
    pub(crate) names: Vec<String>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) wait: SnapshotWait,
}

/// What has a new snapshot or fork when it is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SnapshotWait {
    /// The log of this host: it is as durable as a flush, and goes to the store by itself
    #[default]
    Log,
    /// The store
    Store,
}

/// Answer to `GET /v1/volumes/{name}/snapshots`: a part of the list, by name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotList {
    pub(crate) snapshots: Vec<Snapshot>,
    /// Behind what the next part begins, as `after`; none: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A volume as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// `VOLUME@SNAPSHOT`.
    pub(crate) name: String,
    pub(crate) id: String,
    /// The volume that it was taken of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) volume_id: Option<String>,
    pub(crate) size_bytes: u64,
    /// The newest write in it.
    pub(crate) lsn: u64,
    pub(crate) taken_unix_ms: u64,
    pub(crate) labels: BTreeMap<String, String>,
    /// The store has it; otherwise only the log of this host, yet.
    pub(crate) stored: bool,
    /// Where it is reached: its disk, or an NBD URI; only for one that is attached here.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) attached: Option<String>,
}

/// Answer to `POST /v1/volumes/{name}/snapshots/{snapshot}/restore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Restored {
    pub(crate) volume: Volume,
    /// The snapshot that has what the volume held before, `VOLUME@SNAPSHOT`.
    pub(crate) kept: String,
}

/// Body of `POST /v1/volumes/{name}/fork`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkVolume {
    /// The new volume's name.
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) wait: SnapshotWait,
}

/// Answer to `POST /v1/volumes/{name}/fork`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forked {
    #[serde(flatten)]
    pub(crate) volume: Volume,
    /// It begins with the parent as it was after this write.
    pub(crate) parent_lsn: u64,
    /// Another host that has the parent open: what that has not brought to the store is not in the new volume.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) parent_holder: Option<String>,
    /// The store has it. If not, the log of this host has, and it goes to the store by itself.
    pub(crate) stored: bool,
}

/// Body of `POST /v1/gc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GcRequest {
    /// Look, and change nothing.
    pub(crate) dry_run: bool,
}

/// Body of `POST /v1/gc/forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetRequest {
    /// The volume's id, as the collector named it: a volume without a root has no name.
    pub(crate) volume_id: String,
}

/// How many objects of the store, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GcAmount {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Answer to `POST /v1/gc`: what a pass of the garbage collector found, and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GcPass {
    pub(crate) live_packs: GcAmount,
    pub(crate) live_indexes: GcAmount,
    /// Nothing reaches them yet, and their server may come to name them.
    pub(crate) held: GcAmount,
    /// Nothing reaches them, and nothing ever will.
    pub(crate) garbage: GcAmount,
    /// Garbage of this pass and of an earlier one.
    pub(crate) removed: GcAmount,
    /// Garbage that could not be removed this time.
    pub(crate) failed: GcAmount,
    /// Not one removal succeeded, of those that were due: what the store said.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) why_nothing_went: Option<String>,
    /// Garbage to an earlier pass, and reached: it stays, and must never happen.
    pub(crate) recovered: GcAmount,
    pub(crate) roots: u64,
    pub(crate) pins: u64,
    pub(crate) records: u64,
    pub(crate) index_blocks: u64,
    pub(crate) index_bytes: u64,
    /// Hosts whose logs are not whole: nothing of theirs is removed.
    pub(crate) unsure_hosts: u64,
    /// Another collector ended a pass meanwhile, and this one left the rest to it.
    pub(crate) is_overtaken: bool,
}

/// Answer to `GET /v1/gc`: what the garbage collector of this server did since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GcState {
    /// It runs by itself.
    pub(crate) is_on: bool,
    pub(crate) passes: u64,
    pub(crate) failures_in_a_row: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) last_success_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) last_error: Option<String>,
    pub(crate) removed: GcAmount,
    /// The last pass that came to its end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) last: Option<GcPass>,
}

/// Body of `POST /v1/upgrade`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpgradeRequest {
    /// None: what is now at the path that the server was started from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) program: Option<std::path::PathBuf>,
    /// How long each part may take.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) timeout_ms: Option<u64>,
}

/// How far an upgrade is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UpgradeStage {
    /// None was asked for.
    #[default]
    None,
    Checking,
    HandingOver,
    Done,
    Failed,
}

/// Answer to `GET /v1/upgrade`: the newest upgrade of this server's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UpgradeState {
    pub(crate) number: u64,
    pub(crate) stage: UpgradeStage,
    /// The version that serves.
    pub(crate) version: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) program: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) why: Option<String>,
}

/// Answer to `GET /v1/rescue`: what this host holds of volumes that it does not serve.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RescueTails {
    pub(crate) tails: Vec<RescueTail>,
    /// Bytes of log that all of them hold.
    pub(crate) log_bytes: u64,
}

/// A tail that is not served: acknowledged writes that are in this host's log alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RescueTail {
    pub(crate) id: String,
    /// The volume's name.
    pub(crate) volume: String,
    /// Another host took the volume over: the tail will never be served or uploaded. False: it
    /// waits for its volume to be opened.
    pub(crate) rescue: bool,
    pub(crate) newest_lsn: u64,
    /// The store has everything up to this position.
    pub(crate) stored_lsn: u64,
    /// Extents that the store lacks.
    pub(crate) extents: u64,
    /// Bytes of log that they hold.
    pub(crate) log_bytes: u64,
}

/// Body of `POST /v1/rescue/{id}/drop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DropRequest {
    /// Drop it although its volume still waits for it.
    pub(crate) force: bool,
}

/// Body of `POST /v1/rescue/{id}/fork`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkRequest {
    /// The new volume's name.
    pub(crate) name: String,
    /// Over zeroes instead of the store's state that the tail continues.
    #[serde(default)]
    pub(crate) without_base: bool,
}

/// Answer to `POST /v1/rescue/{id}/fork`: what the new volume holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForkedVolume {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// The store's state at this position is under the tail's writes. Without it, zeroes are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) base_lsn: Option<u64>,
    /// The newest write in it.
    pub(crate) newest_lsn: u64,
    /// Bytes that the log could not give: reads of them fail.
    pub(crate) damaged_bytes: u64,
}

/// Body of `POST /v1/session`: a browser exchanges a token for a cookie.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenSession {
    pub(crate) token: String,
}

/// Answer of `/v1/session`: who the caller is, for this server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionInfo {
    pub(crate) role: Role,
    pub(crate) who: String,
}

/// Answer to `GET /v1/events`: changes that were asked for, the newest first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventList {
    pub(crate) events: Vec<Event>,
}

/// A change that was asked for, and how that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at_unix_ms: u64,
    /// Method and path of the request.
    pub(crate) what: String,
    pub(crate) who: String,
    /// HTTP status of the answer.
    pub(crate) status: u16,
    pub(crate) request_id: String,
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
