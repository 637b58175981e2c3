//! `cargo xtask soak`: the shipped binary with many disks in use, for a time, and nothing goes wrong.
//!
//! It runs itself a second time in a guest, where the disks are. There `work` writes, flushes,
//! zeroes and reads, `oracle` judges every sector that is read, `operator` restarts and kills the
//! server below, the store fails on purpose, `gauge` draws the curve, and `watchdog` tells who hangs.
//! What is written is bounded by rate and time, so the store, which only grows, fits the scratch disk:
//! nothing has to be deleted below the server's feet.

mod device;
mod gauge;
mod operator;
mod phases;
mod scale;
mod server;
mod watchdog;
mod work;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;

use crate::{Failure, lane, process, vm, workspace};
use gauge::Gauge;
use server::Setup;
use world::World;

const MIB: u64 = 1 << 20;

/// Arguments of `cargo xtask soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Disks, all of one server
    #[arg(long, default_value_t = 4)]
    devices: usize,
    /// How long the disks are in use
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// The same in seconds; ten unless told
    #[arg(long)]
    seconds: Option<u64>,
    /// Where: uml (where it has been built, that is usual), or a packaged kernel
    #[arg(long)]
    kernel: Option<String>,
    /// How the disks' bytes travel: auto, zero-copy, user-copy, get-data, copy
    #[arg(long, default_value = "auto")]
    data_mode: String,
    /// Decides the requests and the store's faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads on each disk; one of them goes through the page cache
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// MiB a second of each disk, reads and writes together
    #[arg(long, default_value_t = 8.0)]
    rate: f64,
    /// MiB of each disk; more in all than log and cache hold, unless told
    #[arg(long)]
    span: Option<u64>,
    /// A store without planned faults
    #[arg(long)]
    no_faults: bool,
    /// Instead of using disks: what so many idle ones cost, a row each, as in 16,64,256
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    scale: Vec<usize>,
    /// End with everything in a JSON document
    #[arg(long)]
    json: bool,
    /// The server to test, instead of building it
    #[arg(long)]
    program: Option<PathBuf>,
    /// A bug planted in the server, which must have been built with planted bugs
    #[arg(long, hide = true)]
    canary: Option<String>,
    /// The guest's memory
    #[arg(long, default_value = "2G")]
    memory: String,
    /// Already in the guest
    #[arg(long, hide = true)]
    inside: bool,
}

/// Ends with the status of `cargo xtask vm`: 77 where this machine cannot run guests.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.devices == 0 || arguments.threads < 2 || arguments.rate <= 0.0 {
        return Err("a soak has at least one device, two threads on it, and a rate".into());
    }
    if arguments.inside {
        inside(arguments).map(|()| ExitCode::SUCCESS)
    } else {
        outside(arguments)
    }
}

impl Arguments {
    fn time(&self) -> Duration {
        let minutes = self.minutes.map(|minutes| 60 * minutes);
        Duration::from_secs(minutes.or(self.seconds).unwrap_or(10))
    }

    fn is_short(&self) -> bool {
        self.time() < Duration::from_secs(60)
    }

    fn kernel(&self) -> &str {
        match &self.kernel {
            Some(kernel) => kernel,
            None if vm::has_user_mode() => "uml",
            None => "recent",
        }
    }

    fn span_mib(&self) -> u64 {
        self.span
            .unwrap_or_else(|| (1024 / self.devices as u64).clamp(64, 512))
    }

    fn log_mib(&self) -> u64 {
        // The smallest that there is, and more where more is in flight; a short run makes it quickly.
        let each = if self.is_short() { 0 } else { 8 };
        64 + each * self.devices as u64
    }

    fn cache_mib(&self) -> u64 {
        16 + 2 * self.devices as u64
    }

    /// The most that the scratch disk can come to hold: every byte that the rate allows, as if nothing were
    /// compressed, half as much again for indexes, and the log and the cache.
    fn bound_mib(&self) -> u64 {
        let moved = self.rate * self.time().as_secs_f64() * self.devices as f64;
        (moved * 1.5) as u64 + self.log_mib() + self.cache_mib() + 1024
    }

    /// The store's faults, with outages that fit the time.
    fn faults(&self) -> String {
        if self.no_faults {
            return String::new();
        }
        let every = (self.time() / 6).clamp(Duration::from_secs(4), Duration::from_secs(120));
        let lasts = every.div_f64(4.0).min(Duration::from_secs(25));
        // In a short run each kind must fire within few requests.
        let rates = if self.is_short() {
            "refuse=100,lose-request=150,lose-answer=150"
        } else {
            "refuse=30,lose-request=20,lose-answer=20"
        };
        format!(
            "seed={},{rates},delay=200,delay-max=250ms,outage-every={}ms,outage-for={}ms",
            self.seed,
            every.as_millis(),
            lasts.as_millis()
        )
    }
}

/// Builds the server and starts the guest.
fn outside(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let program = match &arguments.program {
        Some(program) => std::path::absolute(program)?,
        None => {
            process::run(&mut workspace::cargo([
                "build",
                "--quiet",
                "--profile",
                "dist",
                "-p",
                "firn",
            ]))?;
            workspace::packaged("firn")
        }
    };
    let mut guest = guest(arguments, &program)?;
    println!("$ {}", process::command_line(&guest));
    let code = guest
        .status()?
        .code()
        .and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A short soak of a server with a planted bug: the command that runs the guest.
pub(crate) fn planted(canary: &str, kernel: &str, server: &Path) -> Result<Command, Failure> {
    let arguments = Planted::parse_from(["soak", "--seconds", "60", "--rate", "2", "--span", "16"]);
    let arguments = Arguments {
        kernel: Some(kernel.to_owned()),
        canary: Some(canary.to_owned()),
        ..arguments.soak
    };
    guest(&arguments, server)
}

/// The arguments as a program of their own.
#[derive(clap::Parser)]
struct Planted {
    #[command(flatten)]
    soak: Arguments,
}

/// The command that runs the soak in its guest.
fn guest(arguments: &Arguments, program: &Path) -> Result<Command, Failure> {
    let kernel = arguments.kernel();
    let myself = std::env::current_exe()?;
    let deadline = if arguments.scale.is_empty() {
        arguments.time() + Duration::from_secs(1200)
    } else {
        scale::limit(&arguments.scale)
    };
    let mut guest = Command::new(&myself);
    guest.args(["vm", "--kernel", kernel, "--memory", &arguments.memory]);
    guest.args(["--deadline", &deadline.as_secs().to_string()]);
    guest.args([
        "--scratch",
        &(arguments.bound_mib() + 2048).to_string(),
        "--",
    ]);
    guest
        .arg(&myself)
        .args(["soak", "--inside", "--kernel", kernel]);
    guest.arg("--program").arg(program);
    for (name, value) in [
        ("--devices", arguments.devices.to_string()),
        ("--seconds", arguments.time().as_secs().to_string()),
        ("--data-mode", arguments.data_mode.clone()),
        ("--seed", arguments.seed.to_string()),
        ("--threads", arguments.threads.to_string()),
        ("--rate", arguments.rate.to_string()),
        ("--span", arguments.span_mib().to_string()),
    ] {
        guest.args([name, &value]);
    }
    if let Some(canary) = &arguments.canary {
        guest.args(["--canary", canary]);
    }
    if !arguments.scale.is_empty() {
        let counts: Vec<_> = arguments.scale.iter().map(usize::to_string).collect();
        guest.arg("--scale").arg(counts.join(","));
    }
    for (name, given) in [
        ("--no-faults", arguments.no_faults),
        ("--json", arguments.json),
    ] {
        if given {
            guest.arg(name);
        }
    }
    Ok(guest)
}

/// The soak itself, as root of the guest.
fn inside(arguments: &Arguments) -> Result<(), Failure> {
    process::run(Command::new("modprobe").arg("ublk_drv"))?;
    process::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    println!("{}", lane::describe_guest(arguments.kernel(), false)?);
    let scratch =
        std::env::var_os("FIRN_VM_SCRATCH").ok_or("this is no guest with a scratch disk")?;
    let dir = Path::new(&scratch).join("soak");
    std::fs::create_dir_all(&dir)?;
    let free_mib = rustix::fs::statvfs(&dir).map(|disk| disk.f_bavail * disk.f_frsize / MIB)?;
    if free_mib < arguments.bound_mib() {
        let bound = arguments.bound_mib();
        return Err(format!(
            "{bound} MiB could be written and {free_mib} MiB are free; a lower --rate, or less time"
        )
        .into());
    }
    let setup = Setup {
        program: arguments.program.clone().ok_or("no --program")?,
        dir,
        faults: if arguments.scale.is_empty() {
            arguments.faults()
        } else {
            String::new()
        },
        rpo_seconds: if arguments.is_short() { 1 } else { 5 },
        log_mib: arguments.log_mib(),
        cache_mib: arguments.cache_mib(),
        canary: arguments.canary.clone(),
    };
    if !arguments.scale.is_empty() {
        return scale::run(
            &setup,
            &arguments.data_mode,
            &arguments.scale,
            arguments.json,
        );
    }
    println!(
        "{} devices of {} MiB, {} threads each, {} MiB/s each, {} s, log {} MiB, cache {} MiB, data mode {}, store faults: {}",
        arguments.devices,
        arguments.span_mib(),
        arguments.threads,
        arguments.rate,
        arguments.time().as_secs(),
        setup.log_mib,
        setup.cache_mib,
        arguments.data_mode,
        if setup.faults.is_empty() {
            "none"
        } else {
            &setup.faults
        },
    );
    let world = World::new();
    let gauge = Gauge::new(arguments.devices);
    if let Err(error) = phases::soak(arguments, &setup, &world, &gauge) {
        world.fail(error.to_string());
    }
    gauge.judge(&world, !arguments.no_faults);
    conclude(arguments, &setup, &world, &gauge)
}

fn conclude(
    arguments: &Arguments,
    setup: &Setup,
    world: &World,
    gauge: &Gauge,
) -> Result<(), Failure> {
    let mut summary = gauge.summary(world);
    if arguments.json {
        println!("{summary}");
    }
    if let Some(summary) = summary.as_object_mut() {
        summary.remove("curve");
        for (name, value) in summary {
            println!("{name}: {value}");
        }
    }
    let failures = world.failures();
    if failures.is_empty() {
        println!("soak: passed");
        return Ok(());
    }
    println!(
        "the servers' last words:\n{}",
        server::tail(&setup.said(), 40)
    );
    Err(format!(
        "soak: {} things went wrong, first: {}",
        failures.len(),
        failures[0]
    )
    .into())
}
