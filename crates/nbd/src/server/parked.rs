//! Connections that wait for exports which are being opened, by the name of the export.
//!
//! A list under the registry's lock: it must never wake anybody, and never holds a connection that has left.

use std::collections::{BTreeMap, BTreeSet};

/// What came of a wish to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// It waits from now on. What was decided before it did is not told any more: look again.
    Begun,
    /// It waits for this export already.
    Already,
    /// As many wait as may.
    Crowded,
}

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct ParkedConnections {
    exports: BTreeMap<String, BTreeSet<u64>>,
    /// The same by connection.
    members: BTreeMap<u64, String>,
}

impl ParkedConnections {
    /// This connection waits for this export, and for no other.
    pub(super) fn park(&mut self, id: u64, export: &str, most: usize) -> Parked {
        match self.members.get(&id) {
            Some(before) if before == export => return Parked::Already,
            Some(_) => self.unpark(id),
            None if self.members.len() >= most => return Parked::Crowded,
            None => {}
        }
        self.members.insert(id, export.to_owned());
        let waiting = self.exports.entry(export.to_owned()).or_default();
        waiting.insert(id);
        Parked::Begun
    }

    /// This connection waits for nothing.
    pub(super) fn unpark(&mut self, id: u64) {
        let Some(export) = self.members.remove(&id) else {
            return;
        };
        if let Some(waiting) = self.exports.get_mut(&export) {
            waiting.remove(&id);
            if waiting.is_empty() {
                self.exports.remove(&export);
            }
        }
    }

    /// Those that waited for this export, and do not any more.
    pub(super) fn take(&mut self, export: &str) -> BTreeSet<u64> {
        let waited = self.exports.remove(export).unwrap_or_default();
        for id in &waited {
            self.members.remove(id);
        }
        waited
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.members.contains_key(&id)
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_for_one_export_until_that_is_taken_or_it_leaves() {
        let mut parked = ParkedConnections::default();
        assert_eq!(parked.park(1, "a", 3), Parked::Begun);
        assert_eq!(parked.park(1, "a", 3), Parked::Already);
        assert_eq!(parked.park(2, "a", 3), Parked::Begun);
        assert_eq!(parked.park(3, "b", 3), Parked::Begun);
        // Another wish takes the place of the first, also where there is no room for one more.
        assert_eq!(parked.park(1, "b", 3), Parked::Begun);
        assert_eq!(parked.park(4, "b", 3), Parked::Crowded);
        assert_eq!(parked.take("b"), BTreeSet::from([1, 3]));
        assert!(!parked.has(1) && !parked.has(3) && parked.has(2));
        parked.unpark(2);
        parked.unpark(2);
        assert_eq!(parked.count(), 0);
        assert!(parked.exports.is_empty() && parked.take("a").is_empty());
    }
}
