//! `cargo xtask`, the developers' commands: this file only lists the subcommands.
//!
//! Each subcommand is a module with its own arguments and a `run`; nothing is shared by habit.
#![forbid(unsafe_code)]

mod bench;
mod canaries;
mod chart;
mod evidence;
mod figures;
mod fuzz;
mod lane;
mod minio;
mod models;
mod package;
mod process;
mod running_command;
mod server_program;
mod sim;
mod soak;
mod stores;
mod test;
mod tidy;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a subcommand fails with: a sentence for the developer.
type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The one door for developers of firn")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a benchmark; one at a time on this machine
    Bench(bench::Arguments),
    /// Plant known bugs in the server: the tests in guests and the soak must see them
    Canaries(canaries::Arguments),
    /// Measure what others published beside ours, and write docs/evidence.md
    Evidence(evidence::Arguments),
    /// Fuzz the decoders
    Fuzz(fuzz::Arguments),
    /// Build MinIO, a real S3 server for tests, unless the cache has it, and say where it is
    Minio(minio::Arguments),
    /// Run what proves the multi-queue core: loom, shuttle, planted bugs, ten million random steps
    Models(models::Arguments),
    /// Make the Debian package, and try it under a systemd of its own
    Package(package::Arguments),
    /// Run all tests, or some: says what it runs, and ends with a summary
    Test(test::Arguments),
    /// Check the house rules that a compiler does not know
    Tidy(tidy::Arguments),
    /// Run the simulator: one seed, many for a time, the exhaustive modes, the canaries
    Sim(sim::Arguments),
    /// Use many disks of one server for a time, in a guest, and judge every sector that is read
    Soak(soak::Arguments),
    /// Get, start and use foreign object stores, one after the other: is each still what docs/stores.md says?
    Stores(stores::Arguments),
    /// Run a command under another kernel: packaged, emulated, with a scratch disk
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    if let Err(why) = workspace::check_place(workspace::root(), &workspace::target()) {
        eprintln!("cargo xtask: {why}");
        return ExitCode::FAILURE;
    }
    let result = match command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Canaries(arguments) => canaries::run(&arguments),
        Command::Evidence(arguments) => evidence::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Minio(arguments) => minio::run(&arguments),
        Command::Models(arguments) => models::run(&arguments),
        Command::Package(arguments) => package::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Tidy(arguments) => tidy::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Stores(arguments) => stores::run(&arguments),
        Command::Soak(arguments) => match soak::run(&arguments) {
            Ok(status) => return status,
            Err(failure) => Err(failure),
        },
        Command::Vm(arguments) if arguments.all => test::whole_table(test::TableFilter {
            kernel: arguments.kernel.map(vm::Kernel::name),
            programs: arguments.only,
        }),
        Command::Vm(arguments) => match vm::run(&arguments) {
            Ok(status) => return status,
            Err(failure) => Err(failure),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cargo xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
