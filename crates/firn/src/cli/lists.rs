//! Lists that a server tells a part at a time: walks them, and prints each part as it comes.
//!
//! However long a list is, no more than a part of it is in memory. What is printed as JSON is one document of the same
//! shape as the API's, and no document at all, but a failure, if the walk is cut short.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::args::ListArgs;
use super::client::{Client, encoded};
use super::output;
use crate::failure::Result;
use crate::model::{Snapshot, SnapshotList, TrashList, TrashedVolume, Volume, VolumeList};

/// Entries that are asked for at once: as many as a server gives.
const ENTRIES_AT_ONCE: u64 = 1000;

/// A part of a list, as a server tells it.
pub(super) trait ListAnswer: DeserializeOwned {
    type Entry: Serialize;
    /// What the entries are called in the document.
    const ENTRIES: &'static str;

    fn entries(&self) -> &[Self::Entry];
    fn next(&self) -> Option<&str>;
}

impl ListAnswer for VolumeList {
    type Entry = Volume;
    const ENTRIES: &'static str = "volumes";

    fn entries(&self) -> &[Volume] {
        &self.volumes
    }

    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }
}

impl ListAnswer for SnapshotList {
    type Entry = Snapshot;
    const ENTRIES: &'static str = "snapshots";

    fn entries(&self) -> &[Snapshot] {
        &self.snapshots
    }

    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }
}

impl ListAnswer for TrashList {
    type Entry = TrashedVolume;
    const ENTRIES: &'static str = "volumes";

    fn entries(&self) -> &[TrashedVolume] {
        &self.volumes
    }

    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }
}

/// A walk through a list.
pub(super) struct ListWalk<'a> {
    client: &'a Client,
    path: String,
    /// How many are wanted yet; none: all.
    left: Option<u64>,
    after: Option<String>,
    is_done: bool,
}

impl<'a> ListWalk<'a> {
    /// Through all of it.
    pub(super) fn new(client: &'a Client, path: impl Into<String>) -> ListWalk<'a> {
        Self::of(client, path, &ListArgs::default())
    }

    /// Through as much as is asked for.
    pub(super) fn of(client: &'a Client, path: impl Into<String>, args: &ListArgs) -> ListWalk<'a> {
        ListWalk {
            client,
            path: path.into(),
            left: args.limit,
            after: args.after.clone(),
            is_done: false,
        }
    }

    /// The next part; none: that was the last one.
    pub(super) fn next<T: ListAnswer>(&mut self) -> Result<Option<T>> {
        if self.is_done {
            return Ok(None);
        }
        let limit = self
            .left
            .map_or(ENTRIES_AT_ONCE, |left| left.min(ENTRIES_AT_ONCE));
        let mut path = format!("{}?limit={limit}", self.path);
        if let Some(after) = &self.after {
            path.push_str("&after=");
            path.push_str(&encoded(after));
        }
        let part: T = self.client.get(&path)?;
        self.after = part.next().map(str::to_owned);
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(part.entries().len() as u64);
        }
        self.is_done = self.after.is_none() || self.left == Some(0);
        Ok(Some(part))
    }

    /// Behind what it goes on, if there is more than was asked for.
    fn cut_at(&self) -> Option<&str> {
        self.after.as_deref().filter(|_| self.is_done)
    }
}

/// Prints a list as it comes, as a table or as one document.
pub(super) struct ListPrinter {
    form: Form,
    is_read: bool,
}

enum Form {
    Table {
        heading: Option<Vec<String>>,
        widths: Vec<usize>,
    },
    Document {
        entries: &'static str,
        count: usize,
    },
}

impl ListPrinter {
    pub(super) fn new<T: ListAnswer>(json: bool, heading: &[&str]) -> ListPrinter {
        let form = match json {
            true => Form::Document {
                entries: T::ENTRIES,
                count: 0,
            },
            false => Form::Table {
                heading: Some(heading.iter().map(|&cell| cell.to_owned()).collect()),
                widths: vec![0; heading.len()],
            },
        };
        ListPrinter {
            form,
            is_read: true,
        }
    }

    /// Whether anybody reads on.
    pub(super) fn is_read(&self) -> bool {
        self.is_read
    }

    /// Prints a part, of which a table has these rows.
    pub(super) fn print<T: ListAnswer>(
        &mut self,
        part: &T,
        mut rows: Vec<Vec<String>>,
    ) -> Result<()> {
        let text = match &mut self.form {
            Form::Table { heading, widths } => {
                if let Some(heading) = heading.take() {
                    rows.insert(0, heading);
                }
                output::rows_text(widths, &rows)
            }
            Form::Document { entries, count } => {
                let mut text = String::new();
                for entry in part.entries() {
                    text.push_str(&beginning(entries, *count));
                    text.push_str(&indented(entry, "    "));
                    *count += 1;
                }
                text
            }
        };
        self.write(&text)
    }

    /// Prints what stands behind the entries: what else a document has, and where a list goes on that was cut.
    pub(super) fn end(mut self, walk: &ListWalk<'_>, mut more: Map<String, Value>) -> Result<()> {
        match &self.form {
            Form::Table { .. } => {
                if let Some(next) = walk.cut_at() {
                    eprintln!("firn: there are more: --after {next}");
                }
                Ok(())
            }
            Form::Document { entries, count } => {
                if let Some(next) = walk.cut_at() {
                    more.insert("next".to_owned(), next.into());
                }
                let mut text = match count {
                    0 => format!("{{\n  \"{entries}\": []"),
                    _ => "\n  ]".to_owned(),
                };
                for (name, value) in &more {
                    let value = indented(value, "  ");
                    text.push_str(&format!(",\n  \"{name}\": {}", value.trim_start()));
                }
                text.push_str("\n}\n");
                self.write(&text)
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.is_read = output::raw_while_read(text.as_bytes())?;
        Ok(())
    }
}

/// What stands in front of an entry that so many precede.
fn beginning(entries: &str, count: usize) -> String {
    match count {
        0 => format!("{{\n  \"{entries}\": [\n"),
        _ => ",\n".to_owned(),
    }
}

fn indented(value: &impl Serialize, by: &str) -> String {
    let text = output::json_text(value);
    let lines: Vec<String> = text.lines().map(|line| format!("{by}{line}")).collect();
    lines.join("\n")
}
