//! Names in the store of what a host writes: its session, and the keys of packs, index objects,
//! records, low marks and pins.
//!
//! A name is used once, but a name alone proves nothing: a host that finds an object under the name it is about
//! to use reads the object back, because a copy of the host would use the same names.

use std::fmt;

use crate::units::{Epoch, HostId, LogSession, VolumeId, parse_hex_identity};

/// Prefix of the logs and low marks of all hosts.
pub const HOST_PREFIX: &str = "hosts/";
/// Prefix of the packs of all hosts.
pub const PACK_PREFIX: &str = "packs/";
/// Prefix of the index objects of all hosts.
pub const INDEX_PREFIX: &str = "indexes/";
/// Prefix of all pins.
pub const PIN_PREFIX: &str = "pins/";
/// Prefix of the roots of volumes in the trash that were put aside.
pub const TRASH_PREFIX: &str = "trash/";
/// Prefix of the tombstones of deleted volumes whose names other volumes have taken.
pub const TOMB_PREFIX: &str = "tombs/";

/// Number of a record in its host's log; the first is 1. As a mark, 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The first of a log.
    pub const FIRST: Position = Position(1);

    /// The next one.
    #[must_use]
    pub fn next(self) -> Position {
        Position(self.0.saturating_add(1))
    }

    /// The one before; before the first it is 0.
    #[must_use]
    pub fn previous(self) -> Position {
        Position(self.0.saturating_sub(1))
    }
}

/// BLAKE3 of an object's bytes: tells one object from another that has its name.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of "no record": before the first one, and in fences.
    pub const NONE: Digest = Digest([0; 32]);

    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self
            .0
            .first_chunk()
            .map_or(0, |head| u64::from_be_bytes(*head));
        write!(f, "{head:016x}")
    }
}

/// One start of a server on one host. The keys of the objects that it writes begin with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName {
    /// The host.
    pub host: HostId,
    /// Which start.
    pub session: LogSession,
}

impl SessionName {
    /// Key of the session's pack with this number.
    pub fn pack_key(self, number: u64) -> String {
        format!("{PACK_PREFIX}{self}/{number:016x}")
    }

    /// Key of the session's index object with this number.
    pub fn index_key(self, number: u64) -> String {
        format!("{INDEX_PREFIX}{self}/{number:016x}")
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogSession { number, random } = self.session;
        write!(f, "{}/{number:016x}-{random:016x}", self.host)
    }
}

/// What the keys of a host's log and low mark begin with.
pub fn host_prefix(host: HostId) -> String {
    format!("{HOST_PREFIX}{host}/")
}

/// Key of a record.
pub fn record_key(host: HostId, position: Position) -> String {
    format!("{}log/{:016x}", host_prefix(host), position.0)
}

/// Key of a host's low mark.
pub fn low_key(host: HostId) -> String {
    format!("{}low", host_prefix(host))
}

/// Key of the tombstone of a deleted volume whose name another has taken.
pub fn tombstone_key(volume: VolumeId) -> String {
    format!("{TOMB_PREFIX}{volume}")
}

/// What the keys of a volume's roots begin with that were put aside, see [`trash_key`].
pub fn trash_prefix(volume: VolumeId) -> String {
    format!("{TRASH_PREFIX}{volume}/")
}

/// Key of the root of a volume in the trash whose name another is about to take. Epochs rise, so it is used once.
pub fn trash_key(volume: VolumeId, epoch: Epoch) -> String {
    format!("{}{:016x}", trash_prefix(volume), epoch.0)
}

/// Key of the pin by which a child holds packs of its parent.
pub fn pin_key(parent: VolumeId, child: VolumeId) -> String {
    format!("{PIN_PREFIX}{parent}/{child}")
}

/// Key of the pin that holds what a volume is about to name when it is restored to a snapshot, or what a snapshot
/// that the log keeps is about to name. The nonce keeps the keys of repeated attempts apart.
pub fn restore_pin_key(snapshot: VolumeId, volume: VolumeId, nonce: u64) -> String {
    format!("{}-{nonce:016x}", pin_key(snapshot, volume))
}

/// The session and number of a pack or an index object, by its key.
pub fn object_of_key(key: &str) -> Option<(SessionName, u64)> {
    let strip = |prefix| key.strip_prefix(prefix);
    let mut parts = strip(PACK_PREFIX)
        .or_else(|| strip(INDEX_PREFIX))?
        .split('/');
    let host = HostId(parse_hex_identity(parts.next()?)?);
    let (number, random) = parts.next()?.split_once('-')?;
    let session = LogSession {
        number: parse_hex(number)?,
        random: parse_hex(random)?,
    };
    let object = parse_hex(parts.next()?)?;
    parts
        .next()
        .is_none()
        .then_some((SessionName { host, session }, object))
}

/// The host and position of a record, by its key.
pub fn record_of_key(key: &str) -> Option<(HostId, Position)> {
    let (host, position) = key.strip_prefix(HOST_PREFIX)?.split_once("/log/")?;
    Some((
        HostId(parse_hex_identity(host)?),
        Position(parse_hex(position)?),
    ))
}

/// Sixteen digits, lower case: no other spelling names an object.
fn parse_hex(text: &str) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = text.len() == 16 && text.bytes().all(is_digit);
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_key_names_is_read_back_from_it_and_from_no_other_spelling() {
        let name = SessionName {
            host: HostId([0xab; 16]),
            session: LogSession {
                number: 3,
                random: 0xfe,
            },
        };
        assert_eq!(object_of_key(&name.pack_key(9)), Some((name, 9)));
        assert_eq!(object_of_key(&name.index_key(9)), Some((name, 9)));
        assert_eq!(object_of_key(&format!("{}/1", name.pack_key(9))), None);
        assert_eq!(object_of_key(&name.pack_key(0xa).to_uppercase()), None);
        assert_eq!(
            object_of_key("packs/0000000000000001-0000000000000002"),
            None
        );
        let key = record_key(name.host, Position(77));
        assert_eq!(record_of_key(&key), Some((name.host, Position(77))));
        assert_eq!(record_of_key(&low_key(name.host)), None);
        assert_eq!(record_of_key(&key.replace("004d", "4d")), None);
    }
}
