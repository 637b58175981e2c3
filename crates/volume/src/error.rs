//! What can go wrong outside the request path: opening, creating, uploading.
//!
//! Each error names the object and the remedy; requests themselves end with an
//! [`blkmq::error::ErrorKind`].

use std::fmt;

use crate::driver::{ComputeError, DiskError};
use crate::hostlog::stop::Stop;
use crate::units::VolumeId;

/// Why a host or a volume could not be opened, created or brought to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The options make no sense; nothing was touched.
    Options(String),
    /// A file or object is not firn's.
    Foreign(String),
    /// A structure of a newer format.
    Newer {
        /// Which structure.
        what: &'static str,
        /// Its version.
        found: u16,
        /// The newest version known here.
        known: u16,
    },
    /// A structure fails its checksum or contradicts itself.
    Corrupt(String),
    /// The local disk failed.
    Disk(String),
    /// The store failed, and trying again will not help.
    Store(String),
    /// No volume of this name.
    NoSuchVolume(String),
    /// The volume or snapshot of this name has another one now.
    Renamed {
        /// The name that it had.
        name: String,
        /// The name that it has now.
        new_name: String,
    },
    /// The volume or snapshot of this name got another one, and has that no more: it was deleted, or it was renamed again
    /// and another took the name between.
    RenamedAndGone {
        /// The name that it had.
        name: String,
        /// The last one that it is known to have had.
        last_name: String,
        /// What it is told by.
        id: VolumeId,
    },
    /// A volume is being renamed, or that was cut short.
    Renaming {
        /// The name that it had.
        name: String,
        /// The name that it gets.
        new_name: String,
    },
    /// No snapshot of this name.
    NoSuchSnapshot(String),
    /// Nothing in the trash has this name or id.
    NotInTrash(String),
    /// The name is taken.
    Exists(String),
    /// Another host holds the volume and has not let go.
    Held {
        /// The volume.
        volume: String,
        /// The host that holds it.
        owner: String,
        /// The newest commit that the root has; that host's log may have brought more since.
        stored_lsn: u64,
        /// How long ago that host changed the root, in milliseconds.
        seen_ms_ago: u64,
    },
    /// Another host has taken the volume over; this one completes no more writes.
    Fenced(String),
    /// The volume was deleted, or deleted and created anew, while this host had it open.
    Deleted(String),
    /// The volume's root is not in the store any more, and no mark that it was deleted.
    RootMissing(String),
    /// The store has an older state of the volume than this host brought there.
    StoreWentBack {
        /// The volume.
        volume: String,
        /// The newest commit that the store has.
        stored_lsn: u64,
        /// The newest commit that this host knows to have been there.
        known_lsn: u64,
    },
    /// What stands in the store does not fit what this host wrote there: it does nothing more.
    HostStopped(Stop),
    /// The store does not tell any more what a tail that is kept for rescue continues.
    BaseGone {
        /// The volume.
        volume: String,
        /// The commit up to which the tail's host had brought it.
        stored_lsn: u64,
        /// What became of it.
        why: String,
    },
    /// What a volume was when a list of it was begun cannot be told any more.
    StateGone(String),
    /// Another history than the one that this host's device of the volume has shown.
    HoldEnded(String),
    /// The volume is open here.
    InUse(String),
    /// Something else is being done to the volume or snapshot of this name.
    Busy(String),
    /// So many snapshots and forks of the volume as may wait for the store at once do so.
    TooManyPoints(String, usize),
    /// A name or size that is not allowed.
    Invalid(String),
    /// The log's sync failed once; it is not written any more.
    Poisoned,
    /// A bug of firn ended a step; nothing that was acknowledged is lost.
    Internal(String),
}

impl OpenError {
    /// Whether it ends this host's service of a volume for good, whatever comes later.
    pub(crate) fn is_end_of_service(&self) -> bool {
        matches!(
            self,
            OpenError::Fenced(_)
                | OpenError::Deleted(_)
                | OpenError::StoreWentBack { .. }
                | OpenError::HostStopped(_)
        )
    }

    /// What a name stands for, or does not.
    fn fmt_named(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoSuchVolume(name) => {
                write!(f, "no volume named {name}: see `firn volume list`")
            }
            OpenError::Renamed { name, new_name } => {
                write!(
                    f,
                    "{name} was renamed: its name is {new_name} now; say {new_name} instead"
                )
            }
            OpenError::RenamedAndGone {
                name,
                last_name,
                id,
            } => write!(
                f,
                "{name} was renamed to {last_name}, and has that name no more: it was deleted, or renamed again, and its \
                 name taken by another; its id is {id}: see `firn volume list --json` and `firn trash list`"
            ),
            OpenError::Renaming { name, new_name } if name.contains('@') => write!(
                f,
                "snapshot {name} is getting the name {new_name}, because its volume was renamed, or that was cut short, and \
                 until it has ended neither name can be used: try again, or have a pass of the collector go on with it by \
                 `firn gc`"
            ),
            OpenError::Renaming { name, new_name } => write!(
                f,
                "volume {name} is being renamed to {new_name}, or that was cut short, and until it has ended neither name can \
                 be used: try again, or go on with it by `firn volume rename {name} {new_name}`"
            ),
            OpenError::NoSuchSnapshot(name) => write!(
                f,
                "no snapshot named {name}: see `firn snapshot list {}`",
                name.split('@').next().unwrap_or_default()
            ),
            OpenError::NotInTrash(which) => {
                write!(
                    f,
                    "no volume {which} is in the trash: see `firn trash list`"
                )
            }
            OpenError::Exists(name) if name.contains('@') => {
                write!(f, "a snapshot named {name} exists already")
            }
            OpenError::Exists(name) => write!(f, "a volume named {name} exists already"),
            OpenError::StateGone(name) => write!(
                f,
                "{name} has gone on since this list was begun, and what it was then cannot be told any more: \
                 begin again, or take a snapshot and ask about that"
            ),
            _ => Ok(()),
        }
    }

    /// What another host, or somebody at the store, did to a volume that this host had.
    fn fmt_lost_hold(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Fenced(name) => write!(
                f,
                "volume {name} was taken over by another host; what this host had not uploaded \
                 stays in its log"
            ),
            OpenError::Deleted(name) => write!(
                f,
                "volume {name} was deleted by another host; what this host had not uploaded stays in \
                 its log"
            ),
            OpenError::RootMissing(name) => write!(
                f,
                "volumes/{name}/root, the root of volume {name}, is gone from the store, though nobody \
                 deleted the volume: nothing more of it is stored. What is on this host is still \
                 served. Put the object back from a backup or an older version of it, or have it made \
                 again of what the volume's packs say, with `firn check {name} --rebuild`, or copy the \
                 disk's content elsewhere"
            ),
            OpenError::StoreWentBack {
                volume,
                stored_lsn,
                known_lsn,
            } => write!(
                f,
                "the store has volume {volume} up to LSN {stored_lsn}, but this host brought it up to \
                 LSN {known_lsn}: the store was set back to an older copy. Put the newer objects back, \
                 or declare the loss with --take-over: the volume then goes on from what the store has, \
                 and what this host has beside it is kept for rescue"
            ),
            OpenError::BaseGone {
                volume,
                stored_lsn,
                why,
            } => write!(
                f,
                "the store does not have volume {volume} as it was at LSN {stored_lsn} any more, which the \
                 tail continues: {why}. What the tail alone holds, over zeroes, can be had with \
                 `firn rescue fork --without-base`"
            ),
            OpenError::HoldEnded(name) => write!(
                f,
                "volume {name} does not go on where this host's disk of it left off: another host has \
                 served it since, or the log here lost it. The disk is not served again, for what has it \
                 open or mounted knows another content: unmount it, then `firn detach --force {name}`, and \
                 attach the volume anew"
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Options(why)
            | OpenError::Corrupt(why)
            | OpenError::Invalid(why)
            | OpenError::Internal(why) => f.write_str(why),
            OpenError::Foreign(what) => {
                write!(
                    f,
                    "{what}; firn leaves it alone: choose another directory or prefix"
                )
            }
            OpenError::Newer { what, found, known } => write!(
                f,
                "{what} has format version {found}, this firn knows up to {known}: \
                 use a newer firn"
            ),
            OpenError::Disk(why) | OpenError::Store(why) => f.write_str(why),
            OpenError::HostStopped(stop) => stop.fmt(f),
            OpenError::NoSuchVolume(_)
            | OpenError::Renamed { .. }
            | OpenError::RenamedAndGone { .. }
            | OpenError::Renaming { .. }
            | OpenError::NoSuchSnapshot(_)
            | OpenError::NotInTrash(_)
            | OpenError::Exists(_)
            | OpenError::StateGone(_) => self.fmt_named(f),
            OpenError::Held {
                volume,
                owner,
                stored_lsn,
                seen_ms_ago,
            } => write!(
                f,
                "volume {volume} is held by host {owner}, which has not let go and last changed its \
                 root {} s ago; what it has not uploaded (after LSN {stored_lsn} or later) would be lost \
                 here: stop that server, or declare the loss with `firn attach {volume} --take-over`",
                seen_ms_ago / 1000
            ),
            OpenError::Fenced(_)
            | OpenError::Deleted(_)
            | OpenError::RootMissing(_)
            | OpenError::StoreWentBack { .. }
            | OpenError::BaseGone { .. }
            | OpenError::HoldEnded(_) => self.fmt_lost_hold(f),
            OpenError::InUse(name) => {
                write!(f, "volume {name} is attached: detach it first")
            }
            OpenError::Busy(name) => write!(
                f,
                "another command works on {name} at this moment: try again when that has ended"
            ),
            OpenError::TooManyPoints(name, most) => write!(
                f,
                "{most} snapshots or forks of volume {name} wait for the store already, and none of them ended while \
                 this one waited: see in `firn volume show {name}` how far the store is behind, and try again when it \
                 takes what it is sent"
            ),
            OpenError::Poisoned => f.write_str(
                "a sync of the log failed: writes are refused, reads go on; what was flushed is \
                 still uploaded. Stop the server, and run `firn rescue log --to DIR` with a directory \
                 on a good disk",
            ),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<DiskError> for OpenError {
    fn from(error: DiskError) -> OpenError {
        OpenError::Disk(error.cause)
    }
}

impl From<ComputeError> for OpenError {
    fn from(error: ComputeError) -> OpenError {
        OpenError::Internal(error.0)
    }
}
