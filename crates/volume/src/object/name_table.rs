//! Which volumes and snapshots stood under which names, as one look through all roots found it, and what two looks say
//! together.
//!
//! A look reads root after root. Of a volume that gets another name meanwhile it may read the new name too early and the
//! old one too late, so it does not prove that a volume has no root. Two looks, one behind the other, may: see
//! [`NameTable::confirms`]. Pure: nothing here reads a store.

use std::collections::BTreeMap;

use crate::object::root::Root;
use crate::units::{Epoch, VolumeId};

/// What one look found, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    names: BTreeMap<String, NameEntry>,
}

#[derive(Clone, Copy, Debug)]
struct NameEntry {
    volume: VolumeId,
    epoch: Epoch,
    is_deleted: bool,
}

impl NameTable {
    pub(crate) fn insert(&mut self, name: &str, root: &Root) {
        let entry = NameEntry {
            volume: root.volume,
            epoch: root.epoch,
            is_deleted: root.deleted,
        };
        self.names.insert(name.to_owned(), entry);
    }

    /// The identities that have roots, and whether one of an identity's roots is not deleted.
    pub(crate) fn identities(&self) -> BTreeMap<VolumeId, bool> {
        let mut found = BTreeMap::new();
        for entry in self.names.values() {
            *found.entry(entry.volume).or_default() |= !entry.is_deleted;
        }
        found
    }

    /// Whether an identity that neither look found had no root at the moment between them. `before` is the look that
    /// ended before this one began.
    ///
    /// It is so if the same identities stand under the same names. For suppose that another one stood under a name then:
    ///
    /// - Whoever takes a name raises its epoch, so this name's has changed. Whoever stands there in both looks was away
    ///   and has come back. An identity that was deleted never comes back, so it had another name at that moment.
    /// - So did whoever had that name in both looks, and so on: all identities of the first look have names of it at that
    ///   moment, and each has one. None is left for another. This takes that an identity whose name has another epoch
    ///   has one name only.
    /// - A name that came up between the looks was nobody's before if what stands there is its first root.
    pub(crate) fn confirms(&self, before: &NameTable) -> bool {
        let mut counts: BTreeMap<VolumeId, u32> = BTreeMap::new();
        for entry in before.names.values() {
            *counts.entry(entry.volume).or_default() += 1;
        }
        let stays = |(name, then): (&String, &NameEntry)| {
            let has_one_name = counts.get(&then.volume) == Some(&1);
            self.names.get(name).is_some_and(|now| {
                now.volume == then.volume && (now.epoch == then.epoch || has_one_name)
            })
        };
        let is_first = |entry: &NameEntry| entry.epoch == Epoch(0) && !entry.is_deleted;
        let mut fresh = self.names.iter();
        before.names.iter().all(stays)
            && fresh.all(|(name, entry)| before.names.contains_key(name) || is_first(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, an identity, an epoch, and whether the root there is deleted.
    type Row = (&'static str, u8, u64, bool);

    fn table(rows: &[Row]) -> NameTable {
        let mut table = NameTable::default();
        for (name, identity, epoch, is_deleted) in rows {
            let entry = NameEntry {
                volume: VolumeId([*identity; 16]),
                epoch: Epoch(*epoch),
                is_deleted: *is_deleted,
            };
            table.names.insert((*name).to_owned(), entry);
        }
        table
    }

    fn confirms(before: &[Row], now: &[Row]) -> bool {
        table(now).confirms(&table(before))
    }

    #[test]
    fn looks_agree_while_volumes_are_opened_deleted_and_made_under_new_names() {
        let before = [("a", 1, 3, false), ("b", 2, 5, true), ("b@s", 3, 0, false)];
        assert!(confirms(&before, &before));
        let now = [
            ("a", 1, 4, false),
            ("b", 2, 5, true),
            ("b@s", 3, 1, true),
            ("b@t", 4, 0, false),
        ];
        assert!(confirms(&before, &now));
        assert!(confirms(&[], &[("a", 1, 0, false)]));
    }

    #[test]
    fn looks_do_not_agree_if_somebody_may_have_been_between_them() {
        let before = [("a", 1, 3, true), ("b", 2, 5, false)];
        // It was another's in the meantime, and is free again; is another's now; was there and is gone.
        for now in [
            [("a", 9, 6, true), ("b", 2, 5, false)],
            [("a", 9, 4, false), ("b", 2, 5, false)],
        ] {
            assert!(!confirms(&before, &now));
        }
        assert!(!confirms(&before, &before[1..]));
        // A name that came up, and is not as it was made.
        for entry in [("c", 9, 2, false), ("c", 9, 0, true)] {
            assert!(!confirms(&before, &[before[0], before[1], entry]));
        }
    }

    #[test]
    fn who_has_two_names_may_have_made_room_under_one_of_them() {
        let before = [("a", 1, 3, false), ("b", 1, 5, false)];
        assert!(confirms(&before, &before));
        assert!(!confirms(
            &before,
            &[("a", 1, 9, false), ("b", 1, 5, false)]
        ));
    }
}
