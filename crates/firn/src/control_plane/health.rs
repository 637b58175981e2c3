//! How the server is: `ok`, `degraded` (it serves, but a promise is weaker) or `stuck` (something that
//! it is to serve is not served), each with the reason.
//!
//! One model feeds `/readyz`, `volume show`, the metrics and the log, which has one line per change.
//! It reads what others know, and must never wait: a hanging disk or store is what it is there for.

use std::collections::BTreeMap;
use std::time::Duration;

use blkmq::error::ErrorKind;

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::OpenVolume;
use crate::local_files::DiskState;
use crate::model::{Health, HealthLevel};

/// How often changes are looked for.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// What is concerned, and how.
type Conditions = BTreeMap<String, Health>;

/// What the log has said of conditions that last.
#[derive(Debug, Default)]
struct LoggedConditions(BTreeMap<String, LoggedCondition>);

#[derive(Debug)]
struct LoggedCondition {
    level: HealthLevel,
    /// Of this condition, since it began: one that goes back and forth is said once for each.
    kinds: Vec<Option<store::Kind>>,
}

/// One line of the log.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Bad(String, Health),
    OkAgain(String),
}

impl LoggedConditions {
    /// What is to be said of `now`. The text of a condition may count seconds: only another level, or
    /// a kind of failure that was not said yet, is a change. A store that is silent at first and then
    /// refuses the key wants another remedy than at first.
    fn update(&mut self, now: Conditions) -> Vec<Change> {
        let ended = self.0.extract_if(.., |what, _| !now.contains_key(what));
        let mut changes: Vec<Change> = ended.map(|(what, _)| Change::OkAgain(what)).collect();
        for (what, health) in now {
            let kind = remedy_kind(health.kind);
            match self.0.get_mut(&what) {
                Some(logged) if logged.level == health.status && logged.kinds.contains(&kind) => {
                    continue;
                }
                Some(logged) if logged.level == health.status => logged.kinds.push(kind),
                _ => {
                    let (level, kinds) = (health.status, vec![kind]);
                    self.0
                        .insert(what.clone(), LoggedCondition { level, kinds });
                }
            }
            changes.push(Change::Bad(what, health));
        }
        changes
    }
}

/// Whether a request was certainly not applied makes no difference to what helps.
fn remedy_kind(kind: Option<store::Kind>) -> Option<store::Kind> {
    match kind {
        Some(store::Kind::Unknown) => Some(store::Kind::Unavailable),
        kind => kind,
    }
}

impl Change {
    fn log(&self) {
        match self {
            Change::OkAgain(what) => tracing::info!(what, "ok again"),
            Change::Bad(what, health) => {
                let why = health.why.as_deref().unwrap_or_default();
                match health.status {
                    HealthLevel::Stuck => tracing::error!(what, why, "stuck"),
                    _ => tracing::warn!(what, why, "degraded"),
                }
            }
        }
    }
}

fn condition(level: HealthLevel, why: impl Into<String>) -> Health {
    Health {
        status: level,
        why: Some(why.into()),
        kind: None,
    }
}

fn open_volume_health(open: &OpenVolume) -> Option<Health> {
    match open.volume.check_serving() {
        Err(ErrorKind::Fenced) => {
            // Taken over, deleted, or of a store that was set back.
            let why = match canary::active!("every_end_is_a_take_over") {
                true => None,
                false => open.volume.upload_error(),
            };
            let why = why.unwrap_or_else(|| "another host has taken it over".into());
            let why = format!("{why}; what this host had not uploaded is kept: `firn rescue list`");
            return Some(condition(HealthLevel::Stuck, why));
        }
        Err(error) => return Some(condition(HealthLevel::Stuck, format!("it fails: {error}"))),
        Ok(()) => {}
    }
    if open.volume.is_unchecked() {
        let error = open.volume.upload_error();
        let error = error.unwrap_or_else(|| "the store is away".into());
        let why = format!(
            "unchecked since this server began to serve it, {} s ago: what is on this host is served, and nothing \
             of it is called stored until the store says that the volume is still this host's. {error}",
            open.since.elapsed().as_secs()
        );
        return Some(condition(HealthLevel::Degraded, why));
    }
    if let Some(uploads) = open.volume.upload_error() {
        let why = format!("uploads fail: {uploads}");
        return Some(condition(HealthLevel::Degraded, why));
    }
    let snapshots = open.volume.log_snapshots();
    let failure = snapshots.failure?;
    let why = format!(
        "{} of its snapshots and {} of its forks are in the log of this server alone, for they cannot be brought to the store: \
         {failure}",
        snapshots.count, snapshots.forks
    );
    Some(condition(HealthLevel::Degraded, why))
}

impl ControlPlane {
    /// All that is not well, by what is concerned: `log`, `cache disk`, `index rings`, `store`, `garbage collector`, or
    /// `volume NAME`.
    pub(crate) fn conditions(&self) -> Conditions {
        let mut all = self.host_conditions();
        if canary::active!("health_is_always_well") {
            return all;
        }
        for (name, waiting) in self.waiting.all() {
            all.insert(
                format!("volume {name}"),
                condition(HealthLevel::Stuck, waiting.failure.detail),
            );
        }
        for open in self.volumes.all() {
            if let Some(health) = open_volume_health(&open) {
                all.insert(format!("volume {}", open.info.name), health);
            }
        }
        for (name, why) in self.schedules.troubles() {
            // What else is wrong with it is the reason, or worse.
            let own = all.entry(format!("volume {name}"));
            own.or_insert_with(|| condition(HealthLevel::Degraded, why));
        }
        all
    }

    /// What is not well of the server itself, and so of each of its volumes. Costs the same however many these are.
    fn host_conditions(&self) -> Conditions {
        use HealthLevel::{Degraded, Stuck};
        let mut all = Conditions::new();
        if self.host.usage().poisoned {
            let why = "a sync of the log failed: writes are refused, reads go on; `firn rescue log` is the way out";
            all.insert("log".into(), condition(Stuck, why));
        }
        if canary::active!("health_is_always_well") {
            return all;
        }
        match self.disk_watch.state() {
            DiskState::Works => {}
            DiskState::Hangs(age) => {
                let why = format!(
                    "a write has not completed for {} s: requests wait",
                    age.as_secs()
                );
                all.insert("cache disk".into(), condition(Stuck, why));
            }
            DiskState::Fails(why) => {
                all.insert("cache disk".into(), condition(Degraded, why));
            }
        }
        if let Some(why) = self.rings.explain_removal() {
            all.insert("index rings".into(), condition(Degraded, why));
        }
        if let Some(trouble) = self.store.as_ref().and_then(|store| store.trouble()) {
            let health = Health {
                kind: Some(trouble.kind),
                ..condition(Degraded, trouble.why)
            };
            all.insert("store".into(), health);
        }
        if let Some(why) = self.gc_trouble() {
            all.insert("garbage collector".into(), condition(Degraded, why));
        }
        all
    }

    /// How one volume is: the worst of what concerns it, or all of them.
    pub(crate) fn volume_health(&self, name: &str) -> Health {
        let all = self.host_conditions().into_iter();
        let of_all = all.map(|(what, health)| {
            let why = health.why.unwrap_or_default();
            condition(health.status, format!("{what}: {why}"))
        });
        let own = self.own_health(name);
        let worst = of_all.chain(own).max_by_key(|health| health.status);
        worst.unwrap_or_default()
    }

    /// What is not well of this volume alone.
    fn own_health(&self, name: &str) -> Option<Health> {
        if canary::active!("health_is_always_well") {
            return None;
        }
        let open = self.volumes.get(name);
        if let Some(health) = open.as_deref().and_then(open_volume_health) {
            return Some(health);
        }
        if let Some(waiting) = self.waiting.get(name) {
            return Some(condition(HealthLevel::Stuck, waiting.failure.detail));
        }
        let why = self.schedules.trouble_of(&open?.info.id.to_string())?;
        Some(condition(HealthLevel::Degraded, why))
    }

    /// Whether everything that this server is to serve is served, and what is not as it should be.
    pub(crate) fn check_ready(&self) -> Result<String> {
        let all = self.conditions();
        let described = |(what, health): (&String, &Health)| {
            format!("{what}: {}", health.why.as_deref().unwrap_or_default())
        };
        let lines = |level| {
            let lines = all.iter().filter(move |(_, health)| health.status == level);
            lines.map(described).collect::<Vec<_>>().join("; ")
        };
        let stuck = lines(HealthLevel::Stuck);
        if !stuck.is_empty() {
            return Err(Failure::new(
                FailureCode::NotReady,
                format!("not everything is served: {stuck}"),
            ));
        }
        match lines(HealthLevel::Degraded) {
            degraded if degraded.is_empty() => Ok("ready\n".to_owned()),
            degraded => Ok(format!("ready, degraded: {degraded}\n")),
        }
    }

    /// Makes index rings again whose names somebody removed. Where that is not possible the server is
    /// degraded, and it is tried again.
    fn put_back_rings(&self) {
        let gone = self.rings.find_removed();
        if gone.is_empty() || canary::active!("rings_stay_gone") {
            return;
        }
        // The rings say why not.
        let put_back = self.host.put_back_rings(&gone).is_ok();
        self.rings.find_removed();
        if put_back {
            tracing::warn!(
                rings = gone.len(),
                "the index rings were removed while this server uses them, and are put back: choose a \
                 --ring-dir that nothing cleans (systemd removes an ordinary user's files in /dev/shm \
                 at logout)"
            );
        }
    }

    /// Puts right what can be put right, and logs one line for each change, for as long as it is
    /// polled. Calls `on_checked` each time that all was checked, so that a control plane which hangs
    /// is known by its silence.
    pub(crate) async fn watch_health(&self, on_checked: impl Fn()) {
        let mut logged = LoggedConditions::default();
        loop {
            self.put_back_rings();
            for change in logged.update(self.conditions()) {
                change.log();
            }
            on_checked();
            tokio::time::sleep(LOG_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Kind;

    fn store_conditions(kind: Kind) -> Conditions {
        let health = Health {
            kind: Some(kind),
            ..condition(HealthLevel::Degraded, format!("{kind:?}"))
        };
        Conditions::from([("store".to_owned(), health)])
    }

    #[test]
    fn each_kind_of_failure_of_one_trouble_is_said_once_and_so_is_its_end() {
        let mut logged = LoggedConditions::default();
        let mut said = Vec::new();
        let kinds = [
            Kind::Unavailable,
            Kind::Unknown,
            Kind::Denied,
            Kind::Unavailable,
            Kind::Denied,
        ];
        for kind in kinds {
            said.extend(logged.update(store_conditions(kind)));
        }
        said.extend(logged.update(Conditions::new()));
        said.extend(logged.update(Conditions::new()));
        let bad = |kind| Change::Bad("store".to_owned(), store_conditions(kind)["store"].clone());
        let expected = [
            bad(Kind::Unavailable),
            bad(Kind::Denied),
            Change::OkAgain("store".to_owned()),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn the_same_trouble_again_is_said_again() {
        let mut logged = LoggedConditions::default();
        for _ in 0..2 {
            assert_eq!(logged.update(store_conditions(Kind::Denied)).len(), 1);
            assert_eq!(logged.update(Conditions::new()).len(), 1);
        }
    }

    #[test]
    fn another_level_is_said() {
        let mut logged = LoggedConditions::default();
        for level in [HealthLevel::Degraded, HealthLevel::Stuck] {
            let now = Conditions::from([("log".to_owned(), condition(level, "why"))]);
            assert_eq!(logged.update(now.clone()).len(), 1);
            assert!(logged.update(now).is_empty());
        }
    }
}
