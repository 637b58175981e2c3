//! The boot sets of volumes, kept in the cache directory from one opening to the next.
//!
//! A boot set is what a volume read first after it was opened; it is fetched as soon as the volume is open
//! again, before anybody asks. It is a hint and no more: a file that is missing, damaged or cannot be written costs
//! waiting and nothing else, so nothing here ever fails. A file is named by the volume's identity, never by its name,
//! which another volume may have later.

use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use volume::units::VolumeId;

/// When the set of a volume that was opened is complete, so that it is kept.
pub(crate) const COMPLETE_AFTER: Duration = Duration::from_secs(20);
/// The first line of a file.
const HEADING: &str = "firn boot set 1";
/// Ranges of one file at most: none is made with more.
const RANGES_MAX: usize = 4096;

/// The directory of the sets.
#[derive(Clone, Debug)]
pub(crate) struct BootSets {
    dir: PathBuf,
}

impl BootSets {
    pub(crate) fn new(cache: &Path) -> Self {
        BootSets {
            dir: cache.join("boot-sets"),
        }
    }

    fn path(&self, volume: VolumeId) -> PathBuf {
        let mut name = String::new();
        for byte in volume.0 {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        self.dir.join(name)
    }

    /// The volume's set, if one is kept.
    pub(crate) fn load(&self, volume: VolumeId) -> Option<Vec<Range<u64>>> {
        decode(&fs::read_to_string(self.path(volume)).ok()?)
    }

    /// Keeps a set; an empty one leaves the one from before.
    pub(crate) fn save(&self, volume: VolumeId, set: &[Range<u64>]) {
        if set.is_empty() {
            return;
        }
        let path = self.path(volume);
        let unfinished = path.with_extension("new");
        let written = fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&unfinished, encode(set)))
            .and_then(|()| fs::rename(&unfinished, &path));
        if let Err(error) = written {
            tracing::debug!(path = %path.display(), %error, "a boot set is not kept");
        }
    }

    /// The volume is gone.
    pub(crate) fn remove(&self, volume: VolumeId) {
        let _ = fs::remove_file(self.path(volume));
    }
}

fn encode(set: &[Range<u64>]) -> String {
    let mut text = format!("{HEADING}\n");
    for Range { start, end } in set {
        let _ = writeln!(text, "{start} {end}");
    }
    text
}

/// None if it is not whole.
fn decode(text: &str) -> Option<Vec<Range<u64>>> {
    let lines = text.strip_prefix(HEADING)?.strip_prefix('\n')?;
    let whole = lines.strip_suffix('\n')?;
    let ranges = whole.lines().take(RANGES_MAX).map(|line| {
        let (start, end) = line.split_once(' ')?;
        let range = start.parse().ok()?..end.parse().ok()?;
        (range.start < range.end).then_some(range)
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_set_is_read_back_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let sets = BootSets::new(dir.path());
        let volume = VolumeId([7; 16]);
        assert_eq!(sets.load(volume), None);
        let set = [128..256, 0..128];
        sets.save(volume, &set);
        sets.save(volume, &[]);
        assert_eq!(sets.load(volume).as_deref(), Some(&set[..]));
        let whole = encode(&set);
        for end in 0..whole.len() {
            let cut = decode(&whole[..end]);
            assert!(cut.is_none_or(|part| set.starts_with(&part)), "{end}");
        }
        for damaged in [
            "",
            "firn boot set 2\n1 2\n",
            "firn boot set 1\n2 1\n",
            "firn boot set 1\nx\n",
        ] {
            assert_eq!(decode(damaged), None, "{damaged:?}");
        }
        sets.remove(volume);
        assert_eq!(sets.load(volume), None);
    }
}
