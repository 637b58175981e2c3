//! `firn attach --mount`: a file system on the disk, made where there is none, and mounted.
//!
//! By the system's own programs (blkid, mkfs, mount). Content that is there is never overwritten: a file
//! system is made only on a disk whose beginning can be read and has nothing that blkid knows. Doing it
//! twice is doing it once.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::args::FileSystem;
use crate::failure::{Failure, FailureCode, Result};

/// How much of a disk must be readable before blkid's word is taken: what its probes look at first.
const PROBED_BYTES: usize = 1 << 20;

/// How blkid says that it knows nothing of the content.
const BLKID_KNOWS_NOTHING: i32 = 2;

/// What to do besides mounting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) make: Option<FileSystem>,
    pub(super) read_only: bool,
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
    if let Some(kind) = options.make {
        make(device, kind)?;
    }
    let mut command = Command::new("mount");
    if options.read_only {
        command.args(["-o", "ro"]);
    }
    run(command.arg(device).arg(&dir)).map(drop)
}

fn make(device: &Path, kind: FileSystem) -> Result<()> {
    let mut beginning = Vec::new();
    fs::File::open(device)
        .and_then(|file| file.take(PROBED_BYTES as u64).read_to_end(&mut beginning))
        .map_err(|error| Failure::io("read the beginning of", device, &error))?;
    let probe = Command::new("blkid")
        .args(["--probe", "--output", "value", "--match-tag", "TYPE"])
        .arg(device)
        .output()
        .map_err(|error| failed(format!("cannot start blkid: {error}")))?;
    if probe.status.code() != Some(BLKID_KNOWS_NOTHING) {
        let found = String::from_utf8_lossy(&probe.stdout);
        let found = Some(found.trim()).filter(|found| !found.is_empty());
        eprintln!(
            "firn: no file system is made: {} has content already ({})",
            device.display(),
            found.unwrap_or("of an unknown kind")
        );
        return Ok(());
    }
    let mut command = match kind {
        FileSystem::Ext4 => Command::new("mkfs.ext4"),
        FileSystem::Xfs => Command::new("mkfs.xfs"),
    };
    run(command.arg("-q").arg(device)).map(drop)
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
        Some((number, unescaped(place)))
    });
    let last = places.rfind(|(_, place)| Path::new(place) == dir)?;
    Some(last.0)
}

/// The kernel writes blanks in paths as octal numbers.
fn unescaped(place: &str) -> String {
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

    #[test]
    fn a_file_system_is_made_where_there_is_nothing_and_never_over_content() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let content = || fs::read(&image).unwrap();
        let kind = || {
            let blkid = Command::new("blkid")
                .args(["-p", "-o", "value", "-s", "TYPE"])
                .arg(&image)
                .output();
            blkid.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let tools = ["/usr/sbin/mkfs.ext4", "/usr/sbin/blkid", "/sbin/mkfs.ext4"];
        if tools.iter().filter(|tool| Path::new(tool).exists()).count() < 2 {
            println!("skipped: mkfs.ext4 or blkid is not installed");
            return;
        }
        make(&image, FileSystem::Ext4).unwrap();
        assert_eq!(kind().unwrap(), "ext4");
        let before = content();
        make(&image, FileSystem::Xfs).unwrap();
        assert!(content() == before, "what is there stays");
        let missing = make(&dir.path().join("missing"), FileSystem::Ext4).unwrap_err();
        assert!(missing.detail.contains("missing"), "{missing}");
    }
}
