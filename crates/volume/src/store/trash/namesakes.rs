//! The other volumes that have, or had, the name of one in the trash, and which snapshots stay with them when that one goes.
//!
//! Reads only. A volume that came back from the trash behind another is a fork of what it was, and has the snapshots of that
//! under its name. So a snapshot goes with the last volume that has it: no entry of the trash takes one that another
//! volume has, whether that is served, in the trash itself or on its way to another name.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::trash::entries::{AsideWalk, TrashEntry, is_of, parent_of, read_standing};

/// Those that can be had under that name, or can be had back.
pub(super) struct Namesakes(Vec<Root>);

impl Namesakes {
    /// All at one moment: one that comes back to its name stands there before its copy goes, and one whose name is taken has
    /// a copy before that.
    pub(super) async fn read(engine: &Engine, entry: &TrashEntry) -> Result<Namesakes, OpenError> {
        let standing = read_standing(engine, entry.name()).await?;
        let mut aside = Vec::new();
        let mut walk = AsideWalk::new(engine, "")?;
        while let Some(group) = walk.next().await? {
            let of_name = |other: &TrashEntry| other.name() == entry.name();
            aside.extend(group.entries.into_iter().filter(of_name));
        }
        let now = read_standing(engine, entry.name()).await?;
        let version = |head: &Option<KnownRoot>| head.as_ref().map(|head| head.version.clone());
        if version(&standing) != version(&now) {
            return Err(OpenError::Busy(entry.name().to_owned()));
        }
        let mut roots: Vec<Root> = now
            .iter()
            .map(|head| head.root.clone())
            .filter(is_held)
            .collect();
        if !canary::active!("what_is_in_the_trash_has_no_snapshots") {
            let counts = |other: &TrashEntry| {
                let has_root = now.as_ref().is_some_and(|head| is_of(head, other.volume()));
                !other.mark.is_going && !has_root
            };
            let aside = aside.into_iter().filter(counts);
            roots.extend(aside.map(|other| other.head.root));
        }
        roots.retain(|root| root.volume != entry.volume());
        Ok(Namesakes(roots))
    }

    /// Whether one of them has the snapshot: its own, or one of what it was.
    pub(super) fn have(&self, snapshot: &KnownRoot) -> bool {
        if canary::active!("trash_takes_what_was_inherited") {
            return false;
        }
        let has = |parent| self.0.iter().any(|root| root.is_origin(parent));
        parent_of(snapshot).is_some_and(has)
    }
}

/// Whether it is served, or can be had back. One that is leaving the trash has nothing that another keeps for it.
fn is_held(root: &Root) -> bool {
    if canary::active!("what_is_in_the_trash_has_no_snapshots") {
        return !root.deleted;
    }
    let in_trash = root.trash_mark().is_some_and(|mark| !mark.is_going);
    !root.deleted || in_trash || root.is_leaving()
}
