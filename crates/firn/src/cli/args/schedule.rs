//! `--snapshot-schedule`: when a server takes snapshots by itself, and how many of them it keeps.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{TimeSpan, as_text};

/// Stands for each volume that is open.
const EACH: &str = "*";
/// More than that of one schedule nobody looks at, and each is a root of its own in the store.
const KEEP_MAX: u32 = 10_000;

/// Snapshots of a volume, one in each span of time, of which the newest are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SnapshotSchedule {
    /// None: each volume that is open.
    pub(crate) volume: Option<String>,
    pub(crate) every: Duration,
    pub(crate) keep: u32,
}

impl SnapshotSchedule {
    /// What tells its snapshots from those of other schedules.
    pub(crate) fn name(&self) -> String {
        let seconds = self.every.as_secs();
        let units = [(3600, "h"), (60, "m"), (1, "s")].into_iter();
        let mut exact =
            units.filter(|(unit, _)| self.every == Duration::from_secs(seconds / unit * unit));
        match exact.next() {
            Some((unit, name)) => format!("{}{name}", seconds / unit),
            None => TimeSpan(self.every).to_string(),
        }
    }

    pub(crate) fn is_of(&self, volume: &str) -> bool {
        self.volume.as_deref().is_none_or(|own| own == volume)
    }
}

impl FromStr for SnapshotSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is not VOLUME=TIME,keep=N; write for example demo=1h,keep=24, or *=24h,keep=7 for each volume"
            )
        };
        let (volume, rest) = text.split_once('=').ok_or_else(form)?;
        let (every, keep) = rest.split_once(",keep=").ok_or_else(form)?;
        let TimeSpan(every) = every.parse()?;
        if every < Duration::from_secs(1) {
            return Err(format!(
                "{text:?}: at most one snapshot a second is taken by schedule"
            ));
        }
        let keep = keep.parse().map_err(|_| form())?;
        if !(1..=KEEP_MAX).contains(&keep) {
            return Err(format!("{text:?}: 1 to {KEEP_MAX} snapshots are kept"));
        }
        if volume != EACH {
            volume::check_name(volume).map_err(|error| error.to_string())?;
        }
        Ok(SnapshotSchedule {
            volume: (volume != EACH).then(|| volume.to_owned()),
            every,
            keep,
        })
    }
}

as_text!(SnapshotSchedule);

impl fmt::Display for SnapshotSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = self.volume.as_deref().unwrap_or(EACH);
        write!(f, "{volume}={},keep={}", self.name(), self.keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_written_as_volume_time_and_number() {
        let parse = |text: &str| text.parse::<SnapshotSchedule>();
        let hourly = parse("demo=1h,keep=24").unwrap();
        assert_eq!(hourly.every, Duration::from_secs(3600));
        assert!(hourly.is_of("demo") && !hourly.is_of("other"));
        assert!(parse("*=24h,keep=7").unwrap().is_of("other"));
        for text in ["demo=1h,keep=24", "*=30s,keep=1"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for text in [
            "demo",
            "demo=1h",
            "demo=1h,keep=0",
            "demo=1h,keep=all",
            "demo=0s,keep=1",
            "a/b=1h,keep=1",
            "=1h,keep=1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
