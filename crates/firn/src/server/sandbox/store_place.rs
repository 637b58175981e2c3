//! Where a store that is a directory is reached for as long as the server runs.
//!
//! Owns the judgement of mounts. A rule of Landlock is for the directory that is at a path when the rule is made, and for what
//! is ever mounted below it; what is mounted over it later is another one, and refused. So the rule is for a
//! directory above all mounts that may come and go. Must never wait for a file system that does not answer.

use std::fs::DirBuilder;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::config::Settings;
use crate::local_files::CacheDir;
use crate::store_access;

/// How long the store's directory may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where the store is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StorePlace {
    /// What has to be reached.
    pub(super) dir: PathBuf,
    /// Why that may become too little while the server runs.
    pub(super) doubt: Option<String>,
}

/// Looks at the store's directory, if the store is one. Makes it for a new server, which could not later.
pub(super) fn find(settings: &Settings) -> Option<StorePlace> {
    let named = store_dir(&settings.store)?;
    let named = std::path::absolute(&named).unwrap_or(named);
    let has_log = CacheDir::has_log(&settings.cache);
    let cache = settings.cache.canonicalize().ok();
    let cache_mount = cache.and_then(|cache| store::mount_point(&cache));
    let lasting = |dir: &Path| lasting(dir, cache_mount.as_deref(), store::mount_point);
    let doubtful = |dir: PathBuf, doubt: String| StorePlace {
        dir,
        doubt: Some(doubt),
    };
    let place = match observe(named.clone(), has_log) {
        Observed::Silent => doubtful(
            lasting(&named),
            format!("the store's directory {} does not answer", named.display()),
        ),
        Observed::Missing => doubtful(
            existing_above(&named),
            format!(
                "no store is in {} yet: is it to be mounted?",
                named.display()
            ),
        ),
        Observed::Present(dir) => match lasting(&dir) {
            above if above == Path::new("/") => {
                let doubt = format!(
                    "what is mounted for the store's directory {} right below / may be mounted anew",
                    named.display()
                );
                doubtful(dir, doubt)
            }
            dir => StorePlace { dir, doubt: None },
        },
    };
    Some(match place.dir == Path::new("/") {
        true => StorePlace {
            dir: named,
            ..place
        },
        false => place,
    })
}

/// The directory that is the store, if it is one.
fn store_dir(url: &str) -> Option<PathBuf> {
    match url.strip_prefix("file://") {
        Some(path) => Some(path.into()),
        None => (!url.contains("://")).then(|| url.into()),
    }
}

enum Observed {
    /// Its file system did not answer in time.
    Silent,
    /// A log has a store that is not here.
    Missing,
    /// This is its path, without links.
    Present(PathBuf),
}

/// By a thread, which has ended again unless it got stuck.
fn observe(dir: PathBuf, has_log: bool) -> Observed {
    let (sender, receiver) = mpsc::channel();
    let look = move || {
        if !has_log {
            // Not private, as when the store makes it. An error shows when it is opened.
            let _ = DirBuilder::new().recursive(true).create(&dir);
        }
        let is_there = !has_log || store_access::is_initialized(&dir.to_string_lossy());
        let found = dir.canonicalize().ok().filter(|_| is_there);
        let _ = sender.send(found.map_or(Observed::Missing, Observed::Present));
    };
    let thread = std::thread::spawn(look);
    let Ok(observed) = receiver.recv_timeout(PATIENCE) else {
        return Observed::Silent;
    };
    let _ = thread.join();
    observed
}

/// The nearest directory above, but not the root directory.
fn existing_above(dir: &Path) -> PathBuf {
    let above = dir.ancestors().skip(1);
    let mut above = above.filter(|above| *above != Path::new("/"));
    let found = above.find(|above| above.is_dir());
    found.unwrap_or(dir).to_owned()
}

/// The directory itself, or that above the mounts it is on which may go while the server runs: all but the root directory's and
/// that of its log.
fn lasting(
    dir: &Path,
    cache_mount: Option<&Path>,
    mount_point: impl Fn(&Path) -> Option<PathBuf>,
) -> PathBuf {
    let mut dir = dir.to_owned();
    while let Some(mount) = mount_point(&dir) {
        let Some(above) = mount.parent() else { break };
        if Some(mount.as_path()) == cache_mount {
            break;
        }
        dir = above.to_owned();
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_reached_from_above_the_mounts_that_may_come_and_go() {
        let mounts = ["/", "/var", "/mnt/nas", "/mnt/nas/inner", "/data"];
        let mount_point = |dir: &Path| {
            let at = mounts.iter().filter(|mount| dir.starts_with(mount));
            at.max_by_key(|mount| mount.len()).map(PathBuf::from)
        };
        for (store, cache_mount, expected) in [
            ("/srv/store", "/", "/srv/store"),
            ("/var/lib/firn/store", "/var", "/var/lib/firn/store"),
            ("/mnt/nas/store", "/var", "/mnt"),
            ("/mnt/nas/inner/store", "/var", "/mnt"),
            ("/mnt/nas/inner/store", "/mnt/nas", "/mnt/nas"),
            ("/mnt/nas", "/", "/mnt"),
            ("/data/store", "/", "/"),
        ] {
            let found = lasting(Path::new(store), Some(Path::new(cache_mount)), mount_point);
            assert_eq!(found, Path::new(expected), "{store}");
        }
    }

    #[test]
    fn a_bucket_is_no_directory() {
        assert_eq!(store_dir("./a/store"), Some("./a/store".into()));
        assert_eq!(store_dir("file:///srv/x"), Some("/srv/x".into()));
        assert_eq!(store_dir("s3://bucket/x"), None);
    }

    #[test]
    fn a_store_that_is_to_be_mounted_is_reached_from_above_and_made_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(existing_above(&dir.path().join("nas/store")), dir.path());
        let missing = dir.path().join("missing");
        assert!(matches!(observe(missing.clone(), true), Observed::Missing));
        assert!(!missing.exists());
        assert!(matches!(
            observe(missing.clone(), false),
            Observed::Present(_)
        ));
        // It is empty: the place where it is to be mounted.
        assert!(matches!(observe(missing, true), Observed::Missing));
    }
}
