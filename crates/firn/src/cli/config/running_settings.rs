//! `firn config get` and `set`: the settings that a server keeps to while it runs, as far as they may change.
//!
//! Names are those of the flags, and lines those of a file for `--config`. What a value may be is for the
//! server to say.

use std::str::FromStr;

use serde_json::Value;

use crate::cli::args::ApiArgs;
use crate::cli::client::Client;
use crate::cli::output;
use crate::cli::similar_name::most_similar;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{ChangeSettings, ChangeableSettings};

const PATH: &str = "/v1/settings";

/// The names of what may change.
const NAMES: [&str; 8] = [
    "rpo",
    "slow-request",
    "gc",
    "compact",
    "scrub",
    "snapshot-schedule",
    "trash-keep",
    "cache-size",
];

pub(super) fn get(api: &ApiArgs, json: bool) -> Result<()> {
    print(json, &Client::new(api)?.get(PATH)?)
}

/// `given` is NAME=VALUE, `all` the names of all settings.
pub(super) fn set(api: &ApiArgs, json: bool, given: &[String], all: &[String]) -> Result<()> {
    let change = parse(given, all)?;
    print(json, &Client::new(api)?.patch(PATH, &change)?)
}

fn print(json: bool, settings: &ChangeableSettings) -> Result<()> {
    if json {
        return output::json(settings);
    }
    let schedules = Value::from(settings.snapshot_schedule.clone());
    output::line(&format!(
        "rpo = \"{}\"\nslow-request = \"{}\"\ngc = \"{}\"\ncompact = \"{}\"\nscrub = \"{}\"\nsnapshot-schedule = {schedules}\n\
         trash-keep = \"{}\"\ncache-size = \"{}\"",
        settings.rpo,
        settings.slow_request,
        settings.gc,
        settings.compact,
        settings.scrub,
        settings.trash_keep,
        settings.cache_size
    ))
}

fn parse(given: &[String], all: &[String]) -> Result<ChangeSettings> {
    let mut change = ChangeSettings::default();
    for text in given {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            usage(format!(
                "{text:?} is no setting; write NAME=VALUE, as in rpo=10s"
            ))
        })?;
        let is_new = match name {
            "rpo" => put(&mut change.rpo, name, value)?,
            "slow-request" => put(&mut change.slow_request, name, value)?,
            "trash-keep" => put(&mut change.trash_keep, name, value)?,
            "gc" => put(&mut change.gc, name, value)?,
            "cache-size" => put(&mut change.cache_size, name, value)?,
            "compact" => put(&mut change.compact, name, value)?,
            "scrub" => put(&mut change.scrub, name, value)?,
            "snapshot-schedule" => {
                let schedules = change.snapshot_schedule.get_or_insert_default();
                // Nothing behind the sign: none.
                schedules.extend((!value.is_empty()).then(|| value.to_owned()));
                continue;
            }
            _ => return Err(unknown(name, all)),
        };
        if !is_new {
            return Err(usage(format!("{name} is given twice")));
        }
    }
    Ok(change)
}

/// Reads a value; whether there was none.
fn put<T: FromStr<Err = String>>(slot: &mut Option<T>, name: &str, value: &str) -> Result<bool> {
    let value = value.parse();
    let value = value.map_err(|why| usage(format!("{name}: {why}")))?;
    Ok(slot.replace(value).is_none())
}

fn unknown(name: &str, all: &[String]) -> Failure {
    if name == "log-size" {
        return usage(
            "the log has a fixed size: where its parts are follows from it. Stop the server, and make the log anew with \
             `firn rescue log --log-size SIZE`, which brings all that it holds to the store first"
                .to_owned(),
        );
    }
    if all.iter().any(|other| other == name) {
        return usage(format!(
            "{name} cannot change while the server runs; change its configuration and restart it, or \
             `firn upgrade`. What can: {}",
            NAMES.join(", ")
        ));
    }
    let meant = most_similar(name, all);
    let meant = meant.map_or_else(String::new, |other| format!("; did you mean {other}?"));
    usage(format!(
        "there is no setting {name}{meant} What can change while the server runs: {}",
        NAMES.join(", ")
    ))
}

fn usage(detail: String) -> Failure {
    Failure::new(FailureCode::Usage, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(given: &[&str]) -> std::result::Result<ChangeSettings, String> {
        let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
        let all = ["rpo", "store", "slow-request"].map(str::to_owned);
        parse(&given, &all).map_err(|failure| failure.detail)
    }

    #[test]
    fn settings_are_given_by_name_and_schedules_several_times_or_none() {
        let change = parsed(&[
            "rpo=10s",
            "snapshot-schedule=a=1h,keep=2",
            "snapshot-schedule=*=24h,keep=7",
        ]);
        let change = change.unwrap();
        assert_eq!(change.rpo.unwrap().to_string(), "10s");
        assert_eq!(
            change.snapshot_schedule.unwrap(),
            ["a=1h,keep=2", "*=24h,keep=7"]
        );
        assert_eq!(change.trash_keep, None);
        assert_eq!((change.gc, change.compact), (None, None));
        let off = parsed(&["gc=off"]).unwrap();
        assert_eq!(off.gc.unwrap().to_string(), "off");
        let none = parsed(&["snapshot-schedule="]).unwrap();
        assert_eq!(none.snapshot_schedule, Some(Vec::new()));
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_what_can() {
        for (given, words) in [
            (&["rpo"][..], "NAME=VALUE"),
            (&["compact=0s"], "neither off nor a time"),
            (&["rpo=soon"], "write one like 30s"),
            (&["rpo=1s", "rpo=2s"], "twice"),
            (&["store=/x"], "restart it"),
            (&["log-size=2GiB"], "firn rescue log --log-size"),
            (&["cache-size=2"], "has no unit"),
            (&["slow-requests=1s"], "did you mean slow-request?"),
        ] {
            let error = parsed(given).unwrap_err();
            assert!(error.contains(words), "{given:?}: {error}");
        }
    }
}
