//! `firn gc`, and when a server collects garbage by itself.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::units::TimeSpan;

/// Flags of `firn gc`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GcArgs {
    /// Look, and change nothing: says what is live, what is garbage, and what may come to be named yet.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How often a server collects garbage by itself; none: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct GcInterval(pub(crate) Option<Duration>);

impl FromStr for GcInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(GcInterval(None));
        }
        match text.parse::<TimeSpan>() {
            Ok(TimeSpan(interval)) if !interval.is_zero() => Ok(GcInterval(Some(interval))),
            _ => Err(format!(
                "{text:?} is neither off nor a time; write one like 1h"
            )),
        }
    }
}

impl TryFrom<String> for GcInterval {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<GcInterval> for String {
    fn from(interval: GcInterval) -> String {
        interval.to_string()
    }
}

impl fmt::Display for GcInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(interval) => TimeSpan(interval).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_or_off() {
        assert_eq!("off".parse(), Ok(GcInterval(None)));
        let hour = GcInterval(Some(Duration::from_secs(3600)));
        assert_eq!("1h".parse(), Ok(hour));
        assert_eq!(hour.to_string().parse(), Ok(hour));
        for text in ["0s", "on", "", "1"] {
            assert!(text.parse::<GcInterval>().is_err(), "{text}");
        }
    }
}
