//! A point in a volume's history that is held until its child is pinned. Taking one freezes the top layer,
//! whatever is in it; writers go on.

use std::sync::Arc;

use crate::error::OpenError;
use crate::request::tail::{Status, Tail};
use crate::units::Lsn;

/// A point that is held until this goes.
#[derive(Debug)]
pub(super) struct HeldPoint {
    tail: Arc<Tail>,
    /// Everything up to here and nothing behind it.
    pub(super) lsn: Lsn,
    /// The volume's size then.
    pub(super) bytes: u64,
}

impl HeldPoint {
    /// Takes the volume as it is now.
    ///
    /// # Errors
    /// If it is not served.
    pub(super) fn take(tail: &Arc<Tail>) -> Result<HeldPoint, OpenError> {
        let mut inner = tail.lock();
        if inner.status != Status::Live {
            return Err(OpenError::Busy(tail.name().to_owned()));
        }
        let (lsn, bytes) = (inner.newest, inner.geometry.bytes);
        inner.layers.freeze(lsn);
        inner.points.add(lsn);
        drop(inner);
        Ok(HeldPoint {
            tail: Arc::clone(tail),
            lsn,
            bytes,
        })
    }

    /// Of which tail.
    pub(super) fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }
}

impl Drop for HeldPoint {
    fn drop(&mut self) {
        self.tail.lock().points.remove(self.lsn);
        // Folds may go on, and slices of what comes later.
        self.tail.upload.wake_all();
    }
}
