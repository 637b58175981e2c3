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
pub(super) struct VolumeView {
    pub(super) volume: Volume,
    pub(super) read_only: bool,
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
