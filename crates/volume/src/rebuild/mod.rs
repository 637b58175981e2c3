//! The rebuild: a volume's root and index, made anew from its packs after they were lost.
//!
//! Footers of packs say whose content they hold, in which epoch and at which LSNs it was written, what the volume was
//! called and how large it was. Logs of hosts say which of them were committed. What neither tells (zeroes whose packs
//! were removed, whether a slice that no log names was ever committed) is listed as *unknown*, never guessed in silence.
//!
//! ```text
//! rebuild -> target: which volume, and whether its root may be replaced
//!         -> logs: what hosts' logs say of it      -> line, holds: which slices are its history, in order (pure)
//!         -> base: a snapshot or pin to begin with -> content: what lies over what, and what is hidden
//!         -> publish: a pin, and the new root
//! ```
//!
//! It must never replace a root that is whole, nor let an owner of an older epoch go on: the new root has an epoch above
//! all that were seen, and names the last owner as predecessor, so that whoever opens the volume reads and fences that
//! host's log as after any take-over. It removes nothing. It runs without a server, beside any number of hosts.
//!
//! Memory: about 200 bytes for each part of a pack in the store, and 48 for each visible extent of the volume.

mod base;
mod content;
mod holds;
mod line;
mod logs;
mod publish;
mod target;

use std::future::Future;

use crate::check::footers::{list_packs, read_parts};
pub use crate::check::rootless::{RootlessVolume, find_rootless};
use crate::check::{CheckError, CheckPort};
use crate::driver::{StoreError, Version};
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// What a rebuild asks for, besides what a check does.
pub trait RebuildPort: CheckPort {
    /// Creates an object, if there is none of this key.
    fn create(
        &self,
        key: &str,
        data: Vec<u8>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Replaces an object, if it has this version.
    fn update(
        &self,
        key: &str,
        data: Vec<u8>,
        version: Version,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// So many of so many footers were read.
    fn on_footers(&self, read: usize, of: usize);
}

/// What is to be rebuilt.
#[derive(Clone, Debug, Default)]
pub struct RebuildRequest {
    /// The volume, or `VOLUME@SNAPSHOT` if only its index is lost.
    pub name: String,
    /// Its id, where several lost volumes had the name.
    pub volume: Option<VolumeId>,
    /// The name that it gets, where its own is another volume's now.
    pub new_name: Option<String>,
    /// Its size in bytes, if it is more than its newest pack says.
    pub bytes: Option<u64>,
    /// A host had it open and did not give it back: rebuild it all the same.
    pub take_over: bool,
    /// Find out everything, and write nothing.
    pub is_trial: bool,
    /// The time, milliseconds since 1970.
    pub unix_ms: u64,
    /// Drawn for this rebuild.
    pub nonce: u64,
}

/// What cannot be known of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No pack has these LSNs. What they wrote was overwritten if a collector removed their packs; what they zeroed
    /// may show older content.
    Gap {
        /// The first LSN.
        first: Lsn,
        /// The last LSN.
        last: Lsn,
        /// Bytes of the volume with older content that is not hidden by newer.
        bytes: u64,
    },
    /// These LSNs are in the volume, and nothing says that they were committed.
    Commit {
        /// The epoch in which they were written.
        epoch: Epoch,
        /// The first LSN.
        first: Lsn,
        /// The last LSN.
        last: Lsn,
    },
    /// The log of a host that wrote to the volume is not there, or has holes.
    Log(HostId),
    /// The volume was set back to a snapshot at this LSN, and what the snapshot had is not known any more: what was
    /// undone is in it.
    SetBack {
        /// The LSN of the restore.
        at: Lsn,
        /// The snapshot.
        snapshot: String,
    },
    /// A pack whose footer cannot be read: whose content it has is not known.
    Pack {
        /// Its key.
        key: String,
        /// What is wrong.
        why: String,
    },
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unknown::Gap { first, last, bytes } => write!(
                f,
                "no pack has what was written from LSN {} to {}: if it was removed as garbage, only zeroes (discards) \
                 of it are lost, and {bytes} bytes of older content may show where they were; if packs were lost, \
                 their content is missing",
                first.0, last.0
            ),
            Unknown::Commit { epoch, first, last } => write!(
                f,
                "LSN {} to {} of epoch {} are in it, and nothing says that they were committed",
                first.0, last.0, epoch.0
            ),
            Unknown::Log(host) => write!(
                f,
                "the log of host {host} is not there or not whole: what it committed is taken from its packs alone"
            ),
            Unknown::SetBack { at, snapshot } => write!(
                f,
                "it was set back to {snapshot} at LSN {}, and that snapshot cannot be read any more: what was written \
                 between the two may show again",
                at.0
            ),
            Unknown::Pack { key, why } => {
                write!(
                    f,
                    "{key} is not in it, because its footer cannot be read: {why}"
                )
            }
        }
    }
}

/// Why a slice is not part of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// A later owner gave its LSNs out again.
    Void,
    /// Its owner's log does not name it.
    NotCommitted,
    /// Nothing says that it was committed, and what comes before it is not there.
    Behind,
}

/// A slice that is in the store and not in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The epoch in which it was written.
    pub epoch: Epoch,
    /// The first LSN.
    pub first: Lsn,
    /// The last LSN.
    pub last: Lsn,
    /// Why.
    pub reason: LeftOutReason,
}

/// The host that had the volume last, and did not give it back as far as its log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastHolder {
    /// The host.
    pub host: HostId,
    /// The epoch of its hold.
    pub epoch: Epoch,
}

/// A rebuilt volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildReport {
    /// Its id.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its epoch.
    pub epoch: Epoch,
    /// It is the state at this LSN.
    pub lsn: Lsn,
    /// The snapshot with whose index it begins, if there was one, and that one's LSN.
    pub base: Option<(String, Lsn)>,
    /// Packs that were looked at.
    pub packs_read: u64,
    /// Packs that the root names.
    pub packs: u64,
    /// Bytes of content, zeroes not counted, over the base.
    pub content_bytes: u64,
    /// What of the store is not in it.
    pub left_out: Vec<LeftOut>,
    /// What cannot be known of it.
    pub unknown: Vec<Unknown>,
    /// Who had it last.
    pub holder: Option<LastHolder>,
    /// The root was written.
    pub is_written: bool,
}

/// Why nothing was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildError {
    /// The root is there, and so is its index.
    Whole(String),
    /// The volume was deleted.
    Deleted(String),
    /// The volume has another name now.
    Renamed(String, String),
    /// Nothing in the store is of a lost volume of this name.
    NotFound(String, Vec<RootlessVolume>),
    /// Several lost volumes had the name.
    Ambiguous(String, Vec<RootlessVolume>),
    /// The name is another volume's.
    Taken(String),
    /// A snapshot whose root is lost: nothing else says what it was.
    Snapshot(String),
    /// A host had it open.
    Held(String, LastHolder),
    /// It was larger than was asked for.
    TooSmall(u64),
    /// A bad name or size, and why.
    Invalid(String),
    /// Somebody wrote the root meanwhile, or removed packs.
    Outrun(String),
    /// The store did not say whether the root was written.
    NoOutcome(String),
    /// The store cannot be read.
    Check(CheckError),
}

impl From<CheckError> for RebuildError {
    fn from(error: CheckError) -> RebuildError {
        RebuildError::Check(error)
    }
}

impl std::fmt::Display for RebuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RebuildError::Whole(name) => write!(
                f,
                "{name} has its root, and all of its index can be read: there is nothing to rebuild; \
                 see `firn check {name}`"
            ),
            RebuildError::Deleted(name) => write!(
                f,
                "{name} was deleted, not lost: see `firn trash list`; what is not there any more cannot be rebuilt"
            ),
            RebuildError::Renamed(name, new) => write!(
                f,
                "{name} was renamed to {new}, not lost: see `firn check {new}`; what is lost under that name is rebuilt by its \
                 id, which a check of everything names"
            ),
            RebuildError::NotFound(name, others) => {
                write!(
                    f,
                    "no pack in this store is of a volume {name} without a root"
                )?;
                list(f, others)
            }
            RebuildError::Ambiguous(name, found) => {
                write!(
                    f,
                    "several volumes without a root were called {name}: say which with --id"
                )?;
                list(f, found)
            }
            RebuildError::Taken(name) => write!(
                f,
                "{name} is another volume now: give the rebuilt one a new name with --as"
            ),
            RebuildError::Snapshot(name) => write!(
                f,
                "the root of snapshot {name} is lost, and nothing else says at which point it was taken"
            ),
            RebuildError::Held(name, LastHolder { host, epoch }) => write!(
                f,
                "host {host} had {name} open in epoch {}, and its log does not say that it gave it back. Stop that \
                 server: what it has not uploaded stays there for `firn rescue`. Then say --take-over",
                epoch.0
            ),
            RebuildError::TooSmall(bytes) => {
                write!(f, "it had at least {bytes} bytes: a volume never shrinks")
            }
            RebuildError::Invalid(why) => f.write_str(why),
            RebuildError::Outrun(key) => write!(
                f,
                "{key} was written or removed by somebody meanwhile; nothing was changed: try again"
            ),
            RebuildError::NoOutcome(key) => write!(
                f,
                "the store does not say whether {key} was written: try again"
            ),
            RebuildError::Check(error) => error.fmt(f),
        }
    }
}

fn list(f: &mut std::fmt::Formatter<'_>, found: &[RootlessVolume]) -> std::fmt::Result {
    for volume in found {
        write!(
            f,
            "\n  {}  --id {}  {} packs, up to LSN {}",
            volume.name, volume.volume, volume.packs, volume.last.0
        )?;
    }
    Ok(())
}

impl std::error::Error for RebuildError {}

/// Rebuilds a volume.
///
/// # Errors
/// If nothing was changed, and why.
pub async fn rebuild(
    port: &impl RebuildPort,
    request: &RebuildRequest,
) -> Result<RebuildReport, RebuildError> {
    let packs = list_packs(port).await?;
    let of = packs.len();
    let found = read_parts(port, &packs, |read| port.on_footers(read, of)).await?;
    let mut unknown = Vec::new();
    let mut parts = Vec::new();
    for (pack, found) in packs.iter().zip(found) {
        match found {
            Ok(found) => parts.extend(found),
            Err(fault) => unknown.push(Unknown::Pack {
                key: pack.key(),
                why: fault.why,
            }),
        }
    }
    let target = target::find(port, request, &parts).await?;
    let logs = logs::read(port, &target, &parts).await?;
    let base = base::find(port, &target, &parts, &logs).await?;
    let lines = line::judge(&target, &base, parts, &logs);
    let holder = logs.last_holder(&target, &lines.newest);
    if let Some(holder) = holder.filter(|_| !request.take_over) {
        return Err(RebuildError::Held(target.name, holder));
    }
    let content = content::lay(port, &lines.taken).await?;
    unknown.extend(logs.missing().map(Unknown::Log));
    unknown.extend(base.unknown.iter().cloned());
    unknown.extend(content.unknown.iter().cloned());
    unknown.extend(lines.unknown(&content));
    let root = publish::root_of(&target, &base, &lines, &content, &logs, request)?;
    if !request.is_trial {
        publish::publish(port, &target, &root, request).await?;
    }
    Ok(RebuildReport {
        volume: root.volume,
        name: root.name.clone(),
        bytes: root.bytes,
        epoch: root.epoch,
        lsn: root.lsn,
        base: base.name.clone(),
        packs_read: of as u64,
        packs: root.deltas.len() as u64,
        content_bytes: content.bytes,
        left_out: lines.left_out,
        unknown,
        holder,
        is_written: !request.is_trial,
    })
}
