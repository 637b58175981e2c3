//! The phases of a soak in order: use the disks, read everything, read everything from the store
//! alone, and check that nothing is left. Each phase ends all that it started.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oracle::stamp::SECTOR_BYTES;
use rustix::process::Signal;
use serde_json::json;

use super::arguments::{Arguments, MIB};
use super::device::Device;
use super::disk_files::IoPath;
use super::gauge::Gauge;
use super::host::Host;
use super::operator::{OPERATION_TIMEOUT, Operator, Place};
use super::server::{ProcessUsage, Server, Setup};
use super::world::{World, lock};
use super::{mover, watchdog, work};
use crate::Failure;

/// Runs all phases. Failures of workers are recorded in `world`.
pub(super) fn soak(
    arguments: &Arguments,
    setup: &Setup,
    world: &World,
    gauge: &Gauge,
) -> Result<(), Failure> {
    let sectors = arguments.span_mib() * MIB / SECTOR_BYTES as u64;
    let devices: Vec<_> = (0..arguments.devices)
        .map(|number| Arc::new(Device::new(number as u32, sectors, number % setup.hosts)))
        .collect();
    let started = setup.all_hosts().map(|host| {
        let server = Mutex::new(Some(setup.start(&host, OPERATION_TIMEOUT)?));
        Ok(Place { host, server })
    });
    let places = started.collect::<Result<Vec<_>, Failure>>()?;
    for device in &devices {
        let host = &places[*device.lock_home()].host;
        create(host, &device.name, arguments.span_mib() * MIB)?;
    }
    let operator = Operator {
        setup,
        mode: &arguments.data_mode,
        devices: &devices,
        places: &places,
        upgrade_every: arguments.upgrade_every.map(Duration::from_secs),
        world,
        gauge,
    };
    operator.attach_all()?;
    note_starts(&operator);
    use_disks(arguments, &operator);
    if !world.failures().is_empty() {
        return Ok(());
    }
    read_from_store_alone(&operator)?;
    check_nothing_left(setup)
}

/// All servers are ready and have their disks.
fn note_starts(operator: &Operator) {
    for place in operator.places {
        if let Some(server) = &*lock(&place.server) {
            operator.gauge.on_server_start(server);
        }
    }
}

/// Creates a volume. If the request fails, it is repeated until the volume exists.
fn create(host: &Host, name: &str, bytes: u64) -> Result<(), Failure> {
    let options = json!({"name": name, "size_bytes": bytes});
    let made = host.request("POST", "/v1/volumes", Some(&options));
    if made.is_ok() {
        return Ok(());
    }
    let began = Instant::now();
    while host.show(name).is_err() {
        if began.elapsed() > OPERATION_TIMEOUT {
            return made.map(drop);
        }
        std::thread::sleep(Duration::from_millis(200));
        let _ = host.request("POST", "/v1/volumes", Some(&options));
    }
    Ok(())
}

/// Uses the disks for the time that was asked for.
fn use_disks(arguments: &Arguments, operator: &Operator) {
    let (world, gauge) = (operator.world, operator.gauge);
    let over = AtomicBool::new(false);
    let limiters: Vec<_> = operator
        .devices
        .iter()
        .map(|_| work::RateLimiter::new(arguments.rate * MIB as f64))
        .collect();
    std::thread::scope(|threads| {
        let mut workers = Vec::new();
        for (device, limiter) in operator.devices.iter().zip(&limiters) {
            for thread in 0..arguments.threads {
                let mut random = work::Random::new(arguments.seed, device.number, thread);
                let activity = world.register_thread(format!("{} thread {thread}", device.name));
                workers.push(threads.spawn(move || match thread {
                    0 => work::buffered(world, &activity, device, limiter, &mut random),
                    _ => work::direct(world, &activity, device, limiter, &mut random),
                }));
            }
        }
        let activity = world.register_thread("operator".to_owned());
        workers.push(threads.spawn(move || operator.run(&activity, arguments.time())));
        if arguments.hosts > 1 {
            let activity = world.register_thread("mover".to_owned());
            let every = Duration::from_secs(arguments.move_every);
            workers.push(threads.spawn(move || mover::run(operator, &activity, every)));
        }
        if let Some(store) = operator
            .setup
            .store
            .as_deref()
            .filter(|_| !arguments.no_faults)
        {
            let activity = world.register_thread("MinIO".to_owned());
            workers.push(threads.spawn(move || {
                store.disturb(world, &activity, arguments.time(), arguments.seed);
            }));
        }
        let over = &over;
        threads.spawn(move || watchdog::watch(operator, over));
        threads.spawn(move || measure(arguments, operator, over));
        world.sleep(arguments.time());
        world.stop();
        for worker in workers {
            if worker.join().is_err() {
                world.fail("a thread of the soak panicked".to_owned());
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    let size = operator.places.iter().filter_map(|place| {
        let running = lock(&place.server);
        let server = running.as_ref()?;
        gauge.sample(server);
        Some(server.size())
    });
    gauge.print_row(world, add(size));
}

fn add(sizes: impl Iterator<Item = ProcessUsage>) -> ProcessUsage {
    sizes.fold(ProcessUsage::default(), |sum, size| sum + size)
}

/// Prints the table of figures: a row each minute, and at least ten in all.
fn measure(arguments: &Arguments, operator: &Operator, over: &AtomicBool) {
    let every = (arguments.time() / 10).clamp(Duration::from_secs(1), Duration::from_secs(60));
    Gauge::print_header();
    let mut next = Instant::now();
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(500));
        let mut sizes = Vec::new();
        for place in operator.places {
            // The operator holds the lock while it restarts or upgrades the server.
            let Ok(mut running) = place.server.try_lock() else {
                continue;
            };
            let Some(server) = &mut *running else {
                continue;
            };
            if let Some(status) = server.exit_status() {
                let host = place.host.number;
                let what = format!("the server of host {host} stopped by itself: {status}");
                operator.world.fail(what);
                return;
            }
            operator.gauge.sample(server);
            sizes.push(server.size());
        }
        if Instant::now() >= next && sizes.len() == operator.places.len() {
            next += every;
            let size = add(sizes.into_iter());
            operator.gauge.print_row(operator.world, size);
        }
    }
}

/// Reads everything; then detaches all volumes, removes log and cache, and reads everything again
/// from the store.
fn read_from_store_alone(operator: &Operator) -> Result<(), Failure> {
    let read_all = |when: &str| {
        std::thread::scope(|threads| {
            for (device, part) in operator.devices.iter().flat_map(work::parts) {
                let activity = operator
                    .world
                    .register_thread(format!("reading everything {when}"));
                threads.spawn(move || {
                    let using = device.acquire(operator.world, &activity);
                    using.flush(IoPath::Buffered);
                    work::read_part(&using, part);
                });
            }
        });
        println!("everything was read {when}");
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| watchdog::watch(operator, &over));
        read_all("from log, cache and store");
        let done = restart_without_local_files(operator);
        if done.is_ok() {
            read_all("from the store alone");
        }
        let done = done.and_then(|()| stop_servers(operator));
        over.store(true, Ordering::SeqCst);
        done
    })
}

fn restart_without_local_files(operator: &Operator) -> Result<(), Failure> {
    stop_servers(operator)?;
    for place in operator.places {
        place.host.remove_local_files()?;
        let server = operator.setup.start(&place.host, OPERATION_TIMEOUT)?;
        *lock(&place.server) = Some(server);
    }
    operator.attach_all()?;
    note_starts(operator);
    Ok(())
}

/// Detaches all disks and stops the servers.
fn stop_servers(operator: &Operator) -> Result<(), Failure> {
    operator.detach_all()?;
    for place in operator.places {
        let Some(server) = lock(&place.server).take() else {
            continue;
        };
        operator.gauge.sample(&server);
        let (_, status) = Server::stop(server, Signal::TERM, OPERATION_TIMEOUT)?;
        if !status.success() {
            let host = place.host.number;
            return Err(format!("the server of host {host} ended with {status}").into());
        }
    }
    Ok(())
}

/// Fails if a device is left behind, and prints which rings are.
fn check_nothing_left(setup: &Setup) -> Result<(), Failure> {
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let devices = names(Path::new("/dev"))
        .filter(|name| name.starts_with("ublkb") || name.starts_with("ublkc"));
    let left: Vec<_> = devices.collect();
    if !left.is_empty() {
        return Err(format!("left behind: {}", left.join(" ")).into());
    }
    for host in setup.all_hosts() {
        let rings = names(&host.rings()).collect::<Vec<_>>();
        println!("left in the directory for rings: {rings:?}");
    }
    Ok(())
}
