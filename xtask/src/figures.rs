//! Figures for programs: beside the tables that people read, a line of JSON for each row.
//!
//! A line begins with [`MARK`]. It is a line of the output because that is the only way out of a guest.
//! What is printed here must be what the table says, unrounded, and never something that was not measured.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

/// What such a line begins with; the programs of `crates/*/benches` print the same.
pub(crate) const MARK: &str = "@figure ";

/// The flag that asks for these lines.
pub(crate) const FLAG: &str = "--figures";

static WANTED: AtomicBool = AtomicBool::new(false);

/// From here on this program prints its figures.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// The flag for a program that this one starts, if it was asked for here.
pub(crate) fn flag() -> Option<&'static str> {
    WANTED.load(Ordering::Relaxed).then_some(FLAG)
}

/// Prints a row of a table, if that was asked for.
pub(crate) fn put(table: &str, row: &Value) {
    if flag().is_some() {
        // In one piece: another thread may print, too.
        print!("{}", line(table, row));
    }
}

fn line(table: &str, row: &Value) -> String {
    let mut row = row.clone();
    row["table"] = json!(table);
    format!("{MARK}{row}\n")
}

/// The row that a line carries, with the name of its table under `table`.
pub(crate) fn parse(line: &str) -> Option<Value> {
    let row: Value = serde_json::from_str(line.strip_prefix(MARK)?).ok()?;
    row["table"].is_string().then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_out_as_it_went_in_and_other_lines_are_none() {
        let text = line("exit", &json!({"server": "kublk", "ms": 1.5}));
        assert_eq!(
            parse(text.trim_end()),
            Some(json!({"server": "kublk", "ms": 1.5, "table": "exit"}))
        );
        for other in ["| kublk | 1.5 |", "@figure {", "@figure {}", "@figure 5"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
