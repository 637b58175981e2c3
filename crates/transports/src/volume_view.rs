//! The backend of one disk: its volume, read-only if the disk is.
//!
//! Read-only is a property of the disk, not of the volume, which may be written over another
//! transport. The driver already refuses writes to such a disk; this backend refuses any that
//! reach it all the same.

use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Geometry, MoveError, MoveResult, Op, Step, StepOf};
use volume::{ReadPlan, SyncWait, Volume, WritePlan};

/// A volume as one disk serves it.
#[derive(Debug)]
pub(crate) struct VolumeView {
    pub(crate) volume: Volume,
    pub(crate) read_only: bool,
}

impl Backend for VolumeView {
    type Read = ReadPlan;
    type Write = WritePlan;
    type Sync = SyncWait;

    fn geometry(&self) -> Geometry {
        let geometry = self.volume.geometry();
        Geometry {
            read_only: geometry.read_only || self.read_only,
            ..geometry
        }
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        if self.read_only && !matches!(op, Op::Read { .. } | Op::Flush) {
            return Step::Done(Err(ErrorKind::ReadOnly));
        }
        self.volume.begin(op, waker)
    }

    fn read(&self, plan: ReadPlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        self.volume.read(plan, moved, waker)
    }

    fn written(&self, plan: WritePlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        self.volume.written(plan, moved, waker)
    }

    fn poll_sync(&self, sync: SyncWait, waker: &Waker) -> StepOf<Self> {
        self.volume.poll_sync(sync, waker)
    }

    fn on_request_failed(&self, error: &MoveError) {
        self.volume.on_request_failed(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{World, options};

    #[test]
    fn a_read_only_disk_refuses_to_change_a_volume_that_others_may_write() {
        let Ok(mut world) = World::try_start(Default::default(), options()) else {
            panic!("a new log starts");
        };
        world.create("demo", 1 << 20);
        let volume = world.open("demo");
        let writable = VolumeView {
            volume: volume.clone(),
            read_only: false,
        };
        let disk = VolumeView {
            volume,
            read_only: true,
        };
        assert!(disk.geometry().read_only && !writable.geometry().read_only);
        let (sector, sectors, fua) = (0, 8, false);
        let discard = Op::Discard {
            sector,
            sectors: 8,
            fua,
        };
        let write = Op::Write {
            sector,
            sectors,
            fua,
        };
        for op in [write, discard] {
            let step = disk.begin(&op, Waker::noop());
            assert!(matches!(step, Step::Done(Err(ErrorKind::ReadOnly))));
        }
        // Of a volume that nobody wrote to: zeroes, which no file has to be asked for.
        let read = disk.begin(&Op::Read { sector, sectors }, Waker::noop());
        assert!(!matches!(read, Step::Done(Err(_))));
        let discarded = writable.begin(&discard, Waker::noop());
        assert!(matches!(discarded, Step::Done(Ok(()))));
    }
}
