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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_of_json_that_names_its_table() {
        let text = line("exit", &json!({"server": "kublk", "ms": 1.5}));
        let row = text.strip_prefix(MARK).map(serde_json::from_str::<Value>);
        let expected = json!({"server": "kublk", "ms": 1.5, "table": "exit"});
        assert_eq!(row.unwrap().unwrap(), expected);
    }
}
