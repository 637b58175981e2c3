//! P21: what many volumes that write a little ask of the store.
//!
//! Twice: the engine by itself in virtual time, for hours in which each volume is folded, marks move and the
//! collector passes; and the server on MinIO for minutes, which shows that the engine's figures are those of a server.
//!
//! A volume's index is folded after some hundred of its slices, which at a slice a minute is hours. So that the
//! minutes that count have their share of folds, volumes first get different numbers of slices, up to that
//! many, by small writes under a short recovery point; then a server with the recovery point that counts takes
//! them over.

use std::time::{Duration, Instant};

use s3_testbed::Traffic;

use super::Arguments;
use super::index::run_engine_tests;
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::{FirnServer, Programs, StoreRig};

/// Each volume writes so much, once in this time.
const WRITE_BYTES: usize = 64 << 10;
const PERIOD: Duration = Duration::from_secs(60);
const VOLUME_BYTES: u64 = 1 << 30;
/// Slices between two folds of a volume (`deltas_max` of the engine's options), which they reach one after the
/// other.
const SLICES_PER_FOLD: usize = 320;
/// How long a round of small writes takes: they are in the store when the next begins.
const ROUND: Duration = Duration::from_millis(1200);
/// Minutes before those that count.
const SETTLING_MINUTES: u32 = 2;
/// Where requests go, and what for.
const FOLDERS: [(&str, &str); 6] = [
    ("packs", "packs"),
    ("indexes", "index objects"),
    ("hosts", "records, low marks"),
    ("volumes", "roots"),
    ("pins", "pins"),
    ("", "lists"),
];
/// Dollars for a thousand requests of S3 Standard, us-east-1.
const PUT_DOLLARS: f64 = 0.005;
const GET_DOLLARS: f64 = 0.0004;
const SECONDS_A_MONTH: f64 = 30.0 * 86400.0;

pub(super) fn of_many_volumes(programs: &Programs, arguments: &Arguments) -> Result<(), Failure> {
    println!("\n## P21: the engine in virtual time\n");
    run_engine_tests("engine", "store_requests::")?;
    let lab = StoreRig::new(programs, arguments.objects_on_disk)?;
    let names: Vec<String> = (0..arguments.volumes).map(|n| format!("v{n}")).collect();
    let server = lab.serve("cache", &flags(&names, "1s"))?;
    spread_folds(&server, &names)?;
    server.stop()?;
    lab.proxy.take_traffic();
    let starting = Instant::now();
    let server = lab.serve("cache", &flags(&names, "30s"))?;
    let traffic = lab.proxy.take_traffic();
    println!(
        "opened {} volumes in {:.0} s: {} PUT, {} GET, {} of them of packs",
        names.len(),
        starting.elapsed().as_secs_f64(),
        traffic.of("PUT").requests,
        traffic.of("GET").requests,
        traffic.of_folder("GET", "packs"),
    );
    let mut connections = connect(&server, &names)?;
    for _ in 0..SETTLING_MINUTES {
        write_for_a_period(&mut connections)?;
    }
    lab.proxy.take_traffic();
    let started = Instant::now();
    for _ in 0..arguments.minutes {
        write_for_a_period(&mut connections)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let traffic = lab.proxy.take_traffic();
    report(&traffic, seconds, arguments);
    Ok(())
}

fn flags(names: &[String], recovery_point: &str) -> Vec<String> {
    let mut flags = vec![
        "--log-size=1GiB".to_owned(),
        "--cache-size=256MiB".to_owned(),
        format!("--rpo={recovery_point}"),
    ];
    let size = VOLUME_BYTES >> 20;
    flags.extend(
        names
            .iter()
            .map(|name| format!("--volume={name}={size}MiB")),
    );
    flags
}

fn connect(server: &FirnServer<'_>, names: &[String]) -> Result<Vec<Connection>, Failure> {
    names.iter().map(|name| server.connect(name)).collect()
}

fn load(block: usize) -> Load {
    Load {
        writes: true,
        random: true,
        block,
        depth: 1,
        span: VOLUME_BYTES,
    }
}

/// Gives the nth of all volumes its share of the slices that lead to a fold.
fn spread_folds(server: &FirnServer<'_>, names: &[String]) -> Result<(), Failure> {
    let mut connections = connect(server, names)?;
    let count = connections.len();
    for round in 0..SLICES_PER_FOLD {
        let started = Instant::now();
        let from = count * (SLICES_PER_FOLD - 1 - round) / SLICES_PER_FOLD;
        for connection in connections.iter_mut().skip(from) {
            connection.run(load(4096), LoadEnd::Bytes(4096))?;
        }
        std::thread::sleep(ROUND.saturating_sub(started.elapsed()));
    }
    Ok(())
}

/// Each volume writes once, one after the other.
fn write_for_a_period(connections: &mut [Connection]) -> Result<(), Failure> {
    let started = Instant::now();
    let count = connections.len();
    for (n, connection) in connections.iter_mut().enumerate() {
        let due = PERIOD.mul_f64(n as f64 / count as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        connection.run(load(WRITE_BYTES), LoadEnd::Bytes(WRITE_BYTES as u64))?;
    }
    std::thread::sleep(PERIOD.saturating_sub(started.elapsed()));
    Ok(())
}

fn report(traffic: &Traffic, seconds: f64, arguments: &Arguments) {
    let puts = traffic.of("PUT").requests as f64 / seconds;
    let gets = (traffic.of("GET").requests + traffic.of("HEAD").requests) as f64 / seconds;
    let dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / 1000.0 * SECONDS_A_MONTH;
    let (volumes, minutes) = (arguments.volumes, arguments.minutes);
    let written = volumes as f64 * WRITE_BYTES as f64 * f64::from(minutes);
    println!(
        "\n## P21: {volumes} volumes that write 64 KiB a minute, recovery point 30 s, {minutes} minutes\n\n\
         | PUT/s | GET/s | dollars a month for requests | bytes sent per byte written |\n\
         |---:|---:|---:|---:|\n| {puts:.3} | {gets:.3} | {dollars:.2} | {:.2} |\n\n\
         | requests | PUT | GET | DELETE |\n|---|---:|---:|---:|",
        traffic.of("PUT").sent as f64 / written,
    );
    for (folder, what) in FOLDERS {
        let of = |method| traffic.of_folder(method, folder);
        println!(
            "| {what} | {} | {} | {} |",
            of("PUT"),
            of("GET"),
            of("DELETE")
        );
    }
}
