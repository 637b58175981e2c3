//! Reading one half of the journal back: the frames that follow each other, and what stands behind
//! them that proves some of them missing.
//!
//! Reads only; what the frames mean is `replay`'s. A frame that is not there may never have become
//! durable, or may have been damaged since: only the frames behind it can tell, so the whole half
//! is looked at.

use std::collections::BTreeMap;

use blkmq::io::FileId;

use crate::error::OpenError;
use crate::jobs::{Port, join, join_all};
use crate::log::frame::{Frame, FrameParse, VERSION, VERSION_MIN, decode};
use crate::log::layout::{BLOCK_BYTES, Layout};
use crate::recover::continuation::JournalMark;
use crate::units::HostId;

/// One half: its frames as far as they follow each other, and those of rounds that do not.
#[derive(Debug, Default)]
pub(super) struct JournalHalf {
    pub(super) lap: u64,
    /// It begins with a checkpoint that is all there.
    pub(super) whole: bool,
    pub(super) frames: Vec<Frame>,
    /// Of each lap, the highest number of a round's frame that stands behind the first frame
    /// missing. It was written only once all frames before it were durable.
    beyond: BTreeMap<u64, u64>,
}

/// What there is to do about frames that were durable and are not whole any more.
pub(super) const LOST_FRAME_REMEDY: &str = "commits that were flushed are gone. Open the volumes from the store, with a new cache directory \
     and `firn attach VOLUME --take-over`";

/// Bytes of one read: no more than may be under way in any number.
const READ_BYTES: u64 = 512 << 10;

/// Bytes read at once, by reads beside each other.
const STEP: u64 = 8 * READ_BYTES;

/// Bytes read of a half of which only the first frame is looked at, which is seldom longer.
const FIRST_STEP: u64 = 16 << 10;

pub(super) async fn read_half(
    port: &Port,
    layout: &Layout,
    host: HostId,
    half: usize,
) -> Result<JournalHalf, OpenError> {
    let mut scan = HalfScan::new(host, layout.half_bytes);
    loop {
        let wanted = scan.run()? as u64;
        if wanted == 0 {
            return Ok(scan.half);
        }
        let more = STEP.max(wanted).next_multiple_of(BLOCK_BYTES);
        read_more(port, layout, half, (&mut scan, more)).await?;
    }
}

/// Feeds a scan with so many bytes, or what is left of the half.
async fn read_more(
    port: &Port,
    layout: &Layout,
    half: usize,
    (scan, bytes): (&mut HalfScan, u64),
) -> Result<(), OpenError> {
    let end = layout.half_bytes.min(scan.read + bytes);
    let starts = (scan.read..end).step_by(READ_BYTES as usize);
    let reads = starts.map(|start| {
        let len = READ_BYTES.min(end - start) as usize;
        Box::pin(port.read(FileId::LOG, layout.half(half) + start, len))
    });
    for data in join_all(reads.collect()).await {
        scan.feed(&data?);
    }
    Ok(())
}

/// The half that a stopped host has named, up to where that host wrote: what lies behind, and the other half, need no
/// look then, because every frame that was durable is there. None if the log is not as that host has left it: then
/// only a look at all of it can tell.
pub(super) async fn read_marked_half(
    port: &Port,
    layout: &Layout,
    host: HostId,
    mark: JournalMark,
) -> Result<Option<JournalHalf>, OpenError> {
    if mark.half > 1 || mark.frames == 0 || mark.bytes > layout.half_bytes {
        return Ok(None);
    }
    // All frames that follow each other, also such as the mark does not know of.
    let is_through = |scan: &HalfScan| scan.after_gap;
    let one = scan_until(port, layout, (mark.half, mark.bytes), (host, is_through));
    let is_begun = |scan: &HalfScan| scan.after_gap || !scan.half.frames.is_empty();
    let other = scan_until(port, layout, (1 - mark.half, FIRST_STEP), (host, is_begun));
    let (one, other) = join(one, other).await;
    let (one, other) = (one?, other?);
    let is_older = other.lap >> 32 < mark.lap >> 32;
    let is_left_so = one.whole && one.lap == mark.lap && one.frames.len() as u64 >= mark.frames;
    let is_whole = check_no_durable_frame_lost(std::slice::from_ref(&one), Some(&one)).is_ok();
    Ok(Some(one).filter(|_| is_left_so && is_whole && is_older))
}

/// A half from its start on: so many bytes and one block, and then as many as it takes until `is_done`.
async fn scan_until(
    port: &Port,
    layout: &Layout,
    (half, bytes): (usize, u64),
    (host, is_done): (HostId, impl Fn(&HalfScan) -> bool),
) -> Result<JournalHalf, OpenError> {
    let mut scan = HalfScan::new(host, layout.half_bytes);
    let mut wanted = 0;
    while scan.read < layout.half_bytes && !is_done(&scan) {
        let rest = (bytes + BLOCK_BYTES).saturating_sub(scan.read).min(STEP);
        let more = rest.max(wanted).max(1).next_multiple_of(BLOCK_BYTES);
        read_more(port, layout, half, (&mut scan, more)).await?;
        wanted = scan.run()? as u64;
    }
    Ok(scan.half)
}

/// Refuses a journal in which frames that were durable are missing: commits that were promised
/// would be dropped in silence. `truth` is the half that is to be replayed, if there is one.
pub(super) fn check_no_durable_frame_lost(
    halves: &[JournalHalf],
    truth: Option<&JournalHalf>,
) -> Result<(), OpenError> {
    let proofs = halves.iter().flat_map(|half| &half.beyond);
    let lost = proofs.filter(|(lap, number)| match truth {
        // Two attempts at a lap have the same count; a round follows only what became the truth.
        Some(truth) if **lap == truth.lap => **number >= truth.frames.len() as u64,
        Some(truth) => **lap >> 32 > truth.lap >> 32,
        None => true,
    });
    match lost.max() {
        None => Ok(()),
        Some((lap, number)) => Err(OpenError::Corrupt(format!(
            "frame {number} of lap {lap:#x} is in the log's journal, but a frame that was durable \
             before it is damaged; {LOST_FRAME_REMEDY}"
        ))),
    }
}

/// Goes through the bytes of one half, block by block.
#[derive(Debug)]
struct HalfScan {
    host: HostId,
    half_bytes: u64,
    /// Bytes given so far.
    read: u64,
    /// The last of them, from `at` on not looked at yet.
    buffer: Vec<u8>,
    at: usize,
    /// A frame is missing: what comes now follows nothing.
    after_gap: bool,
    half: JournalHalf,
}

impl HalfScan {
    fn new(host: HostId, half_bytes: u64) -> HalfScan {
        HalfScan {
            host,
            half_bytes,
            read: 0,
            buffer: Vec::new(),
            at: 0,
            after_gap: false,
            half: JournalHalf::default(),
        }
    }

    fn feed(&mut self, data: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.at));
        self.buffer.extend_from_slice(data);
        self.read += data.len() as u64;
    }

    /// Looks at what was given. Answers how many bytes more are needed; zero at the end.
    fn run(&mut self) -> Result<usize, OpenError> {
        loop {
            let rest = &self.buffer[self.at..];
            let begins = self.read - rest.len() as u64;
            if begins >= self.half_bytes {
                return Ok(0);
            }
            if rest.len() < BLOCK_BYTES as usize {
                return Ok(BLOCK_BYTES as usize - rest.len());
            }
            match decode(rest, self.host) {
                // A length beyond the half is no frame's.
                FrameParse::Incomplete(bytes) if begins + bytes as u64 <= self.half_bytes => {
                    return Ok(bytes - rest.len());
                }
                FrameParse::Frame(frame) => {
                    self.at = (self.at + frame.bytes as usize).min(self.buffer.len());
                    self.add_frame(frame);
                }
                FrameParse::Newer(found) if !self.after_gap && found < VERSION => {
                    return Err(OpenError::Foreign(format!(
                        "log frames here have format version {found}, of an older firn, and this one reads versions \
                         {VERSION_MIN} to {VERSION}: start the firn that wrote them, have it store its volumes (`firn sync`) and \
                         give them back (`firn detach`), then begin with an empty cache directory"
                    )));
                }
                FrameParse::Newer(found) if !self.after_gap => {
                    return Err(OpenError::Newer {
                        what: "log frame",
                        found,
                        known: VERSION,
                    });
                }
                FrameParse::Incomplete(_) | FrameParse::NoFrame | FrameParse::Newer(_) => {
                    self.after_gap = true;
                    self.at += BLOCK_BYTES as usize;
                }
            }
        }
    }

    fn add_frame(&mut self, frame: Frame) {
        let half = &mut self.half;
        let follows = !self.after_gap
            && frame.number == half.frames.len() as u64
            && (frame.number == 0) == frame.begins_checkpoint
            && (frame.number == 0 || frame.lap == half.lap);
        if follows {
            half.lap = frame.lap;
            half.whole |= frame.ends_checkpoint || canary::active!("replay_past_hole");
            half.frames.push(frame);
            return;
        }
        self.after_gap = true;
        if frame.round {
            let newest = half.beyond.entry(frame.lap).or_default();
            *newest = frame.number.max(*newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::crc64;
    use crate::log::frame::{FrameWriter, HEADER, Part, Record};
    use crate::log::ring::TailId;
    use crate::units::{Epoch, VolumeId};

    const HOST: HostId = HostId([2; 16]);
    const MIDDLE: Part = Part::Checkpoint {
        first: false,
        last: false,
    };

    fn filler(since: u64) -> Record {
        Record::TailRemoved(TailId {
            volume: VolumeId([1; 16]),
            since: Epoch(since),
        })
    }

    /// Frames of one lap, from number 0 on: a checkpoint of `checkpoint` frames, then rounds. Each
    /// takes two blocks.
    fn lap(lap: u64, checkpoint: u64, rounds: u64) -> Vec<Vec<u8>> {
        let part = |number| Part::Checkpoint {
            first: number == 0,
            last: number + 1 == checkpoint,
        };
        let frame = |number| {
            let mut writer = FrameWriter::new(HOST);
            (0..216).for_each(|since| writer.record(&filler(since)));
            let part = if number < checkpoint {
                part(number)
            } else {
                Part::Round
            };
            writer.finish(part, lap, number)
        };
        (0..checkpoint + rounds).map(frame).collect()
    }

    /// What is found in a half that begins with these frames, given in steps of `step` bytes.
    fn scan(frames: &[Vec<u8>], step: usize) -> JournalHalf {
        let mut bytes = frames.concat();
        bytes.resize(256 << 10, 0);
        let mut scan = HalfScan::new(HOST, bytes.len() as u64);
        while scan.run().expect("no newer frames") > 0 {
            let from = scan.read as usize;
            scan.feed(&bytes[from..(from + step).min(bytes.len())]);
        }
        scan.half
    }

    /// Reads two halves and answers the frames of the truth.
    fn judge(halves: [Vec<Vec<u8>>; 2]) -> Result<usize, OpenError> {
        let halves = halves.map(|frames| scan(&frames, 4096));
        let whole = halves.iter().filter(|half| half.whole);
        let truth = whole.max_by_key(|half| half.lap);
        check_no_durable_frame_lost(&halves, truth)?;
        Ok(truth.map_or(0, |truth| truth.frames.len()))
    }

    /// What a sector that never reached the disk, or was damaged there, does to a frame.
    fn without(mut frames: Vec<Vec<u8>>, number: usize) -> Vec<Vec<u8>> {
        assert_eq!(frames[number].len(), 8192, "the frame has a second block");
        frames[number][100] ^= 1;
        frames
    }

    fn nth(count: u64) -> u64 {
        count << 32 | 77
    }

    #[test]
    fn frames_of_another_version_are_refused_as_what_they_are() {
        let refused = |version: u16| {
            let mut frame = lap(nth(1), 1, 0).remove(0);
            frame[8..10].copy_from_slice(&version.to_le_bytes());
            let len = u32::from_le_bytes(frame[12..16].try_into().expect("four bytes")) as usize;
            let crc = crc64(&[&frame[..48], &frame[HEADER..HEADER + len]]);
            frame[48..56].copy_from_slice(&crc.to_le_bytes());
            let mut scan = HalfScan::new(HOST, 256 << 10);
            scan.feed(&frame);
            scan.run().expect_err("of another version").to_string()
        };
        let (older, newer) = (refused(VERSION_MIN - 1), refused(VERSION + 1));
        assert!(
            older.contains("of an older firn") && !older.contains("use a newer"),
            "{older}"
        );
        assert!(newer.contains("use a newer firn"), "{newer}");
    }

    #[test]
    fn frames_are_found_in_steps_of_any_size() {
        let frames = lap(nth(1), 2, 3);
        for step in [4096, 8192, 12288, 1 << 20] {
            let half = scan(&frames, step);
            assert!(half.whole);
            assert_eq!((half.frames.len(), half.lap), (5, nth(1)));
            let half = scan(&without(frames.clone(), 2), step);
            assert_eq!((half.frames.len(), half.beyond.get(&nth(1))), (2, Some(&4)));
        }
    }

    #[test]
    fn a_frame_missing_before_a_round_is_refused_wherever_it_stood() {
        for number in 0..5 {
            let damaged = without(lap(nth(2), 2, 4), number);
            for other in [Vec::new(), lap(nth(1), 1, 3)] {
                let found = judge([other, damaged.clone()]);
                assert!(matches!(found, Err(OpenError::Corrupt(_))), "{number}");
            }
        }
    }

    #[test]
    fn the_last_frame_missing_is_taken_for_one_that_never_became_durable() {
        let damaged = without(lap(nth(2), 2, 4), 5);
        assert_eq!(judge([lap(nth(1), 1, 3), damaged]), Ok(5));
    }

    #[test]
    fn a_checkpoint_of_which_any_frames_are_missing_does_not_count() {
        // Loss of power within a checkpoint: any of its frames may be there. Behind them stands
        // what the half held two laps ago.
        let old = lap(nth(1), 1, 9);
        let truth = lap(nth(2), 1, 3);
        for missing in 1..8_usize {
            let mut torn = old.clone();
            for (number, frame) in lap(nth(3), 3, 0).into_iter().enumerate() {
                if missing >> number & 1 == 0 {
                    torn[number] = frame;
                }
            }
            assert_eq!(judge([torn, truth.clone()]), Ok(4), "{missing:b}");
        }
        assert_eq!(judge([without(lap(nth(1), 2, 0), 1), Vec::new()]), Ok(0));
    }

    #[test]
    fn a_leftover_of_another_attempt_at_a_lap_neither_continues_it_nor_refuses_it() {
        let mut frames = lap(nth(3), 1, 0);
        let mut other = FrameWriter::new(HOST);
        other.record(&filler(1));
        frames.push(other.finish(MIDDLE, nth(3) + 1, 1));
        assert_eq!(judge([lap(nth(2), 1, 3), frames]), Ok(1));
    }
}
