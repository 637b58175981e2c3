//! Reading one half of the journal back: the frames that follow each other, and the refusal of a
//! half whose durable frames were damaged since.
//!
//! Reads only; what the frames mean is `replay`'s.

use blkmq::io::FileId;

use super::disk;
use crate::canary::{self, Canary};
use crate::error::OpenError;
use crate::jobs::Port;
use crate::log::frame::{Found, Frame, decode};
use crate::log::layout::{BLOCK, Layout};
use crate::units::HostId;

/// The frames of one half, as far as they follow each other.
#[derive(Debug, Default)]
pub(super) struct Lap {
    pub(super) lap: u64,
    /// It begins with a checkpoint that is all there.
    pub(super) whole: bool,
    pub(super) frames: Vec<Frame>,
}

/// Bytes read at once.
const STEP: u64 = 1 << 20;

pub(super) async fn read_half(
    port: &Port,
    layout: &Layout,
    host: HostId,
    half: usize,
) -> Result<Lap, OpenError> {
    let mut lap = Lap::default();
    let mut buffer: Vec<u8> = Vec::new();
    let (mut at, mut read) = (0, 0);
    loop {
        let missing = match decode(&buffer, host) {
            Found::Frame(frame) => {
                let next = frame.number == lap.frames.len() as u64
                    && (frame.number == 0) == frame.begins_checkpoint
                    && (frame.number == 0 || frame.lap == lap.lap);
                if !next {
                    return Ok(lap);
                }
                lap.lap = frame.lap;
                lap.whole |= frame.ends_checkpoint || canary::active(Canary::ReplayPastHole);
                at += frame.bytes;
                buffer.drain(..(frame.bytes as usize).min(buffer.len()));
                lap.frames.push(frame);
                continue;
            }
            Found::Newer(found) => {
                let known = crate::log::frame::VERSION;
                return Err(OpenError::Newer {
                    what: "log frame",
                    found,
                    known,
                });
            }
            Found::Needs(bytes) => bytes,
            Found::Nothing if buffer.len() < BLOCK as usize => BLOCK as usize,
            Found::Nothing => {
                refuse_later_frame(port, layout, host, half, at, &lap).await?;
                return Ok(lap);
            }
        };
        debug_assert_eq!(at + buffer.len() as u64, read);
        let more = STEP
            .max((missing - buffer.len()) as u64)
            .next_multiple_of(BLOCK);
        let more = more.min(layout.half_bytes - read);
        if more == 0 {
            return Ok(lap);
        }
        let offset = layout.half(half) + read;
        let data = port
            .read(FileId::LOG, offset, more as usize)
            .await
            .map_err(disk)?;
        buffer.extend_from_slice(&data);
        read += more;
    }
}

/// A frame is written only once the one before it is durable: where a whole later frame of the
/// same lap stands behind one that is not, what was durable has been damaged since, and commits
/// that were promised would be dropped in silence.
async fn refuse_later_frame(
    port: &Port,
    layout: &Layout,
    host: HostId,
    half: usize,
    from: u64,
    lap: &Lap,
) -> Result<(), OpenError> {
    if lap.frames.is_empty() {
        return Ok(());
    }
    let len = (layout.half_bytes - from) as usize;
    let offset = layout.half(half) + from;
    let rest = port.read(FileId::LOG, offset, len).await.map_err(disk)?;
    let missing = lap.frames.len() as u64;
    for at in (0..rest.len()).step_by(BLOCK as usize) {
        if let Found::Frame(frame) = decode(&rest[at..], host)
            && frame.lap == lap.lap
            && frame.number > missing
        {
            return Err(OpenError::Corrupt(format!(
                "the log's frame {missing} of lap {} is damaged, but frame {} stands behind it: \
                 commits that were flushed are gone; open the volumes from the store with a new \
                 cache directory and --take-over",
                lap.lap, frame.number
            )));
        }
    }
    Ok(())
}
