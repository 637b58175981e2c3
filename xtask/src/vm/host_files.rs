//! Programs and libraries of this machine as a packaged kernel's guest reads them: kept in its memory.
//!
//! The guest's root is a 9p mount without a cache, because what is shown there may change: each start
//! of a program reads it anew through the emulator, seconds for a server of 40 MiB, and a minute where
//! other work runs beside. So the directories with programs are mounted over it from a second export
//! that the guest caches. What is cached is never looked at again: a program that is built anew while
//! a guest runs would be read half old and half new, so that run is refused at its end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Failure;

const TAG: &str = "firn.host";

/// Where the guest mounts the export.
const MOUNT: &str = "/run/firn-host";

/// Where distributions have programs and what they load.
const SYSTEM: &str = "/usr/bin /usr/sbin /usr/lib/*-linux-gnu /usr/lib/python3*";

/// The emulator's arguments for the export.
pub(super) fn emulator_arguments() -> [String; 4] {
    let export = "local,id=firn-host,path=/,security_model=none,readonly=on,multidevs=remap";
    [
        "-fsdev".to_owned(),
        export.to_owned(),
        "-device".to_owned(),
        format!("virtio-9p-pci,fsdev=firn-host,mount_tag={TAG}"),
    ]
}

/// The part of a guest's script that mounts the system's directories and `needed`, which are words of
/// the shell. It comes after all that mounts something else above them.
pub(super) fn script(needed: &str) -> String {
    format!(
        r#"mkdir -p {MOUNT} && mount -t 9p -o ro,trans=virtio,version=9p2000.L,access=any,msize=524288,cache=loose {TAG} {MOUNT} || unready the host\'s files
for directory in {SYSTEM} {needed}; do
  [ ! -d "{MOUNT}$directory" ] || mount --bind "{MOUNT}$directory" "$directory" || unready "$directory"
done"#
    )
}

/// The files that a command names, as they were when its guest started.
#[derive(Debug)]
pub(super) struct Programs(Vec<(PathBuf, Identity)>);

type Identity = (u64, u64, i64, i64);

impl Programs {
    pub(super) fn named_in(command: &[String]) -> Self {
        // A word may be a script, or a program and what it is to do.
        let named = command.iter().flat_map(|word| word.split_whitespace());
        let named = named.map(PathBuf::from);
        Self(
            named
                .filter_map(|path| Some((identity(&path)?, path)))
                .map(|(identity, path)| (path, identity))
                .collect(),
        )
    }

    /// An error if one of them is another file now.
    pub(super) fn check_unchanged(&self) -> Result<(), Failure> {
        for (path, before) in &self.0 {
            if identity(path) != Some(*before) {
                return Err(format!(
                    "{} was built anew while a guest ran it, so what the guest did says nothing; run it again",
                    path.display()
                )
                .into());
            }
        }
        Ok(())
    }
}

/// What tells a file's content from that of the file that takes its place. None if it is no file.
fn identity(path: &Path) -> Option<Identity> {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_built_anew_is_noticed_and_another_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let [built, other] = ["built", "other"].map(|name| directory.path().join(name));
        fs::write(&built, "old").unwrap();
        fs::write(&other, "other").unwrap();
        let script = format!("modprobe x && {} --test", built.display());
        let words = ["sh", "-c", &script, other.to_str().unwrap()];
        let programs = Programs::named_in(&words.map(str::to_owned));
        programs.check_unchanged().unwrap();

        let new = directory.path().join("new");
        fs::write(&new, "new").unwrap();
        fs::rename(&new, &built).unwrap();
        let error = programs.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("built was built anew"), "{error}");
    }
}
