//! The check: whether the store has, whole, what volumes and snapshots name.
//!
//! It reads roots, the footers and index blocks that they name, and asks for the end of each pack. A *deep* check reads
//! each chunk, too, and proves it by its checksum, as a client's read would. It changes nothing, needs no server and no
//! claim on a volume, and may run beside any number of hosts: a root that moved while it was read is read again, for
//! what it named may be gone by then. What is garbage, and what is not yet in the store, is not its business.
//!
//! ```text
//! check -> walk: roots, deltas, nodes, pages -> blocks: what a footer or page says -> packs: ends, chunks
//!                                            -> rootless: packs that no root leads to -> footers
//! ```
//!
//! Memory: 40 bytes for each index block and pack, and what is being read; damage is kept for [`DAMAGE_MAX`] objects.

mod blocks;
pub(crate) mod footers;
mod packs;
pub(crate) mod rootless;
pub(crate) mod walk;

use std::future::Future;

use crate::driver::{ComputeError, StoreError, Version};
use crate::object::FormatError;

/// What the check asks for. Requests are tried again below it, as often as that makes sense.
pub trait CheckPort: Send + Sync {
    /// A whole object and its version.
    fn get(&self, key: &str)
    -> impl Future<Output = Result<(Vec<u8>, Version), StoreError>> + Send;

    /// Exactly this range.
    fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<Vec<u8>, StoreError>> + Send;

    /// The keys below a prefix, and the sizes of their objects.
    fn list(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<Vec<(String, u64)>, StoreError>> + Send;

    /// Has `work` done where it holds up nobody.
    fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, ComputeError>> + Send;

    /// So much was looked at by now.
    fn on_progress(&self, counts: &CheckCounts);
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Volumes.
    pub volumes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Index blocks and footers that were read; what forks and snapshots share counts once.
    pub index_blocks: u64,
    /// Packs whose end was asked for.
    pub packs: u64,
    /// Chunks that were read and proven.
    pub chunks: u64,
    /// Bytes that were read, all together.
    pub bytes_read: u64,
}

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamageKind {
    /// It is not in the store.
    Missing,
    /// It ends before what is named in it does.
    TooShort,
    /// Bytes fail their checksum, or contradict what names them.
    Corrupt,
    /// A newer firn wrote it.
    Newer,
    /// The bytes were lost before they were stored: it says so itself, and is whole.
    LostBefore,
}

/// An object that is not what a volume needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The volume, or `VOLUME@SNAPSHOT`.
    pub volume: String,
    /// Key of the object.
    pub object: String,
    /// What is wrong.
    pub kind: DamageKind,
    /// In words, of one place in it.
    pub why: String,
    /// The first byte of the volume that cannot be read for it.
    pub offset: u64,
    /// How many bytes of the volume cannot be read for it.
    pub bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What was looked at.
    pub counts: CheckCounts,
    /// What is wrong, by volume and object.
    pub damage: Vec<Damage>,
    /// There is more that is wrong than is listed.
    pub has_more: bool,
}

/// Objects of which damage is listed.
pub const DAMAGE_MAX: usize = 10_000;

/// Requests that are on their way side by side.
pub(crate) const SIDE_BY_SIDE: usize = 16;
/// So often something is read that is damaged, before that is believed: it may be damaged on its way.
const READS_MAX: u32 = 3;

/// Why a check came to no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// There is no such volume or snapshot.
    NoSuchVolume(String),
    /// A name that no volume or snapshot can have, and why.
    BadName(String, String),
    /// The store gives no answer about an object, with what it says instead.
    NoAnswer(String, String),
    /// The volume or snapshot has another name now.
    Renamed(String, String),
    /// A root moves so fast that nothing below it can be read.
    Moving(String),
    /// Volumes get other names faster than all roots are read.
    NamesMoving,
    /// A bug of firn.
    Bug(String),
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CheckError::NoSuchVolume(name) => write!(f, "there is no {name} in this store"),
            CheckError::BadName(name, why) => write!(f, "{name}: {why}"),
            CheckError::NoAnswer(key, error) => write!(
                f,
                "the check ended: the store gives no answer about {key} ({error}); try again once it does"
            ),
            CheckError::Renamed(name, new) => write!(
                f,
                "{name} was renamed: its name is {new} now: see `firn check {new}`"
            ),
            CheckError::NamesMoving => f.write_str(
                "the check ended: volumes get other names faster than all roots are read, so it is not known which there \
                 are; try again",
            ),
            CheckError::Moving(name) => write!(
                f,
                "the check ended: {name} is written so fast that its index is gone before it is read; try again \
                 when less is written"
            ),
            CheckError::Bug(what) => {
                write!(f, "the check ended by a bug: {what}; please report it")
            }
        }
    }
}

impl std::error::Error for CheckError {}

/// Checks volumes and snapshots: `VOLUME` with all its snapshots, `VOLUME@SNAPSHOT` alone; all that the store has if
/// none is named.
///
/// # Errors
/// If it came to no end. What is damaged is no error: it is in the report.
pub async fn check(
    port: &impl CheckPort,
    names: &[String],
    is_deep: bool,
) -> Result<CheckReport, CheckError> {
    walk::Walk::new(port, is_deep).run(names).await
}

/// Why something is not what its name promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: DamageKind,
    pub(crate) why: String,
}

impl Fault {
    fn new(kind: DamageKind, why: impl Into<String>) -> Fault {
        let why = why.into();
        Fault { kind, why }
    }

    fn missing() -> Fault {
        Fault::new(DamageKind::Missing, "it is not in the store")
    }

    fn too_short() -> Fault {
        Fault::new(
            DamageKind::TooShort,
            "it is shorter than what names it says",
        )
    }
}

impl From<FormatError> for Fault {
    fn from(error: FormatError) -> Fault {
        let kind = match error {
            FormatError::Newer(_) => DamageKind::Newer,
            FormatError::Foreign | FormatError::Corrupt(_) => DamageKind::Corrupt,
        };
        Fault::new(kind, error.to_string())
    }
}

/// Why something was not read.
pub(crate) enum ObjectReadError {
    /// It is not what its name promises.
    Fault(Fault),
    /// The check cannot go on.
    Ended(CheckError),
}

impl From<CheckError> for ObjectReadError {
    fn from(error: CheckError) -> ObjectReadError {
        ObjectReadError::Ended(error)
    }
}

/// The store did not say what it has.
pub(crate) fn no_answer(key: &str, error: &StoreError) -> CheckError {
    let why = match error {
        StoreError::Unknown(why) | StoreError::Unavailable(why) | StoreError::Denied(why) => {
            why.clone()
        }
        StoreError::NotFound => "it is not in the store".into(),
        StoreError::OutOfRange => "it is too short".into(),
        StoreError::PreconditionFailed => "another host changed it".into(),
    };
    CheckError::NoAnswer(key.to_owned(), why)
}

/// Reads a range and decodes it, again if it is damaged.
pub(crate) async fn read_range<T: Send + 'static>(
    port: &impl CheckPort,
    key: &str,
    (offset, len): (u64, u64),
    decode: impl Fn(&[u8]) -> Result<T, FormatError> + Clone + Send + 'static,
) -> Result<T, ObjectReadError> {
    let mut reads = 0;
    loop {
        let fault = match port.get_range(key, offset, len).await {
            Ok(data) if data.len() as u64 == len => {
                let decode = decode.clone();
                let decoded = port.compute(move || decode(&data)).await;
                match decoded.map_err(|error| CheckError::Bug(error.0))? {
                    Ok(found) => return Ok(found),
                    Err(error) => Fault::from(error),
                }
            }
            Ok(_) => Fault::too_short(),
            Err(StoreError::NotFound) => return Err(ObjectReadError::Fault(Fault::missing())),
            Err(StoreError::OutOfRange) => return Err(ObjectReadError::Fault(Fault::too_short())),
            Err(error) => return Err(no_answer(key, &error).into()),
        };
        reads += 1;
        if reads == READS_MAX {
            return Err(ObjectReadError::Fault(fault));
        }
    }
}
