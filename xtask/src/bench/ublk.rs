//! `cargo xtask bench ublk`: this crate's example servers against other servers, on a real kernel.
//!
//! It runs itself a second time inside a guest, where the devices are. Which lane that was is the
//! first line of what it prints, and figures of two lanes are never to be compared: User-Mode
//! Linux makes system calls dear, the emulator makes copies dear, and counted instructions are
//! neither time nor the same thing on every processor.

mod exit;
mod getdata;
mod servers;
mod table;
pub(super) mod volume;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, figures, lane, process, vm, workspace};

/// Arguments of `cargo xtask bench ublk`.
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum, default_value_t = UblkBenchmark::Table)]
    what: UblkBenchmark,
    #[command(flatten)]
    options: Options,
    /// The kernel tree's server and the folder of libublk's, inside the guest
    #[arg(long, hide = true, num_args = 2)]
    inside: Option<Vec<PathBuf>>,
}

/// Where, how long and what to measure.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// Where: uml, or a packaged kernel
    #[arg(long, default_value = "uml")]
    kernel: String,
    /// Count instructions instead of time; packaged kernels only
    #[arg(long)]
    icount: bool,
    /// Seconds per measurement, fractions too; virtual ones with --icount
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only rows that have these words in a row; several choices are separated by commas
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

impl Options {
    /// Whether a row of this name is wanted.
    fn includes_row(&self, name: &str) -> bool {
        matches_row(name, &self.only)
    }

    /// This program again, as benchmark `words`, in a guest that is started with `guest_args`.
    fn in_guest(&self, guest_args: &[&str], words: &[&str]) -> Result<Command, Failure> {
        let icount = self.icount.then_some("--icount");
        let guest_args = [guest_args, icount.as_slice()].concat();
        let mut guest = in_guest(&self.kernel, &guest_args, words)?;
        guest.args(["--kernel", &self.kernel, "--only", &self.only]);
        guest.args(["--seconds", &self.seconds.to_string()]);
        guest.args(["--rounds", &self.rounds.to_string()]);
        guest.args(icount).args(figures::flag());
        Ok(guest)
    }
}

/// Builds the example servers as they are packaged.
fn build_servers() -> Result<(), Failure> {
    let build = ["build", "--quiet", "--profile", "dist", "-p", "ublk"];
    process::run(workspace::cargo(build).arg("--examples"))
}

/// This program again, as benchmark `words`, in a guest of this kernel that is started with `guest_args`.
pub(super) fn in_guest(
    kernel: &str,
    guest_args: &[&str],
    words: &[&str],
) -> Result<Command, Failure> {
    let me = process::own_path()?;
    let mut guest = Command::new(&me);
    guest.args(["vm", "--kernel", kernel]);
    guest.args(["--deadline", GUEST_DEADLINE_SECONDS]);
    guest.args(guest_args);
    guest.arg("--").arg(me).arg("bench").args(words);
    Ok(guest)
}

/// Makes a guest ready to serve disks, as its root; which lane it is.
pub(super) fn make_guest_ready(kernel: &str, icount: bool) -> Result<String, Failure> {
    process::run(Command::new("modprobe").arg("ublk_drv"))?;
    lane::disable_autogroup()?;
    process::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    lane::describe_guest(kernel, icount)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum UblkBenchmark {
    /// P1: null and file, each mode, 4k and 128k, QD1 and QD32, 1 and 16 devices
    Table,
    /// What get-data costs and what it saves
    GetData,
    /// P14: how long the exit of many devices takes, and what it asks of the kernel
    Exit,
}

/// Whether this is the second run, in the guest, which the first one's lock is for.
pub(super) fn is_inside(arguments: &Arguments) -> bool {
    arguments.inside.is_some()
}

/// Seconds after which a guest that measures is given up.
const GUEST_DEADLINE_SECONDS: &str = "7200";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match arguments.inside.as_deref() {
        Some([kublk, libublk]) => measure_in_guest(arguments, kublk, libublk),
        Some(_) => Err("--inside takes two paths".into()),
        None => run_on_host(arguments),
    }
}

/// Builds the servers and starts the guest.
fn run_on_host(arguments: &Arguments) -> Result<(), Failure> {
    let peers = [vm::kublk_path()?, vm::libublk_examples()?];
    build_servers()?;
    let what =
        clap::ValueEnum::to_possible_value(&arguments.what).ok_or("a benchmark without a name")?;
    // Room for 128 devices of 24 queues, and for as many servers. A device has no more queues than
    // there could be processors.
    let guest: &[&str] = match arguments.what {
        UblkBenchmark::Exit => &["--memory", "12G", "--possible-cpus", "24"],
        UblkBenchmark::Table | UblkBenchmark::GetData => &["--memory", "4G"],
    };
    let words = ["ublk", what.get_name()];
    let mut guest = arguments.options.in_guest(guest, &words)?;
    process::run(guest.arg("--inside").args(peers))
}

/// Measures, as root of the guest.
fn measure_in_guest(arguments: &Arguments, kublk: &Path, libublk: &Path) -> Result<(), Failure> {
    let Options { kernel, icount, .. } = &arguments.options;
    println!("{}", make_guest_ready(kernel, *icount)?);
    let servers = servers::all(kublk, libublk);
    match arguments.what {
        UblkBenchmark::Table => table::run(arguments, &servers),
        UblkBenchmark::GetData => getdata::run(arguments),
        UblkBenchmark::Exit => exit::run(arguments, kublk),
    }
}

/// Whether a row is among those asked for: whole words, so that `x1` is not `x16`, too.
fn matches_row(name: &str, only: &str) -> bool {
    let has = |words: &str| format!(" {name} ").contains(&format!(" {} ", words.trim()));
    only.is_empty() || only.split(',').any(has)
}

#[cfg(test)]
mod tests {
    use super::matches_row;

    #[test]
    fn rows_are_chosen_by_whole_words() {
        let row = "firn null copy randread 4k QD32 x1";
        for only in ["", "null copy", "QD1 x1, QD32 x1", row] {
            assert!(matches_row(row, only), "{only}");
        }
        for only in ["QD3", "x16", "copy null", "user-copy"] {
            assert!(!matches_row(row, only), "{only}");
        }
    }
}
