//! Writes results: JSON or aligned text on standard output; and, on standard error, that work goes on.
//!
//! A closed pipe (`firn volume list | head -1`) is not an error worth a message.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, FailureCode, Result};

pub(crate) fn line(text: &str) -> Result<()> {
    raw(format!("{text}\n").as_bytes())
}

pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&json_text(value))
}

pub(crate) fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("the API's own types always serialize")
}

/// Says something on standard error, if anybody listens. `eprintln!` panics where nobody does, and what is being undone must
/// go on.
pub(crate) fn warn(text: &str) {
    let _ = io::stderr().write_all(format!("firn: {text}\n").as_bytes());
}

/// Shows on standard error that something goes on and for how long, where a person looks; how much there is, is
/// known at its end.
pub(crate) fn spinner() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Rows under a heading, each column as wide as its widest cell.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> Result<()> {
    raw(table_text(heading, rows).as_bytes())
}

/// The same as text.
pub(crate) fn table_text(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let mut widths = vec![0; heading.len()];
    rows_text(&mut widths, &[&[heading], rows].concat())
}

/// Rows, each column at least as wide as it is known to be; then it is known to be as wide as its widest cell.
pub(crate) fn rows_text(widths: &mut [usize], rows: &[Vec<String>]) -> String {
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&*widths)
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of seconds in its largest unit, of which there are at least two.
pub(crate) fn rounded_time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}min", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Microseconds in the unit that fits; what has no end is longer than any that is counted.
pub(crate) fn short_time(micros: u64) -> String {
    match micros {
        u64::MAX => ">1m".to_owned(),
        0..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format!("{:.1}s", micros as f64 / 1e6),
    }
}

/// Bytes as they are.
pub(crate) fn raw(bytes: &[u8]) -> Result<()> {
    raw_while_read(bytes).map(drop)
}

/// The same; whether anybody reads on.
pub(crate) fn raw_while_read(bytes: &[u8]) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            FailureCode::Output,
            format!("cannot write the result: {error}"),
        )),
    }
}
