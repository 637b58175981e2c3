//! The specification of a new volume, the description of an existing one, and the rules for names and sizes.

use crate::error::OpenError;
use crate::object::root::Root;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// The longest name.
const NAME_BYTES_MAX: usize = 64;
/// The largest volume: 64 TiB keeps a root small.
const BYTES_MAX: u64 = 64 << 40;

/// A volume to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
    pub name: String,
    /// Size in bytes, a multiple of 4096.
    pub bytes: u64,
    /// Logical block size in bytes, 512 or 4096.
    pub block: u32,
}

/// What the store says of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its logical block size in bytes.
    pub block: u32,
    /// How often it was opened.
    pub epoch: Epoch,
    /// The newest commit in the store; in a list of volumes, in the root: the holder's log may have more.
    pub stored: Lsn,
    /// When the root was written, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The host that holds it; none while one only maintains it.
    pub owner: Option<VolumeOwner>,
}

/// The host that holds a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOwner {
    /// Its identity.
    pub host: HostId,
    /// Its label.
    pub label: String,
}

impl VolumeInfo {
    pub(crate) fn of(root: &Root) -> VolumeInfo {
        VolumeInfo {
            name: root.name.clone(),
            id: root.volume,
            bytes: root.bytes,
            block: root.block,
            epoch: root.epoch,
            stored: root.lsn,
            unix_ms: root.unix_ms,
            owner: root
                .owner
                .as_ref()
                .filter(|_| !root.is_maintained())
                .map(|owner| VolumeOwner {
                    host: owner.host,
                    label: owner.label.clone(),
                }),
        }
    }
}

/// Is this a name for a volume?
///
/// # Errors
/// Says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), OpenError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    let begins_well = name
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric);
    if begins_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(OpenError::Invalid(format!(
        "{name:?} is not a volume name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or \
         '-', beginning with a letter or digit"
    )))
}

pub(crate) fn check_spec(spec: &VolumeSpec) -> Result<(), OpenError> {
    check_name(&spec.name)?;
    if !matches!(spec.block, 512 | 4096) {
        return Err(OpenError::Invalid(format!(
            "block size {}: it must be 512 or 4096",
            spec.block
        )));
    }
    check_size(spec.bytes)
}

/// Is this a size for a volume?
///
/// # Errors
/// Says what is wrong with it.
pub fn check_size(bytes: u64) -> Result<(), OpenError> {
    if bytes == 0 || !bytes.is_multiple_of(4096) || bytes > BYTES_MAX {
        return Err(OpenError::Invalid(format!(
            "size {bytes} bytes: it must be a multiple of 4096, above zero and at most 64 TiB"
        )));
    }
    Ok(())
}
