//! Serves plain files as disks, in place, in any data mode.
//!
//!     cargo run --release -p ublk --example file -- --help
//!
//! Each FILE is a device of its own; with `--stripe` all of them are one device, striped. The
//! other options are in `common`.

mod common;

use std::error::Error;

use common::Arguments;
use common::disk::{Layout, StripedDisk};

const USAGE: &str = "\
Serves plain files as disks, in place.

  file [OPTIONS] FILE...
  truncate -s 1G disk.img && file --direct --queues 2 disk.img

  --direct              past the page cache
  --stripe SIZE         all files are one disk, striped in units of SIZE";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(USAGE, &["--stripe"], &["--direct"])?;
    let served = StripedDisk::open_all(&Layout::from_arguments(&arguments)?)?;
    common::run(&arguments.options, &served)
}
