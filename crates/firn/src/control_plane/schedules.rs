//! Snapshots by schedule: takes those that are due, and removes those of its own that are too many.
//!
//! A clock says when one is taken and how it is called. Which of them go is decided by their place in the history, and
//! what that frees by the collector alone. It must never remove a snapshot that no schedule took, nor one of another
//! volume that had the name before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use volume::ListPlace;

use super::{ControlPlane, attach};
use crate::cli::args::SnapshotSchedule;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::OpenVolume;
use crate::model::{CreateSnapshot, Snapshot, SnapshotWait};
use crate::spans::Operation;

/// The label of a snapshot that a schedule took; its value is the schedule's name. Nobody else may give it.
const LABEL: &str = "schedule";

/// How often it is looked whether one is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Volumes whose snapshots are taken at once.
const AT_ONCE: usize = 8;
/// Snapshots that are looked at together.
const LISTED_AT_ONCE: usize = 100;
/// After a failure it is tried again when this has passed, or a tenth of the schedule's time if that is less.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// How long a part of the list, or a removal, may take: while the store is away it waits for that, and the log goes on
/// taking new ones.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A volume, by its identity, and the name of a schedule.
type Key = (String, String);

/// The schedules of a server, and how far they are.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    progress: Mutex<BTreeMap<Key, Progress>>,
    taken: AtomicU64,
    removed: AtomicU64,
    failed: AtomicU64,
}

/// How far one schedule is with one volume that is open.
#[derive(Clone, Debug)]
struct Progress {
    volume: String,
    every: Duration,
    /// How many it kept at its last turn.
    keep: u32,
    since: Instant,
    /// Whether the store was asked for what was taken before.
    is_known: bool,
    newest: Option<NewestSnapshot>,
    /// There may be more than it keeps: an attempt to remove them failed, or it kept more before the start.
    may_have_excess: bool,
    /// Since when it is known that there are more than it keeps.
    excess_since: Option<Instant>,
    /// Why the last attempt failed, and when the next one may be.
    failing: Option<(String, Instant)>,
}

/// The newest snapshot of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewestSnapshot {
    unix_ms: u64,
    lsn: u64,
}

/// What schedules did since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleCounts {
    pub(crate) taken: u64,
    pub(crate) removed: u64,
    pub(crate) failed: u64,
}

impl Schedules {
    fn progress(&self) -> MutexGuard<'_, BTreeMap<Key, Progress>> {
        // Each critical section is one call on the map, so a panic cannot leave it half changed.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> ScheduleCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScheduleCounts {
            taken: of(&self.taken),
            removed: of(&self.removed),
            failed: of(&self.failed),
        }
    }

    /// Why volumes lack a snapshot that they were to have, or keep too many, by their names.
    pub(super) fn troubles(&self) -> Vec<(String, String)> {
        let now = unix_ms();
        let all = self.progress();
        let late = all.iter().filter_map(|((_, schedule), progress)| {
            let why = progress.trouble(schedule, now)?;
            Some((progress.volume.clone(), why))
        });
        late.collect()
    }

    /// Why this volume, by its identity, does.
    pub(super) fn trouble_of(&self, volume: &str) -> Option<String> {
        let now = unix_ms();
        let all = self.progress();
        let from = all.range((volume.to_owned(), String::new())..);
        let own = from.take_while(|((of, _), _)| of == volume);
        own.filter_map(|((_, schedule), progress)| progress.trouble(schedule, now))
            .next()
    }
}

impl Progress {
    fn new(volume: &str, every: Duration, keep: u32) -> Progress {
        Progress {
            volume: volume.to_owned(),
            every,
            keep,
            since: Instant::now(),
            is_known: false,
            newest: None,
            may_have_excess: false,
            excess_since: None,
            failing: None,
        }
    }

    /// One that failed and is late by a whole turn is worth a word, with a snapshot or with the removal of old ones.
    fn trouble(&self, schedule: &str, now_ms: u64) -> Option<String> {
        let (why, _) = self.failing.as_ref()?;
        let age = match self.newest {
            Some(newest) => Duration::from_millis(now_ms.saturating_sub(newest.unix_ms)),
            None => self.since.elapsed(),
        };
        if age >= self.every * 2 {
            let seconds = age.as_secs();
            return Some(format!(
                "the schedule {schedule} has taken no snapshot for {seconds} s: {why}"
            ));
        }
        let kept = self.excess_since?.elapsed();
        (kept >= self.every * 2).then(|| {
            let seconds = kept.as_secs();
            format!("the schedule {schedule} could remove no old snapshot for {seconds} s: {why}")
        })
    }

    /// So many were found. Attempts that fail make what is too many no younger.
    fn note_found(&mut self, count: usize) {
        if count > self.keep as usize {
            self.excess_since.get_or_insert_with(Instant::now);
        } else {
            self.excess_since = None;
        }
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Whether a snapshot is due. What was missed while nobody served the volume is made good by one. A newest one that lies
/// further ahead than a turn was taken by a clock that was wrong, and is not waited for.
fn is_due(newest: Option<NewestSnapshot>, every: Duration, now_ms: u64) -> bool {
    let Some(newest) = newest else { return true };
    let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
    match now_ms.checked_sub(newest.unix_ms) {
        Some(age_ms) => age_ms >= every_ms,
        None => newest.unix_ms - now_ms > every_ms,
    }
}

/// Those of a schedule that it keeps no longer, of its snapshots in any order.
fn excess(mut own: Vec<Snapshot>, keep: u32) -> Vec<Snapshot> {
    own.sort_by_key(|snapshot| (snapshot.lsn, snapshot.taken_unix_ms));
    let excess = own.len().saturating_sub(keep as usize);
    own.truncate(excess);
    own
}

/// How a snapshot of a schedule is called: `auto-1h-20261126T142000Z`.
fn snapshot_name(schedule: &str, at_ms: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(at_ms);
    let time = humantime::format_rfc3339_seconds(at).to_string();
    format!("auto-{schedule}-{}", time.replace(['-', ':'], ""))
}

/// One look at the store, or one removal. A store that does not answer holds up one schedule for so long, and not all;
/// together they may take longer, for there may be many.
async fn in_time<T>(asked: impl Future<Output = Result<T>>) -> Result<T> {
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, asked).await;
    answered.unwrap_or_else(|_| {
        Err(Failure::new(
            FailureCode::StoreUnavailable,
            format!(
                "its snapshots were not listed or removed: the store does not answer within {} s",
                REQUEST_TIMEOUT.as_secs()
            ),
        ))
    })
}

impl ControlPlane {
    /// Takes and removes snapshots by schedule for as long as it is polled.
    pub(crate) async fn keep_schedules(&self) {
        loop {
            self.run_schedules().await;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    async fn run_schedules(&self) {
        let schedules = self.settings.snapshot_schedules();
        if schedules.is_empty() {
            self.schedules.progress().clear();
            return;
        }
        let open = self.volumes.all();
        let is_open = |id: &str| open.iter().any(|one| one.info.id.to_string() == id);
        // One that comes back may have been elsewhere meanwhile.
        self.schedules.progress().retain(|(id, name), progress| {
            let is_this =
                |one: &SnapshotSchedule| one.name() == *name && one.is_of(&progress.volume);
            is_open(id) && schedules.iter().any(is_this)
        });
        let mut pairs = Vec::new();
        for volume in open {
            if attach::is_snapshot(&volume.info.name) {
                continue;
            }
            for schedule in &schedules {
                if schedule.is_of(&volume.info.name) {
                    pairs.push((Arc::clone(&volume), schedule.clone()));
                }
            }
        }
        let each = futures_util::stream::iter(pairs);
        let run = |(volume, schedule)| async move { self.run_schedule(&volume, &schedule).await };
        each.for_each_concurrent(AT_ONCE, run).await;
    }

    /// Does what is due of one schedule for one volume, and remembers how that went.
    async fn run_schedule(&self, open: &Arc<OpenVolume>, schedule: &SnapshotSchedule) {
        let key = (open.info.id.to_string(), schedule.name());
        let name = &open.info.name;
        let known = self.schedules.progress().get(&key).cloned();
        let mut progress =
            known.unwrap_or_else(|| Progress::new(name, schedule.every, schedule.keep));
        let now = Instant::now();
        if progress
            .failing
            .as_ref()
            .is_some_and(|(_, next)| now < *next)
        {
            return;
        }
        match self.take_if_due(open, schedule, &mut progress).await {
            Ok(()) => {
                if progress.failing.take().is_some() {
                    tracing::info!(volume = name, schedule = key.1, "snapshots are taken again");
                }
            }
            Err(failure) => {
                self.schedules.failed.fetch_add(1, Ordering::Relaxed);
                if progress.failing.is_none() {
                    tracing::warn!(volume = name, schedule = key.1, %failure, "snapshots by schedule cannot be taken or removed yet");
                }
                let delay = RETRY_DELAY.min(schedule.every / 10);
                progress.failing = Some((failure.detail, Instant::now() + delay));
            }
        }
        self.schedules.progress().insert(key, progress);
    }

    async fn take_if_due(
        &self,
        open: &Arc<OpenVolume>,
        schedule: &SnapshotSchedule,
        progress: &mut Progress,
    ) -> Result<()> {
        if !progress.is_known && !canary::active!("a_schedule_begins_anew") {
            let own = self.snapshots_of(open, schedule).await?;
            let newest = own.iter().max_by_key(|one| (one.lsn, one.taken_unix_ms));
            progress.newest = newest.map(|newest| NewestSnapshot {
                unix_ms: newest.taken_unix_ms,
                lsn: newest.lsn,
            });
            progress.may_have_excess = own.len() > schedule.keep as usize;
            progress.is_known = true;
        }
        if progress.keep != schedule.keep {
            progress.keep = schedule.keep;
            progress.may_have_excess = true;
        }
        // First what is due, for what cannot be removed may stay so for long.
        if self.take(open, schedule, progress).await? {
            progress.may_have_excess = true;
        }
        if progress.may_have_excess {
            self.remove_excess(open, schedule, progress).await?;
            progress.may_have_excess = false;
            progress.excess_since = None;
        }
        Ok(())
    }

    /// Takes one, if it is due and would be another one than the newest; whether it did.
    async fn take(
        &self,
        open: &Arc<OpenVolume>,
        schedule: &SnapshotSchedule,
        progress: &mut Progress,
    ) -> Result<bool> {
        let now_ms = unix_ms();
        if !is_due(progress.newest, schedule.every, now_ms) {
            return Ok(false);
        }
        let written = open.watermarks().acknowledged.lsn;
        if !self.is_in_force(schedule) {
            return Ok(false);
        }
        if progress.newest.map_or(0, |newest| newest.lsn) >= written {
            // It would be the one that is there, or empty.
            return Ok(false);
        }
        let request = CreateSnapshot {
            name: snapshot_name(&schedule.name(), now_ms),
            labels: [(LABEL.to_owned(), schedule.name())].into(),
            wait: SnapshotWait::Log,
            copied_unix_ms: None,
        };
        // If this fails, it may have been taken all the same.
        progress.is_known = false;
        let mut operation = Operation::begin("snapshot by schedule");
        if let Some(operation) = &mut operation {
            operation.set("firn.volume", open.info.name.clone());
            operation.set("firn.snapshot", request.name.clone());
        }
        let taken = self.take_snapshot(&open.info.name, request).await;
        if let (Some(operation), Err(failure)) = (&mut operation, &taken) {
            operation.fail(failure.code);
        }
        let taken = taken?;
        progress.is_known = true;
        self.schedules.taken.fetch_add(1, Ordering::Relaxed);
        tracing::info!(snapshot = taken.name, "taken by schedule");
        progress.newest = Some(NewestSnapshot {
            unix_ms: now_ms,
            lsn: taken.lsn,
        });
        Ok(true)
    }

    /// Whether it still counts: a turn that has begun ends when the schedule is changed.
    fn is_in_force(&self, schedule: &SnapshotSchedule) -> bool {
        self.settings.snapshot_schedules().contains(schedule)
    }

    async fn remove_excess(
        &self,
        open: &Arc<OpenVolume>,
        schedule: &SnapshotSchedule,
        progress: &mut Progress,
    ) -> Result<()> {
        let own = self.snapshots_of(open, schedule).await?;
        progress.note_found(own.len());
        for snapshot in excess(own, schedule.keep) {
            let volume = &open.info.name;
            let (_, name) = snapshot.name.split_once('@').unwrap_or_default();
            if !self.is_in_force(schedule) {
                return Ok(());
            }
            // What was begun goes on in the engine, and the next attempt finds it done.
            match in_time(self.delete_snapshot(volume, name)).await {
                Ok(()) => {
                    self.schedules.removed.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(snapshot = snapshot.name, "removed by schedule");
                }
                // Somebody looks at it, or was quicker; the next turn sees.
                Err(failure)
                    if matches!(
                        failure.code,
                        FailureCode::VolumeInUse
                            | FailureCode::NotOpenYet
                            | FailureCode::NoSuchSnapshot
                    ) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// What this schedule took of this very volume.
    async fn snapshots_of(
        &self,
        open: &OpenVolume,
        schedule: &SnapshotSchedule,
    ) -> Result<Vec<Snapshot>> {
        let (id, name) = (open.info.id.to_string(), schedule.name());
        let is_own = |snapshot: &Snapshot| {
            canary::active!("a_schedule_owns_all_snapshots")
                || snapshot.volume_id.as_ref() == Some(&id)
                    && snapshot.labels.get(LABEL) == Some(&name)
        };
        let mut own = Vec::new();
        let mut after = None;
        loop {
            let place = ListPlace {
                after,
                limit: LISTED_AT_ONCE,
            };
            let part = in_time(self.snapshots(&open.info.name, place)).await?;
            own.extend(part.snapshots.into_iter().filter(is_own));
            match part.next {
                None => return Ok(own),
                next => after = next,
            }
        }
    }
}

/// Fails for a label that only schedules give.
pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    match labels.contains_key(LABEL) {
        false => Ok(()),
        true => Err(Failure::invalid(format!(
            "the label {LABEL:?} marks snapshots that a schedule took and removes; use another one"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const HOUR_MS: u64 = 3_600_000;

    fn at(unix_ms: u64) -> Option<NewestSnapshot> {
        Some(NewestSnapshot { unix_ms, lsn: 1 })
    }

    #[test]
    fn one_is_due_after_its_time_and_what_was_missed_is_one() {
        assert!(is_due(None, HOUR, 0));
        assert!(!is_due(at(5), HOUR, HOUR_MS));
        assert!(is_due(at(5), HOUR, HOUR_MS + 5));
        assert!(is_due(at(5), HOUR, 100 * HOUR_MS));
        assert!(!is_due(at(100 * HOUR_MS), HOUR, 100 * HOUR_MS + 1));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_snapshots_up_for_a_turn_at_most() {
        assert!(!is_due(at(10 * HOUR_MS), HOUR, 9 * HOUR_MS));
        assert!(is_due(at(10 * HOUR_MS), HOUR, 9 * HOUR_MS - 1));
    }

    #[test]
    fn the_newest_by_their_place_in_the_history_are_kept_whatever_clocks_said() {
        let snapshot = |lsn, taken_unix_ms| Snapshot {
            name: format!("demo@{lsn}"),
            id: String::new(),
            volume_id: None,
            size_bytes: 0,
            lsn,
            taken_unix_ms,
            labels: BTreeMap::new(),
            stored: true,
            attached: None,
        };
        let own = vec![snapshot(30, 5), snapshot(10, 99), snapshot(20, 50)];
        let gone = |keep| {
            let gone = excess(own.clone(), keep).into_iter();
            gone.map(|one| one.lsn).collect::<Vec<_>>()
        };
        assert!(gone(3).is_empty());
        assert_eq!(gone(2), [10]);
        assert_eq!(gone(1), [10, 20]);
    }

    #[test]
    fn the_name_of_a_snapshot_says_its_schedule_and_its_time() {
        let name = snapshot_name("1h", 1_795_701_600_000);
        assert_eq!(name, "auto-1h-20261126T140000Z");
        let whole = format!("demo@{name}");
        assert!(volume::check_snapshot_name(&whole).is_ok());
    }

    #[test]
    fn a_schedule_that_is_late_by_a_turn_is_in_trouble_if_it_fails() {
        let mut progress = Progress::new("demo", HOUR, 2);
        progress.newest = at(0);
        assert_eq!(
            progress.trouble("1h", 3 * HOUR_MS),
            None,
            "nothing was written"
        );
        progress.failing = Some(("the store is away".into(), Instant::now()));
        assert_eq!(progress.trouble("1h", HOUR_MS), None);
        let said = progress.trouble("1h", 2 * HOUR_MS).unwrap();
        assert!(
            said.contains("1h") && said.contains("the store is away"),
            "{said}"
        );
    }

    #[test]
    fn a_schedule_that_cannot_remove_what_is_too_many_is_in_trouble_though_it_takes_new_ones() {
        let mut progress = Progress::new("demo", Duration::from_millis(1), 2);
        progress.newest = at(HOUR_MS);
        progress.failing = Some(("deleting is not permitted".into(), Instant::now()));
        assert_eq!(
            progress.trouble("1ms", HOUR_MS),
            None,
            "nothing is too many"
        );
        progress.note_found(2);
        assert_eq!(progress.excess_since, None);
        progress.note_found(3);
        progress.excess_since = Instant::now().checked_sub(Duration::from_secs(1));
        progress.note_found(4);
        let said = progress.trouble("1ms", HOUR_MS).unwrap();
        assert!(
            said.contains("could remove no old snapshot for 1 s")
                && said.contains("deleting is not permitted"),
            "{said}"
        );
        progress.excess_since = Some(Instant::now());
        progress.every = HOUR;
        assert_eq!(progress.trouble("1h", HOUR_MS), None, "it is no turn late");
    }
}
