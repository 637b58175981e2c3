//! `firn check --rebuild`: makes the root and index of a volume anew from its packs, without a server, and says what
//! cannot be known of it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use volume::rebuild::{
    LeftOut, LeftOutReason, RebuildError, RebuildReport, RebuildRequest, Unknown,
    rebuild as rebuild_volume,
};
use volume::units::{VolumeId, parse_hex_identity};

use super::store_port::{StorePort, runtime};
use crate::cli::args::CheckArgs;
use crate::cli::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::units::ApproximateSize;

/// Rebuilds what is named, and prints what was found.
pub(super) fn rebuild(json: bool, url: &str, args: &CheckArgs) -> Result<()> {
    let request = request(args)?;
    let mut port = StorePort::open(url, None)?;
    let runtime = runtime(url)?;
    if !args.dry_run {
        runtime.block_on(port.prove(args.single_writer))?;
    }
    let found = runtime.block_on(rebuild_volume(&port, &request));
    port.end_progress();
    let report = found.map_err(|error| into_failure(&error))?;
    match json {
        true => output::json(&into_json(&report)),
        false => output::line(&text(&report)),
    }
}

/// What came of the repair of a volume.
pub(super) struct Repair {
    name: String,
    outcome: std::result::Result<RebuildReport, RebuildError>,
}

/// Rebuilds a volume that nobody had open.
pub(super) async fn repair(port: &StorePort, name: &str) -> Repair {
    let (unix_ms, nonce) = (now_unix_ms(), fastrand::u64(1..));
    let request = RebuildRequest {
        name: name.to_owned(),
        unix_ms,
        nonce,
        ..RebuildRequest::default()
    };
    Repair {
        name: name.to_owned(),
        outcome: rebuild_volume(port, &request).await,
    }
}

impl Repair {
    /// In words.
    pub(super) fn text(&self) -> String {
        match &self.outcome {
            Ok(report) => text(report),
            Err(error) => format!("{} was not repaired: {error}", self.name),
        }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        match &self.outcome {
            Ok(report) => into_json(report),
            Err(error) => {
                json!({ "volume": self.name, "written": false, "error": error.to_string() })
            }
        }
    }
}

fn now_unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |since| since.as_millis() as u64)
}

fn request(args: &CheckArgs) -> Result<RebuildRequest> {
    let usage = |text: &str| Failure::new(FailureCode::Usage, text);
    let [name] = &args.names[..] else {
        return Err(usage("--rebuild takes one volume, or one snapshot"));
    };
    let volume = match &args.id {
        None => None,
        Some(id) => {
            let found = parse_hex_identity(id).map(VolumeId);
            Some(found.ok_or_else(|| usage("--id takes the 32 digits of a volume's id"))?)
        }
    };
    Ok(RebuildRequest {
        name: name.clone(),
        volume,
        new_name: args.new_name.clone(),
        bytes: args.size.map(|size| size.0),
        take_over: args.take_over,
        is_trial: args.dry_run,
        unix_ms: now_unix_ms(),
        nonce: fastrand::u64(1..),
    })
}

fn into_failure(error: &RebuildError) -> Failure {
    let code = match error {
        RebuildError::Whole(_) | RebuildError::TooSmall(_) | RebuildError::Invalid(_) => {
            FailureCode::Invalid
        }
        RebuildError::Deleted(_) => FailureCode::VolumeDeleted,
        RebuildError::NotFound(..) | RebuildError::Ambiguous(..) | RebuildError::Renamed(..) => {
            FailureCode::NoSuchVolume
        }
        RebuildError::Taken(_) => FailureCode::VolumeExists,
        RebuildError::Snapshot(_) => FailureCode::NoSuchSnapshot,
        RebuildError::Held(..) => FailureCode::VolumeHeld,
        RebuildError::Outrun(_) | RebuildError::NoOutcome(_) | RebuildError::Check(_) => {
            FailureCode::StoreFailed
        }
    };
    Failure::new(code, error.to_string())
}

fn text(report: &RebuildReport) -> String {
    let how = match report.is_written {
        true => "was rebuilt",
        false => "can be rebuilt, and nothing was changed: leave out --dry-run",
    };
    let mut lines = vec![format!(
        "{} {how}: {} in size, the state at LSN {}, {} of content in {} packs",
        report.name,
        ApproximateSize(report.bytes),
        report.lsn.0,
        ApproximateSize(report.content_bytes),
        report.packs,
    )];
    if let Some((name, lsn)) = &report.base {
        lines.push(format!(
            "up to LSN {} it is what the index of {name} says",
            lsn.0
        ));
    }
    let left = report.left_out.iter().map(left_out);
    lines.extend(left.map(|left| format!("left out: {left}")));
    let unknown = report.unknown.iter();
    lines.extend(unknown.map(|unknown| format!("not known: {unknown}")));
    if report.unknown.is_empty() {
        lines.push("nothing is unknown: each block is what it was when it was last stored".into());
    }
    if report.is_written {
        lines.push(format!(
            "`firn attach {}` opens it; what a server had not uploaded of it is there yet: `firn rescue list`",
            report.name
        ));
    }
    lines.join("\n")
}

fn left_out(left: &LeftOut) -> String {
    let why = match left.reason {
        LeftOutReason::Void => "a later owner gave its LSNs out again",
        LeftOutReason::NotCommitted => "its owner's log does not name it",
        LeftOutReason::Behind => {
            "nothing says that it was committed, and what comes before it is not there"
        }
    };
    format!(
        "LSN {} to {} of epoch {}: {why}",
        left.first.0, left.last.0, left.epoch.0
    )
}

/// Stable words for scripts.
fn reason(reason: LeftOutReason) -> &'static str {
    match reason {
        LeftOutReason::Void => "void",
        LeftOutReason::NotCommitted => "not-committed",
        LeftOutReason::Behind => "behind-a-gap",
    }
}

fn kind(unknown: &Unknown) -> &'static str {
    match unknown {
        Unknown::Gap { .. } => "no-pack",
        Unknown::Commit { .. } => "not-known-to-be-committed",
        Unknown::Log(_) => "no-log",
        Unknown::SetBack { .. } => "set-back",
        Unknown::Pack { .. } => "unreadable-pack",
    }
}

fn into_json(report: &RebuildReport) -> serde_json::Value {
    let left_out = report.left_out.iter().map(|left| {
        json!({
            "epoch": left.epoch.0,
            "first_lsn": left.first.0,
            "last_lsn": left.last.0,
            "reason": reason(left.reason),
        })
    });
    let unknown = report.unknown.iter();
    let unknown =
        unknown.map(|unknown| json!({ "kind": kind(unknown), "text": unknown.to_string() }));
    let base = report.base.as_ref();
    json!({
        "volume": report.name,
        "id": report.volume.to_string(),
        "bytes": report.bytes,
        "epoch": report.epoch.0,
        "lsn": report.lsn.0,
        "base": base.map(|(name, lsn)| json!({ "name": name, "lsn": lsn.0 })),
        "packs_read": report.packs_read,
        "packs": report.packs,
        "content_bytes": report.content_bytes,
        "left_out": left_out.collect::<Vec<_>>(),
        "unknown": unknown.collect::<Vec<_>>(),
        "holder": report.holder.map(|it| json!({ "host": it.host.to_string(), "epoch": it.epoch.0 })),
        "written": report.is_written,
    })
}
