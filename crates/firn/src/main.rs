//! The firn binary: the server, and the commands that talk to it.
//!
//! Joins what must not know each other: the engine (without I/O), the object store, the local
//! files and the transports. tokio lives here, at the edges (API, store); no request of a client
//! ever waits for it. Reading order: `serve` brings everything up, `edge` carries the engine's
//! requests out, `control` is what the API does, `cli` is what people type.

#![forbid(unsafe_code)]

mod abort_on_panic;
mod api;
mod cli;
mod config;
mod control_plane;
mod engine;
mod failure;
mod frontends;
mod local_files;
mod metrics;
mod model;
mod server;
mod store_faults;
mod units;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::args::{Cli, Command};

/// The command line makes no sense; the same status as clap's own.
const EXIT_USAGE: u8 = 2;
const EXIT_FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    if cfg!(canary)
        && let Some(canary) = canary::of_process()
    {
        tracing::error!(canary, "THIS SERVER HAS A PLANTED BUG");
    }
    let done = match cli.command {
        Command::Serve(args) => match config::Settings::new(&cli.api, *args) {
            Ok(settings) => server::serve(settings),
            Err(failure) => {
                eprintln!("firn: {failure}");
                return ExitCode::from(EXIT_USAGE);
            }
        },
        Command::Volume(command) => cli::volume(&cli.api, cli.json, &command),
        Command::Attach(args) => match args.request() {
            Ok(request) => cli::attach(&cli.api, cli.json, &args.name, &request),
            Err(failure) => {
                eprintln!("firn: {failure}");
                return ExitCode::from(EXIT_USAGE);
            }
        },
        Command::Detach(args) => cli::detach(&cli.api, &args),
        Command::Sync(which) => cli::sync(&cli.api, cli.json, &which.name),
        Command::Doctor(args) => cli::doctor(cli.json, &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("firn: {failure}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// `FIRN_LOG` chooses what is logged, as in `FIRN_LOG=store=debug`.
fn start_logging() {
    let filter = EnvFilter::try_from_env("FIRN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
}
