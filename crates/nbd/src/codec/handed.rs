//! What a server has to know of a connection to go on with it where another one stopped: what was
//! agreed on, what the client believes of the export, and the bytes that came and were not taken.
//!
//! It holds no request: what was taken from the stream was answered before. Nor does it say who the
//! client is, for only those are handed over that never said (no TLS). Bytes: docs/format.md
//! "Connection that is handed over".

use super::meta::ContextSet;
use super::reply::{Headers, Session};
use super::{ExportInfo, NAME_BYTES_MAX, wire};

const MAGIC: [u8; 4] = *b"fNBD";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 32;

/// More is never received ahead of what was taken.
const UNREAD_BYTES_MAX: usize = 128 << 10;

/// A connection between two requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// The export's own name.
    pub export: String,
    /// What the handshake agreed on.
    pub session: Session,
    /// The transmission flags that the client was told.
    pub flags: u16,
    /// The logical block size that it was told, in bytes.
    pub logical_block: u32,
    /// Size of the export when the connection was given away, in bytes.
    pub bytes: u64,
    /// So many bytes of the stream belong to a request that was refused, and come before `unread`.
    pub skip: u32,
    /// What was received and not taken, first the beginning of a header, if one was cut.
    pub unread: Vec<u8>,
}

/// Bytes that are no connection of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandedError {
    /// They begin with something else.
    #[error("not the state of an NBD connection")]
    Magic,
    /// Another version wrote them.
    #[error("the state of an NBD connection in version {0}, where this server knows {VERSION}")]
    Version(u16),
    /// A field is not what it may be, or bytes are missing or too many.
    #[error("the state of an NBD connection has a wrong {0}")]
    Field(&'static str),
}

/// Why an export cannot take the place of the one that a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportMismatch {
    /// The client may use what is not offered here.
    #[error("the client was told flags {0:#06x}, and {1:#06x} hold here")]
    Flags(u16, u16),
    /// Its requests may be too small.
    #[error("the client was told blocks of {0} bytes, and they have {1} here")]
    Block(u32, u32),
    /// Its requests may reach beyond the end.
    #[error("the client was told {0} bytes, and there are {1} here")]
    Shorter(u64, u64),
}

impl ConnectionState {
    /// The state of a connection to this export.
    pub(crate) fn new(export: &ExportInfo, session: Session, skip: u32, unread: Vec<u8>) -> Self {
        ConnectionState {
            export: export.name.clone(),
            session,
            flags: export.flags(session.headers),
            logical_block: export.geometry.logical_block,
            bytes: export.geometry.bytes,
            skip,
            unread,
        }
    }

    /// Whether all that the client was told holds of this export, too. More may hold.
    pub(crate) fn check_fits(&self, export: &ExportInfo) -> Result<(), ExportMismatch> {
        let (sent, here) = (self.flags, export.flags(self.session.headers));
        // Read-only is no promise that may be added: the client would go on to write.
        if sent & !here != 0 || (sent ^ here) & wire::FLAG_READ_ONLY != 0 {
            return Err(ExportMismatch::Flags(sent, here));
        }
        let geometry = &export.geometry;
        if geometry.logical_block > self.logical_block {
            return Err(ExportMismatch::Block(
                self.logical_block,
                geometry.logical_block,
            ));
        }
        if geometry.bytes < self.bytes {
            return Err(ExportMismatch::Shorter(self.bytes, geometry.bytes));
        }
        Ok(())
    }

    /// As bytes, for another process.
    pub fn encode(&self) -> Vec<u8> {
        let headers = match self.session.headers {
            Headers::Simple => 0,
            Headers::Structured => 1,
            Headers::Extended => 2,
        };
        let mut out = Vec::with_capacity(FIXED_BYTES + self.export.len() + self.unread.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([headers, self.session.contexts.bits()]);
        out.extend(self.flags.to_le_bytes());
        out.extend((self.export.len() as u16).to_le_bytes());
        out.extend(self.logical_block.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.skip.to_le_bytes());
        out.extend((self.unread.len() as u32).to_le_bytes());
        out.extend(self.export.as_bytes());
        out.extend(&self.unread);
        out
    }

    /// What [`ConnectionState::encode`] made. Any other bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<ConnectionState, HandedError> {
        let (fixed, rest) = bytes
            .split_first_chunk::<FIXED_BYTES>()
            .ok_or(HandedError::Field("length"))?;
        if fixed[..4] != MAGIC {
            return Err(HandedError::Magic);
        }
        let version = u16::from_le_bytes(bytes_at(fixed, 4));
        if version != VERSION {
            return Err(HandedError::Version(version));
        }
        let headers = match fixed[6] {
            0 => Headers::Simple,
            1 => Headers::Structured,
            2 => Headers::Extended,
            _ => return Err(HandedError::Field("form of replies")),
        };
        let contexts = ContextSet::from_bits(fixed[7]).ok_or(HandedError::Field("context"))?;
        let name_bytes = usize::from(u16::from_le_bytes(bytes_at(fixed, 10)));
        let unread_bytes = u32::from_le_bytes(bytes_at(fixed, 28)) as usize;
        let too_long = name_bytes > NAME_BYTES_MAX || unread_bytes > UNREAD_BYTES_MAX;
        if too_long || rest.len() != name_bytes + unread_bytes {
            return Err(HandedError::Field("length"));
        }
        let (name, unread) = rest.split_at(name_bytes);
        let export = std::str::from_utf8(name).map_err(|_| HandedError::Field("name"))?;
        Ok(ConnectionState {
            export: export.to_owned(),
            session: Session { headers, contexts },
            flags: u16::from_le_bytes(bytes_at(fixed, 8)),
            logical_block: u32::from_le_bytes(bytes_at(fixed, 12)),
            bytes: u64::from_le_bytes(bytes_at(fixed, 16)),
            skip: u32::from_le_bytes(bytes_at(fixed, 24)),
            unread: unread.to_vec(),
        })
    }
}

fn bytes_at<const N: usize>(bytes: &[u8; FIXED_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq::io::Geometry;
    use proptest::prelude::*;

    fn state() -> ConnectionState {
        ConnectionState {
            export: "disk".into(),
            session: Session {
                headers: Headers::Extended,
                contexts: ContextSet::from_bits(6).unwrap(),
            },
            flags: 0x0fed,
            logical_block: 512,
            bytes: 0x0123_4567_89ab,
            skip: 7,
            unread: vec![0x21, 0xe4],
        }
    }

    #[test]
    fn the_bytes_of_a_connection_are_those_of_the_table() {
        let golden = b"fNBD\x01\0\x02\x06\xed\x0f\x04\0\0\x02\0\0\
            \xab\x89\x67\x45\x23\x01\0\0\x07\0\0\0\x02\0\0\0disk\x21\xe4";
        assert_eq!(state().encode(), golden);
        assert_eq!(ConnectionState::decode(golden), Ok(state()));
    }

    #[test]
    fn bytes_that_are_cut_or_too_many_or_of_another_version_are_refused() {
        let bytes = state().encode();
        for cut in 0..bytes.len() {
            assert!(ConnectionState::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(
            ConnectionState::decode(&more),
            Err(HandedError::Field("length"))
        );
        let mut other = bytes;
        other[4] = 2;
        assert_eq!(
            ConnectionState::decode(&other),
            Err(HandedError::Version(2))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_connection_that_encodes_to_them(
            at in 0..38_usize, value: u8, tail in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = state().encode();
            bytes[at] = value;
            for candidate in [bytes, tail] {
                if let Ok(decoded) = ConnectionState::decode(&candidate) {
                    prop_assert_eq!(decoded.encode(), candidate);
                }
            }
        }
    }

    #[test]
    fn an_export_fits_a_client_where_all_that_it_was_told_still_holds() {
        let info = |bytes, logical_block, read_only| ExportInfo {
            name: "disk".into(),
            description: String::new(),
            geometry: Geometry {
                bytes,
                logical_block,
                physical_block: 4096,
                read_only,
            },
        };
        let told =
            |info: &ExportInfo| ConnectionState::new(info, Session::default(), 0, Vec::new());
        let small = told(&info(1 << 20, 512, false));
        assert_eq!(small.check_fits(&info(2 << 20, 512, false)), Ok(()));
        assert_eq!(
            small.check_fits(&info(1 << 19, 512, false)),
            Err(ExportMismatch::Shorter(1 << 20, 1 << 19))
        );
        assert_eq!(
            small.check_fits(&info(1 << 20, 4096, false)),
            Err(ExportMismatch::Block(512, 4096))
        );
        let read_only = info(1 << 20, 512, true);
        assert!(matches!(
            small.check_fits(&read_only),
            Err(ExportMismatch::Flags(..))
        ));
        assert!(matches!(
            told(&read_only).check_fits(&info(1 << 20, 512, false)),
            Err(ExportMismatch::Flags(..))
        ));
    }
}
