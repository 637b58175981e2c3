//! Candidates: what the last pass found to be garbage. Only what two passes found is removed.
//!
//! One object of the store, which all collectors share, replaced by conditional update. It proves nothing: a pass
//! that removes a candidate has itself found that nothing reaches the object.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic `FIRNGARB` |
//! | 2 | version, 1 |
//! | 6 | zero |
//! | 8 | passes so far |
//! | 8 | when the last one ended, milliseconds since 1970, for display |
//! | 16, 8, 8 | who made it: host, session number, session bits |
//! | 4, 4 | counts: sessions, candidates |
//! | 32 each | session: host id, number, random bits |
//! | 16 each | candidate: `u64` number, `u32` which session, `u32` 0 a pack, 1 an index object |
//! | 8 | CRC-64/NVME of all before it |

use crate::codec::{Reader, Writer, crc64};
use crate::hostlog::names::SessionName;
use crate::hostlog::record::checked;
use crate::object::FormatError;
use crate::object::sessions::{decode_session, encode_session};

/// The object's key.
pub const CANDIDATES_KEY: &str = "garbage/candidates";
const MAGIC: [u8; 8] = *b"FIRNGARB";
const VERSION: u16 = 1;
/// Bytes up to and including the writer; they differ between any two passes.
pub(super) const HEAD_BYTES: usize = 64;
const SESSION_BYTES: usize = 32;
const CANDIDATE_BYTES: usize = 16;
/// The largest number of candidates; later passes find the rest again.
pub const CANDIDATES_MAX: usize = 1 << 18;

/// An object that a pass found to be garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The session that wrote it.
    pub session: SessionName,
    /// It is an index object, not a pack.
    pub is_index: bool,
    /// Its number within its session.
    pub number: u64,
}

/// What a pass leaves for the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The number of passes so far.
    pub passes: u64,
    /// When the last pass ended.
    pub unix_ms: u64,
    /// The session that made the pass.
    pub writer: SessionName,
    /// The objects that it found to be garbage.
    pub objects: Vec<Candidate>,
}

impl Candidates {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut sessions: Vec<SessionName> =
            self.objects.iter().map(|found| found.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).raw(&[0; 6]);
        w.u64(self.passes).u64(self.unix_ms);
        encode_session(&mut w, self.writer);
        w.u32(sessions.len() as u32).u32(self.objects.len() as u32);
        for session in &sessions {
            encode_session(&mut w, *session);
        }
        for found in &self.objects {
            let session = sessions
                .binary_search(&found.session)
                .expect("listed above");
            w.u64(found.number)
                .u32(session as u32)
                .u32(u32::from(found.is_index));
        }
        let crc = crc64(&[w.bytes()]);
        w.u64(crc);
        w.finish()
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they are damaged, of a newer format, or no candidates.
    pub fn decode(bytes: &[u8]) -> Result<Candidates, FormatError> {
        let mut r = checked(bytes, MAGIC, VERSION)?;
        r.raw(6)?;
        let (passes, unix_ms) = (r.u64()?, r.u64()?);
        let writer = decode_session(&mut r)?;
        let (session_count, count) = (r.u32()? as usize, r.u32()? as usize);
        // Counts are checked before anything is allocated for them.
        let mut body = Reader::new(r.raw(session_count.saturating_mul(SESSION_BYTES))?);
        let mut sessions = Vec::with_capacity(session_count);
        for _ in 0..session_count {
            sessions.push(decode_session(&mut body)?);
        }
        let mut body = Reader::new(r.raw(count.saturating_mul(CANDIDATE_BYTES))?);
        let mut objects = Vec::with_capacity(count);
        for _ in 0..count {
            let (number, session, kind) = (body.u64()?, body.u32()?, body.u32()?);
            let session = sessions.get(session as usize);
            objects.push(Candidate {
                session: *session.ok_or(FormatError::Corrupt("candidates of no session"))?,
                is_index: kind != 0,
                number,
            });
        }
        if r.remaining() != 0 {
            return Err(FormatError::Corrupt("bytes behind the candidates"));
        }
        Ok(Candidates {
            passes,
            unix_ms,
            writer,
            objects,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{HostId, LogSession};

    #[test]
    fn candidates_are_read_back_and_no_damaged_ones_are() {
        let session = |host: u8, number| SessionName {
            host: HostId([host; 16]),
            session: LogSession {
                number,
                random: number * 7,
            },
        };
        let candidate = |host, number, is_index| Candidate {
            session: session(host, 3),
            is_index,
            number,
        };
        let candidates = Candidates {
            passes: 9,
            unix_ms: 1_000,
            writer: session(5, 6),
            objects: vec![
                candidate(2, 8, false),
                candidate(1, 9, true),
                candidate(2, 8, true),
            ],
        };
        let bytes = candidates.encode();
        assert_eq!(Candidates::decode(&bytes), Ok(candidates));
        for len in 0..bytes.len() {
            assert!(Candidates::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Candidates::decode(&damaged).is_err(), "byte {at}");
        }
    }
}
