//! The 32 bytes that start every frame.

use super::{EPILOGUE_CRC_LEN, GCM_BLOCK, GCM_TAG, INLINE};
use super::{FrameError, Limits, SEGMENTS_MAX, Tag, pad_block, preamble_crc};

/// Bytes of a preamble.
pub const PREAMBLE_LEN: usize = 32;

/// The alignment each segment asks of its receiver's buffer. Senders state the usual values;
/// receivers here ignore them.
const ALIGN: [u16; SEGMENTS_MAX] = [8, 8, 8, 4096];

/// A decoded preamble: what follows and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// What the frame is.
    pub tag: Tag,
    /// Segments in the frame, 1..=4.
    pub count: usize,
    /// Their lengths; absent ones are 0.
    pub lens: [u32; SEGMENTS_MAX],
}

impl Preamble {
    /// The preamble of a frame with these segments; trailing empty ones are dropped.
    pub fn new(tag: Tag, lens: [u32; SEGMENTS_MAX]) -> Self {
        let count = lens.iter().rposition(|n| *n > 0).map_or(1, |last| last + 1);
        Self { tag, count, lens }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; PREAMBLE_LEN] {
        let mut body = [0; 28];
        body[0] = self.tag as u8;
        body[1] = u8::try_from(self.count).expect("count is at most 4");
        for (i, len) in self.lens.iter().enumerate().take(self.count) {
            let at = 2 + 6 * i;
            body[at..at + 4].copy_from_slice(&len.to_le_bytes());
            body[at + 4..at + 6].copy_from_slice(&ALIGN[i].to_le_bytes());
        }
        let mut out = [0; PREAMBLE_LEN];
        out[..28].copy_from_slice(&body);
        out[28..].copy_from_slice(&preamble_crc(&body).to_le_bytes());
        out
    }

    /// Checks and reads a preamble. Every length is compared with its bound here, before anything
    /// is reserved for it.
    pub fn decode(raw: &[u8; PREAMBLE_LEN], limits: &Limits) -> Result<Self, FrameError> {
        let mut body = [0; 28];
        body.copy_from_slice(&raw[..28]);
        let sent = u32::from_le_bytes([raw[28], raw[29], raw[30], raw[31]]);
        let computed = preamble_crc(&body);
        if sent != computed {
            return Err(FrameError::Checksum {
                part: "preamble",
                sent,
                computed,
            });
        }
        let tag = Tag::from_wire(body[0])?;
        let count = usize::from(body[1]);
        let mut lens = [0; SEGMENTS_MAX];
        for (i, len) in lens.iter_mut().enumerate().take(count) {
            let at = 2 + 6 * i;
            *len = u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        }
        if body[26] != 0 {
            return Err(FrameError::Flags(body[26]));
        }
        let last = count.checked_sub(1).and_then(|i| lens.get(i).copied());
        match last {
            Some(len) if count == 1 || len > 0 => {}
            _ => {
                return Err(FrameError::Segments {
                    count: body[1],
                    last: last.unwrap_or(0),
                });
            }
        }
        for (segment, (len, max)) in lens.into_iter().zip(limits.0).enumerate() {
            if len > max {
                return Err(FrameError::TooLong { segment, len, max });
            }
        }
        Ok(Self { tag, count, lens })
    }

    pub(super) fn control_len(&self) -> usize {
        self.lens[0] as usize
    }

    /// Lengths of the segments behind the control segment that are in the frame.
    pub(super) fn tail_lens(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.lens[1..self.count].iter().map(|n| *n as usize)
    }

    /// Bytes behind the control segment and its checksum, in crc mode.
    pub(super) fn tail_crc(&self) -> usize {
        if self.count == 1 {
            0
        } else {
            self.tail_lens().sum::<usize>() + EPILOGUE_CRC_LEN
        }
    }

    /// Bytes of the control segment that do not fit the first block, in secure mode.
    pub(super) fn control_rest_secure(&self) -> usize {
        match self.control_len() {
            0..=INLINE => 0,
            n => pad_block(n - INLINE) + GCM_TAG,
        }
    }

    /// Bytes behind the control segment, in secure mode.
    pub(super) fn tail_secure(&self) -> usize {
        if self.count == 1 {
            return 0;
        }
        self.tail_lens().map(pad_block).sum::<usize>() + GCM_BLOCK + GCM_TAG
    }
}
