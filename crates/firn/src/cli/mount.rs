//! `firn attach --mount`: a file system on the disk, made where there is none, and mounted.
//!
//! By the system's own programs (blkid, mkfs, mount). Content that is there is never overwritten, known or
//! not: a file system is made only on a volume that was never written, as its server says, and only if the
//! disk agrees, whose first MiB is zeroes and on which blkid finds nothing. blkid alone would not do: it knows
//! no database, no plain dm-crypt, no guest's own format. Doing it twice is doing it once.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::args::FileSystem;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::Watermarks;

/// How much of a disk must be readable, and all zeroes, before a file system is made.
const PROBED_BYTES: usize = 1 << 20;

/// How blkid says that it knows nothing of the content.
const BLKID_KNOWS_NOTHING: i32 = 2;

/// What to do besides mounting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) make: Option<FileSystem>,
    /// The volume may have content, so that no file system is made.
    pub(super) was_written: bool,
    pub(super) read_only: bool,
}

/// Whether a volume may have content: it has a newest write, or nobody knows.
pub(super) fn was_written(watermarks: Option<&Watermarks>) -> bool {
    watermarks.is_none_or(|marks| marks.acknowledged.lsn > 0)
}

/// Mounts a disk, which stays attached if that fails.
pub(super) fn mount(device: &Path, dir: &Path, options: Options) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| Failure::io("make the directory", dir, &error))?;
    let dir = dir
        .canonicalize()
        .map_err(|error| Failure::io("open the directory", dir, &error))?;
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(number) = mounted_at(&mounted, &dir) {
        if device_number(device).as_deref() == Some(number) {
            return Ok(());
        }
        return Err(failed(format!(
            "{} has something else mounted on it; choose another directory",
            dir.display()
        )));
    }
    let content = match options.make {
        Some(kind) => make(device, kind, options.was_written)?,
        None => None,
    };
    let mut command = Command::new("mount");
    if options.read_only {
        command.args(["-o", "ro"]);
    }
    let mounted = run(command.arg(device).arg(&dir)).map(drop);
    mounted.map_err(|failure| match content {
        Some(content) => Failure::new(
            failure.code,
            format!(
                "{}; no file system was made, for {content}: if nothing of that is needed, make one on {} \
                 yourself",
                failure.detail,
                device.display()
            ),
        ),
        None => failure,
    })
}

/// Makes a file system where there is no content; says what there is otherwise.
fn make(device: &Path, kind: FileSystem, was_written: bool) -> Result<Option<String>> {
    if was_written {
        return Ok(Some("the volume has been written to".to_owned()));
    }
    if let Some(content) = find_content(device)? {
        return Ok(Some(content));
    }
    let mut command = match kind {
        FileSystem::Ext4 => Command::new("mkfs.ext4"),
        FileSystem::Xfs => Command::new("mkfs.xfs"),
    };
    run(command.arg("-q").arg(device)).map(|_| None)
}

/// What is on a disk, as far as it can be seen: all that blkid knows, and any byte at the beginning.
fn find_content(device: &Path) -> Result<Option<String>> {
    let mut beginning = Vec::new();
    fs::File::open(device)
        .and_then(|file| file.take(PROBED_BYTES as u64).read_to_end(&mut beginning))
        .map_err(|error| Failure::io("read the beginning of", device, &error))?;
    let probe = Command::new("blkid")
        .args(["--probe", "--output", "export"])
        .arg(device)
        .output()
        .map_err(|error| failed(format!("cannot start blkid: {error}")))?;
    if probe.status.code() != Some(BLKID_KNOWS_NOTHING) {
        let found = String::from_utf8_lossy(&probe.stdout);
        let is_kind = |line: &&str| line.starts_with("TYPE=") || line.starts_with("PTTYPE=");
        let kind = found.lines().find(is_kind).unwrap_or("content");
        return Ok(Some(format!("blkid finds {kind} on it")));
    }
    let is_zero = beginning.iter().all(|byte| *byte == 0);
    Ok((!is_zero).then(|| "it has content of an unknown kind".to_owned()))
}

/// Runs one of the system's programs; what it says on failure is part of the failure.
fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let done = command
        .output()
        .map_err(|error| failed(format!("cannot start {name}: {error}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(failed(format!("{name}: {}", said.trim())))
}

fn failed(why: String) -> Failure {
    Failure::new(
        FailureCode::MountFailed,
        format!("{why} (the volume stays attached)"),
    )
}

/// The number of the device that is mounted at a directory, as `MAJOR:MINOR`.
fn mounted_at<'a>(mountinfo: &'a str, dir: &Path) -> Option<&'a str> {
    let lines = mountinfo.lines().map(|line| line.split(' '));
    // What was mounted last hides what is below it.
    let mut places = lines.filter_map(|mut words| {
        let number = words.nth(2)?;
        let place = words.nth(1)?;
        Some((number, unescape_mount_path(place)))
    });
    let last = places.rfind(|(_, place)| Path::new(place) == dir)?;
    Some(last.0)
}

/// The kernel writes blanks in paths as octal numbers.
fn unescape_mount_path(place: &str) -> String {
    let pairs = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    pairs.iter().fold(place.to_owned(), replace)
}

fn device_number(device: &Path) -> Option<String> {
    let number = fs::metadata(device).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    Some(format!("{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_last_at_a_directory_is_found_also_with_blanks_in_its_name() {
        let text = "22 1 259:0 / / rw - ext4 /dev/x rw\n\
            30 22 259:7 / /srv/my\\040disk rw - ext4 /dev/ublkb0 rw\n\
            31 30 259:8 / /srv/my\\040disk rw shared:1 - xfs /dev/ublkb1 rw\n";
        assert_eq!(mounted_at(text, Path::new("/srv/my disk")), Some("259:8"));
        assert_eq!(mounted_at(text, Path::new("/")), Some("259:0"));
        assert_eq!(mounted_at(text, Path::new("/srv")), None);
    }

    /// Whether the programs are there; says so where they are not.
    fn has_tools(tools: &[&str]) -> bool {
        let is_there = |tool: &&&str| {
            let dirs = ["/usr/sbin", "/sbin", "/usr/bin"];
            dirs.iter().any(|dir| Path::new(dir).join(tool).exists())
        };
        let missing = tools.iter().find(|tool| !is_there(tool));
        if let Some(tool) = missing {
            println!("skipped: {tool} is not installed");
        }
        missing.is_none()
    }

    struct Image {
        dir: tempfile::TempDir,
    }

    impl Image {
        fn new() -> Self {
            let image = Image {
                dir: tempfile::tempdir().unwrap(),
            };
            let file = fs::File::create(image.path()).unwrap();
            file.set_len(16 << 20).unwrap();
            image
        }

        fn path(&self) -> std::path::PathBuf {
            self.dir.path().join("image")
        }

        fn content(&self) -> Vec<u8> {
            fs::read(self.path()).unwrap()
        }

        fn write(&self, offset: u64, bytes: &[u8]) {
            use std::os::unix::fs::FileExt;
            let file = fs::File::options().write(true).open(self.path()).unwrap();
            file.write_all_at(bytes, offset).unwrap();
        }

        /// What keeps a file system from being made, and nothing is changed by the attempt.
        fn describe_refusal(&self, was_written: bool) -> String {
            let before = self.content();
            let refused = make(&self.path(), FileSystem::Ext4, was_written).unwrap();
            assert!(self.content() == before, "what is there stays");
            refused.expect("no file system is made")
        }
    }

    #[test]
    fn a_file_system_is_made_on_a_volume_that_was_never_written_and_once() {
        if !has_tools(&["mkfs.ext4", "blkid"]) {
            return;
        }
        let image = Image::new();
        assert_eq!(make(&image.path(), FileSystem::Ext4, false).unwrap(), None);
        let content = find_content(&image.path()).unwrap().unwrap();
        assert_eq!(content, "blkid finds TYPE=ext4 on it");
        image.describe_refusal(false);
        let missing = make(&image.path().join("missing"), FileSystem::Ext4, false).unwrap_err();
        assert!(missing.detail.contains("missing"), "{missing}");
    }

    #[test]
    fn no_file_system_is_made_over_bytes_that_blkid_does_not_know() {
        if !has_tools(&["mkfs.ext4", "blkid"]) {
            return;
        }
        let image = Image::new();
        image.write(4096, b"a database of its own");
        assert!(image.describe_refusal(false).contains("unknown kind"));
        // Where nobody sees it, the server knows of it.
        let image = Image::new();
        image.write(8 << 20, b"a database of its own");
        assert!(image.describe_refusal(true).contains("written"));
    }

    #[test]
    fn no_file_system_is_made_over_a_table_of_partitions() {
        use std::io::Write;
        if !has_tools(&["mkfs.ext4", "blkid", "sfdisk"]) {
            return;
        }
        for (label, kind) in [("gpt", "PTTYPE=gpt"), ("dos", "PTTYPE=dos")] {
            let image = Image::new();
            let mut sfdisk = Command::new("sfdisk");
            let sfdisk = sfdisk.args(["--quiet", "--label", label]).arg(image.path());
            let mut sfdisk = sfdisk.stdin(std::process::Stdio::piped()).spawn().unwrap();
            sfdisk.stdin.take().unwrap().write_all(b",\n").unwrap();
            assert!(sfdisk.wait().unwrap().success());
            let refused = image.describe_refusal(false);
            assert!(refused.contains(kind), "{label}: {refused}");
        }
    }

    #[test]
    fn a_volume_was_written_unless_its_server_says_otherwise() {
        let marks = |lsn| {
            let mark = || serde_json::json!({"lsn": lsn, "age_seconds": 0.0});
            let marks =
                serde_json::json!({"acknowledged": mark(), "flushed": mark(), "stored": mark()});
            serde_json::from_value::<Watermarks>(marks).unwrap()
        };
        assert!(!was_written(Some(&marks(0))));
        assert!(was_written(Some(&marks(1))));
        assert!(was_written(None));
    }
}
