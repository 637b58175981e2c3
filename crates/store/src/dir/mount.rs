//! Which file system a directory store is on, and whether its locks keep other hosts out.
//!
//! A conditional update is a comparison and a rename under a lock, so it is only as good as the
//! lock. On a network file system a lock is leased: a host that was cut off loses it, another
//! compares and renames, and then the rename that the first had sent arrives after all: nothing ties
//! it to the lock that is gone. And some mount options, and most file systems in user space, keep
//! locks on one host. No test on one host can show either, so such file systems are known by name.

use std::fs;
use std::path::{Path, PathBuf};

/// A line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    kind: String,
    /// Those of the mount and those of the file system.
    options: Vec<String>,
}

/// Network and cluster file systems, and those that leave locks to a program.
const SHARED: &[&str] = &[
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "fuseblk",
    "gfs2",
    "glusterfs",
    "gpfs",
    "hostfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "pvfs2",
    "smb3",
    "smbfs",
    "virtiofs",
    "vboxsf",
];

/// Options by which a network file system keeps its locks on one host.
const LOCAL_LOCKS: &[&str] = &[
    "nolock",
    "local_lock=flock",
    "local_lock=all",
    "nobrl",
    "localflocks",
    "localflock",
    "noflock",
];

/// Why two hosts could both write here, if they could.
pub(super) fn hazard(root: &Path) -> Option<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    judge(&find(&text, root)?)
}

/// Where what is mounted at `path` is mounted. Asks no file system: one that is away would not answer.
pub fn mount_point(path: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(find(&text, path)?.at)
}

fn judge(mount: &Mount) -> Option<String> {
    let family = mount.kind.split('.').next().unwrap_or_default();
    if !SHARED.contains(&family) || canary::active!("network_locks_are_believed") {
        return None;
    }
    let (at, kind) = (mount.at.display(), &mount.kind);
    let local = mount
        .options
        .iter()
        .find(|one| LOCAL_LOCKS.contains(&one.as_str()));
    Some(match local {
        Some(option) => format!(
            "{at} is mounted as {kind} with {option}: locks are kept on this host, and another one does \
             not see them"
        ),
        None => format!(
            "{at} is mounted as {kind}: what a host that was cut off had sent may arrive after its lock \
             has passed to another host"
        ),
    })
}

/// The mount that `path` is on.
fn find(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse);
    // Of two at the same place the later one is on top.
    mounts
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.as_os_str().len())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &str) -> Option<Mount> {
    let (place, file_system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(4);
    let (at, options) = (unescape(place.next()?), place.next()?);
    let mut file_system = file_system.split(' ');
    let kind = file_system.next()?.to_owned();
    let own = file_system.nth(1).unwrap_or_default();
    let options = options.split(',').chain(own.split(','));
    Some(Mount {
        at,
        kind,
        options: options.map(str::to_owned).collect(),
    })
}

/// Blanks and the like stand as octal numbers.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(char::from(code));
                path.push_str(&part[3..]);
            }
            None => path.push_str(part),
        }
    }
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
30 22 0:40 / /mnt/nas rw,relatime shared:9 - nfs4 10.0.0.1:/firn rw,vers=4.2,hard,local_lock=none
31 22 0:41 / /mnt/old\\040nas rw - nfs 10.0.0.1:/firn rw,vers=3,nolock,local_lock=all
32 22 0:42 / /mnt/bucket rw,nosuid - fuse.s3fs s3fs rw,user_id=0
33 22 0:43 / /mnt/share rw - cifs //server/share rw,nobrl
34 22 254:2 / /mnt/nas/below rw - xfs /dev/vdb rw
35 22 0:44 / /mnt/stacked rw - nfs4 10.0.0.1:/firn rw
36 22 254:3 / /mnt/stacked rw - ext4 /dev/vdc rw
";

    fn hazard_at(path: &str) -> Option<String> {
        judge(&find(MOUNTS, Path::new(path)).unwrap())
    }

    #[test]
    fn file_systems_whose_locks_do_not_keep_other_hosts_out_are_known_by_type_and_options() {
        for local in [
            "/srv/store",
            "/mnt/nas/below/store",
            "/mnt/nasty",
            "/mnt/stacked/store",
        ] {
            assert_eq!(hazard_at(local), None, "{local}");
        }
        for (shared, word) in [
            ("/mnt/nas/store", "nfs4"),
            ("/mnt/old nas/store", "nolock"),
            ("/mnt/bucket", "fuse.s3fs"),
            ("/mnt/share/a/b", "nobrl"),
        ] {
            let why = hazard_at(shared).unwrap_or_else(|| panic!("{shared}"));
            assert!(why.contains(word), "{shared}: {why}");
        }
    }

    #[test]
    fn the_planted_bug_is_seen() {
        let test =
            file_systems_whose_locks_do_not_keep_other_hosts_out_are_known_by_type_and_options;
        let planted = || canary::with("network_locks_are_believed", test);
        assert!(std::panic::catch_unwind(planted).is_err());
    }

    #[test]
    fn the_directory_of_a_test_is_on_some_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = find(&text, &dir.path().canonicalize().unwrap()).unwrap();
        assert!(!mount.kind.is_empty() && !mount.options.is_empty());
    }
}
