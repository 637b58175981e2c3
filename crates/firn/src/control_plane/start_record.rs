//! The file `starts`: what this start of the server is doing, for the next one to know if it ends early.
//!
//! [`super::start_history`] says what follows from it. The file is written before a volume is opened and when it is
//! open, so that it names what was under way whatever ends the process; what only has to outlive the process is
//! not synced. It is a help and nothing else: one that is damaged, or cannot be written, is as if it were not there, and must
//! never keep a server from starting.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::start_history::StartHistory;
use crate::failure::{Failure, FailureCode};
use crate::local_files::ReservedFile;

/// For tests: `abort=VOLUME`, `hang=VOLUME` or `hold=VOLUME,FILE`, what a server does as soon as it has opened that
/// volume; the last until the file is there. With `before:VOLUME` before it opens the volume, with `disk:VOLUME` before
/// it restores the disk, with nothing as soon as it begins to open volumes. Only builds with debug assertions look at
/// it.
const OPENING_VARIABLE: &str = "FIRN_OPENING";

/// How often an opening that is held looks for the file which ends that.
const HOLD_INTERVAL: Duration = Duration::from_millis(5);

/// While more volumes than this are under way not each that is open is written down: thousands of names would be written
/// thousands of times. One that is named for too long becomes a suspect by that, and is left out only by an end at which
/// nothing else was under way.
const EXACT_MAX: usize = 64;

/// The end of the year 9999, behind which a time has no text. What a wrong clock has written stops no start.
const TIME_MAX_MS: u64 = 253_402_300_799_000;

/// What this start and those before it did. Without a file it keeps what it is told in memory, where it does nothing.
#[derive(Debug, Default)]
pub(crate) struct StartRecord(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    history: StartHistory,
    file: Option<ReservedFile>,
    path: PathBuf,
    suspects: BTreeSet<String>,
}

/// What a change has to outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlives {
    Process,
    LossOfPower,
}

impl State {
    /// After an error nothing is said any more: what is in the file may blame a volume for what this server did
    /// long after it.
    fn write(&mut self, outlives: Outlives) {
        let Some(file) = &mut self.file else {
            return;
        };
        let text = self.history.encode();
        let written = match outlives {
            Outlives::Process => file.replace_unsynced(&text),
            Outlives::LossOfPower => file.replace(&text),
        };
        if let Err(error) = written {
            self.file = None;
            let _ = fs::remove_file(&self.path);
            warn(&self.path, &error);
        }
    }
}

fn warn(path: &Path, why: &dyn fmt::Display) {
    tracing::warn!(
        path = %path.display(), %why,
        "the record of starts cannot be used: if a volume makes this server end while it starts, the next one does \
         not know which"
    );
}

impl StartRecord {
    /// Begins the record of this start, in a directory that this process has locked.
    pub(crate) fn begin(dir: &Path) -> StartRecord {
        let path = dir.join("starts");
        let (file, history) = match open(&path) {
            Ok((file, history)) => (Some(file), history),
            Err(error) => {
                warn(&path, &error);
                (None, StartHistory::default())
            }
        };
        let mut state = State {
            history,
            file,
            path,
            suspects: BTreeSet::new(),
        };
        if let Some(volume) = state.history.begin(unix_ms()) {
            tracing::error!(
                volume,
                "the last three starts, within a minute, all ended while this volume was being opened: it is left out"
            );
        }
        state.suspects = state.history.suspects();
        // With a volume that is left out it is known to be whole from here on, and otherwise it costs nothing.
        let outlives = match state.history.left_out().is_empty() {
            true => Outlives::Process,
            false => Outlives::LossOfPower,
        };
        state.write(outlives);
        StartRecord(Mutex::new(state))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section is one change and its write, so a panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Volumes that are to be opened one by one, before all others: each of the last two starts ended while
    /// they were under way.
    pub(super) fn is_suspect(&self, volume: &str) -> bool {
        self.lock().suspects.contains(volume)
    }

    /// These volumes are being opened, or their disks restored, each for as long as its part of the answer lives.
    pub(super) fn open_volumes(&self, volumes: &[&str]) -> Vec<UnderWay<'_>> {
        self.add_under_way(volumes);
        let each = volumes.iter().map(|volume| UnderWay {
            record: self,
            volume: (*volume).to_owned(),
        });
        each.collect()
    }

    /// The same of volumes whose clients wait: all of them are under way as long as the answer lives, so that one write says
    /// that they are, and one that they are not.
    pub(super) fn open_together(&self, volumes: &[&str]) -> UnderWayTogether<'_> {
        self.add_under_way(volumes);
        UnderWayTogether {
            record: self,
            volumes: volumes.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn add_under_way(&self, volumes: &[&str]) {
        if !volumes.is_empty() {
            let mut state = self.lock();
            state.history.add_under_way(volumes);
            state.write(Outlives::Process);
        }
    }

    /// This start has opened what it could, or was told to stop: whatever ends it later counts for no volume.
    pub(crate) fn end_start(&self) {
        if canary::active!("every_kill_is_a_crash") {
            return;
        }
        let mut state = self.lock();
        state.history.end_start();
        state.write(Outlives::Process);
    }

    /// Why a volume is not opened by this start; `attach` makes the command that opens it.
    pub(super) fn left_out(
        &self,
        volume: &str,
        attach: impl FnOnce() -> String,
    ) -> Option<Failure> {
        let state = self.lock();
        let since = state.history.left_out().get(volume)?;
        let attach = attach();
        let at = UNIX_EPOCH + Duration::from_millis(since.unix_ms.min(TIME_MAX_MS));
        let at = humantime::format_rfc3339_seconds(at);
        Some(Failure::new(
            FailureCode::LeftOut,
            format!(
                "volume {volume} is left out since {at}: three starts of this server, within a minute, all ended while \
                 it was being opened. All that it holds stays in the log of this host and in the store. See this \
                 server's log of that time for the cause; once that is gone, open it by hand: {attach}"
            ),
        ))
    }

    /// A volume that was opened by hand and serves, or that is gone, is opened by the next start, too.
    pub(super) fn take_back(&self, volume: &str) {
        self.retain_left_out(|name| name != volume);
    }

    /// Forgets that volumes are left out which nobody wants any more.
    pub(super) fn retain_left_out(&self, is_kept: impl Fn(&str) -> bool) {
        let mut state = self.lock();
        if state.history.retain_left_out(is_kept) {
            state.write(Outlives::LossOfPower);
        }
    }
}

/// Opens the file, or makes it, also in the place of one that is damaged.
fn open(path: &Path) -> io::Result<(ReservedFile, StartHistory)> {
    let is_whole = |(file, text): (ReservedFile, Option<Vec<u8>>)| {
        let history = text.map_or_else(
            || Ok(StartHistory::default()),
            |text| StartHistory::decode(&text),
        );
        history.map(|history| (file, history))
    };
    let why = match ReservedFile::open(path) {
        Ok(found) => match is_whole(found) {
            Ok(whole) => return Ok(whole),
            Err(why) => why,
        },
        Err(error) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
        Err(error) => return Err(error),
    };
    tracing::warn!(path = %path.display(), why, "the record of starts is damaged, and made anew");
    fs::remove_file(path)?;
    let (file, _) = ReservedFile::open(path)?;
    Ok((file, StartHistory::default()))
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// A volume that this start is opening, or whose disk it is restoring.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    record: &'a StartRecord,
    volume: String,
}

/// Volumes that are opened side by side.
#[derive(Debug)]
pub(super) struct UnderWayTogether<'a> {
    record: &'a StartRecord,
    volumes: Vec<String>,
}

impl Drop for UnderWayTogether<'_> {
    fn drop(&mut self) {
        let is_kept = std::thread::panicking() || canary::active!("every_kill_is_a_crash");
        if is_kept || self.volumes.is_empty() {
            return;
        }
        let mut state = self.record.lock();
        for volume in &self.volumes {
            state.history.remove_under_way(volume);
        }
        state.write(Outlives::Process);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // A panic that ends the process ends this start.
        if std::thread::panicking() || canary::active!("every_kill_is_a_crash") {
            return;
        }
        let mut state = self.record.lock();
        let left = state.history.remove_under_way(&self.volume);
        if left <= EXACT_MAX || left.is_multiple_of(EXACT_MAX) {
            state.write(Outlives::Process);
        }
    }
}

/// A moment of an opening at which a test may end the server or hold it up.
pub(super) async fn planned_step(volume: &str) {
    // What is shipped has no such switch.
    if !cfg!(debug_assertions) {
        return;
    }
    let planned = std::env::var(OPENING_VARIABLE).unwrap_or_default();
    match planned.split_once('=') {
        Some(("abort", name)) if name == volume => std::process::abort(),
        Some(("hang", name)) if name == volume => {
            eprintln!("firn: the opening of {volume} was made to hang");
            std::future::pending().await
        }
        Some(("hold", until)) => {
            let file = until.split_once(',').filter(|(name, _)| *name == volume);
            while file.is_some_and(|(_, file)| !Path::new(file).exists()) {
                tokio::time::sleep(HOLD_INTERVAL).await;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start that ends while `volume` is being opened.
    fn crash_with(dir: &Path, volume: &str) {
        let record = StartRecord::begin(dir);
        record
            .open_volumes(&[volume])
            .into_iter()
            .for_each(std::mem::forget);
    }

    fn is_left_out(record: &StartRecord, volume: &str) -> bool {
        let attach = || "firn attach".to_owned();
        record.left_out(volume, attach).is_some()
    }

    #[test]
    fn a_volume_is_left_out_until_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        (0..3).for_each(|_| crash_with(dir.path(), "b"));
        for _ in 0..3 {
            let record = StartRecord::begin(dir.path());
            assert!(is_left_out(&record, "b") && !is_left_out(&record, "a"));
            record.end_start();
        }
        let why = StartRecord::begin(dir.path()).left_out("b", || "firn attach b".into());
        assert!(why.unwrap().detail.ends_with("firn attach b"));
        StartRecord::begin(dir.path()).take_back("b");
        assert!(!is_left_out(&StartRecord::begin(dir.path()), "b"));
    }

    #[test]
    fn a_volume_that_was_opened_or_refused_is_not_under_way_and_one_of_a_thread_that_panics_is() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..4 {
            let record = StartRecord::begin(dir.path());
            drop(record.open_volumes(&["a", "b"]));
        }
        assert!(!is_left_out(&StartRecord::begin(dir.path()), "b"));
        for _ in 0..3 {
            let record = StartRecord::begin(dir.path());
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _under_way = record.open_volumes(&["b"]);
                panic!("a bug");
            }));
            assert!(ended.is_err());
        }
        assert!(is_left_out(&StartRecord::begin(dir.path()), "b"));
    }

    /// The file says so at once of few, and in the end of all.
    #[test]
    fn of_many_volumes_none_is_under_way_when_all_are_open() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..300).map(|number| format!("name-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let written = || {
            let (_, text) = ReservedFile::open(&dir.path().join("starts")).unwrap();
            let text = String::from_utf8(text.unwrap()).unwrap();
            text.matches("name-").count()
        };
        let record = StartRecord::begin(dir.path());
        let mut under_way = record.open_volumes(&names);
        while let Some(one) = under_way.pop() {
            drop(one);
            let left = under_way.len();
            let most = if left <= EXACT_MAX {
                left
            } else {
                left + EXACT_MAX
            };
            assert!((left..=most).contains(&written()), "{left}");
        }
    }

    #[test]
    fn volumes_that_two_starts_ended_with_are_suspects_at_the_third() {
        let dir = tempfile::tempdir().unwrap();
        (0..2).for_each(|_| crash_with(dir.path(), "b"));
        let record = StartRecord::begin(dir.path());
        assert!(record.is_suspect("b") && !record.is_suspect("a"));
    }

    #[test]
    fn a_volume_that_was_left_out_by_a_wrong_clock_stops_no_start() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = ReservedFile::open(&dir.path().join("starts")).unwrap();
        let text = r#"{"version": 1, "starts": [], "left_out": {"b": {"unix_ms": NUMBER}}}"#;
        let text = text.replace("NUMBER", &u64::MAX.to_string());
        file.replace(text.as_bytes()).unwrap();
        let why = StartRecord::begin(dir.path()).left_out("b", || "firn attach b".into());
        assert!(why.unwrap().detail.contains("since 9999-12-31"));
    }

    #[test]
    fn a_damaged_record_is_made_anew_and_one_that_cannot_be_had_is_done_without() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts");
        for damaged in [Vec::new(), b"nonsense".to_vec(), vec![0; 2 << 20]] {
            fs::write(&path, damaged).unwrap();
            crash_with(dir.path(), "b");
        }
        // Each of them was the first.
        assert!(!is_left_out(&StartRecord::begin(dir.path()), "b"));
        let (mut file, _) = ReservedFile::open(&path).unwrap();
        file.replace(br#"{"version": 7}"#).unwrap();
        (0..3).for_each(|_| crash_with(dir.path(), "b"));
        assert!(is_left_out(&StartRecord::begin(dir.path()), "b"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        (0..4).for_each(|_| crash_with(dir.path(), "b"));
        let record = StartRecord::begin(dir.path());
        assert!(!is_left_out(&record, "b"));
        record.end_start();
    }

    #[test]
    fn volumes_that_are_opened_side_by_side_are_under_way_until_all_of_them_are_open() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let record = StartRecord::begin(dir.path());
            assert!(!record.is_suspect("a"));
            // The process ends here.
            let _ = std::mem::ManuallyDrop::new(record.open_together(&["a", "b"]));
        }
        let record = StartRecord::begin(dir.path());
        assert!(record.is_suspect("a") && record.is_suspect("b"));
        drop(record.open_together(&["a", "b"]));
        let next = StartRecord::begin(dir.path());
        assert!(!next.is_suspect("a") && !next.is_suspect("b"));
    }
}
