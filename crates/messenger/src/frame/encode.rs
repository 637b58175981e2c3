//! Frames into bytes.

use super::{EPILOGUE_CRC_LEN, GCM_BLOCK, GCM_TAG, INLINE, SEGMENTS_MAX, pad_block};
use super::{Frame, GcmStream, LATE_COMPLETE, Preamble, TxBuf, crc};

/// How frames leave: with checksums, or encrypted.
#[derive(Debug)]
pub enum Sealer {
    /// Checksums only.
    Crc,
    /// AES-128-GCM.
    Secure(Box<GcmStream>),
}

impl Sealer {
    /// Appends the bytes of `frame`. The segments are within `Limits`; the callers build them so.
    pub fn seal(&mut self, frame: &Frame, out: &mut TxBuf) {
        let lens = frame.segments.each_ref().map(|s| {
            u32::try_from(s.len())
                .expect("a segment is bounded far below four GiB when it is built")
        });
        let preamble = Preamble::new(frame.tag, lens);
        match self {
            Self::Crc => seal_crc(frame, &preamble, out),
            Self::Secure(gcm) => seal_secure(frame, &preamble, gcm, out),
        }
    }
}

fn seal_crc(frame: &Frame, preamble: &Preamble, out: &mut TxBuf) {
    let control = &frame.segments[0];
    let mut head = Vec::with_capacity(control.len() + 36);
    head.extend_from_slice(&preamble.encode());
    head.extend_from_slice(control);
    head.extend_from_slice(&crc(control).to_le_bytes());
    out.push(head);
    if preamble.count == 1 {
        return;
    }
    let mut epilogue = Vec::with_capacity(EPILOGUE_CRC_LEN);
    epilogue.push(LATE_COMPLETE);
    for segment in &frame.segments[1..SEGMENTS_MAX] {
        out.push(segment.clone());
        epilogue.extend_from_slice(&crc(segment).to_le_bytes());
    }
    out.push(epilogue);
}

fn seal_secure(frame: &Frame, preamble: &Preamble, gcm: &mut GcmStream, out: &mut TxBuf) {
    let control = &frame.segments[0];
    let tail = preamble.tail_secure();
    let mut buf = Vec::with_capacity(96 + preamble.control_rest_secure() + tail);
    let (inline, rest) = control.split_at(control.len().min(INLINE));
    buf.extend_from_slice(&preamble.encode());
    buf.extend_from_slice(inline);
    buf.resize(super::PREAMBLE_LEN + INLINE, 0);
    gcm.seal(&mut buf, 0);
    if !rest.is_empty() {
        let from = buf.len();
        buf.extend_from_slice(rest);
        buf.resize(from + pad_block(rest.len()), 0);
        gcm.seal(&mut buf, from);
    }
    if tail > 0 {
        let from = buf.len();
        for segment in &frame.segments[1..preamble.count] {
            buf.extend_from_slice(segment);
            buf.resize(buf.len() + pad_block(segment.len()) - segment.len(), 0);
        }
        let epilogue = buf.len();
        buf.push(LATE_COMPLETE);
        buf.resize(epilogue + GCM_BLOCK, 0);
        gcm.seal(&mut buf, from);
        debug_assert_eq!(
            buf.len() - from,
            tail,
            "the tail's length and GCM_TAG {GCM_TAG} agree"
        );
    }
    out.push(buf);
}
