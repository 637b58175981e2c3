//! The banner, the only part of msgr2 before its frames.
//!
//! Both sides send it at once: `ceph v2\n`, a length, what they support and what they require.

use super::FrameError;

/// Revision 2.1 of the frame format.
pub const FEATURE_REVISION_1: u64 = 1;

const PREFIX: &[u8; 8] = b"ceph v2\n";
/// Bytes of a banner with its two feature words.
pub const BANNER_LEN: usize = 8 + 2 + 16;
/// A later version may append to the payload; what is appended is skipped up to this bound.
const PAYLOAD_MAX: usize = 256;

/// What one side supports and requires of the frame format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banner {
    /// Bits the side understands.
    pub supported: u64,
    /// Bits the other side must understand.
    pub required: u64,
}

impl Banner {
    /// What this version sends.
    pub const OURS: Self = Self {
        supported: FEATURE_REVISION_1,
        required: FEATURE_REVISION_1,
    };

    /// The bytes of the banner.
    pub fn encode(self) -> [u8; BANNER_LEN] {
        let mut out = [0; BANNER_LEN];
        out[..8].copy_from_slice(PREFIX);
        out[8..10].copy_from_slice(&16u16.to_le_bytes());
        out[10..18].copy_from_slice(&self.supported.to_le_bytes());
        out[18..].copy_from_slice(&self.required.to_le_bytes());
        out
    }

    /// Whether frames can be exchanged with a peer that sent this banner.
    pub fn check(self) -> Result<(), FrameError> {
        let Self {
            supported,
            required,
        } = self;
        let ours = Self::OURS;
        if supported & ours.required != ours.required || required & !ours.supported != 0 {
            return Err(FrameError::Revision {
                supported,
                required,
            });
        }
        Ok(())
    }
}

/// Reads a banner from bytes that come in pieces.
#[derive(Debug, Default)]
pub struct BannerDecoder {
    got: Vec<u8>,
}

impl BannerDecoder {
    /// Takes what it needs from `input`; the banner when it is whole. A peer that speaks something
    /// else is refused at the first byte that differs.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Banner>, FrameError> {
        loop {
            let need = match self.payload_len()? {
                None => 10 - self.got.len(),
                Some(payload) => 10 + payload - self.got.len(),
            };
            if need == 0 {
                return Ok(Some(self.banner()));
            }
            if input.is_empty() {
                return Ok(None);
            }
            let (head, tail) = input.split_at(need.min(input.len()));
            self.got.extend_from_slice(head);
            *input = tail;
        }
    }

    /// The payload's length once it is known, after checking the received part of the prefix.
    fn payload_len(&self) -> Result<Option<usize>, FrameError> {
        let n = self.got.len().min(PREFIX.len());
        if self.got[..n] != PREFIX[..n] {
            return Err(FrameError::NotMsgr2 {
                got: self.got[..n].to_vec(),
            });
        }
        if self.got.len() < 10 {
            return Ok(None);
        }
        let len = usize::from(u16::from_le_bytes([self.got[8], self.got[9]]));
        if !(16..=PAYLOAD_MAX).contains(&len) {
            return Err(FrameError::NotMsgr2 {
                got: self.got[..10].to_vec(),
            });
        }
        Ok(Some(len))
    }

    fn banner(&self) -> Banner {
        let word = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&self.got[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        Banner {
            supported: word(10),
            required: word(18),
        }
    }
}
