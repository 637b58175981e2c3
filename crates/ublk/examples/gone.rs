//! Waits until none of the first devices has a server, and says so: for benchmarks of exits.
//!
//!     cargo run --release -p ublk --example gone -- COUNT
//!
//! Prints a line once it watches, and one when all are without a server. It only asks.

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Duration;

use ublk::control::Control;
use ublk::device::State;
use ublk::error::Kind;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args()
        .nth(1)
        .ok_or("how many devices?")?
        .parse()?;
    let control = Control::open()?;
    let mut left: Vec<u32> = (0..count).collect();
    say("watching")?;
    while let Some(&device) = left.last() {
        match control.info(device) {
            Ok(info) if State::of(&info) == State::Live => std::thread::sleep(LOOK),
            Err(error) if error.kind() != Kind::Gone => return Err(error.into()),
            _ => drop(left.pop()),
        }
    }
    say("gone")
}

fn say(word: &str) -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}
