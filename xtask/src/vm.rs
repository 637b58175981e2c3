//! `cargo xtask vm`: a command of this machine, run under another kernel.
//!
//! The kernels are Debian's own packages, on hardware where that truly works and emulated
//! elsewhere; the guest's files are this machine's, so what was built here runs there as it is.
//! This file owns the arguments and the exit status; it must never turn "could not run" into
//! success, which is why a skip, a deadline and a complaint of the kernel each have a status of
//! their own.

mod accelerator;
mod console;
mod guest;
mod host_files;
mod image;
mod packages;
mod run;
mod source;
mod uml;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::{Failure, workspace};
use accelerator::Accelerator;
pub(crate) use guest::HOST;
pub(crate) use image::Kernel;
use image::Machine;

/// The machine lacks something; the status that automake's test drivers read as "skipped".
pub(crate) const SKIPPED: u8 = 77;
/// The deadline passed; the status that timeout(1) gives.
const DEADLINE_PASSED: u8 = 124;
/// The kernel complained, or the guest died before the command ended.
const GUEST_FAILED: u8 = 125;

/// Arguments of `cargo xtask vm`.
///
/// Ends with the command's own status; 77 where this machine cannot run guests, 124 at the
/// deadline, 125 where the kernel complained or the guest died.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which kernel to run under
    #[arg(long, value_enum, required_unless_present = "all")]
    pub(crate) kernel: Option<Kernel>,
    /// The whole table of guest tests on recent and stable and a smoke run on real-time, instead of a command;
    /// with --kernel, the whole table on that one
    #[arg(long, conflicts_with_all = ["icount", "command"])]
    pub(crate) all: bool,
    /// Of the whole table, only these test programs, by name
    #[arg(
        long,
        requires = "all",
        value_delimiter = ',',
        value_name = "PROGRAM,..."
    )]
    pub(crate) only: Vec<String>,
    /// One processor whose clock counts instructions: slow, and the same on every run
    #[arg(long)]
    icount: bool,
    /// Seconds for the whole run, the boot included; the guest is killed when they are over
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    deadline: u64,
    /// Virtual processors; one with --icount
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Processors that there are with those that are never started. A ublk device has at most so many
    /// queues
    #[arg(long, default_value_t = 0)]
    possible_cpus: u32,
    /// The guest's memory
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    memory: String,
    /// The scratch disk's size in MiB; the file behind it is sparse
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    scratch: u64,
    /// No journal on the scratch disk: the kernel's thread for one takes memory while others free it
    #[arg(long)]
    no_journal: bool,
    /// A network on which the guest finds this machine's loopback addresses at 10.0.2.2; packaged kernels only
    #[arg(long)]
    network: bool,
    /// Show the guest's console on standard error
    #[arg(long)]
    console: bool,
    /// The command and its arguments; FIRN_VM_SCRATCH names the scratch disk's directory
    #[arg(last = true, required_unless_present = "all")]
    command: Vec<String>,
}

/// Fetches or builds what guests of a kernel need, without starting one.
pub(crate) fn prepare(kernel: Kernel) -> Result<(), Failure> {
    match packages::missing_requirement(builders(kernel)) {
        Some(why) => Err(why.into()),
        None => image::prepare(&cache(), kernel).map(drop),
    }
}

/// Programs that making a kernel takes.
fn builders(kernel: Kernel) -> &'static [(&'static str, &'static str)] {
    match kernel {
        Kernel::UserMode => &source::BUILDERS,
        _ => &[],
    }
}

/// Runs the command under the kernel that is named.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let kernel = arguments.kernel.ok_or("no kernel is named")?;
    let cache = cache();
    if let Some(why) = packages::missing_requirement(builders(kernel)) {
        println!("skipped: {why}");
        return Ok(ExitCode::from(SKIPPED));
    }
    if kernel == Kernel::UserMode && arguments.icount {
        return Err(
            "User-Mode Linux counts no instructions; --icount is for packaged kernels".into(),
        );
    }
    if kernel == Kernel::UserMode && arguments.network {
        return Err(
            "User-Mode Linux has no network here; --network is for packaged kernels".into(),
        );
    }
    let machine = image::prepare(&cache, kernel)?;
    let job = run::Job {
        machine: &machine,
        command: &arguments.command,
        cpus: if arguments.icount { 1 } else { arguments.cpus },
        possible_cpus: arguments.possible_cpus,
        memory: &arguments.memory,
        scratch_bytes: arguments.scratch << 20,
        no_journal: arguments.no_journal,
        icount: arguments.icount,
        network: arguments.network,
        hardware: on_hardware(&cache, &machine, arguments.icount),
        console: arguments.console,
        deadline: Duration::from_secs(arguments.deadline),
    };
    let mut outcome = run::run(&cache, &job)?;
    if let run::Outcome::EmulatorFailed(tail) = &outcome {
        // Seen once in hundreds of starts on a busy machine, in the boot of a kernel; it says nothing of the command.
        eprintln!(
            "vm: the emulator failed before the command began, and is started once more; its console's end:\n{tail}"
        );
        outcome = run::run(&cache, &job)?;
    }
    let (code, why) = match outcome {
        run::Outcome::Ended(status) => return Ok(ExitCode::from(status)),
        run::Outcome::Complained(count) => (
            GUEST_FAILED,
            format!("the guest's kernel complained ({count} lines, shown above)"),
        ),
        run::Outcome::Died(tail) | run::Outcome::EmulatorFailed(tail) => (
            GUEST_FAILED,
            format!("the guest ended before the command did; its console's end:\n{tail}"),
        ),
        run::Outcome::DeadlinePassed(tail) => (
            DEADLINE_PASSED,
            format!(
                "the deadline of {} s passed and the guest was killed; its console's end:\n{tail}",
                arguments.deadline
            ),
        ),
    };
    eprintln!("vm: {why}");
    Ok(ExitCode::from(code))
}

/// The kernel tree's own ublk server, a peer for benchmarks; built where it is not there yet.
pub(crate) fn kublk_path() -> Result<PathBuf, Failure> {
    match packages::missing_requirement(&source::BUILDERS) {
        Some(why) => Err(format!("cannot build the kernel tree's ublk server: {why}").into()),
        None => image::kublk(&cache()),
    }
}

/// Where the examples of libublk are, another such peer; built where they are not there yet.
pub(crate) fn libublk_examples() -> Result<PathBuf, Failure> {
    match packages::missing_requirement(&[("gcc", "gcc")]) {
        Some(why) => Err(format!("cannot build the examples of libublk: {why}").into()),
        None => image::libublk(&cache()),
    }
}

/// Whether User-Mode Linux has been built on this machine.
pub(crate) fn has_user_mode() -> bool {
    cache().join("kernels/uml/linux").exists()
}

/// Whether KVM is to run it; says which lane it is and why.
fn on_hardware(cache: &Path, machine: &Machine, icount: bool) -> bool {
    let image = match machine {
        Machine::Packaged(image) => image,
        Machine::UserMode { kernel, .. } => {
            eprintln!("vm: User-Mode Linux {}", kernel.release);
            return false;
        }
    };
    let release = &image.release;
    let accelerator = if icount {
        Accelerator::Emulation("instructions are counted".to_owned())
    } else {
        let emulator = image.bin.join("qemu-system-x86_64");
        accelerator::probe(cache, &emulator, &image.vmlinuz)
    };
    match &accelerator {
        Accelerator::Hardware => eprintln!("vm: Linux {release} on hardware (KVM)"),
        Accelerator::Emulation(why) => eprintln!("vm: Linux {release} under emulation ({why})"),
    }
    accelerator == Accelerator::Hardware
}

/// Where kernels and tools are kept: FIRN_VM_CACHE, else `firn/vm` in the user's cache, so that
/// all clones on a machine share them, else `.cache/vm` here.
pub(crate) fn cache() -> PathBuf {
    match chosen_cache() {
        Some(chosen) => chosen,
        None => usual_cache("vm"),
    }
}

/// Where things of another sort are kept: beside those, or in what FIRN_VM_CACHE names.
pub(crate) fn cache_of(sort: &str) -> PathBuf {
    match chosen_cache() {
        Some(chosen) => chosen.join(sort),
        None => usual_cache(sort),
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn chosen_cache() -> Option<PathBuf> {
    Some(workspace::root().join(variable("FIRN_VM_CACHE")?))
}

fn usual_cache(sort: &str) -> PathBuf {
    variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        // The base directory specification: a path that is not absolute is to be ignored.
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
        .map_or_else(
            || workspace::root().join(".cache").join(sort),
            |user| user.join("firn").join(sort),
        )
}
