//! The disks of this server: volumes as ublk block devices of this machine.
//!
//! Beside `doors`, which has the volumes' NBD exports. `wanted` is what a disk is asked to be,
//! `remembered` the file that outlives the server, `machine` what the kernel offers.

pub(crate) mod machine;
#[cfg_attr(not(test), expect(dead_code, reason = "no disk is made yet"))]
mod remembered;
#[cfg_attr(not(test), expect(dead_code, reason = "no disk is made yet"))]
mod wanted;

use crate::engine::Engine;
use crate::failure::Result;
use crate::model::Disk;

use machine::Offered;
use remembered::Attached;

/// All disks, and what they are made with.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(crate) attached: Attached,
    pub(crate) offered: Offered,
}

impl Disks {
    pub(crate) fn new(engine: &Engine) -> Result<Self> {
        Ok(Disks {
            attached: Attached::load(&engine.files().path)?,
            offered: machine::look(),
        })
    }

    /// The disk of a volume, as the API shows it.
    pub(crate) fn shown(&self, volume: &str) -> Option<Disk> {
        let _ = volume;
        None
    }
}
