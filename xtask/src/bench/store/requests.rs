//! P21: what many volumes that write a little ask of the store.

use std::time::{Duration, Instant};

use super::Arguments;
use super::lab::{Programs, StoreRig};
use super::load::{Load, LoadEnd};
use crate::Failure;

/// Each volume writes so much, once in this time.
const WRITE_BYTES: usize = 64 << 10;
const PERIOD: Duration = Duration::from_secs(60);
/// Dollars for a thousand requests of S3 Standard, us-east-1.
const PUT_DOLLARS: f64 = 0.005;
const GET_DOLLARS: f64 = 0.0004;
const SECONDS_A_MONTH: f64 = 30.0 * 86400.0;

/// One minute counts, after another in which the volumes come to a steady state.
pub(super) fn of_many_volumes(programs: &Programs, arguments: &Arguments) -> Result<(), Failure> {
    let lab = StoreRig::new(programs, arguments)?;
    let names: Vec<String> = (0..arguments.volumes).map(|n| format!("v{n}")).collect();
    let mut flags = vec![
        "--log-size=1GiB".to_owned(),
        "--cache-size=256MiB".to_owned(),
        "--rpo=30s".to_owned(),
    ];
    flags.extend(names.iter().map(|name| format!("--volume={name}=16MiB")));
    let server = lab.serve("cache", &flags)?;
    let load = Load {
        writes: true,
        random: true,
        block: WRITE_BYTES,
        depth: 1,
        span: 16 << 20,
    };
    let mut counted = None;
    for minute in 0..2 {
        lab.proxy.take_traffic();
        let started = Instant::now();
        for (n, name) in names.iter().enumerate() {
            let due = PERIOD.mul_f64(n as f64 / names.len() as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
            let mut connection = server.connect(name)?;
            connection.run(load, LoadEnd::Bytes(WRITE_BYTES as u64))?;
        }
        std::thread::sleep(PERIOD.saturating_sub(started.elapsed()));
        if minute == 1 {
            counted = Some((lab.proxy.take_traffic(), started.elapsed().as_secs_f64()));
        }
    }
    let (traffic, seconds) = counted.ok_or("nothing was counted")?;
    let puts = traffic.of("PUT").requests as f64 / seconds;
    let gets = (traffic.of("GET").requests + traffic.of("HEAD").requests) as f64 / seconds;
    let dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / 1000.0 * SECONDS_A_MONTH;
    println!(
        "\n## P21: {} volumes that write 64 KiB a minute, recovery point 30 s\n\n\
         | PUT/s | GET/s | dollars a month for requests | bytes sent per byte written |\n\
         |---:|---:|---:|---:|\n| {puts:.2} | {gets:.2} | {dollars:.0} | {:.2} |",
        arguments.volumes,
        traffic.of("PUT").sent as f64 / (names.len() * WRITE_BYTES) as f64,
    );
    Ok(())
}
