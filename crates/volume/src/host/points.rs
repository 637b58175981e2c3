//! The control operations on points of a volume's history: snapshots, forks, restores, differences, and the trash.
//!
//! Owns nothing: each call hands its arguments to the procedure that carries it out.

use crate::error::OpenError;
use crate::host::Host;
use crate::jobs::Answer;
use crate::object::SNAPSHOT_SIGN;
use crate::store::catalog::volume_spec::VolumeInfo;
use crate::store::diff::{self, DiffPart, DiffPlace, DiffRequest};
use crate::store::forks::group::create_group;
use crate::store::forks::restore::restore;
use crate::store::forks::snapshot_list::{SnapshotInfo, list_snapshots, show_snapshot};
use crate::store::forks::{self, Durability, Fork};
use crate::store::parts::{ListPart, ListPlace};
use crate::store::rename::rename;
use crate::store::trash::entries::TrashedVolume;
use crate::store::trash::{self, entries};

impl Host {
    /// Moves a volume that is open nowhere to the trash, with its snapshots. Its name is free; for so long it can be
    /// had back, and behind that until a pass of the garbage collector finds that its time is over.
    pub fn trash_volume(&self, name: &str, keep_ms: u64) -> Answer<Result<(), OpenError>> {
        let name = name.to_owned();
        self.control_volume(&name.clone(), move |engine| async move {
            forks::delete_volume(&engine, &name, Some(keep_ms)).await
        })
    }

    /// A part of what is in the trash: by name, and behind that those whose names others have taken, by id.
    pub fn list_trash(
        &self,
        place: ListPlace,
    ) -> Answer<Result<ListPart<TrashedVolume>, OpenError>> {
        self.control(move |engine| async move { entries::list(&engine, &place).await })
    }

    /// Gives a volume back from the trash with its snapshots: the one of this id, or of those that had this name the
    /// one that was deleted last; under its own name, or another.
    pub fn restore_from_trash(
        &self,
        which: &str,
        new_name: Option<&str>,
    ) -> Answer<Result<VolumeInfo, OpenError>> {
        let (which, name) = (which.to_owned(), new_name.map(str::to_owned));
        self.control(move |engine| async move {
            trash::restore::restore(&engine, &which, name.as_deref()).await
        })
    }

    /// Lets a volume in the trash go for good, with its snapshots; forks of it stay.
    pub fn empty_trash(&self, which: &str) -> Answer<Result<(), OpenError>> {
        let which = which.to_owned();
        self.control(move |engine| async move { trash::empty::empty(&engine, &which).await })
    }

    /// Deletes a volume that is open nowhere.
    pub fn delete_volume(&self, name: &str) -> Answer<Result<(), OpenError>> {
        let name = name.to_owned();
        self.control_volume(&name.clone(), move |engine| async move {
            forks::delete_volume(&engine, &name, None).await
        })
    }

    /// Gives a volume that is open nowhere another name, with its snapshots, or goes on where that was cut short. Its
    /// identity stays.
    pub fn rename_volume(&self, old: &str, new: &str) -> Answer<Result<VolumeInfo, OpenError>> {
        let (old, new) = (old.to_owned(), new.to_owned());
        self.control_volume(&old.clone(), move |engine| async move {
            rename(&engine, &old, &new).await
        })
    }

    /// Makes a snapshot, `VOLUME@SNAPSHOT`, of the volume as it is now, while writers go on. Ends when the snapshot
    /// is as durable as was asked for.
    pub fn create_snapshot(
        &self,
        name: &str,
        labels: Vec<(String, String)>,
        durability: Durability,
    ) -> Answer<Result<SnapshotInfo, OpenError>> {
        let name = name.to_owned();
        self.control_volume(&name.clone(), move |engine| async move {
            forks::create_snapshot(&engine, &name, labels, durability, None).await
        })
    }

    /// The same of a volume that is, at this moment, a copy of a snapshot of another store, which was taken at `unix_ms`:
    /// the new one has that time. Ends when the store has it.
    pub fn copy_snapshot(
        &self,
        name: &str,
        labels: Vec<(String, String)>,
        unix_ms: u64,
    ) -> Answer<Result<SnapshotInfo, OpenError>> {
        let name = name.to_owned();
        self.control_volume(&name.clone(), move |engine| async move {
            let time = Some(unix_ms);
            forks::create_snapshot(&engine, &name, labels, Durability::Store, time).await
        })
    }

    /// Makes snapshots of several volumes that are open here, all at one moment while writers go on. As durable as a FLUSH
    /// when this ends, all or none; with [`Durability::Store`] it waits until the store has them, too.
    pub fn create_snapshot_group(
        &self,
        names: &[String],
        labels: Vec<(String, String)>,
        durability: Durability,
    ) -> Answer<Result<Vec<SnapshotInfo>, OpenError>> {
        let names = names.to_vec();
        self.control(move |engine| async move {
            for (volume, _) in names
                .iter()
                .filter_map(|name| name.split_once(SNAPSHOT_SIGN))
            {
                engine
                    .compaction
                    .maintained
                    .wait_let_go(&engine.port, volume)
                    .await?;
            }
            create_group(&engine, &names, labels, durability).await
        })
    }

    /// A part of the snapshots of a volume, by name.
    pub fn list_snapshots(
        &self,
        volume: &str,
        place: ListPlace,
    ) -> Answer<Result<ListPart<SnapshotInfo>, OpenError>> {
        let volume = volume.to_owned();
        self.control(move |engine| async move { list_snapshots(&engine, &volume, &place).await })
    }

    /// What the store says of one snapshot, `VOLUME@SNAPSHOT`.
    pub fn show_snapshot(&self, name: &str) -> Answer<Result<SnapshotInfo, OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move { show_snapshot(&engine, &name).await })
    }

    /// Deletes a snapshot; forks of it stay.
    pub fn delete_snapshot(&self, name: &str) -> Answer<Result<(), OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move { forks::delete_snapshot(&engine, &name).await })
    }

    /// Makes a volume that begins as another one, or a snapshot `VOLUME@SNAPSHOT`, is now. It is not opened. Ends
    /// when the fork is as durable as was asked for; of a volume that is not open here, and of a snapshot, when the
    /// store has it.
    pub fn fork_volume(
        &self,
        parent: &str,
        name: &str,
        durability: Durability,
    ) -> Answer<Result<Fork, OpenError>> {
        let (parent, name) = (parent.to_owned(), name.to_owned());
        self.control_volume(&parent.clone(), move |engine| async move {
            forks::fork(&engine, &parent, &name, durability).await
        })
    }

    /// Sets a volume that nobody has open back to its snapshot `VOLUME@SNAPSHOT`. What it held is the snapshot
    /// `kept` from then on.
    pub fn restore_volume(&self, name: &str, kept: &str) -> Answer<Result<VolumeInfo, OpenError>> {
        let (name, kept) = (name.to_owned(), kept.to_owned());
        self.control_volume(&name.clone(), move |engine| async move {
            restore(&engine, &name, &kept).await
        })
    }

    /// What differs from `from` to `to`, two volumes or snapshots that share history, by their indexes alone: at most
    /// so many ranges, from `place` on. A volume is told as the store has it.
    pub fn diff(
        &self,
        from: &str,
        to: &str,
        place: Option<DiffPlace>,
        ranges_max: usize,
    ) -> Answer<Result<DiffPart, OpenError>> {
        let request = DiffRequest {
            from: from.to_owned(),
            to: to.to_owned(),
            place,
            ranges_max: ranges_max.max(1),
        };
        self.control(move |engine| async move { diff::diff(&engine, &request).await })
    }
}
