//! Looks through all roots for those of one volume, under whatever names they stand.
//!
//! It changes nothing. It must never find that a volume has no root which has one, however often that gets another name
//! meanwhile: then it says that it does not know. What it finds of a volume that has roots is what stood there when it was
//! read.

use super::port::{LogPort, list, read_decoded};
use super::root_updates::VersionedRoot;
use crate::jobs::join_all;
use crate::object::name_table::NameTable;
use crate::object::root::{RenameMark, RenameStep, Root};
use crate::object::{FormatError, name_of_root_key, root_key};
use crate::units::VolumeId;

/// Roots that are read in parallel.
const SIDE_BY_SIDE: usize = 64;

/// Looks before it is given up: of two that follow each other nobody may have got another name.
const LOOKS_MAX: u32 = 16;

/// What the store has of a volume or snapshot.
#[derive(Debug, Default)]
pub(crate) struct RootsOf {
    /// Its roots: two while it goes from one name to another.
    pub(crate) own: Vec<VersionedRoot>,
    /// Deleted roots that keep names for it.
    pub(crate) kept: Vec<VersionedRoot>,
}

/// Why a look came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookError {
    /// A root, by its key, cannot be read: it may be the one.
    Unreadable(String, FormatError),
    /// Volumes get other names faster than roots are read.
    Moving,
}

/// The roots of a volume or snapshot among those below these prefixes. That it has none is certain: it was so at one
/// moment between call and return.
///
/// # Errors
/// If that is not certain.
pub(crate) async fn look_for(
    port: &impl LogPort,
    prefixes: &[&str],
    volume: VolumeId,
) -> Result<RootsOf, LookError> {
    let mut before: Option<NameTable> = None;
    for _ in 0..LOOKS_MAX {
        let mut found = RootsOf::default();
        let mut unreadable = None;
        let table = look(port, prefixes, |read| match read {
            Ok(standing) => found.add(standing, volume),
            Err(error) => unreadable = Some(error),
        });
        let table = table.await;
        if !found.own.is_empty() {
            return Ok(found);
        }
        if let Some(error) = unreadable {
            return Err(error);
        }
        let agrees = |before: NameTable| {
            table.confirms(&before) || canary::active!("two_looks_need_not_agree")
        };
        if before.is_some_and(agrees) || canary::active!("one_look_at_the_names_is_believed") {
            return Ok(found);
        }
        before = Some(table);
    }
    Err(LookError::Moving)
}

/// What stands under the names below these prefixes. Whose identity is not in it had no root at one moment between call
/// and return.
///
/// # Errors
/// If that is not certain.
pub(crate) async fn look_at_all(
    port: &impl LogPort,
    prefixes: &[&str],
) -> Result<NameTable, LookError> {
    let mut before: Option<NameTable> = None;
    for _ in 0..LOOKS_MAX {
        let mut unreadable = None;
        let table = look(port, prefixes, |read| {
            unreadable = read.err().or(unreadable.take())
        });
        let table = table.await;
        if let Some(error) = unreadable {
            return Err(error);
        }
        if before.is_some_and(|before| table.confirms(&before)) {
            return Ok(table);
        }
        before = Some(table);
    }
    Err(LookError::Moving)
}

/// Reads all roots once, and says of each what it is.
async fn look(
    port: &impl LogPort,
    prefixes: &[&str],
    mut on_read: impl FnMut(Result<VersionedRoot, LookError>),
) -> NameTable {
    let mut table = NameTable::default();
    for prefix in prefixes {
        let keys = list(port, prefix).await;
        let names = keys.iter().filter_map(|(key, _)| name_of_root_key(key));
        let names: Vec<String> = names.collect();
        for names in names.chunks(SIDE_BY_SIDE) {
            let reads = names.iter().map(|name| Box::pin(read_root_of(port, name)));
            for (name, read) in names.iter().zip(join_all(reads.collect()).await) {
                match read {
                    Ok(Some(standing)) => {
                        table.insert(name, &standing.root);
                        on_read(Ok(standing));
                    }
                    // Somebody removed it.
                    Ok(None) => {}
                    Err(error) => on_read(Err(LookError::Unreadable(root_key(name), error))),
                }
            }
        }
    }
    table
}

async fn read_root_of(
    port: &impl LogPort,
    name: &str,
) -> Result<Option<VersionedRoot>, FormatError> {
    let found = read_decoded(port, &root_key(name), Root::decode).await?;
    match found {
        Some((root, _)) if root.name != name => Err(FormatError::Corrupt(
            "it is the root of another name: it was copied or moved; put it back",
        )),
        Some((root, version)) => Ok(Some(VersionedRoot { root, version })),
        None => Ok(None),
    }
}

impl RootsOf {
    fn add(&mut self, standing: VersionedRoot, volume: VolumeId) {
        let is_kept_for = |mark: RenameMark| mark.step == RenameStep::Kept && mark.volume == volume;
        if standing.root.volume == volume {
            self.own.push(standing);
        } else if standing.root.rename_mark().is_some_and(is_kept_for) {
            self.kept.push(standing);
        }
    }

    /// The one that counts: that can be opened, else that is on its way to another name, else what its deletion left.
    pub(crate) fn newest(self) -> Option<VersionedRoot> {
        let rank = |standing: &VersionedRoot| {
            let root = &standing.root;
            (!root.deleted, root.is_leaving(), root.epoch)
        };
        self.own.into_iter().max_by_key(rank)
    }
}
