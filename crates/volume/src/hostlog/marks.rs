//! Low marks and pins: the small objects beside a host's log.
//!
//! Low mark: `hosts/HOST/low`, records below its position may be gone. It is only ever raised, by
//! conditional update; where it is missing the host was retired.
//! Pin: `pins/PARENT/CHILD`, the packs that a child needs of its parent. Roots, pins and children name
//! packs, never records.
//!
//! Bytes: docs/format.md "Low marks" and "Pins".

use super::names::{Digest, Position, SessionName};
use super::record::checked;
use crate::codec::{Reader, Writer, crc64};
use crate::object::FormatError;
use crate::units::{HostId, LogSession, Lsn, VolumeId};

const LOW_MAGIC: [u8; 8] = *b"FIRNLOWM";
const PIN_MAGIC: [u8; 8] = *b"FIRNPIN\0";
const VERSION: u16 = 1;
const SESSION_BYTES: usize = 32;
const PIN_PACK_BYTES: usize = 48;

/// A host's low mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowMark {
    /// In whose log.
    pub host: HostId,
    /// Records below it may be gone.
    pub position: Position,
}

impl LowMark {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&LOW_MAGIC).u16(VERSION).raw(&[0; 6]);
        w.raw(&self.host.0).u64(self.position.0);
        seal(w)
    }

    /// Reads a low mark.
    ///
    /// # Errors
    /// If it is damaged, of a newer format, or no low mark.
    pub fn decode(bytes: &[u8]) -> Result<LowMark, FormatError> {
        let mut r = checked(bytes, LOW_MAGIC, VERSION)?;
        r.raw(6)?;
        let mark = LowMark {
            host: HostId(r.array()?),
            position: Position(r.u64()?),
        };
        if mark.position < Position::FIRST || r.remaining() != 0 {
            return Err(FormatError::Corrupt("an impossible low mark"));
        }
        Ok(mark)
    }
}

/// A pack that a pin holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedPack {
    /// Which of the pin's sessions wrote it.
    pub session: u16,
    /// Its number within the session.
    pub number: u64,
    /// Of its bytes.
    pub digest: Digest,
}

/// What a child needs of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The parent.
    pub parent: VolumeId,
    /// The snapshot or fork.
    pub child: VolumeId,
    /// The child is the parent as of this LSN.
    pub lsn: Lsn,
    /// Sessions that wrote the packs.
    pub sessions: Vec<SessionName>,
    /// The packs.
    pub packs: Vec<PinnedPack>,
}

impl Pin {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&PIN_MAGIC).u16(VERSION).raw(&[0; 6]);
        w.raw(&self.parent.0).raw(&self.child.0).u64(self.lsn.0);
        w.u32(self.sessions.len() as u32)
            .u32(self.packs.len() as u32);
        for SessionName { host, session } in &self.sessions {
            w.raw(&host.0).u64(session.number).u64(session.random);
        }
        for pack in &self.packs {
            w.u64(pack.number).u16(pack.session).raw(&[0; 6]);
            w.raw(&pack.digest.0);
        }
        seal(w)
    }

    /// Reads a pin.
    ///
    /// # Errors
    /// If it is damaged, of a newer format, or no pin.
    pub fn decode(bytes: &[u8]) -> Result<Pin, FormatError> {
        let mut r = checked(bytes, PIN_MAGIC, VERSION)?;
        r.raw(6)?;
        let (parent, child, lsn) = (VolumeId(r.array()?), VolumeId(r.array()?), Lsn(r.u64()?));
        let (session_count, pack_count) = (r.u32()? as usize, r.u32()? as usize);
        let mut body = Reader::new(r.raw(session_count.saturating_mul(SESSION_BYTES))?);
        let mut sessions = Vec::with_capacity(session_count);
        for _ in 0..session_count {
            sessions.push(SessionName {
                host: HostId(body.array()?),
                session: LogSession {
                    number: body.u64()?,
                    random: body.u64()?,
                },
            });
        }
        let mut body = Reader::new(r.raw(pack_count.saturating_mul(PIN_PACK_BYTES))?);
        let mut packs = Vec::with_capacity(pack_count);
        for _ in 0..pack_count {
            let (number, session) = (body.u64()?, body.u16()?);
            body.raw(6)?;
            if usize::from(session) >= session_count {
                return Err(FormatError::Corrupt("a pin that names what it lacks"));
            }
            packs.push(PinnedPack {
                session,
                number,
                digest: Digest(body.array()?),
            });
        }
        if r.remaining() != 0 {
            return Err(FormatError::Corrupt("bytes behind the pin"));
        }
        Ok(Pin {
            parent,
            child,
            lsn,
            sessions,
            packs,
        })
    }
}

fn seal(mut w: Writer) -> Vec<u8> {
    let crc = crc64(&[w.bytes()]);
    w.u64(crc);
    w.finish()
}
