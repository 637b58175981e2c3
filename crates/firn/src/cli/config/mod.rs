//! `firn config`: the settings that `serve` would use, as a file for `--config`, and where each is from.
//!
//! Names and explanations are those of the flags. A setting that nobody gave is a comment, so that a
//! default which changes later is not held back by a file that was printed once.

mod running_settings;

use std::fmt::Write;
use std::path::Path;

use clap::{Args, Command};
use serde_json::{Map, Value};

use super::args::{ApiArgs, ConfigArgs, ConfigCommand, ServeArgs};
use super::output;
use crate::config::{self, Settings};
use crate::failure::{Failure, Result};

pub(crate) fn config(api: &ApiArgs, json: bool, args: ConfigArgs) -> Result<()> {
    match args.command {
        Some(ConfigCommand::Check { file }) => return check(&api.api, json, &file),
        Some(ConfigCommand::Get) => return running_settings::get(api, json),
        Some(ConfigCommand::Set { settings }) => {
            let all = settings_with_help().into_iter().map(|(name, _)| name);
            return running_settings::set(api, json, &settings, &all.collect::<Vec<_>>());
        }
        None => {}
    }
    let api = &api.api[..];
    let flags = args.serve;
    let file = match &flags.config {
        Some(path) => config::read_file(path).map_err(Failure::into_usage)?,
        None => ServeArgs::default(),
    };
    let path = flags.config.clone();
    let (mut from_flags, from_file) = (explicit_settings(&flags), explicit_settings(&file));
    if !api.is_empty() {
        from_flags.insert("api".to_owned(), Value::from(api));
    }
    let settings = Settings::new(api, flags).map_err(Failure::into_usage)?;
    let source = |name: &str| {
        if from_flags.contains_key(name) {
            return "the command line or the environment".to_owned();
        }
        match (&path, from_file.contains_key(name)) {
            (Some(path), true) => path.display().to_string(),
            _ => "default".to_owned(),
        }
    };
    let rows: Vec<Row> = settings_with_help()
        .into_iter()
        .map(|(name, help)| Row {
            value: from_flags
                .get(&name)
                .or_else(|| from_file.get(&name))
                .cloned(),
            default: default_of(&name, &settings),
            source: source(&name),
            name,
            help,
        })
        .collect();
    if json {
        return output::json(&as_json(&rows));
    }
    output::line(as_toml(&rows).trim_end())
}

/// Whether a server would start with this file, as far as the file decides it.
fn check(api: &[String], json: bool, file: &Path) -> Result<()> {
    let flags = ServeArgs {
        config: Some(file.to_owned()),
        ..ServeArgs::default()
    };
    Settings::new(api, flags).map_err(Failure::into_usage)?;
    let file = file.display().to_string();
    match json {
        true => output::json(&serde_json::json!({ "file": file, "ok": true })),
        false => output::line(&format!("{file}: ok")),
    }
}

/// One setting.
struct Row {
    name: String,
    help: String,
    /// As the command line or the file gives it.
    value: Option<Value>,
    default: Option<Value>,
    source: String,
}

fn as_json(rows: &[Row]) -> Value {
    let of_row = |row: &Row| {
        let value = row.value.clone().or_else(|| row.default.clone());
        let row = serde_json::json!({ "name": row.name, "value": value, "source": row.source });
        row
    };
    serde_json::json!({ "settings": rows.iter().map(of_row).collect::<Vec<_>>() })
}

fn as_toml(rows: &[Row]) -> String {
    let mut text = String::from("# Settings of `firn serve`, for --config FILE.\n");
    for row in rows {
        text.push('\n');
        for line in row.help.lines() {
            let _ = writeln!(text, "{}", format!("# {line}").trim_end());
        }
        let _ = match (&row.value, &row.default) {
            // JSON's strings, arrays of strings, and booleans are written alike in TOML.
            (Some(value), _) => writeln!(text, "{} = {value} # from {}", row.name, row.source),
            (None, Some(default)) => writeln!(text, "#{} = {default}", row.name),
            (None, None) => writeln!(text, "#{} =", row.name),
        };
    }
    text
}

/// What somebody has given, by the names of the flags.
fn explicit_settings(args: &ServeArgs) -> Map<String, Value> {
    let value = serde_json::to_value(args).expect("settings always serialize");
    let Value::Object(fields) = value else {
        return Map::new();
    };
    let is_given = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(values) => !values.is_empty(),
        _ => true,
    };
    let fields = fields.into_iter();
    fields.filter(|(_, value)| is_given(value)).collect()
}

/// The settings that may stand in a file, with their explanation, in the order of the help.
fn settings_with_help() -> Vec<(String, String)> {
    let serve = ServeArgs::augment_args(Command::new("serve"));
    let in_file = serve
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "config");
    let explained = in_file.filter_map(|arg| {
        let help = arg.get_long_help().or(arg.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        Some((arg.get_long()?.to_owned(), help))
    });
    // A flag of every command, and so not one of `serve`'s own.
    let api = "Where the API listens: unix:PATH or IP:PORT; over TCP it wants a token.";
    explained
        .chain([("api".to_owned(), api.to_owned())])
        .collect()
}

fn default_of(name: &str, settings: &Settings) -> Option<Value> {
    let text = match name {
        "store" => settings.store.clone(),
        "cache" => settings.cache.display().to_string(),
        "ring-dir" => settings.ring_dir.display().to_string(),
        "rpo" => "30s".to_owned(),
        "gc" => "6h".to_owned(),
        "compact" => "10m".to_owned(),
        "scrub" => "168h".to_owned(),
        "trash-keep" => "24h".to_owned(),
        "slow-request" => "1s".to_owned(),
        "log-size" => crate::units::Size(settings.new_log_bytes()).to_string(),
        "cache-size" => crate::units::Size(settings.new_cache_bytes()).to_string(),
        "log-io" => "auto".to_owned(),
        "sandbox" => "off".to_owned(),
        "single-writer" | "nbd-tls-required" => return Some(Value::Bool(false)),
        "nbd" => {
            let addresses = settings.nbd.iter();
            let texts = addresses.map(crate::frontends::nbd::flag_value);
            return Some(texts.collect());
        }
        "api" => {
            let addresses = settings.api.listen.iter();
            let plain = |text: String| text.trim_start_matches("http://").to_owned();
            return Some(addresses.map(|one| plain(one.to_string())).collect());
        }
        "api-tokens" => settings.api.tokens.display().to_string(),
        "volume" | "insecure" | "api-host" | "snapshot-schedule" => {
            return Some(Value::Array(Vec::new()));
        }
        _ => return None,
    };
    Some(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let settings = Settings::new(&[], ServeArgs::default());
        let settings = settings.unwrap();
        let row = |(name, help): (String, String)| Row {
            value: None,
            default: default_of(&name, &settings),
            source: "default".to_owned(),
            name,
            help,
        };
        settings_with_help().into_iter().map(row).collect()
    }

    #[test]
    fn what_is_printed_is_a_file_that_serve_reads_with_the_same_settings() {
        let text = as_toml(&rows());
        assert!(toml::from_str::<ServeArgs>(&text).is_ok(), "{text}");
        // Also with every default as if it had been given.
        let given: String = text
            .lines()
            .filter(|line| !line.starts_with("# ") && !line.ends_with('='))
            .map(|line| format!("{}\n", line.trim_start_matches('#')))
            .collect();
        let args: ServeArgs = toml::from_str(&given).unwrap_or_else(|why| panic!("{why}: {given}"));
        let (ours, theirs) = (
            Settings::new(&[], ServeArgs::default()).unwrap(),
            Settings::new(&[], args).unwrap(),
        );
        assert_eq!(
            (ours.rpo, ours.slow_request),
            (theirs.rpo, theirs.slow_request)
        );
        assert_eq!(ours.new_log_bytes(), theirs.new_log_bytes());
        assert_eq!(ours.new_cache_bytes(), theirs.new_cache_bytes());
        assert_eq!(format!("{:?}", ours.nbd), format!("{:?}", theirs.nbd));
    }

    #[test]
    fn every_setting_is_explained() {
        for row in rows() {
            assert!(row.help.len() > 20, "{}: {:?}", row.name, row.help);
        }
    }
}
