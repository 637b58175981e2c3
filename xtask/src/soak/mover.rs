//! Moves volumes between the hosts of a soak while they are in use, and servers are killed and upgraded.
//!
//! A move may end with an error: a server was killed, or the store had an outage. Then whoever has the volume keeps it,
//! and if nobody has it one of the two attaches it, without taking it over. That it can is a part of what is tested.

use std::time::{Duration, Instant};

use super::device::Device;
use super::operator::{OPERATION_TIMEOUT, Operator};
use super::world::{Tally, ThreadActivity};
use crate::Failure;

/// How long a move may take. One that takes longer is ended, as by a user who lost patience.
const MOVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Moves one volume after the other until the soak ends.
pub(super) fn run(operator: &Operator, activity: &ThreadActivity, every: Duration) {
    let world = operator.world;
    // A move's time must not count as a request's.
    let own = Tally::default();
    for number in 0.. {
        world.sleep(every);
        if world.stopped() {
            return;
        }
        let device = &operator.devices[number % operator.devices.len()];
        let mut home = device.lock_home();
        let (from, to) = (*home, (*home + 1) % operator.places.len());
        let what = || format!("move of {} from host {from}", device.name);
        match activity.track(&own, what, || move_volume(operator, device, from, to)) {
            Ok(()) => {
                *home = to;
                Tally::add(&world.tally.moves, 1);
                continue;
            }
            Err(error) => println!(
                "after {:.1} s: {error}",
                world.began.elapsed().as_secs_f64()
            ),
        }
        Tally::add(&world.tally.failed_moves, 1);
        let what = || format!("{} after a move that failed", device.name);
        match activity.track(&own, what, || settle(operator, device, [from, to])) {
            Ok(host) => *home = host,
            Err(error) => world.fail(format!("mover: {error}")),
        }
    }
}

fn move_volume(
    operator: &Operator,
    device: &Device,
    from: usize,
    to: usize,
) -> Result<(), Failure> {
    let [from, to] = [from, to].map(|host| &operator.places[host].host);
    let program = &operator.setup.program;
    from.move_volume(program, &device.name, to, MOVE_TIMEOUT)
}

/// Finds the host that has a volume, or gives it to one.
fn settle(operator: &Operator, device: &Device, hosts: [usize; 2]) -> Result<usize, Failure> {
    let until = Instant::now() + OPERATION_TIMEOUT;
    let name = &device.name;
    loop {
        for host in hosts {
            let shown = operator.places[host].host.show(name);
            if shown.is_ok_and(|shown| operator.is_back(&shown)) {
                return Ok(host);
            }
        }
        let mut refused = String::new();
        for host in hosts {
            match operator.places[host].host.try_to_attach_over_nbd(name) {
                Ok(()) => return Ok(host),
                Err(error) => refused += &format!("; host {host}: {error}"),
            }
        }
        if Instant::now() > until {
            return Err(format!("{name} has no host after a move that failed{refused}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
