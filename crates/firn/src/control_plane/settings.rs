//! The settings that may change while the server runs, and who is told of a change.
//!
//! A change is checked whole before any of it counts. It lasts until the process ends: what a server
//! starts with is in its configuration alone, so that nothing is in force that nobody can read there. An
//! upgrade is the same process, so changes pass to the next program, but for what its configuration changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

use super::ControlPlane;
use crate::cli::args::SnapshotSchedule;
use crate::config::{ControlSettings, check_cache_size, check_rpo, check_schedules};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{ChangeSettings, ChangeableSettings, PassedSettings};
use crate::units::{Size, TimeSpan};

/// The name of the setting that is a file's size.
const CACHE_SIZE: &str = "cache_size";

/// What the control plane keeps to now.
#[derive(Debug)]
pub(super) struct SettingsInForce {
    /// What this program started with.
    configured: ChangeableSettings,
    now: Mutex<ControlSettings>,
    /// Held by the one change that is made: that of a file's size takes time.
    changing: tokio::sync::Mutex<()>,
}

impl SettingsInForce {
    /// The file of the read cache may have another size than the configured one, in a program that took another's place.
    pub(super) fn new(settings: ControlSettings, cache_size: Size) -> Self {
        SettingsInForce {
            configured: ChangeableSettings::from(&settings),
            now: Mutex::new(ControlSettings {
                cache_size,
                ..settings
            }),
            changing: tokio::sync::Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ControlSettings> {
        // A change is one assignment, so a panic cannot leave it half made.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
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
        gc: change.gc.unwrap_or(settings.gc),
        compact: change.compact.unwrap_or(settings.compact),
        scrub: change.scrub.unwrap_or(settings.scrub),
        trash_keep: time(change.trash_keep, settings.trash_keep),
        snapshot_schedules,
        cache_size: change.cache_size.unwrap_or(settings.cache_size),
    };
    change.cache_size.map_or(Ok(()), check_cache_size)?;
    check_rpo(changed.rpo)?;
    check_schedules(&changed.snapshot_schedules)?;
    Ok(changed)
}

/// The settings by their names.
fn by_name(settings: &ChangeableSettings) -> Map<String, Value> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(all)) => all,
        _ => Map::new(),
    }
}

/// What a program that is configured so has to change, to keep to what was in force in the one before. Where its
/// configuration has another value than that one's, somebody wants the new value. A setting that one of the two does not
/// have cannot be kept.
fn change_to_keep(passed: &PassedSettings, configured: &ChangeableSettings) -> Map<String, Value> {
    let configured = by_name(configured);
    let mut change = passed.in_force.clone();
    // It is the file's, until clients are served.
    change.remove(CACHE_SIZE);
    change.retain(|name, in_force| {
        let before = passed.configured.get(name);
        let is_changed = before.is_some_and(|before| before != in_force);
        if is_changed && !configured.contains_key(name) {
            tracing::warn!(name, "a setting that was changed is none of this program's");
        }
        is_changed && before == configured.get(name)
    });
    change
}

/// The size that the read cache is to get when a program that is configured so has taken the place of another, whose file
/// has the size `in_force`: the configured one, if it was not that one's. A program that knew of no such setting had the size
/// that was configured.
fn cache_size_wanted(passed: &PassedSettings, configured: Size, in_force: Size) -> Option<Size> {
    let before = passed.configured.get(CACHE_SIZE).cloned();
    let before = before.map_or(Ok(in_force), serde_json::from_value);
    let is_new = before.is_ok_and(|before: Size| before != configured);
    (is_new && configured != in_force).then_some(configured)
}

impl From<&ControlSettings> for ChangeableSettings {
    fn from(settings: &ControlSettings) -> Self {
        let schedules = settings.snapshot_schedules.iter();
        ChangeableSettings {
            rpo: TimeSpan(settings.rpo),
            slow_request: TimeSpan(settings.slow_request),
            gc: settings.gc,
            compact: settings.compact,
            scrub: settings.scrub,
            snapshot_schedule: schedules.map(ToString::to_string).collect(),
            trash_keep: TimeSpan(settings.trash_keep),
            cache_size: settings.cache_size,
        }
    }
}

impl ControlPlane {
    pub(crate) fn settings(&self) -> ChangeableSettings {
        ChangeableSettings::from(&*self.settings.lock())
    }

    /// What the program that takes this one's place is to know of them.
    pub(crate) fn settings_to_pass(&self) -> PassedSettings {
        PassedSettings {
            configured: by_name(&self.settings.configured),
            in_force: by_name(&self.settings()),
        }
    }

    /// Goes on with what was changed in the program before. What this one does not take is left, and said.
    pub(crate) async fn keep_settings(self: &Arc<Self>, passed: &PassedSettings) {
        let change = change_to_keep(passed, &self.settings.configured);
        if change.is_empty() || canary::active!("an_upgrade_forgets_settings") {
            return;
        }
        let changed = match serde_json::from_value(Value::Object(change)) {
            Ok(change) => self.change_settings(change).await,
            Err(error) => Err(Failure::invalid(error.to_string())),
        };
        match changed {
            Ok(now) => tracing::info!(?now, "settings that were changed stay so"),
            Err(failure) => tracing::warn!(
                %failure,
                "settings are as configured again: this program does not take what they were changed to"
            ),
        }
    }

    /// Gives the read cache the size that is configured anew. Clients are served meanwhile.
    pub(crate) fn begin_configured_cache_size(self: &Arc<Self>, passed: &PassedSettings) {
        let (configured, in_force) = (
            self.settings.configured.cache_size,
            self.settings().cache_size,
        );
        let Some(wanted) = cache_size_wanted(passed, configured, in_force) else {
            return;
        };
        let control = Arc::clone(self);
        tokio::spawn(async move {
            let change = ChangeSettings {
                cache_size: Some(wanted),
                ..ChangeSettings::default()
            };
            if let Err(failure) = control.change_settings(change).await {
                tracing::warn!(%failure, "the read cache keeps the size that it has, not the configured one; set cache-size again");
            }
        });
    }

    /// Waits until the change that is made has come to its end.
    pub(crate) async fn finish_changes(&self) {
        drop(self.settings.changing.lock().await);
    }

    /// Has the server keep to other settings from now on; what they all are then. A change that has begun comes to its
    /// end whether somebody waits for it or not.
    pub(crate) async fn change_settings(
        self: &Arc<Self>,
        change: ChangeSettings,
    ) -> Result<ChangeableSettings> {
        let control = Arc::clone(self);
        let made = tokio::spawn(async move { control.make_change(&change).await }).await;
        made.map_err(|error| Failure::internal(format!("changing settings: {error}")))?
    }

    async fn make_change(&self, change: &ChangeSettings) -> Result<ChangeableSettings> {
        // Held to the end: of two changes at once one is told what the other made of it.
        let _changing = self.settings.changing.lock().await;
        let before = self.settings.lock().clone();
        let next = changed(&before, change)?;
        // First, for it may fail, and the rest then stays as it is.
        self.resize_cache(before.cache_size, next.cache_size)
            .await?;
        let mut now = self.settings.lock();
        now.cache_size = next.cache_size;
        self.tell_engine(&now, &next)?;
        self.latencies.slow().set_threshold(next.slow_request);
        *now = next;
        Ok(ChangeableSettings::from(&*now))
    }

    /// Tells the engine what of its own differs: it refuses the first, or takes all.
    fn tell_engine(&self, now: &ControlSettings, next: &ControlSettings) -> Result<()> {
        let rpo_ns = u64::try_from(next.rpo.as_nanos()).unwrap_or(u64::MAX);
        let is_told = (next.rpo == now.rpo || self.host.set_rpo(rpo_ns))
            && (next.gc == now.gc || self.host.set_gc_interval(next.gc.ns()))
            && (next.compact == now.compact || self.host.set_compact_interval(next.compact.ns()))
            && (next.scrub == now.scrub || self.host.set_scrub_interval(next.scrub.ns()));
        is_told.then_some(()).ok_or_else(|| {
            Failure::new(
                FailureCode::NotReady,
                "the log is still recovered; try again when the server is ready",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Interval;

    fn with_rpo(seconds: u64) -> ChangeableSettings {
        ChangeableSettings {
            rpo: TimeSpan(Duration::from_secs(seconds)),
            slow_request: TimeSpan(Duration::from_secs(1)),
            gc: Interval(None),
            compact: Interval(None),
            scrub: Interval(None),
            snapshot_schedule: vec!["demo=1h,keep=2".into()],
            trash_keep: TimeSpan(Duration::ZERO),
            cache_size: Size(0),
        }
    }

    #[test]
    fn a_size_that_is_configured_anew_is_wanted_and_one_that_was_changed_stays() {
        let mib = |count: u64| Size(count << 20);
        let passed = |configured: Size| {
            let settings = ChangeableSettings {
                cache_size: configured,
                ..with_rpo(30)
            };
            PassedSettings {
                configured: by_name(&settings),
                in_force: Map::new(),
            }
        };
        let wanted = |before, configured, in_force| {
            cache_size_wanted(&passed(mib(before)), mib(configured), mib(in_force))
        };
        assert_eq!(wanted(16, 16, 4), None, "changed");
        assert_eq!(wanted(16, 32, 4), Some(mib(32)), "configured anew");
        assert_eq!(wanted(16, 32, 32), None, "it is so");
        assert_eq!(wanted(16, 16, 16), None);
        let unknown = PassedSettings::default();
        assert_eq!(cache_size_wanted(&unknown, mib(8), mib(4)), Some(mib(8)));
        assert_eq!(cache_size_wanted(&unknown, mib(4), mib(4)), None);
    }

    #[test]
    fn a_changed_setting_is_kept_unless_the_next_program_is_configured_anew() {
        let passed = |configured, in_force| PassedSettings {
            configured: by_name(&with_rpo(configured)),
            in_force: by_name(&with_rpo(in_force)),
        };
        let kept = |passed: PassedSettings, configured| {
            let change = change_to_keep(&passed, &with_rpo(configured));
            change.into_iter().collect::<Vec<_>>()
        };
        let rpo = |text: &str| vec![("rpo".to_owned(), Value::from(text))];
        assert_eq!(kept(passed(30, 10), 30), rpo("10s"));
        assert_eq!(kept(passed(30, 30), 30), [], "nobody changed it");
        assert_eq!(kept(passed(30, 10), 60), [], "60 is newer");
        assert_eq!(kept(passed(30, 30), 60), []);

        let mut other = passed(30, 10);
        for all in [&mut other.configured, &mut other.in_force] {
            all.remove("gc");
            all.insert("taste".to_owned(), Value::from("sweet"));
        }
        other.in_force.insert("taste".into(), Value::from("sour"));
        assert_eq!(kept(other, 30), rpo("10s"), "one more, and one fewer");
    }
}
