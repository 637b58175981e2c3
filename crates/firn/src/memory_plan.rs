//! How much memory the server may take for what it could also do with less: a part of the host's.
//!
//! What is on its way to the store and what was fetched from it live in buffers whose total is bounded by
//! this plan. On a small host that bound is small: the server's memory is locked, so whatever it takes beyond
//! need is taken from those who use its disks.

use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Content on its way to the store at once is this many packs; see `volume::Options::pack_bytes`.
const PACKS_AT_ONCE: u64 = 8;
/// What an extent in a delta takes, and more.
const DELTA_EXTENT_BYTES: u64 = 128;

/// The parts of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Content of a pack. Eight of them are gathered from the log at once, and compressed into as much again.
    pub(crate) pack_bytes: u64,
    /// What was fetched from the store and waits for the cache disk.
    pub(crate) fetched_bytes: u64,
    /// Index blocks, decoded.
    pub(crate) index_bytes: u64,
    /// Index extents that are not folded into blocks yet, of one volume alone.
    pub(crate) delta_extents: usize,
    /// Heap that is taken at the start, so that nothing has to be asked for when memory is short.
    pub(crate) reserve_bytes: usize,
}

impl MemoryPlan {
    /// The plan for this host, or for the limit that the control group of this process has.
    pub(crate) fn of_host() -> MemoryPlan {
        let total = total_bytes(Path::new("/proc/meminfo"));
        let limit = group_limit_bytes(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
        // A host that does not say how much it has gets what large ones get.
        MemoryPlan::of(total.unwrap_or(u64::MAX).min(limit.unwrap_or(u64::MAX)))
    }

    /// Whether this program and another one like it have room side by side for a moment.
    pub(crate) fn has_room_for_two() -> bool {
        let limit = group_limit_bytes(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
        let meminfo = Path::new("/proc/meminfo");
        let free = meminfo_bytes(meminfo, "MemAvailable:").unwrap_or(0);
        // What the group has beside this process is not known, so half of its limit is not counted on.
        let room = free.min(limit.unwrap_or(u64::MAX) / 2);
        resident_bytes(Path::new("/proc/self/status")).is_some_and(|bytes| bytes <= room)
    }

    fn of(total: u64) -> MemoryPlan {
        let uploads = (total / 32).clamp(8 * MIB, 256 * MIB);
        let part = (total / 16).clamp(8 * MIB, 128 * MIB);
        // The buffers of uploads twice (what is gathered, and what it is compressed to), and all else.
        let reserve = (2 * uploads + 16 * MIB).min(64 * MIB);
        MemoryPlan {
            pack_bytes: uploads / PACKS_AT_ONCE / MIB * MIB,
            fetched_bytes: part,
            index_bytes: part,
            delta_extents: usize::try_from(part / DELTA_EXTENT_BYTES).unwrap_or(0),
            reserve_bytes: usize::try_from(reserve).unwrap_or(0),
        }
    }
}

fn total_bytes(meminfo: &Path) -> Option<u64> {
    meminfo_bytes(meminfo, "MemTotal:")
}

fn resident_bytes(status: &Path) -> Option<u64> {
    meminfo_bytes(status, "VmRSS:")
}

/// A line of these files, in kibibytes there.
fn meminfo_bytes(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The lowest limit of the process's control group and of those above it.
fn group_limit_bytes(own: &Path, groups: &Path) -> Option<u64> {
    let text = fs::read_to_string(own).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let above = Path::new(path).ancestors();
    let limits = above.filter_map(|group| {
        let text = fs::read_to_string(groups.join(group).join("memory.max")).ok()?;
        text.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_host_gives_the_server_a_small_part_and_a_large_one_no_more_than_it_needs() {
        let small = MemoryPlan::of(512 * MIB);
        assert_eq!(small.pack_bytes, 2 * MIB);
        assert_eq!(
            (small.fetched_bytes, small.index_bytes),
            (32 * MIB, 32 * MIB)
        );
        assert_eq!(small.delta_extents, 1 << 18);
        assert_eq!(small.reserve_bytes as u64, 48 * MIB);
        for large in [MemoryPlan::of(8 << 30), MemoryPlan::of(u64::MAX)] {
            assert_eq!((large.pack_bytes, large.index_bytes), (32 * MIB, 128 * MIB));
            assert_eq!(large.delta_extents, 1 << 20);
        }
        assert_eq!(MemoryPlan::of(0).pack_bytes, MIB, "a pack is never empty");
    }

    #[test]
    fn the_lowest_limit_of_the_groups_above_counts() {
        let dir = tempfile::tempdir().unwrap();
        let groups = dir.path().join("groups");
        fs::create_dir_all(groups.join("a/b")).unwrap();
        fs::write(dir.path().join("own"), "0::/a/b\n").unwrap();
        let limit = || group_limit_bytes(&dir.path().join("own"), &groups);
        assert_eq!(limit(), None);
        fs::write(groups.join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(groups.join("a/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(MIB));
    }

    #[test]
    fn the_memory_of_this_host_is_found() {
        assert!(total_bytes(Path::new("/proc/meminfo")).unwrap() > 64 * MIB);
    }
}
