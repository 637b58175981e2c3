//! The phases of a soak, in order: disks in use, everything read, everything read from the store alone,
//! nothing left. Each ends all that it began.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oracle::stamp::SECTOR_BYTES;
use rustix::process::Signal;
use serde_json::json;

use super::device::{Device, Way};
use super::gauge::Gauge;
use super::operator::{Operator, PATIENCE};
use super::server::{self, Server, Setup};
use super::world::{World, lock};
use super::{Arguments, MIB, watchdog, work};
use crate::Failure;

/// All of them. What goes wrong on the way is told to the world.
pub(super) fn soak(
    arguments: &Arguments,
    setup: &Setup,
    world: &World,
    gauge: &Gauge,
) -> Result<(), Failure> {
    let sectors = arguments.span_mib() * MIB / SECTOR_BYTES as u64;
    let devices: Vec<_> = (0..arguments.devices)
        .map(|number| Arc::new(Device::new(number as u32, sectors)))
        .collect();
    let server = Mutex::new(Some(setup.start(PATIENCE)?));
    for device in &devices {
        create(&device.name, arguments.span_mib() * MIB)?;
    }
    let operator = Operator {
        setup,
        mode: &arguments.data_mode,
        devices: &devices,
        server: &server,
        world,
        gauge,
    };
    operator.attach_all()?;
    if let Some(server) = &*lock(&server) {
        gauge.begins(server);
    }
    in_use(arguments, &operator);
    if !world.failures().is_empty() {
        return Ok(());
    }
    from_the_store_alone(&operator)?;
    nothing_is_left(setup)
}

/// Creates a volume. The answer may be lost, so it is looked for.
fn create(name: &str, bytes: u64) -> Result<(), Failure> {
    let wish = json!({"name": name, "size_bytes": bytes});
    let made = server::done("POST", "/v1/volumes", Some(&wish));
    if made.is_ok() {
        return Ok(());
    }
    let began = Instant::now();
    while server::done("GET", &format!("/v1/volumes/{name}"), None).is_err() {
        if began.elapsed() > PATIENCE {
            return made.map(drop);
        }
        std::thread::sleep(Duration::from_millis(200));
        let _ = server::done("POST", "/v1/volumes", Some(&wish));
    }
    Ok(())
}

/// The disks are in use for the time that was asked for.
fn in_use(arguments: &Arguments, operator: &Operator) {
    let (world, gauge) = (operator.world, operator.gauge);
    let over = AtomicBool::new(false);
    let allowances: Vec<_> = operator
        .devices
        .iter()
        .map(|_| work::Allowance::new(arguments.rate * MIB as f64))
        .collect();
    std::thread::scope(|threads| {
        let mut workers = Vec::new();
        for (device, allowance) in operator.devices.iter().zip(&allowances) {
            for thread in 0..arguments.threads {
                let mut random = work::Random::new(arguments.seed, device.number, thread);
                let seat = world.seat(format!("{} thread {thread}", device.name));
                workers.push(threads.spawn(move || match thread {
                    0 => work::buffered(world, &seat, device, allowance, &mut random),
                    _ => work::direct(world, &seat, device, allowance, &mut random),
                }));
            }
        }
        let seat = world.seat("operator".to_owned());
        workers.push(threads.spawn(move || operator.run(&seat, arguments.time())));
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
    if let Some(server) = &*lock(operator.server) {
        gauge.look(server);
        gauge.line(world, server.size());
    }
}

/// Draws the curve: a line a minute, and at least ten in all.
fn measure(arguments: &Arguments, operator: &Operator, over: &AtomicBool) {
    let every = (arguments.time() / 10).clamp(Duration::from_secs(1), Duration::from_secs(60));
    Gauge::header();
    let mut next = Instant::now();
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(500));
        // Not there while the operator changes it.
        let Ok(mut place) = operator.server.try_lock() else {
            continue;
        };
        let Some(server) = &mut *place else { continue };
        if let Some(status) = server.ended() {
            operator
                .world
                .fail(format!("the server ended by itself: {status}"));
            return;
        }
        operator.gauge.look(server);
        if Instant::now() >= next {
            next += every;
            operator.gauge.line(operator.world, server.size());
        }
    }
}

/// Reads everything; then gives it all back, forgets log and cache, and reads it again from the store.
fn from_the_store_alone(operator: &Operator) -> Result<(), Failure> {
    let read_all = |when: &str| {
        std::thread::scope(|threads| {
            for (device, part) in operator.devices.iter().flat_map(work::parts) {
                let seat = operator.world.seat(format!("reading everything {when}"));
                threads.spawn(move || {
                    let using = device.using(operator.world, &seat);
                    using.flush(Way::Buffered);
                    work::everything(&using, part);
                });
            }
        });
        println!("everything was read {when}");
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| watchdog::watch(operator, &over));
        read_all("from where it was");
        let done = give_back_and_start_anew(operator);
        if done.is_ok() {
            read_all("from the store alone");
        }
        let done = done.and_then(|()| end(operator));
        over.store(true, Ordering::SeqCst);
        done
    })
}

fn give_back_and_start_anew(operator: &Operator) -> Result<(), Failure> {
    end(operator)?;
    operator.setup.forget_local()?;
    *lock(operator.server) = Some(operator.setup.start(PATIENCE)?);
    operator.attach_all()?;
    if let Some(server) = &*lock(operator.server) {
        operator.gauge.begins(server);
    }
    Ok(())
}

/// Detaches everything and ends the server.
fn end(operator: &Operator) -> Result<(), Failure> {
    operator.detach_all()?;
    let Some(server) = lock(operator.server).take() else {
        return Ok(());
    };
    operator.gauge.look(&server);
    let (_, status) = Server::end(server, Signal::TERM, PATIENCE)?;
    if !status.success() {
        return Err(format!("the server ended with {status}").into());
    }
    Ok(())
}

/// No device and no ring may be there any more.
fn nothing_is_left(setup: &Setup) -> Result<(), Failure> {
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
    let rings = names(&setup.rings()).collect::<Vec<_>>();
    println!("left in the directory for rings: {rings:?}");
    Ok(())
}
