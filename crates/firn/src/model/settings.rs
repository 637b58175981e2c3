//! The JSON documents of the settings that may change while a server runs.
//!
//! Types only; the names of fields and values are part of the API.

use serde::{Deserialize, Serialize};

use serde_json::{Map, Value};

use crate::units::{Interval, Size, TimeSpan};

/// Answer to `GET /v1/settings`: what the server keeps to now. Each is explained by the flag of `firn serve`
/// that has its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeableSettings {
    pub(crate) rpo: TimeSpan,
    pub(crate) slow_request: TimeSpan,
    pub(crate) gc: Interval,
    pub(crate) compact: Interval,
    pub(crate) scrub: Interval,
    /// Like `demo=1h,keep=24`.
    pub(crate) snapshot_schedule: Vec<String>,
    pub(crate) trash_keep: TimeSpan,
    pub(crate) cache_size: Size,
}

/// What a program passes to the one that takes its place in an upgrade: [`ChangeableSettings`] by their names, for that one
/// may have more of them, or fewer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassedSettings {
    /// What it started with.
    pub(crate) configured: Map<String, Value>,
    pub(crate) in_force: Map<String, Value>,
}

/// Body of `PATCH /v1/settings`: what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rpo: Option<TimeSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slow_request: Option<TimeSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gc: Option<Interval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compact: Option<Interval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scrub: Option<Interval>,
    /// All of them: one that is not here ends. The snapshots that it took stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_schedule: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trash_keep: Option<TimeSpan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache_size: Option<Size>,
}
