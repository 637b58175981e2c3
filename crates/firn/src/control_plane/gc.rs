//! The garbage collector, as the API shows it: passes that are asked for, what the last one found, and whether it works.
//!
//! What is garbage is for the engine alone to say.

use std::time::{Duration, SystemTime};

use volume::units::{VolumeId, parse_hex_identity};
use volume::{Amount, CollectorReport, Findings};

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{GcAmount, GcPass, GcState};

/// A collector that has not succeeded for so long is no more one.
const OVERDUE_HOURS: u64 = 24;

fn amount(of: Amount) -> GcAmount {
    GcAmount {
        objects: of.objects,
        bytes: of.bytes,
    }
}

fn describe(found: &Findings) -> GcPass {
    GcPass {
        live_packs: amount(found.live_packs),
        live_indexes: amount(found.live_indexes),
        held: amount(found.held),
        garbage: amount(found.garbage),
        removed: amount(found.removed),
        failed: amount(found.failed),
        why_nothing_went: found.reason_nothing_was_removed().map(str::to_owned),
        recovered: amount(found.recovered),
        roots: found.roots,
        pins: found.pins,
        records: found.records,
        index_blocks: found.index_blocks,
        index_bytes: found.index_bytes,
        unsure_hosts: found.unsure_hosts,
        is_overtaken: found.is_overtaken,
    }
}

impl ControlPlane {
    /// A pass of the collector over the whole store.
    pub(crate) async fn collect_garbage(&self, dry_run: bool) -> Result<GcPass> {
        let found = self.host.collect_garbage(dry_run).await;
        let found = found.map_err(Failure::from)?;
        Ok(describe(&found))
    }

    /// A person's word that a volume without a root is gone for good.
    pub(crate) async fn forget_volume(&self, id: &str) -> Result<()> {
        let Some(id) = parse_hex_identity(id) else {
            return Err(Failure::new(
                FailureCode::Invalid,
                format!(
                    "{id:?} is no volume id: it has 32 hexadecimal digits, as the collector prints it"
                ),
            ));
        };
        let forgotten = self.host.forget_volume(VolumeId(id)).await;
        forgotten.map_err(Failure::from)
    }

    /// What the collector of this server did.
    pub(crate) fn gc_state(&self) -> GcState {
        let report = self.host.collector();
        GcState {
            is_on: report.is_on,
            passes: report.passes,
            failures_in_a_row: report.failures_in_a_row,
            last_success_unix_ms: report.last_success_unix_ms,
            last_error: report.last_error,
            removed: amount(report.removed),
            last: (report.findings != Findings::default()).then(|| describe(&report.findings)),
        }
    }

    /// Why the collector is no more one, if so.
    pub(super) fn gc_trouble(&self) -> Option<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        describe_trouble(&self.host.collector(), now.unwrap_or_default())
    }
}

fn describe_trouble(report: &CollectorReport, now: Duration) -> Option<String> {
    let hours_since = |unix_ms| {
        let age = now.saturating_sub(Duration::from_millis(unix_ms));
        age.as_secs() / 3600
    };
    // Data is at stake: nobody waits a day to hear of it.
    if let Some(volume) = report.missing_root {
        return Some(format!(
            "the root of volume {volume} is missing: somebody removed it from the store, and no garbage is removed until it \
             is put back or `firn volume forget {volume} --gone` says that it never will be"
        ));
    }
    // Where it is off nobody expects passes.
    let on_since = report.on_since_unix_ms.filter(|_| report.is_on)?;
    // While it was off nobody expected any.
    let succeeded = report.last_success_unix_ms.unwrap_or(on_since);
    let since = succeeded.max(on_since);
    let hours = hours_since(since);
    if hours < OVERDUE_HOURS {
        return None;
    }
    let why = match (&report.last_error, report.busy_since_unix_ms) {
        (Some(error), _) => error.clone(),
        (None, Some(begun)) => format!("one has been going on for {} h", hours_since(begun)),
        (None, None) => "none was begun".to_owned(),
    };
    Some(format!(
        "no pass has ended well for {hours} h, so the store only grows: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_has_not_succeeded_for_a_day_is_said_to_be_in_trouble() {
        let hour = |hours: u64| Duration::from_secs(hours * 3600);
        let mut report = CollectorReport {
            is_on: true,
            on_since_unix_ms: Some(0),
            ..CollectorReport::default()
        };
        assert_eq!(describe_trouble(&report, hour(23)), None);
        let said = describe_trouble(&report, hour(48)).unwrap();
        assert!(said.contains("for 48 h"), "it need not fail: {said}");
        report.busy_since_unix_ms = Some(3_600_000);
        let said = describe_trouble(&report, hour(31)).unwrap();
        assert!(said.contains("going on for 30 h"), "{said}");
        report.failures_in_a_row = 3;
        report.last_error = Some("a root cannot be read".into());
        assert_eq!(describe_trouble(&report, hour(23)), None);
        let said = describe_trouble(&report, hour(24)).unwrap();
        assert!(said.contains("a root cannot be read"), "{said}");
        report.last_success_unix_ms = Some(2 * 3_600_000);
        assert_eq!(describe_trouble(&report, hour(25)), None);
        report.on_since_unix_ms = Some(40 * 3_600_000);
        assert_eq!(describe_trouble(&report, hour(41)), None, "it was off");
        let said = describe_trouble(&report, hour(64)).unwrap();
        assert!(said.contains("for 24 h"), "{said}");
    }

    #[test]
    fn a_missing_root_is_said_at_once_and_where_the_collector_is_off() {
        let mut report = CollectorReport::default();
        assert_eq!(describe_trouble(&report, Duration::ZERO), None);
        report.missing_root = Some(VolumeId([9; 16]));
        let said = describe_trouble(&report, Duration::ZERO).unwrap();
        let remedy = format!("firn volume forget {}", VolumeId([9; 16]));
        assert!(
            said.contains("is missing") && said.contains(&remedy),
            "{said}"
        );
    }
}
