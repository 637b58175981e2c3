//! Serves plain files as disks, in place, in any data mode.
//!
//!     cargo run --release -p ublk --example file -- FILE... [--direct] [--stripe SIZE] …
//!
//! Each FILE is a device of its own; with `--stripe` all of them are one device, striped. The
//! other options are in `common`.

mod common;

use std::error::Error;

use common::Parsed;
use common::disk::{Layout, Striped};

fn main() -> Result<(), Box<dyn Error>> {
    let parsed = Parsed::read(&["--stripe"], &["--direct"])?;
    let served = Striped::of(&Layout::of(&parsed)?)?;
    common::run(&parsed.options, &served)
}
