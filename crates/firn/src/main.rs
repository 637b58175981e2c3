//! The firn binary: the server, and the commands that talk to it.
//!
//! It joins what must not know each other: the engine (crate `volume`, which does no I/O), the
//! object store, the local files and the transports. tokio serves the API and the store alone; no
//! request of a client ever waits for it. Reading order, as a volume's data goes:
//!
//! 1. [`cli`] parses what people type and sends it over HTTP; [`model`] is what travels there.
//! 2. [`api`] turns HTTP requests into calls of the control plane, once [`access`] says who may send
//!    them.
//! 3. [`control_plane`] opens, closes, attaches and resizes volumes: what the API means.
//! 4. [`frontends`] lets clients reach an open volume: NBD connections and ublk disks.
//! 5. [`engine`] runs the engine's threads and carries out its disk and store requests.
//! 6. [`local_files`] makes and locks the cache directory: log, read cache and index rings.
//!
//! [`server`] starts all of it in order and stops it in reverse. Every error ends as a
//! [`failure::Failure`] with a stable code.

#![forbid(unsafe_code)]

mod abort_on_panic;
mod access;
mod api;
mod api_address;
mod cli;
mod config;
mod control_plane;
mod engine;
mod failure;
mod frontends;
mod local_files;
mod log_lines;
mod memory_plan;
mod metrics;
mod model;
mod server;
mod spans;
mod store_access;
mod store_answers;
mod store_faults;
mod store_trouble;
mod units;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::args::{Cli, Command};
use failure::{Failure, Result};

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    if canary::PLANTED
        && let Some(canary) = canary::of_process()
    {
        tracing::error!(canary, "THIS SERVER HAS A PLANTED BUG");
    }
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("firn: {failure}");
            ExitCode::from(failure.code.exit_status())
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Serve(args) => {
            let is_check = args.handover_check;
            let stops_with_stdin = args.stop_with_stdin;
            let incoming = match is_check {
                true => None,
                false => server::Incoming::of_environment(),
            };
            let settings = config::Settings::new(&cli.api.api, *args)
                .map_err(Failure::into_usage)
                .inspect_err(|failure| server::roll_back(&failure.to_string()))?;
            if is_check {
                return server::print_check(&settings);
            }
            server::serve(settings, incoming.unwrap_or_default(), stops_with_stdin)
        }
        Command::Volume(command) => cli::volume(&cli.api, cli.json, &command),
        Command::Attach(args) => {
            let request = args.request().map_err(Failure::into_usage)?;
            cli::attach(&cli.api, cli.json, &args, &request)
        }
        Command::Detach(args) => cli::detach(&cli.api, &args),
        Command::Move(args) => cli::move_volume(&cli.api, cli.json, &args),
        Command::Sync { which, patience } => cli::sync(&cli.api, cli.json, &which.name, patience),
        Command::Snapshot(command) => cli::snapshot(&cli.api, cli.json, &command),
        Command::Fork(args) => cli::fork(&cli.api, cli.json, &args),
        Command::Diff(args) => cli::diff(&cli.api, cli.json, &args),
        Command::Import(args) => cli::import(&cli.api, cli.json, &args),
        Command::Export(args) => cli::export(&cli.api, cli.json, &args),
        Command::Clone(args) => cli::clone(&cli.api, cli.json, &args),
        Command::Trash(command) => cli::trash(&cli.api, cli.json, &command),
        Command::Rescue(command) => cli::rescue(&cli.api, cli.json, command),
        Command::Gc(args) => cli::gc(&cli.api, cli.json, args),
        Command::Check(args) => cli::check(cli.json, &args),
        Command::Doctor(args) => cli::doctor(cli.json, &args),
        Command::Top(args) => cli::top(&cli.api, cli.json, &args),
        Command::Bench(args) => cli::bench(&cli.api, cli.json, &args),
        Command::Upgrade(args) => cli::upgrade(&cli.api, cli.json, &args),
        Command::Config(args) => cli::config(&cli.api, cli.json, *args),
        Command::Support(args) => cli::support(&cli.api, &args),
        Command::Completions { shell } => cli::completions(shell),
        Command::Man { dir } => cli::write_man_pages(&dir),
    }
}

/// `FIRN_LOG` chooses what is logged, as in `FIRN_LOG=store=debug`.
fn start_logging() {
    let filter = EnvFilter::try_from_env("FIRN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Who changed what is said however quiet the rest is.
    let audit = format!("{}=info", api::audit::TARGET);
    let filter = filter.add_directive(audit.parse().expect("a target and a level"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| log_lines::Line)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
}
