//! Low marks and pins: the small objects beside a host's log.
//!
//! Low mark: `hosts/HOST/low`, records below its position may be gone. It is only ever raised, by conditional
//! update; where it is missing the host was retired. Pin: `pins/PARENT/CHILD`, what a child needs of its parent:
//! a copy of the child's first root, written before that root. Roots, pins and children name packs and index
//! objects, never records.
//!
//! Bytes: docs/format.md "Low marks" and "Pins".

use super::names::{Position, SessionName};
use super::record::checked;
use crate::codec::{Writer, crc64};
use crate::object::FormatError;
use crate::object::root::Root;
use crate::object::sessions::{decode_session, encode_session};
use crate::units::{HostId, VolumeId};

const LOW_MAGIC: [u8; 8] = *b"FIRNLOWM";
const PIN_MAGIC: [u8; 8] = *b"FIRNPIN\0";
const VERSION: u16 = 1;

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

/// What a child needs of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The parent.
    pub parent: VolumeId,
    /// The snapshot or fork.
    pub child: VolumeId,
    /// The session that makes the child. Once it has ended nobody continues the creation.
    pub writer: SessionName,
    /// The child's first root. The collector keeps everything that it and its index name.
    pub root: Root,
}

impl Pin {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let root = self.root.encode();
        let mut w = Writer::new();
        w.raw(&PIN_MAGIC).u16(VERSION).raw(&[0; 6]);
        w.raw(&self.parent.0).raw(&self.child.0);
        encode_session(&mut w, self.writer);
        w.u32(root.len() as u32).raw(&root);
        seal(w)
    }

    /// Reads a pin.
    ///
    /// # Errors
    /// If it is damaged, of a newer format, or no pin.
    pub fn decode(bytes: &[u8]) -> Result<Pin, FormatError> {
        let mut r = checked(bytes, PIN_MAGIC, VERSION)?;
        r.raw(6)?;
        let (parent, child) = (VolumeId(r.array()?), VolumeId(r.array()?));
        let writer = decode_session(&mut r)?;
        let len = r.u32()? as usize;
        let root = Root::decode(r.raw(len)?)?;
        if r.remaining() != 0 {
            return Err(FormatError::Corrupt("bytes behind the pin"));
        }
        if root.volume != child {
            return Err(FormatError::Corrupt("a pin with another volume's root"));
        }
        Ok(Pin {
            parent,
            child,
            writer,
            root,
        })
    }
}

fn seal(mut w: Writer) -> Vec<u8> {
    let crc = crc64(&[w.bytes()]);
    w.u64(crc);
    w.finish()
}
