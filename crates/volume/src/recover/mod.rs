//! What a host finds in its log: replay of the frames, then of the rings of a dead process.
//!
//! The journal half with the newest whole checkpoint is the truth; its frames are replayed until
//! the first that is missing. If that one was durable once, the log is refused. Of the rings that the
//! log's last session left in this boot's memory, the entries that follow the frames without a gap
//! are replayed too. What was found becomes layers again, each of which can be stored by itself. Everything is then written as a fresh checkpoint, under a session of its
//! own, before anything is served. A start that finds the journal and all rings just as the process before left them in its
//! favour may go on with both instead, and say its session in a frame while it serves.
//!
//! Reads the journal halves and one header per segment: time is bounded by the log's size
//! (about 7 % of it is read, however much was written).

use std::collections::{BTreeMap, BTreeSet};

use blkmq::io::FileId;

use crate::driver::DiskOp;
use crate::error::OpenError;
use crate::hostlog::notes::LogState;
use crate::jobs::{Port, join, join_all};
use crate::log::checkpoint::mark_poisoned;
use crate::log::committer::Journal;
use crate::log::frame::Frame;
use crate::log::layout::{BLOCK_BYTES, Layout, SegmentHeader, Superblock};
use crate::log::ring::{Rings, TailId};
use crate::log::segments::{Segments, SummaryEntry};
use crate::log::session::{BootId, Sessions};
use crate::map::layers::LogAddr;
use crate::options::Options;
use crate::units::{HostId, Span};

pub(crate) mod continuation;
mod journal;
pub(crate) mod layering;
mod replay;
pub(crate) mod report;
pub(crate) mod rings;

use continuation::JournalMark;
use journal::{
    JournalHalf, LOST_FRAME_REMEDY, check_no_durable_frame_lost, read_half, read_marked_half,
};
use layering::{Layering, RecoveredTail, ReplayedLayer, finish, merge_all};
use replay::{LogReplay, TailReplay, replay_frame};
use report::RecoveryReport;
use rings::{ContinuedRings, PreviousRings, remove_read_rings};

/// Everything that recovery found.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    pub(crate) host: HostId,
    pub(crate) layout: Layout,
    pub(crate) poisoned: bool,
    /// Where the host's log in the store stood at the end.
    pub(crate) log_state: LogState,
    pub(crate) before: LogBefore,
    /// Nothing is missing of what the process before left: this one may go on with it as it is.
    pub(crate) continued: Option<Continued>,
    pub(crate) segments: Segments,
    pub(crate) tails: BTreeMap<TailId, RecoveredTail>,
    pub(crate) report: RecoveryReport,
}

/// What a session of its own follows.
#[derive(Debug)]
pub(crate) struct LogBefore {
    /// The sessions of the log so far.
    pub(crate) sessions: Sessions,
    /// Tails whose rings were replayed.
    pub(crate) rings_read: BTreeSet<TailId>,
    /// Every ring that was looked for was found.
    pub(crate) has_read_rings: bool,
    /// The half that is the truth.
    pub(crate) journal: Journal,
}

/// What a process goes on with that was stopped in favour of this one.
#[derive(Debug)]
pub(crate) struct Continued {
    /// Where the next frame goes.
    pub(crate) journal: Journal,
    pub(crate) rings: ContinuedRings,
    /// Some commits are in rings only.
    pub(crate) has_unframed: bool,
}

/// Opens the log: formats a new one, or recovers what an existing one holds.
pub(crate) async fn open(
    port: &Port,
    options: &Options,
    fresh_host: HostId,
    (rings, boot): (&dyn Rings, BootId),
    mark: Option<JournalMark>,
) -> Result<RecoveredLog, OpenError> {
    match read_superblock(port).await? {
        None => format(port, options, fresh_host).await,
        Some(superblock) => recover(port, superblock, options, (rings, boot), mark).await,
    }
}

/// The first copy that is whole. None: the log was never formatted.
async fn read_superblock(port: &Port) -> Result<Option<Superblock>, OpenError> {
    let mut first_error = None;
    let mut poisoned = false;
    let mut found = None;
    for copy in 0..2 {
        let block = port
            .read(FileId::LOG, copy * BLOCK_BYTES, BLOCK_BYTES as usize)
            .await?;
        match Superblock::decode(&block) {
            Ok(Some(superblock)) => {
                poisoned |= superblock.poisoned;
                found = found.or(Some(superblock));
            }
            Ok(None) => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match (found, first_error) {
        (Some(superblock), _) => Ok(Some(Superblock {
            poisoned,
            ..superblock
        })),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

async fn format(port: &Port, options: &Options, host: HostId) -> Result<RecoveredLog, OpenError> {
    let layout = Layout::new(options.log_bytes, options.segment_bytes)?;
    let (file, len) = (FileId::LOG, 2 * layout.half_bytes);
    port.disk(DiskOp::Zero {
        file,
        offset: layout.half(0),
        len,
    })
    .await?;
    port.sync(file).await?;
    // The superblock comes last: a format that was cut short begins again.
    let superblock = Superblock {
        host,
        log_bytes: layout.log_bytes,
        segment_bytes: layout.segment_bytes,
        poisoned: false,
    };
    write_superblock(port, &superblock).await?;
    port.sync(file).await?;
    Ok(RecoveredLog {
        host,
        layout,
        poisoned: false,
        log_state: LogState::default(),
        before: LogBefore {
            sessions: Sessions::default(),
            rings_read: BTreeSet::new(),
            has_read_rings: false,
            journal: Journal::before_checkpoint(1, 0),
        },
        continued: None,
        segments: Segments::new(layout),
        tails: BTreeMap::new(),
        report: RecoveryReport {
            formatted: true,
            segment_bytes: layout.segment_bytes,
            ..RecoveryReport::default()
        },
    })
}

async fn write_superblock(port: &Port, superblock: &Superblock) -> Result<(), OpenError> {
    let block = superblock.encode();
    for copy in 0..2 {
        let written = port
            .write(FileId::LOG, copy * BLOCK_BYTES, block.clone())
            .await;
        written?;
    }
    Ok(())
}

async fn recover(
    port: &Port,
    superblock: Superblock,
    options: &Options,
    (rings, boot): (&dyn Rings, BootId),
    mark: Option<JournalMark>,
) -> Result<RecoveredLog, OpenError> {
    let layout = Layout::new(superblock.log_bytes, superblock.segment_bytes)?;
    let host = superblock.host;
    let mut report = RecoveryReport {
        segment_bytes: layout.segment_bytes,
        ..RecoveryReport::default()
    };
    let halves = read_halves(port, &layout, host, mark);
    let generations = read_generations(port, &layout, host);
    let (halves, generations) = join(halves, generations).await;
    let (halves, end) = halves?;
    let newest = newest_whole(&halves);
    // A log that was formatted and never checkpointed held nothing.
    let (half, lap) = newest.map_or((1, 0), |(at, half)| (at, half.lap));
    let truth = newest.map_or(&[][..], |(_, half)| &half.frames);
    let (mut replay, LogReplay { sessions, state }) = replay_frames(truth)?;
    report.frames = truth.len() as u64;
    if newest.is_none() && !superblock.poisoned {
        // The sync that ends a format may have failed, or never begun: what was read here need not
        // be on disk. The first checkpoint syncs it.
        write_superblock(port, &superblock).await?;
    }
    let same_boot = sessions.is_of_boot(boot);
    let left = PreviousRings {
        rings,
        host,
        boot,
        session: sessions.ring_session(),
    };
    let found = left.look(&replay)?;
    found.check_frames(&replay)?;
    let poisoned = superblock.poisoned || found.is_poisoned();
    if poisoned && !superblock.poisoned {
        mark_poisoned(port, superblock).await;
    }
    let rings_read = match poisoned {
        true => found.report_unreplayed(&mut replay, same_boot, &mut report),
        false => found.replay(&mut replay, same_boot, &mut report),
    };
    let has_read_rings = same_boot && report.rings_lost.is_empty();
    let end = end.filter(|_| has_read_rings && !poisoned);
    let continued = end.and_then(|journal| {
        Some(Continued {
            journal,
            rings: found.continued(&replay, options.ring_entries)?,
            has_unframed: report.ring_entries > 0,
        })
    });
    if continued.is_none() && !poisoned {
        remove_read_rings(rings, host, &sessions);
    }
    let generations = generations?;
    let layering = Layering::new(&layout, options, &generations);
    let (segments, tails) = rebuild(&layering, replay)?;
    Ok(RecoveredLog {
        host,
        layout,
        poisoned,
        log_state: state,
        before: LogBefore {
            sessions,
            rings_read,
            has_read_rings,
            journal: Journal::before_checkpoint(half, lap),
        },
        continued,
        segments,
        tails,
        report,
    })
}

/// The half that is the truth.
fn newest_whole(halves: &[JournalHalf; 2]) -> Option<(usize, &JournalHalf)> {
    let halves = halves.iter().enumerate();
    let whole = halves.filter(|(_, half)| half.whole);
    whole.max_by_key(|(_, half)| half.lap)
}

/// Both halves; of one that is not needed, nothing. Also where the next frame goes, if nothing was written since
/// the mark was made.
async fn read_halves(
    port: &Port,
    layout: &Layout,
    host: HostId,
    mark: Option<JournalMark>,
) -> Result<([JournalHalf; 2], Option<Journal>), OpenError> {
    if let Some(mark) = mark
        && let Some(marked) = read_marked_half(port, layout, host, mark).await?
    {
        let mut halves = [JournalHalf::default(), JournalHalf::default()];
        let end = Journal {
            half: mark.half,
            used: marked.frames.iter().map(|frame| frame.bytes).sum(),
            lap: marked.lap,
            number: marked.frames.len() as u64,
        };
        let is_end = mark.is_settled && (end.used, end.number) == (mark.bytes, mark.frames);
        halves[mark.half] = marked;
        return Ok((halves, Some(end).filter(|_| is_end)));
    }
    let (first, second) = join(
        read_half(port, layout, host, 0),
        read_half(port, layout, host, 1),
    )
    .await;
    let halves = [first?, second?];
    let whole = halves.iter().filter(|half| half.whole);
    check_no_durable_frame_lost(&halves, whole.max_by_key(|half| half.lap))?;
    Ok((halves, None))
}

/// What the frames of the truth say: of the tails, and of the log's sessions.
fn replay_frames(frames: &[Frame]) -> Result<(BTreeMap<TailId, TailReplay>, LogReplay), OpenError> {
    let (mut replay, mut log) = (BTreeMap::new(), LogReplay::default());
    let mut checkpoint = true;
    for frame in frames {
        replay_frame(&mut replay, frame, checkpoint, &mut log)?;
        checkpoint &= !frame.ends_checkpoint;
    }
    Ok((replay, log))
}

/// The generation that each segment has now; none where its header is not whole.
async fn read_generations(
    port: &Port,
    layout: &Layout,
    host: HostId,
) -> Result<Vec<Option<u32>>, OpenError> {
    let mut generations = Vec::new();
    let all: Vec<u32> = (0..layout.segments).collect();
    for group in all.chunks(64) {
        let reads = group
            .iter()
            .map(|segment| {
                let offset = layout.segment(*segment);
                Box::pin(port.disk(DiskOp::Read {
                    file: FileId::LOG,
                    offset,
                    len: BLOCK_BYTES as usize,
                }))
            })
            .collect();
        for (&segment, block) in group.iter().zip(join_all(reads).await) {
            generations.push(SegmentHeader::generation(&block?, host, segment));
        }
    }
    Ok(generations)
}

/// The segment table, and the tails in their layers.
fn rebuild(
    layering: &Layering<'_>,
    replay: BTreeMap<TailId, TailReplay>,
) -> Result<(Segments, BTreeMap<TailId, RecoveredTail>), OpenError> {
    let layered = layer_tails(layering, replay);
    let segments = rebuild_segments(layering, &layered)?;
    let tails = layered
        .into_iter()
        .map(|(tail, (replay, layers))| (tail, finish(replay, layers)));
    Ok((segments, tails.collect()))
}

type LayeredTails = BTreeMap<TailId, (TailReplay, Vec<ReplayedLayer>)>;

/// The layers of all tails. Extents that newer layers hide are kept with them only as long as writers and the next
/// checkpoint have room beside them.
fn layer_tails(layering: &Layering<'_>, replay: BTreeMap<TailId, TailReplay>) -> LayeredTails {
    let mut tails: LayeredTails = replay
        .into_iter()
        .map(|(id, tail)| {
            let layers = layering.layers(&tail);
            (id, (tail, layers))
        })
        .collect();
    let layers = tails.values().flat_map(|(_, layers)| layers);
    let extents: usize = layers.map(|layer| layer.map.len()).sum();
    if extents as u64 > layering.layout.extents_max() / 2 {
        for (tail, layers) in tails.values_mut() {
            *layers = merge_all(std::mem::take(layers), &tail.points());
        }
    }
    tails
}

/// Checks that every extent still names the bytes it was recorded for, and rebuilds the segment table.
fn rebuild_segments(layering: &Layering<'_>, tails: &LayeredTails) -> Result<Segments, OpenError> {
    let layout = layering.layout;
    let mut live: Vec<Vec<(SummaryEntry, u32)>> = vec![Vec::new(); layout.segments as usize];
    for (tail, (_, layers)) in tails {
        for (span, extent) in layers.iter().flat_map(|layer| layer.map.iter()) {
            let Some(addr) = extent.dirty.addr else {
                continue;
            };
            for (span, addr, segment) in within_segments(layout, span, addr)? {
                let summary = SummaryEntry {
                    tail: *tail,
                    span,
                    addr,
                };
                live[segment as usize].push((summary, extent.generation));
            }
        }
    }
    let segments = Segments::new(*layout);
    for ((segment, generation), found) in (0..).zip(layering.generations).zip(live) {
        let stale = found
            .iter()
            .find(|(_, recorded)| Some(*recorded) != *generation);
        if let Some((summary, recorded)) = stale {
            return Err(OpenError::Corrupt(format!(
                "log segment {segment} has generation {generation:?}, but sectors {}..{} of \
                 volume {} were recorded in generation {recorded}: its header is damaged, or \
                 the log is a copy that was made while a server used it; {LOST_FRAME_REMEDY}",
                summary.span.start, summary.span.end, tails[&summary.tail].0.name
            )));
        }
        if let Some(generation) = generation {
            let live = found.into_iter().map(|(summary, _)| summary).collect();
            segments.restore(segment, *generation, live);
        }
    }
    Ok(segments)
}

/// An extent, cut at segment borders (a lot never crosses one, so neither does an extent).
fn within_segments(
    layout: &Layout,
    span: Span,
    addr: LogAddr,
) -> Result<Vec<(Span, LogAddr, u32)>, OpenError> {
    let bad = || OpenError::Corrupt(format!("a frame names log sector {}", addr.sector()));
    let first = layout.segment_of(addr.sector()).ok_or_else(bad)?;
    let last = layout
        .segment_of(addr.sector() + span.sectors() - 1)
        .ok_or_else(bad)?;
    if first == last {
        Ok(vec![(span, addr, first)])
    } else {
        Err(bad())
    }
}
