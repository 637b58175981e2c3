//! Whether packs have what is named in them: their ends, and of a deep check each chunk.
//!
//! A pack's end is asked for once, and again only when something behind it is named. A chunk is read as often as
//! blocks name it that are not shared.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::blocks::{Extent, UnreadableSectors};
use super::{
    CheckCounts, CheckError, CheckPort, DamageKind, Fault, ObjectReadError, SIDE_BY_SIDE,
    no_answer, read_range,
};
use crate::driver::StoreError;
use crate::jobs::join_all;
use crate::object::pack::{Chunk, Codec};
use crate::object::sessions::SessionNames;
use crate::object::{FormatError, ObjectId};

/// Most bytes of a pack that are read at once.
const RUN_BYTES_MAX: u64 = 4 << 20;
/// What lies between two chunks is read with them if it is not longer.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Such reads on their way side by side.
const RUNS_AT_ONCE: usize = 8;

/// What is known of the packs that were asked for.
#[derive(Debug, Default)]
pub(super) struct Packs {
    known: HashMap<ObjectId, KnownPack>,
}

#[derive(Debug, Default)]
struct KnownPack {
    /// Everything before it is there.
    end: u64,
    /// Why what lies behind is not, if that was asked for.
    fault: Option<Fault>,
}

/// Chunks of a pack that are read at once.
struct Run {
    key: String,
    offset: u64,
    end: u64,
    chunks: Arc<[Chunk]>,
}

/// A chunk, by its pack and its offset there.
type ChunkPlace = (ObjectId, u32);

fn place(chunk: &Chunk) -> ChunkPlace {
    (chunk.pack, chunk.offset)
}

fn end(chunk: &Chunk) -> u64 {
    u64::from(chunk.offset) + u64::from(chunk.stored)
}

/// A read of a chunk's bytes, which are all of the answer.
fn range(chunk: &Chunk) -> (u64, u64) {
    (u64::from(chunk.offset), u64::from(chunk.stored))
}

impl Packs {
    pub(super) fn is_known(&self, pack: ObjectId) -> bool {
        self.known.contains_key(&pack)
    }

    /// What of these extents cannot be read.
    pub(super) async fn check(
        &mut self,
        port: &impl CheckPort,
        sessions: &SessionNames,
        extents: &[Extent],
        is_deep: bool,
        counts: &mut CheckCounts,
    ) -> Result<Vec<UnreadableSectors>, CheckError> {
        let mut needed: BTreeMap<ObjectId, u64> = BTreeMap::new();
        for Extent { chunk, .. } in extents {
            let most = needed.entry(chunk.pack).or_default();
            *most = end(chunk).max(*most);
        }
        let mut keys = BTreeMap::new();
        let mut faults: BTreeMap<ChunkPlace, Fault> = BTreeMap::new();
        for pack in needed.keys() {
            match sessions.pack_key(*pack) {
                Ok(key) => drop(keys.insert(*pack, key)),
                Err(error) => return Err(CheckError::Bug(format!("pack {pack}: {error}"))),
            }
        }
        self.find_ends(port, &keys, &needed, counts).await?;
        let mut live: Vec<&Chunk> = Vec::new();
        for Extent { chunk, .. } in extents {
            match self.fault(chunk) {
                Some(fault) => drop(faults.insert(place(chunk), fault)),
                None => live.push(chunk),
            }
        }
        if is_deep {
            faults.append(&mut read_chunks(port, &keys, live, counts).await?);
        }
        let lost = extents.iter().filter_map(|Extent { span, chunk }| {
            let fault = faults.get(&place(chunk))?.clone();
            let object = keys[&chunk.pack].clone();
            let span = *span;
            Some(UnreadableSectors {
                object,
                span,
                fault,
            })
        });
        Ok(lost.collect())
    }

    /// What is wrong with a chunk, as far as is known without reading it.
    fn fault(&self, chunk: &Chunk) -> Option<Fault> {
        if chunk.codec == Codec::Damaged {
            return Some(Fault::new(
                DamageKind::LostBefore,
                "bytes could not be read when they were to be stored",
            ));
        }
        let known = self.known.get(&chunk.pack)?;
        known.fault.clone().filter(|_| known.end < end(chunk))
    }

    /// Asks for the ends of packs of which that is not known yet.
    async fn find_ends(
        &mut self,
        port: &impl CheckPort,
        keys: &BTreeMap<ObjectId, String>,
        needed: &BTreeMap<ObjectId, u64>,
        counts: &mut CheckCounts,
    ) -> Result<(), CheckError> {
        if canary::active!("the_check_believes_the_index") {
            return Ok(());
        }
        let unknown = needed.iter().filter(|(pack, end)| {
            let known = self.known.get(*pack);
            known.is_none_or(|known| known.fault.is_none() && known.end < **end)
        });
        let unknown: Vec<(ObjectId, u64)> = unknown.map(|(pack, end)| (*pack, *end)).collect();
        for window in unknown.chunks(SIDE_BY_SIDE) {
            let asked = window
                .iter()
                .map(|(pack, end)| Box::pin(find_end(port, &keys[pack], *end)));
            for ((pack, _), known) in window.iter().zip(join_all(asked.collect()).await) {
                if self.known.insert(*pack, known?).is_none() {
                    counts.packs += 1;
                }
            }
        }
        Ok(())
    }
}

/// Asks for the last byte that is needed of a pack. If it is not there, the byte at which the pack ends is searched.
async fn find_end(port: &impl CheckPort, key: &str, needed: u64) -> Result<KnownPack, CheckError> {
    let (mut low, mut high) = (0, needed + 1);
    let mut at = needed;
    let mut fault = None;
    while low + 1 < high && at > 0 {
        match port.get_range(key, at - 1, 1).await {
            Ok(byte) if byte.len() == 1 => low = at,
            Err(StoreError::NotFound) => {
                let fault = Some(Fault::missing());
                return Ok(KnownPack { end: 0, fault });
            }
            Ok(_) | Err(StoreError::OutOfRange) => {
                high = at;
                fault = Some(Fault::too_short());
            }
            Err(error) => return Err(no_answer(key, &error)),
        }
        at = low.midpoint(high);
    }
    Ok(KnownPack { end: low, fault })
}

/// Reads chunks and proves them; what is wrong with those that are not what they should be.
async fn read_chunks(
    port: &impl CheckPort,
    keys: &BTreeMap<ObjectId, String>,
    mut chunks: Vec<&Chunk>,
    counts: &mut CheckCounts,
) -> Result<BTreeMap<ChunkPlace, Fault>, CheckError> {
    chunks.sort_by_key(|chunk| place(chunk));
    // Two entries of one place may differ where one of them is wrong.
    chunks.dedup();
    counts.chunks += chunks.len() as u64;
    let mut faults = BTreeMap::new();
    for runs in runs(keys, &chunks).chunks(RUNS_AT_ONCE) {
        counts.bytes_read += runs.iter().map(|run| run.end - run.offset).sum::<u64>();
        let reads = runs.iter().map(|run| Box::pin(read_run(port, run)));
        for found in join_all(reads.collect()).await {
            faults.extend(found?);
        }
        port.on_progress(counts);
    }
    Ok(faults)
}

/// Chunks in order, so many at once as are near to each other.
fn runs(keys: &BTreeMap<ObjectId, String>, chunks: &[&Chunk]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    while at < chunks.len() {
        let first = chunks[at];
        let (offset, mut last) = (u64::from(first.offset), end(first));
        let mut behind = at + 1;
        while let Some(next) = chunks.get(behind)
            && next.pack == first.pack
            && u64::from(next.offset) <= last + GAP_BYTES_MAX
            && end(next) <= offset + RUN_BYTES_MAX
        {
            last = last.max(end(next));
            behind += 1;
        }
        runs.push(Run {
            key: keys[&first.pack].clone(),
            offset,
            end: last,
            chunks: chunks[at..behind].iter().copied().cloned().collect(),
        });
        at = behind;
    }
    runs
}

async fn read_run(
    port: &impl CheckPort,
    run: &Run,
) -> Result<Vec<(ChunkPlace, Fault)>, CheckError> {
    let (offset, chunks) = (run.offset, Arc::clone(&run.chunks));
    let prove = move |data: &[u8]| {
        let is_bad = |chunk: &&Chunk| {
            let at = (u64::from(chunk.offset) - offset) as usize;
            chunk.open(&data[at..at + chunk.stored as usize]).is_err()
        };
        Ok::<Vec<Chunk>, FormatError>(chunks.iter().filter(is_bad).cloned().collect())
    };
    let bad = match read_range(port, &run.key, (run.offset, run.end - run.offset), prove).await {
        Ok(bad) => bad,
        Err(ObjectReadError::Ended(error)) => return Err(error),
        // It went meanwhile.
        Err(ObjectReadError::Fault(fault)) => {
            let all = run.chunks.iter();
            return Ok(all.map(|chunk| (place(chunk), fault.clone())).collect());
        }
    };
    let mut faults = Vec::new();
    for chunk in bad {
        let at = place(&chunk);
        let read = range(&chunk);
        let open = move |data: &[u8]| chunk.open(data).map(drop);
        match read_range(port, &run.key, read, open).await {
            Ok(()) => {}
            Err(ObjectReadError::Fault(fault)) => faults.push((at, fault)),
            Err(ObjectReadError::Ended(error)) => return Err(error),
        }
    }
    Ok(faults)
}
