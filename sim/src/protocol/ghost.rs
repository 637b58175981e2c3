//! The judge: what was promised of each volume, in the words of the contract.
//!
//! It knows what clients and openers were told, never how the protocol came to tell it: no log, no
//! fence, no mark. One line of history per volume, by LSN.

use super::search::{Checked, Violation};
use super::store::{Content, VOID, VOLUMES, length};

/// The one history of a volume, as far as it was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Line {
    /// What any later opener must find.
    pub(crate) stored: Content,
    /// The newest epoch that served.
    pub(crate) epoch: u8,
    /// What an opener may find instead, while a restore in place is under way.
    pub(crate) restored: Option<Content>,
    /// Whether something was called stored since the store was set back.
    pub(crate) has_news: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Ghost {
    pub(crate) lines: [Line; VOLUMES],
    /// The number of the newest write.
    pub(crate) newest: u8,
    /// Whether something happened after which a host may say that it was cloned, retired, or that
    /// the store went back.
    pub(crate) may_stop: bool,
    /// Whether the store was set back. A root update on its way may then name what is gone: an opener
    /// refuses with an error, which is all that it can do.
    pub(crate) was_set_back: bool,
}

pub(crate) const fn violation(promise: &'static str, what: &'static str) -> Violation {
    Violation { promise, what }
}

pub(crate) const MISSING: Violation =
    violation("S3", "an opener does not find what was called stored");
pub(crate) const UNREACHABLE: Violation =
    violation("S3", "a host calls stored what no opener can reach");
pub(crate) const TWO_DATA: Violation = violation("S7", "one LSN has two data");
pub(crate) const AFTER_FENCE: Violation = violation(
    "S7",
    "a write of a fenced epoch is called stored after its successor served",
);
pub(crate) const TWO_OWNERS: Violation = violation("S7", "two openers serve in one epoch");
pub(crate) const MIXED: Violation = violation("S4", "a read sees neither the old line nor the new");
pub(crate) const DANGLING: Violation = violation("S9", "an object that a root names is gone");
pub(crate) const GARBAGE: Violation =
    violation("S9", "garbage stays although everything has settled");
pub(crate) const FALSE_STOP: Violation = violation(
    "progress",
    "a host stops for good although nothing was cloned or set back",
);
pub(crate) const FALSE_FENCE: Violation = violation(
    "progress",
    "an owner takes itself for fenced although nobody followed it",
);
pub(crate) const WAITS: Violation =
    violation("progress", "a host waits for ever while the store answers");
pub(crate) const NOT_SERVED: Violation = violation(
    "S10",
    "an unbroken tail does not serve while the store is away",
);
pub(crate) const TOO_MANY: Violation =
    violation("P21", "take-overs from one host cost requests by volume");

impl Ghost {
    /// A host told its clients that LSNs `from..=to` are in the store.
    pub(crate) fn on_stored(
        &mut self,
        volume: usize,
        epoch: u8,
        (from, to): (u8, u8),
        data: &Content,
    ) -> Checked<()> {
        let line = &mut self.lines[volume];
        let known = length(&line.stored);
        if from > known + 1 {
            return Err(UNREACHABLE);
        }
        if epoch < line.epoch && to > known {
            return Err(AFTER_FENCE);
        }
        line.has_news |= self.was_set_back;
        for lsn in from as usize..=to as usize {
            let (place, value) = (&mut line.stored[lsn - 1], data[lsn - 1]);
            // It was stored, and a later epoch went back behind it.
            if epoch < line.epoch && *place == VOID {
                continue;
            }
            if *place != 0 && *place != value {
                return Err(TWO_DATA);
            }
            *place = value;
        }
        Ok(())
    }

    /// An opener serves the volume with this data.
    pub(crate) fn on_opened(&mut self, volume: usize, epoch: u8, data: &Content) -> Checked<()> {
        let line = &mut self.lines[volume];
        // Machines of one image may both believe in one claim; the log that they share decides.
        if epoch == line.epoch && !self.may_stop {
            return Err(TWO_OWNERS);
        }
        if epoch <= line.epoch {
            // It was overtaken before it served its first read, and will learn that.
            let agrees = |(was, is): (&u8, &u8)| *is == 0 || *was == 0 || was == is;
            let agree = line.stored.iter().zip(data).all(agrees);
            return if agree { Ok(()) } else { Err(TWO_DATA) };
        }
        let has = |line: &Content| {
            line.iter()
                .zip(data)
                .all(|(was, is)| *was == 0 || was == is)
        };
        if !has(&line.stored) && !line.restored.as_ref().is_some_and(has) {
            return Err(MISSING);
        }
        *line = Line {
            stored: *data,
            epoch,
            restored: None,
            has_news: line.has_news,
        };
        Ok(())
    }

    /// The owner was asked to restore the volume to LSN 1: what follows is void, LSNs go on.
    pub(crate) fn on_restore_begun(&mut self, volume: usize) {
        let line = &mut self.lines[volume];
        line.restored = Some(Ghost::restored(&line.stored));
    }

    pub(crate) fn on_restored(&mut self, volume: usize, epoch: u8, data: &Content) {
        let line = &mut self.lines[volume];
        *line = Line {
            stored: *data,
            epoch,
            restored: None,
            has_news: line.has_news,
        };
    }

    /// Makes what follows LSN 1 void.
    pub(crate) fn restored(data: &Content) -> Content {
        let mut restored = *data;
        for value in restored.iter_mut().skip(1).filter(|value| **value != 0) {
            *value = VOID;
        }
        restored
    }
}
