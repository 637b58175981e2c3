//! `cargo xtask bench forks --only thin`: snapshots and forks as disks, firn's beside those of dm-thin, which LVM's thin volumes are.
//!
//! It runs itself a second time in a guest, where both are on the same kind of disk at the same time and take turns. [`pool`]
//! has dm-thin and [`disks`] firn, asked through [`Branching`]; [`calls`] measures single calls beside a load, [`first`] the
//! first requests to forks, [`many`] forks of one snapshot. Neither side's time has the start of a program in it.

mod calls;
mod disks;
mod first;
mod many;
mod pool;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use clap::ValueEnum;

use self::disks::Disks;
use self::pool::Pool;
use super::Arguments;
use crate::bench::ublk::volume::{Medium, medium};
use crate::bench::ublk::{in_guest, make_guest_ready};
use crate::{Failure, lane, process, server_program, vm};

/// Where the guest runs: code is as fast there as on this machine.
const KERNEL: &str = "uml";

/// MiB of the disk that is branched.
const ORIGIN_MIB: u64 = 128;

/// A system whose disk is branched. Names are of snapshots and of forks, and none is used twice.
trait Branching {
    fn name(&self) -> &'static str;
    /// The disk that is branched.
    fn origin(&self) -> &Path;
    /// Puts the origin into the state before a measurement: nothing that was done to it before is to be paid for in it.
    fn settle(&mut self) -> Result<(), Failure>;
    /// A snapshot of the origin in use; how long that took.
    fn snapshot(&mut self, name: &str) -> Result<Duration, Failure>;
    /// One that everything there is has when the call ends.
    fn stored_snapshot(&mut self, name: &str) -> Result<(), Failure>;
    /// A fork of the origin in use, or of a snapshot of it.
    fn fork(&mut self, snapshot: Option<&str>, name: &str) -> Result<Duration, Failure>;
    /// Makes a fork a disk.
    fn attach(&mut self, fork: &str) -> Result<(Duration, PathBuf), Failure>;
    fn detach(&mut self, fork: &str) -> Result<(), Failure>;
    fn remove_snapshot(&mut self, name: &str) -> Result<(), Failure>;
    /// Removes a fork that is no disk.
    fn remove_fork(&mut self, name: &str) -> Result<(), Failure>;
    /// What there is to say of how the disks were set up.
    fn describe(&self) -> Result<String, Failure>;
    fn end(self: Box<Self>) -> Result<(), Failure>;
}

/// Both of them, which take turns.
type Systems = [Box<dyn Branching>; 2];

/// Starts the guest.
pub(super) fn run_on_host(arguments: &Arguments) -> Result<(), Failure> {
    let program = server_program::build_unless(arguments.program.as_deref())?;
    let guest = ["--memory", "6G", "--scratch", "8192"];
    let mut guest = in_guest(KERNEL, &guest, &["forks", "--only", "thin", "--inside"])?;
    guest.args(["--rounds", &arguments.rounds.to_string()]);
    guest.args(["--forks", &arguments.forks.to_string()]);
    for medium in &arguments.medium {
        let medium = medium
            .to_possible_value()
            .ok_or("a medium without a name")?;
        guest.args(["--medium", medium.get_name()]);
    }
    guest.arg("--program").arg(program);
    println!("\n## Snapshots and forks as disks, beside dm-thin\n");
    println!("$ {}", process::command_line(&guest));
    let status = guest.status()?;
    judge(status)?;
    println!("\n{}", lane::describe_machine()?);
    Ok(())
}

/// A machine that cannot run guests has said why.
fn judge(status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(vm::SKIPPED) => Ok(()),
        _ => Err(format!("the guest ended with {status}").into()),
    }
}

/// Measures, as root of the guest.
pub(super) fn measure_in_guest(arguments: &Arguments) -> Result<(), Failure> {
    println!("{}", make_guest_ready(KERNEL, false)?);
    let program = arguments.program.as_deref().ok_or("no server's program")?;
    for &medium in &arguments.medium {
        let (dir, where_from) = match medium {
            Medium::Memory => (medium::in_memory()?, "disks in memory"),
            Medium::Disk => (medium::scratch_disk()?, "the guest's own disk"),
        };
        let mut systems: Systems = [
            Box::new(Disks::serve(program, &dir)?),
            Box::new(Pool::create(medium, &dir)?),
        ];
        println!("\n### On {where_from}\n");
        for system in &systems {
            println!("{}: {}", system.name(), system.describe()?);
        }
        println!();
        calls::measure(&mut systems, arguments.rounds)?;
        first::measure(&mut systems, arguments.rounds)?;
        many::measure(&mut systems, arguments)?;
        for system in systems {
            system.end()?;
        }
    }
    Ok(())
}
