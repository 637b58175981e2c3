//! What must hold, by what hosts said: S3 (what was called stored is found by any later opener), S7 (one
//! writer, one data per LSN), S9 (what a root names is there), and that nobody stops without a cause.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{Epoch, Lsn, VolumeId};

/// A volume's data: the value of each LSN, from 1.
pub(super) type Content = Vec<u64>;

/// Nobody said what stands there.
const UNKNOWN: u64 = 0;

/// Whether two lines have the same data as far as both go.
fn agree(one: &[u64], other: &[u64]) -> bool {
    let pairs = one.iter().zip(other);
    pairs
        .into_iter()
        .all(|(one, other)| one == other || *one == UNKNOWN)
}

/// What was said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Ghost {
    /// What was called stored.
    stored: BTreeMap<VolumeId, Content>,
    /// The newest epoch that served.
    served: BTreeMap<VolumeId, Epoch>,
    /// Volumes of which something was called stored after the store was set back.
    has_news: BTreeSet<VolumeId>,
    /// A copy was started, or the store was set back.
    pub(super) may_stop: bool,
    pub(super) was_set_back: bool,
    pub(super) violation: Option<String>,
    /// Slices that were called stored, to see that a world did something.
    pub(super) slices: u64,
    pub(super) stops: u64,
    /// Objects that the collector removed.
    pub(super) removed: u64,
}

impl Ghost {
    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// A host says that these commits are stored.
    pub(super) fn on_stored(&mut self, volume: VolumeId, epoch: Epoch, first: Lsn, data: &[u64]) {
        self.slices += 1;
        if self.was_set_back {
            self.has_news.insert(volume);
        }
        let served = self.served.get(&volume).copied().unwrap_or_default();
        let line = self.stored.entry(volume).or_default();
        let begin = first.0 as usize - 1;
        let end = begin + data.len();
        if begin > line.len() {
            if !self.was_set_back {
                let what = format!("S3: {volume}: a host calls stored what no opener can reach");
                return self.violate(what);
            }
            // It may have been in the backup, and called stored after that: openers will tell.
            line.resize(begin, UNKNOWN);
        }
        // What its successor found may be called stored late.
        if epoch < served && end > line.len() {
            let (epoch, served) = (epoch.0, served.0);
            return self.violate(format!(
                "S7: epoch {epoch} of {volume} is called stored after epoch {served} served"
            ));
        }
        let known = agree(&line[begin..], data);
        line.extend(data.iter().skip(line.len() - begin));
        if !known {
            self.violate(format!(
                "S7: one LSN of {volume} from {begin} on has two data"
            ));
        }
    }

    /// A host opens a volume and finds this.
    pub(super) fn on_opened(&mut self, volume: VolumeId, epoch: Epoch, content: &Content) {
        let served = self.served.entry(volume).or_default();
        let line = self.stored.entry(volume).or_default();
        if epoch == *served && !self.may_stop {
            return self.violate(format!("S7: epoch {} of {volume} serves twice", epoch.0));
        }
        if epoch <= *served {
            // It was overtaken before its first read, and will learn that.
            if !agree(line, content) {
                self.violate(format!("S7: one LSN of {volume} has two data"));
            }
            return;
        }
        let is_found = content.len() >= line.len() && agree(line, content);
        *served = epoch;
        line.clone_from(content);
        if !is_found {
            let epoch = epoch.0;
            self.violate(format!(
                "S3: what was called stored of {volume} is not found by epoch {epoch}"
            ));
        }
    }

    /// A host cannot open a volume: an object that its root names is gone. After the store was set back
    /// that may be, unless something was called stored since.
    pub(super) fn on_refused(&mut self, volume: VolumeId) {
        if !self.was_set_back || self.has_news.contains(&volume) {
            self.violate(format!("S9: what the root of {volume} names is gone"));
        }
    }

    /// The store is as it was when this was the case.
    pub(super) fn set_back(&mut self, then: Ghost) {
        let violation = self.violation.take();
        *self = Ghost {
            may_stop: true,
            was_set_back: true,
            violation,
            slices: self.slices,
            stops: self.stops,
            removed: self.removed,
            ..then
        };
    }
}
