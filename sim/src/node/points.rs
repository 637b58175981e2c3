//! Owns the joint to the engine's snapshots and forks: what may be asked, and how it ends.

use std::sync::Arc;

use volume::{Answer, Durability, Fork, OpenError, SnapshotInfo, VolumeInfo};

use super::{Failure, Node, NodeEvent, Volume, take_ended};

/// What a process is asked of snapshots and forks.
#[derive(Clone, Debug)]
pub enum PointAsk {
    /// Take one snapshot; wait until the store has it, or until the log has.
    Take(String, Durability),
    /// Take several of one moment.
    TakeGroup(Vec<String>, Durability),
    /// Delete a snapshot.
    Delete(String),
    /// Make a fork of a volume or a snapshot, of this name; wait until the store has it, or until the log has.
    Fork(String, String, Durability),
    /// Set the volume of this snapshot back to it; what it held is kept under the second name.
    Restore(String, String),
    /// Give a volume another name.
    Rename(String, String),
    /// Open a snapshot to be read.
    Open(String),
    /// Read it no more.
    Close(Arc<Volume>),
}

/// How it ended.
#[derive(Debug)]
pub enum PointEnd {
    /// Snapshots were taken, or not.
    Taken(Result<Vec<SnapshotInfo>, Failure>),
    /// A snapshot is deleted, or not.
    Deleted(Result<(), Failure>),
    /// A fork was made, or not.
    /// Whether the store has it.
    Forked(Result<bool, Failure>),
    /// A volume was set back, or not.
    Restored(Result<(), Failure>),
    /// A volume has another name, or not.
    Renamed(Result<(), Failure>),
    /// A snapshot can be read, or not.
    Opened(Result<Arc<Volume>, Failure>),
    /// It is read no more.
    Closed,
}

type Asked<T> = Vec<(u64, Answer<Result<T, OpenError>>)>;

/// What was asked and has not ended.
#[derive(Default)]
pub(super) struct PointCalls {
    taking: Asked<SnapshotInfo>,
    grouping: Asked<Vec<SnapshotInfo>>,
    deleting: Asked<()>,
    forking: Asked<Fork>,
    restoring: Asked<VolumeInfo>,
    renaming: Asked<VolumeInfo>,
    opening: Asked<Volume>,
    closing: Asked<()>,
}

impl PointCalls {
    pub(super) fn take_ended(&mut self, events: &mut Vec<NodeEvent>) {
        let mut add = |token, end| events.push(NodeEvent::Point(token, end));
        take_ended(&mut self.taking, |token, result| {
            add(token, PointEnd::Taken(result.map(|info| vec![info])));
        });
        take_ended(&mut self.grouping, |token, result| {
            add(token, PointEnd::Taken(result));
        });
        take_ended(&mut self.deleting, |token, result| {
            add(token, PointEnd::Deleted(result));
        });
        take_ended(&mut self.forking, |token, result| {
            add(token, PointEnd::Forked(result.map(|fork| fork.is_stored)));
        });
        take_ended(&mut self.restoring, |token, result| {
            add(token, PointEnd::Restored(result.map(drop)));
        });
        take_ended(&mut self.renaming, |token, result| {
            add(token, PointEnd::Renamed(result.map(drop)));
        });
        take_ended(&mut self.opening, |token, result| {
            add(token, PointEnd::Opened(result.map(Arc::new)));
        });
        take_ended(&mut self.closing, |token, _| add(token, PointEnd::Closed));
    }
}

impl Node {
    /// Asks; ends with [`NodeEvent::Point`], which carries `token`.
    pub fn ask_point(&mut self, token: u64, ask: PointAsk) {
        let (host, calls) = (&self.host, &mut self.points);
        match ask {
            PointAsk::Take(name, durability) => {
                let answer = host.create_snapshot(&name, Vec::new(), durability);
                calls.taking.push((token, answer));
            }
            PointAsk::TakeGroup(names, durability) => {
                let answer = host.create_snapshot_group(&names, Vec::new(), durability);
                calls.grouping.push((token, answer));
            }
            PointAsk::Delete(name) => calls.deleting.push((token, host.delete_snapshot(&name))),
            PointAsk::Fork(parent, name, durability) => {
                let answer = host.fork_volume(&parent, &name, durability);
                calls.forking.push((token, answer));
            }
            PointAsk::Restore(name, kept) => {
                let answer = host.restore_volume(&name, &kept);
                calls.restoring.push((token, answer));
            }
            PointAsk::Rename(old, new) => {
                calls.renaming.push((token, host.rename_volume(&old, &new)));
            }
            PointAsk::Open(name) => calls.opening.push((token, host.open_snapshot(&name))),
            PointAsk::Close(volume) => {
                calls.closing.push((token, host.close_volume(&volume)));
            }
        }
    }
}
