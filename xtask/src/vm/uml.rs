//! User-Mode Linux: a kernel that is a program, for measuring.
//!
//! Code runs there at this machine's speed, unlike in an emulator, and system calls and page
//! faults are dear, unlike on hardware: like is to be compared with like. It is built from
//! Debian's packaged source, once, and its root is this machine's files, read-only, as in the
//! other lanes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::shell_quote;
use super::packages::run_for_output;
use super::source;
use crate::Failure;

/// What the default configuration lacks for block devices under test.
const ENABLED_OPTIONS: &[&str] = &[
    "IO_URING",
    "BLK_DEV_UBLK",
    "BLK_DEV_LOOP",
    "BLK_DEV_NBD",
    "BLK_DEV_NULL_BLK",
    "MD",
    "BLK_DEV_DM",
    "DM_DELAY",
    "DM_FLAKEY",
    "DM_LOG_WRITES",
    "DM_THIN_PROVISIONING",
    "EXT4_FS",
    "XFS_FS",
    "TMPFS",
    "HOSTFS",
    "SMP",
    "DEVTMPFS",
    "DEVTMPFS_MOUNT",
    "FUTEX",
    "EVENTFD",
    "MEMFD_CREATE",
    "PRINTK_TIME",
];

/// Processors that it may have at most: as many as this architecture allows. How many there are is
/// said at each start.
const PROCESSORS_MAX: &str = "64";

/// What would only take time.
const DISABLED_OPTIONS: &[&str] = &["MODULES", "SOUND", "WIRELESS", "DEBUG_INFO"];

/// How the kernel's vDSO is laid out, and what of it programs want: code that can be run. It has no
/// `__vdso_getcpu` since Linux 7.3, and programs with `rustix` end where a vDSO lacks it; without such code they
/// make system calls.
const VDSO_LAYOUT: &str = "arch/x86/um/vdso/vdso-layout.lds.S";
const VDSO_FLAGS: [&str; 2] = ["FLAGS(5)", "FLAGS(4)"];

/// A kernel to be started as a program.
#[derive(Debug)]
pub(crate) struct UserMode {
    /// The kernel.
    pub(super) linux: PathBuf,
    /// Its version.
    pub(super) release: String,
}

/// Configuration that a kept kernel must have been built with.
fn configuration() -> String {
    let (with, without) = (ENABLED_OPTIONS.join(" "), DISABLED_OPTIONS.join(" "));
    format!("with {with}\nwithout {without} vDSO\nprocessors {PROCESSORS_MAX}\n")
}

/// Where everything is of a kernel in `folder`.
fn from_folder(folder: &Path) -> Result<UserMode, Failure> {
    Ok(UserMode {
        linux: folder.join("linux"),
        release: fs::read_to_string(folder.join("release"))?,
    })
}

/// Builds the kernel unless `folder` has one of this configuration.
pub(super) fn prepare(cache: &Path, folder: &Path) -> Result<UserMode, Failure> {
    let kept = fs::read_to_string(folder.join("configuration")).unwrap_or_default();
    if kept == configuration() {
        return from_folder(folder);
    }
    for stale in [folder.to_owned(), folder.with_extension("new")] {
        if stale.exists() {
            fs::remove_dir_all(stale)?;
        }
    }
    let new = folder.with_extension("new");
    fs::create_dir_all(&new)?;
    build(cache, &new)?;
    fs::rename(&new, folder)?;
    from_folder(folder)
}

/// Fetches the source, builds it in `new`, and keeps only what is needed.
fn build(cache: &Path, new: &Path) -> Result<(), Failure> {
    eprintln!("vm: building User-Mode Linux; some minutes, once");
    let tree = source::tree(cache, new, None)?;
    hide_vdso(&tree.join(VDSO_LAYOUT))?;
    make(&tree, &["defconfig"])?;
    let mut configure = Command::new(tree.join("scripts/config"));
    configure.current_dir(&tree);
    for name in ENABLED_OPTIONS {
        configure.args(["--enable", name]);
    }
    for name in DISABLED_OPTIONS {
        configure.args(["--disable", name]);
    }
    configure.args(["--set-val", "NR_CPUS", PROCESSORS_MAX]);
    run_for_output(
        configure.args(["--enable", "DEBUG_INFO_NONE"]),
        "configure the kernel",
    )?;
    make(&tree, &["olddefconfig"])?;
    check_config(&fs::read_to_string(tree.join(".config"))?)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(&tree, &[&format!("-j{jobs}"), "linux"])?;
    fs::rename(tree.join("linux"), new.join("linux"))?;
    let mut ask = Command::new("make");
    ask.args(["-s", "ARCH=um", "kernelrelease"])
        .current_dir(&tree);
    let release = run_for_output(&mut ask, "ask for the kernel's version")?;
    fs::write(new.join("release"), release.trim())?;
    source::remove_temporary(new)?;
    Ok(fs::write(new.join("configuration"), configuration())?)
}

fn hide_vdso(layout: &Path) -> Result<(), Failure> {
    let [from, to] = VDSO_FLAGS;
    let text = fs::read_to_string(layout)?;
    if text.matches(from).count() != 1 {
        return Err(format!("{} is not as it was", layout.display()).into());
    }
    Ok(fs::write(layout, text.replace(from, to))?)
}

fn make(tree: &Path, words: &[&str]) -> Result<(), Failure> {
    let mut command = Command::new("nice");
    command
        .args(["make", "-s", "ARCH=um"])
        .args(words)
        .current_dir(tree);
    run_for_output(
        &mut command,
        &format!("make {} of User-Mode Linux", words.join(" ")),
    )
    .map(drop)
}

/// An option that configuration dropped in silence would show much later, as a test that is skipped.
fn check_config(config: &str) -> Result<(), Failure> {
    let lacking: Vec<_> = ENABLED_OPTIONS
        .iter()
        .filter(|name| {
            !config
                .lines()
                .any(|line| line == format!("CONFIG_{name}=y"))
        })
        .copied()
        .collect();
    if lacking.is_empty() {
        Ok(())
    } else {
        Err(format!("the kernel's configuration dropped {}", lacking.join(" ")).into())
    }
}

/// The command that starts the kernel: its console on standard error, the command's output on
/// standard output.
pub(super) fn start(kernel: &UserMode, folder: &Path, job: &Start) -> Command {
    // The kernel writes to its own standard output before it has consoles.
    let line = format!(
        "exec 3>&1 1>&2; exec {} \"$@\" con=null con0=null,fd:2 con1=null,fd:3",
        shell_quote(&kernel.linux.display().to_string())
    );
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &line,
        "firn-uml",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
    ]);
    command.arg(format!("init={}", job.script.display()));
    command.arg(format!("ubd0={}", job.disk.display()));
    command.arg(format!("mem={}", job.memory));
    // Those that there could be, and those of them that are started.
    command.arg(format!("ncpus={}", job.cpus.max(job.possible_cpus)));
    command.arg(format!("maxcpus={}", job.cpus));
    command.arg(format!("uml_dir={}", folder.display()));
    command.args([
        "umid=firn",
        "seccomp=on",
        "console=tty0",
        "printk.devkmsg=on",
        "panic=-1",
    ]);
    command.arg(if job.console {
        "loglevel=7"
    } else {
        "loglevel=5"
    });
    command
}

/// What a guest is started with.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) script: &'a Path,
    pub(super) disk: &'a Path,
    pub(super) memory: &'a str,
    pub(super) cpus: u32,
    pub(super) possible_cpus: u32,
    pub(super) console: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_the_configuration_dropped_is_named() {
        let whole: String = ENABLED_OPTIONS
            .iter()
            .map(|name| format!("CONFIG_{name}=y\n"))
            .collect();
        assert!(check_config(&whole).is_ok());
        let lacking = whole.replace("CONFIG_BLK_DEV_UBLK=y", "# CONFIG_BLK_DEV_UBLK is not set");
        let error = check_config(&lacking).unwrap_err().to_string();
        assert!(error.ends_with("dropped BLK_DEV_UBLK"), "{error}");
    }

    #[test]
    fn a_kernel_of_this_configuration_is_not_built_again() {
        let cache = std::env::temp_dir().join(format!("firn-uml-{}", std::process::id()));
        let folder = cache.join("uml");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("configuration"), configuration()).unwrap();
        fs::write(folder.join("release"), "7.3.4").unwrap();
        let kernel = prepare(&cache, &folder).unwrap();
        fs::remove_dir_all(&cache).unwrap();
        assert_eq!(kernel.release, "7.3.4");
        assert_eq!(kernel.linux, folder.join("linux"));
    }
}
