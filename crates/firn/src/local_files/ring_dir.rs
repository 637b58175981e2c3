//! Which directory in memory the index rings are kept in, and whether it lasts.
//!
//! systemd removes the files of an ordinary user in `/dev/shm` when the user logs out
//! (logind.conf, `RemoveIPC`), and `/run/user/UID` with them: a server that such a user left running
//! would lose its rings. So a directory that an administrator made is preferred, and what may go is
//! said. A log that has rings keeps the directory in which they are.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::ring_files::PREFIX;

/// Made by tmpfiles.d or by a unit's `RuntimeDirectory=firn`.
const SYSTEM_DIR: &str = "/run/firn";
const SHARED_DIR: &str = "/dev/shm";

/// Users below this are the system's: logind leaves their files alone.
const ORDINARY_UID: u32 = 1000;
/// The overflow user: nobody logs in as it.
const NOBODY_UID: u32 = 65534;

/// The directory for the rings of the server on `cache_dir`: where they are already, else the first
/// that can be used.
pub(crate) fn choose(cache_dir: &Path) -> PathBuf {
    let candidates = [SYSTEM_DIR, SHARED_DIR].map(PathBuf::from);
    let with_rings = candidates.iter().find(|dir| has_rings(dir, cache_dir));
    let usable = || candidates.iter().find(|dir| is_usable(dir));
    let chosen = with_rings.or_else(usable).cloned();
    chosen.unwrap_or_else(|| PathBuf::from(SHARED_DIR))
}

fn is_usable(dir: &Path) -> bool {
    let flags = Access::WRITE_OK | Access::EXEC_OK;
    dir.is_dir() && rustix::fs::access(dir, flags).is_ok()
}

fn has_rings(dir: &Path, cache_dir: &Path) -> bool {
    let Ok(cache_dir) = cache_dir.canonicalize() else {
        return false;
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let owned = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
    });
    let owners = owned.filter_map(|entry| fs::read(entry.path().join("cache-dir")).ok());
    owners
        .into_iter()
        .any(|owner| owner == cache_dir.as_os_str().as_encoded_bytes())
}

/// Why rings in this directory may go while the machine runs, and what to do about it.
pub(crate) fn why_it_may_go(dir: &Path) -> Option<String> {
    may_be_removed(dir, rustix::process::geteuid().as_raw(), &user_lingers)
}

fn may_be_removed(dir: &Path, uid: u32, lingers: &dyn Fn(u32) -> bool) -> Option<String> {
    let users = [
        PathBuf::from(SHARED_DIR),
        PathBuf::from(format!("/run/user/{uid}")),
    ];
    let ordinary = uid >= ORDINARY_UID && uid != NOBODY_UID;
    // Without logind nobody removes anything.
    let removes = Path::new("/run/systemd/seats").is_dir() || cfg!(test);
    if !ordinary || !removes || !users.iter().any(|one| dir.starts_with(one)) || lingers(uid) {
        return None;
    }
    Some(format!(
        "{}: systemd removes the files of user {uid} there at logout, and with them what makes the \
         newest writes survive a killed server; either `loginctl enable-linger`, or have {SYSTEM_DIR} \
         made for this user (tmpfiles.d: `d {SYSTEM_DIR} 0700 {uid}`)",
        dir.display()
    ))
}

/// Whether logind keeps what this user has when no session is left.
fn user_lingers(uid: u32) -> bool {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut fields = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user =
        fields.find(|fields| fields.get(2).and_then(|field| field.parse().ok()) == Some(uid));
    let name = user.and_then(|fields| fields.first().copied().map(str::to_owned));
    name.is_some_and(|name| Path::new("/var/lib/systemd/linger").join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ordinary_user_who_does_not_linger_loses_rings_at_logout() {
        let dir = |text: &str| PathBuf::from(text);
        let gone = |at: &str, uid, lingers: bool| may_be_removed(&dir(at), uid, &|_| lingers);
        let said = gone("/dev/shm", 1000, false).unwrap();
        assert!(
            said.contains("enable-linger") && said.contains("/run/firn"),
            "{said}"
        );
        assert!(gone("/run/user/1000/firn", 1000, false).is_some());
        assert_eq!(gone("/dev/shm", 1000, true), None);
        assert_eq!(gone("/run/firn", 1000, false), None);
        assert_eq!(gone("/dev/shm", 0, false), None);
        assert_eq!(gone("/dev/shm", 998, false), None);
    }

    #[test]
    fn a_log_keeps_the_directory_in_which_its_rings_are() {
        let (rings, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(!has_rings(rings.path(), cache.path()));
        let dir = rings.path().join(format!("{PREFIX}0123"));
        fs::create_dir(&dir).unwrap();
        let owner = cache.path().canonicalize().unwrap();
        fs::write(dir.join("cache-dir"), owner.as_os_str().as_encoded_bytes()).unwrap();
        assert!(has_rings(rings.path(), cache.path()));
        assert!(!has_rings(rings.path(), rings.path()));
    }
}
