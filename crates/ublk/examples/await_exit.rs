//! Waits until none of the first devices has a server, and says so: for benchmarks of exits.
//!
//!     cargo run --release -p ublk --example await_exit -- COUNT
//!
//! Prints a line once it watches, and one when all are without a server. It only asks.

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use ublk::control::ControlDevice;
use ublk::device::DeviceState;
use ublk::error::ErrorKind;

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args()
        .nth(1)
        .ok_or("how many devices?")?
        .parse()?;
    let control = ControlDevice::open()?;
    let mut left: Vec<u32> = (0..count).collect();
    say("watching")?;
    while let Some(&device) = left.last() {
        match control.info(device) {
            Ok(info) if DeviceState::of(&info) == DeviceState::Live => {
                std::thread::sleep(POLL_INTERVAL)
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => drop(left.pop()),
        }
    }
    say("exited")
}

fn say(word: &str) -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}
