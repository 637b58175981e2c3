//! A part of a list, for directories with more entries than are to be in memory.
//!
//! Reads only. However many entries there are, it keeps as many as the part may have, or a thousand of each directory
//! on its way if that is more.

use std::collections::BinaryHeap;
use std::fs;
use std::io::{self, ErrorKind as Io};
use std::path::Path;

use crate::{Op, check_key};

/// Entries of a directory that are looked into at least before it is read again: many may be empty directories, which
/// deleted objects leave.
const ENTRIES_MIN: usize = 1024;

/// The first `limit` objects below `key`, which is the directory `dir`, whose keys are behind `after`.
pub(super) fn part(
    dir: &Path,
    key: &str,
    after: &str,
    limit: usize,
) -> io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    collect(dir, key, after, limit, &mut found)?;
    Ok(found)
}

/// An entry by its place in the order of keys: what is below a directory has its name and a slash in front.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    place: String,
    name: String,
    is_dir: bool,
}

impl Entry {
    /// Whether it is, or may hold, something behind `after`.
    fn reaches_behind(&self, after: &str) -> bool {
        let place = self.place.as_str();
        place > after || self.is_dir && after.starts_with(place)
    }
}

fn collect(
    dir: &Path,
    key: &str,
    after: &str,
    limit: usize,
    found: &mut Vec<(String, u64)>,
) -> io::Result<()> {
    let mut done = String::new();
    while found.len() < limit {
        let entries_max = (limit - found.len()).max(ENTRIES_MIN);
        let (entries, has_more) = first_entries(dir, key, after, &done, entries_max)?;
        let last = entries.last().map(|entry| entry.place.clone());
        for entry in entries {
            if found.len() == limit {
                return Ok(());
            }
            let path = dir.join(&entry.name);
            if entry.is_dir {
                collect(
                    &path,
                    entry.place.trim_end_matches('/'),
                    after,
                    limit,
                    found,
                )?;
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(metadata) => found.push((entry.place, metadata.len())),
                Err(source) if source.kind() == Io::NotFound => {}
                Err(source) => return Err(source),
            }
        }
        match last {
            Some(last) if has_more => done = last,
            _ => break,
        }
    }
    Ok(())
}

/// So many entries of a directory that are worth looking at, the first in the order of keys behind `done`; and whether
/// there are more.
fn first_entries(
    dir: &Path,
    key: &str,
    after: &str,
    done: &str,
    entries_max: usize,
) -> io::Result<(Vec<Entry>, bool)> {
    let entries = match fs::read_dir(dir) {
        Err(source) if matches!(source.kind(), Io::NotFound | Io::NotADirectory) => {
            return Ok((Vec::new(), false));
        }
        entries => entries?,
    };
    let mut first: BinaryHeap<Entry> = BinaryHeap::new();
    let mut has_more = false;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        let is_dir = entry.file_type()?.is_dir();
        let end = if is_dir { "/" } else { "" };
        let place = match key {
            "" => format!("{name}{end}"),
            key => format!("{key}/{name}{end}"),
        };
        let entry = Entry {
            place,
            name: name.to_owned(),
            is_dir,
        };
        if entry.place.as_str() <= done || !entry.reaches_behind(after) {
            continue;
        }
        // Most entries of a large directory end here.
        if first.len() == entries_max && first.peek().is_some_and(|last| *last <= entry) {
            has_more = true;
            continue;
        }
        // Private names, and anything else that no key could have made, are not objects.
        if check_key(Op::List, entry.place.trim_end_matches('/')).is_err() {
            continue;
        }
        first.push(entry);
        if first.len() > entries_max {
            first.pop();
            has_more = true;
        }
    }
    Ok((first.into_sorted_vec(), has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_directory_are_its_keys_in_order_whatever_stands_empty_in_between() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "a-b", "a.b", "ab", "b", "b-1", "c"];
        for name in names {
            fs::create_dir_all(dir.path().join("volumes").join(name)).unwrap();
            fs::write(dir.path().join("volumes").join(name).join("root"), name).unwrap();
        }
        for number in 0..2 * ENTRIES_MIN {
            fs::create_dir(dir.path().join("volumes").join(format!("b-0{number}"))).unwrap();
        }
        let mut expected: Vec<String> = names.map(|name| format!("volumes/{name}/root")).into();
        expected.sort_unstable();
        for limit in 1..=names.len() {
            let (mut listed, mut after) = (Vec::new(), String::new());
            loop {
                let dir = dir.path().join("volumes");
                let found = part(&dir, "volumes", &after, limit).unwrap();
                assert!(found.len() <= limit);
                let Some((last, _)) = found.last().cloned() else {
                    break;
                };
                listed.extend(found.into_iter().map(|(key, _)| key));
                after = last;
            }
            assert_eq!(listed, expected, "parts of {limit}");
        }
        let behind = |after: &str| {
            let found = part(&dir.path().join("volumes"), "volumes", after, 1).unwrap();
            found.into_iter().next().map(|(key, _)| key).unwrap()
        };
        assert_eq!(
            behind("volumes/a"),
            "volumes/a-b/root",
            "a place of no object"
        );
        assert_eq!(behind("volumes/a/r"), "volumes/a/root", "below a directory");
        assert_eq!(behind("volumes/a/root"), "volumes/ab/root");
    }
}
