//! The settings that may change while the server runs, and who is told of a change.
//!
//! A change is checked whole before any of it counts. It lasts until the process ends: what a server
//! starts with is in its configuration alone, so that nothing is in force that nobody can read there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ControlPlane;
use crate::cli::args::SnapshotSchedule;
use crate::config::{ControlSettings, check_rpo, check_schedules};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{ChangeSettings, ChangeableSettings};
use crate::units::TimeSpan;

/// What the control plane keeps to now.
#[derive(Debug)]
pub(super) struct SettingsInForce(Mutex<ControlSettings>);

impl SettingsInForce {
    pub(super) fn new(settings: ControlSettings) -> Self {
        SettingsInForce(Mutex::new(settings))
    }

    fn lock(&self) -> MutexGuard<'_, ControlSettings> {
        // A change is one assignment, so a panic cannot leave it half made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn trash_keep(&self) -> Duration {
        self.lock().trash_keep
    }

    pub(super) fn snapshot_schedules(&self) -> Vec<SnapshotSchedule> {
        self.lock().snapshot_schedules.clone()
    }
}

/// What `settings` become by `change`, checked.
fn changed(settings: &ControlSettings, change: &ChangeSettings) -> Result<ControlSettings> {
    let time = |given: Option<TimeSpan>, now| given.map_or(now, |time| time.0);
    let snapshot_schedules = match &change.snapshot_schedule {
        None => settings.snapshot_schedules.clone(),
        Some(all) => all
            .iter()
            .map(|text| text.parse().map_err(Failure::invalid))
            .collect::<Result<_>>()?,
    };
    let changed = ControlSettings {
        rpo: time(change.rpo, settings.rpo),
        slow_request: time(change.slow_request, settings.slow_request),
        trash_keep: time(change.trash_keep, settings.trash_keep),
        snapshot_schedules,
    };
    check_rpo(changed.rpo)?;
    check_schedules(&changed.snapshot_schedules)?;
    Ok(changed)
}

impl From<&ControlSettings> for ChangeableSettings {
    fn from(settings: &ControlSettings) -> Self {
        let schedules = settings.snapshot_schedules.iter();
        ChangeableSettings {
            rpo: TimeSpan(settings.rpo),
            slow_request: TimeSpan(settings.slow_request),
            snapshot_schedule: schedules.map(ToString::to_string).collect(),
            trash_keep: TimeSpan(settings.trash_keep),
        }
    }
}

impl ControlPlane {
    pub(crate) fn settings(&self) -> ChangeableSettings {
        ChangeableSettings::from(&*self.settings.lock())
    }

    /// Has the server keep to other settings from now on; what they all are then.
    pub(crate) fn change_settings(&self, change: &ChangeSettings) -> Result<ChangeableSettings> {
        // Held to the end: of two changes at once one is told what the other made of it.
        let mut now = self.settings.lock();
        let next = changed(&now, change)?;
        if next.rpo != now.rpo {
            let rpo_ns = u64::try_from(next.rpo.as_nanos()).unwrap_or(u64::MAX);
            if !self.host.set_rpo(rpo_ns) {
                return Err(Failure::new(
                    FailureCode::NotReady,
                    "the log is still recovered; try again when the server is ready",
                ));
            }
        }
        self.latencies.slow().set_threshold(next.slow_request);
        *now = next;
        Ok(ChangeableSettings::from(&*now))
    }
}
