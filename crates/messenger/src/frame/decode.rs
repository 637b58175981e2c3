//! Bytes into frames, resumable at every byte.
//!
//! Invariants:
//! - I1 `buf` never holds more than `need` bytes, and `need` was computed from checked lengths.
//! - I2 memory grows with the bytes received, not with the lengths announced.
//! - I3 exactly the bytes of one frame are consumed before it is handed out, so the caller can
//!   change the mode between two frames.

use bytes::Bytes;

use super::{EPILOGUE_CRC_LEN, GCM_BLOCK, GCM_TAG, INLINE, PREAMBLE_LEN, SEGMENTS_MAX, pad_block};
use super::{Frame, FrameError, GcmStream, LATE_ABORTED, LATE_COMPLETE, Limits, Preamble, crc};

#[derive(Debug)]
enum Mode {
    Crc,
    Secure(Box<GcmStream>),
}

#[derive(Debug)]
enum Stage {
    /// The preamble; in secure mode with the start of the control segment.
    Head,
    /// The control segment, or what of it did not fit the first secure block.
    Control { preamble: Preamble, inline: Vec<u8> },
    /// Front, middle, data and the epilogue.
    Tail { preamble: Preamble, control: Bytes },
    /// After an error there is no way to find the next frame.
    Failed,
}

/// Reads frames from bytes that come in pieces.
#[derive(Debug)]
pub struct Decoder {
    mode: Mode,
    limits: Limits,
    stage: Stage,
    buf: Vec<u8>,
    need: usize,
}

impl Decoder {
    /// A decoder of crc frames, at the start of one.
    pub fn new(limits: Limits) -> Self {
        Self {
            mode: Mode::Crc,
            limits,
            stage: Stage::Head,
            buf: Vec::new(),
            need: PREAMBLE_LEN,
        }
    }

    /// Frames from here on are encrypted. Called between two frames.
    pub fn set_secure(&mut self, gcm: GcmStream) {
        debug_assert!(self.buf.is_empty(), "the mode changes between frames");
        self.mode = Mode::Secure(Box::new(gcm));
        self.restart();
    }

    /// Bounds for frames from here on. Called between two frames.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Bytes held for a frame that is not whole yet.
    pub fn buffered(&self) -> usize {
        self.buf.capacity()
    }

    /// Whether a message's header was received and its payload not yet, for a canary.
    #[cfg(test)]
    pub(crate) fn is_mid_message(&self) -> bool {
        matches!(&self.stage, Stage::Tail { preamble, .. } if preamble.tag == super::Tag::Message)
    }

    /// Takes bytes from the front of `input` until one frame is whole. `None` when all of `input`
    /// was taken and the frame still lacks some.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        loop {
            let (head, tail) = input.split_at((self.need - self.buf.len()).min(input.len()));
            self.buf.extend_from_slice(head);
            *input = tail;
            if self.buf.len() < self.need {
                return Ok(None);
            }
            match self.advance() {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    self.restart();
                    return Ok(Some(frame));
                }
                Err(e) => {
                    self.stage = Stage::Failed;
                    self.buf = Vec::new();
                    self.need = 0;
                    return Err(e);
                }
            }
        }
    }

    fn restart(&mut self) {
        self.stage = Stage::Head;
        self.buf.clear();
        self.need = match self.mode {
            Mode::Crc => PREAMBLE_LEN,
            Mode::Secure(_) => PREAMBLE_LEN + INLINE + GCM_TAG,
        };
    }

    /// The next `need` bytes belong to `stage`.
    fn expect(&mut self, stage: Stage, need: usize) {
        self.stage = stage;
        self.need = need;
        self.buf.clear();
    }

    /// `need` bytes are there: does what the stage does with them.
    fn advance(&mut self) -> Result<Option<Frame>, FrameError> {
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Head => self.head(),
            Stage::Control { preamble, inline } => self.control(preamble, inline),
            Stage::Tail { preamble, control } => self.tail(&preamble, control).map(Some),
            Stage::Failed => Err(FrameError::Failed),
        }
    }

    fn head(&mut self) -> Result<Option<Frame>, FrameError> {
        let text: &[u8] = match &mut self.mode {
            Mode::Crc => &self.buf,
            Mode::Secure(gcm) => gcm.open(&mut self.buf, "preamble")?,
        };
        let (raw, inline) = text.split_at(PREAMBLE_LEN);
        let raw = raw
            .try_into()
            .expect("split_at gave exactly this many bytes");
        let preamble = Preamble::decode(raw, &self.limits)?;
        let inline = inline.to_vec();
        let need = match self.mode {
            Mode::Crc => preamble.control_len() + 4,
            Mode::Secure(_) => preamble.control_rest_secure(),
        };
        if need == 0 {
            return self.on_control_received(preamble, truncated(inline, preamble.control_len()));
        }
        self.expect(Stage::Control { preamble, inline }, need);
        Ok(None)
    }

    fn control(
        &mut self,
        preamble: Preamble,
        mut inline: Vec<u8>,
    ) -> Result<Option<Frame>, FrameError> {
        let len = preamble.control_len();
        let control = match &mut self.mode {
            Mode::Crc => {
                let (body, sum) = self.buf.split_at(len);
                check_crc("control segment", body, sum)?;
                body.to_vec()
            }
            Mode::Secure(gcm) => {
                inline.extend_from_slice(gcm.open(&mut self.buf, "control segment")?);
                truncated(inline, len)
            }
        };
        self.on_control_received(preamble, control)
    }

    fn on_control_received(
        &mut self,
        preamble: Preamble,
        control: Vec<u8>,
    ) -> Result<Option<Frame>, FrameError> {
        let control = Bytes::from(control);
        let need = match self.mode {
            Mode::Crc => preamble.tail_crc(),
            Mode::Secure(_) => preamble.tail_secure(),
        };
        if need == 0 {
            let segments = [control, Bytes::new(), Bytes::new(), Bytes::new()];
            return Ok(Some(Frame {
                tag: preamble.tag,
                aborted: false,
                segments,
            }));
        }
        self.expect(Stage::Tail { preamble, control }, need);
        Ok(None)
    }

    fn tail(&mut self, preamble: &Preamble, control: Bytes) -> Result<Frame, FrameError> {
        let mut raw = std::mem::take(&mut self.buf);
        let secure = match &mut self.mode {
            Mode::Crc => false,
            Mode::Secure(gcm) => {
                let n = gcm.open(&mut raw, "message")?.len();
                raw.truncate(n);
                true
            }
        };
        let epilogue_len = if secure { GCM_BLOCK } else { EPILOGUE_CRC_LEN };
        let raw = Bytes::from(raw);
        let epilogue = raw.slice(raw.len() - epilogue_len..);
        let aborted = match epilogue[0] & 0xf {
            LATE_COMPLETE => false,
            LATE_ABORTED => true,
            _ => return Err(FrameError::LateStatus(epilogue[0])),
        };
        let mut segments: [Bytes; SEGMENTS_MAX] = Default::default();
        let mut at = 0;
        for (i, len) in preamble.tail_lens().enumerate() {
            if !aborted {
                let segment = raw.slice(at..at + len);
                if !secure {
                    let sum = 1 + 4 * i;
                    check_crc(
                        ["front", "middle", "data"][i],
                        &segment,
                        &epilogue[sum..sum + 4],
                    )?;
                }
                segments[1 + i] = segment;
            }
            at += if secure { pad_block(len) } else { len };
        }
        segments[0] = control;
        Ok(Frame {
            tag: preamble.tag,
            aborted,
            segments,
        })
    }
}

fn truncated(mut v: Vec<u8>, len: usize) -> Vec<u8> {
    v.truncate(len);
    v
}

fn check_crc(part: &'static str, body: &[u8], sum: &[u8]) -> Result<(), FrameError> {
    let sent = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
    let computed = crc(body);
    if sent != computed {
        return Err(FrameError::Checksum {
            part,
            sent,
            computed,
        });
    }
    Ok(())
}
