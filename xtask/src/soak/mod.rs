//! `cargo xtask soak`: many disks of the shipped binary in use for some time, while nothing may fail.
//!
//! The program runs itself a second time in a guest, where the disks are, or stays here and uses volumes over NBD. There `work` sends
//! requests, `device` and the oracle judge every sector that is read, `operator` restarts, kills and upgrades
//! the servers of the hosts, `mover` moves volumes between them, the store fails on purpose, `object_store` is one that is killed too, `gauge`
//! records figures, and `watchdog` reports what hangs.
//! Reading order: `arguments`, `phases`, `work`, `device`, `operator`.

mod arguments;
mod device;
mod disk_files;
mod gauge;
mod host;
mod mover;
mod nbd_export;
mod object_store;
mod operator;
mod phases;
mod scale;
mod server;
mod watchdog;
mod work;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use crate::{Failure, lane, minio, process, server_program, workspace};
pub(crate) use arguments::Arguments;
use arguments::{MIB, StoreKind};
use gauge::Gauge;
use object_store::ObjectStore;
use server::Setup;
use world::World;

/// Ends with the status of `cargo xtask vm`: 77 where this machine cannot run guests.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.devices == 0 || arguments.threads < 2 || arguments.rate <= 0.0 {
        return Err("a soak has at least one device, two threads on it, and a rate".into());
    }
    if !arguments.scale.is_empty() && arguments.store != StoreKind::Directory {
        return Err("what idle disks cost is measured with a directory".into());
    }
    if arguments.hosts == 0 || arguments.move_every == 0 || arguments.upgrade_every == Some(0) {
        return Err(
            "a soak has at least one host, and a second between two moves or upgrades".into(),
        );
    }
    if arguments.inside {
        run_in_guest(arguments).map(|()| ExitCode::SUCCESS)
    } else if arguments.nbd {
        run_over_nbd(arguments).map(|()| ExitCode::SUCCESS)
    } else {
        run_on_host(arguments)
    }
}

/// Builds the server and starts the guest.
fn run_on_host(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let program = server_program::build_unless(arguments.program.as_deref())?;
    let mut guest = guest(arguments, &program)?;
    if arguments.has_store_outside() {
        return run_beside_store(arguments, guest);
    }
    start_guest(&mut guest)
}

fn start_guest(guest: &mut Command) -> Result<ExitCode, Failure> {
    println!("$ {}", process::command_line(guest));
    let code = guest.status()?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Starts the guest beside MinIO, which is killed and suspended for as long as the disks are in use.
fn run_beside_store(arguments: &Arguments, mut guest: Command) -> Result<ExitCode, Failure> {
    let dir = workspace::target().join("soak-store");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let store = ObjectStore::start(&minio::build()?, &dir)?;
    guest.args(["--store-url", &store.url_in_guest()?]);
    let world = World::new();
    let activity = world.register_thread("MinIO".to_owned());
    let code = std::thread::scope(|threads| {
        if !arguments.no_faults {
            threads.spawn(|| store.disturb(&world, &activity, arguments.time(), arguments.seed));
            threads.spawn(|| {
                // The guest has not begun so soon, so that the store is there when all is read at the end.
                world.sleep(arguments.time());
                world.stop();
            });
        }
        let code = start_guest(&mut guest);
        world.stop();
        code
    })?;
    drop(store);
    if !arguments.no_faults {
        world.judge_store();
    }
    if code == ExitCode::SUCCESS {
        std::fs::remove_dir_all(&dir)?;
    }
    match world.failures().first() {
        Some(first) if code == ExitCode::SUCCESS => Err(format!("soak: {first}").into()),
        _ => Ok(code),
    }
}

/// The command that runs the soak in its guest.
fn guest(arguments: &Arguments, program: &Path) -> Result<Command, Failure> {
    let kernel = arguments.kernel();
    let myself = process::own_path()?;
    let deadline = if arguments.scale.is_empty() {
        arguments.time() + Duration::from_secs(1200)
    } else {
        scale::limit(&arguments.scale)
    };
    let mut guest = Command::new(&myself);
    guest.args(["vm", "--kernel", kernel, "--memory", arguments.memory()]);
    guest.args(["--cpus", &arguments.cpus().to_string()]);
    guest.args(["--deadline", &deadline.as_secs().to_string()]);
    guest.args(["--scratch", &(arguments.bound_mib() + 2048).to_string()]);
    if arguments.has_store_outside() {
        guest.arg("--network");
    }
    guest.arg("--");
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
    match arguments.store {
        StoreKind::Directory => {}
        StoreKind::Minio if arguments.has_store_outside() => {
            guest.args(["--store", "minio"]);
        }
        StoreKind::Minio => {
            guest.args(["--store", "minio", "--minio"]);
            guest.arg(minio::build()?);
        }
    }
    if let Some(seconds) = arguments.upgrade_every {
        guest.args(["--upgrade-every", &seconds.to_string()]);
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

/// Runs the soak in the guest, as root.
fn run_in_guest(arguments: &Arguments) -> Result<(), Failure> {
    process::run(Command::new("modprobe").arg("ublk_drv"))?;
    process::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    println!("{}", lane::describe_guest(arguments.kernel(), false)?);
    if !arguments.is_short() {
        // A request waits for an outage of the store and a restart, longer than the kernel finds good.
        watchdog::replace_the_kernels()?;
    }
    let scratch =
        std::env::var_os("FIRN_VM_SCRATCH").ok_or("this is no guest with a scratch disk")?;
    let program = arguments.program.clone().ok_or("no --program")?;
    run_in_dir(arguments, program, &Path::new(&scratch).join("soak"))
}

/// Runs the soak on this machine, whose kernel need have no ublk.
fn run_over_nbd(arguments: &Arguments) -> Result<(), Failure> {
    let program = server_program::build_unless(arguments.program.as_deref())?;
    println!("{}", lane::describe_machine()?);
    let minio = match arguments.store {
        StoreKind::Directory => None,
        StoreKind::Minio => Some(minio::build()?),
    };
    let arguments = Arguments {
        minio,
        ..arguments.clone()
    };
    run_in_dir(&arguments, program, &workspace::target().join("soak"))
}

/// Runs the soak with everything below `dir`.
fn run_in_dir(arguments: &Arguments, program: PathBuf, dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)?;
    let free_mib = rustix::fs::statvfs(dir).map(|disk| disk.f_bavail * disk.f_frsize / MIB)?;
    if free_mib < arguments.bound_mib() {
        let bound = arguments.bound_mib();
        return Err(format!(
            "up to {bound} MiB are written and {free_mib} MiB are free; use a lower --rate, or less time"
        )
        .into());
    }
    let mut setup = Setup {
        program,
        dir: dir.to_owned(),
        hosts: arguments.hosts,
        store_url: arguments.store_url.clone(),
        store: None,
        over_nbd: arguments.nbd,
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
    setup.remove_everything();
    std::fs::create_dir_all(dir)?;
    if arguments.store == StoreKind::Minio && setup.store_url.is_none() {
        let program = arguments.minio.as_ref().ok_or("no --minio")?;
        let store = ObjectStore::start(program, dir)?;
        setup.store_url = Some(store.url());
        setup.store = Some(Arc::new(store));
    }
    if !arguments.scale.is_empty() {
        return scale::run(
            &setup,
            &arguments.data_mode,
            &arguments.scale,
            arguments.json,
        );
    }
    print_plan(arguments, &setup);
    let world = World::new();
    let gauge = Gauge::new(arguments.devices);
    if let Err(error) = phases::soak(arguments, &setup, &world, &gauge) {
        world.fail(error.to_string());
    }
    gauge.judge(&world, !arguments.no_faults);
    if setup.store.is_some() && !arguments.no_faults {
        world.judge_store();
    }
    if arguments.upgrade_every.is_some() {
        world.judge_happened("a server was upgraded", &world.tally.upgrades);
    }
    if arguments.hosts > 1 {
        world.judge_happened("a volume was moved", &world.tally.moves);
    }
    let concluded = conclude(arguments, &setup, &world, &gauge);
    // What a soak that failed leaves is looked at.
    if concluded.is_ok() {
        setup.store = None;
        setup.remove_everything();
    }
    concluded
}

fn print_plan(arguments: &Arguments, setup: &Setup) {
    println!(
        "{} hosts, {} devices of {} MiB, {} threads each, {} MiB/s each, {} s, log {} MiB, cache {} MiB, data mode {}, store {:?}, store faults: {}",
        arguments.hosts,
        arguments.devices,
        arguments.span_mib(),
        arguments.threads,
        arguments.rate,
        arguments.time().as_secs(),
        setup.log_mib,
        setup.cache_mib,
        arguments.data_mode,
        arguments.store,
        if setup.faults.is_empty() {
            "none"
        } else {
            &setup.faults
        },
    );
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
    for host in setup.all_hosts() {
        let said = host::tail(&host.log_path(), 40);
        println!("the end of the log of host {}:\n{said}", host.number);
    }
    Err(format!(
        "soak: {} failures, the first: {}",
        failures.len(),
        failures[0]
    )
    .into())
}
