//! Loads a volume's index when it is opened: all deltas, in parallel, unless another volume began with the same.
//!
//! An object that is missing or damaged affects its own range alone: the volume opens, reads of that range fail
//! with EIO until it is written again. The range must never read as zeroes or as older content.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::{Answer, join_all};
use crate::map::SectorRun;
use crate::map::delta::DeltaSource;
use crate::map::index::Index;
use crate::object::pack::{Item, Section, TRAILER_BYTES, decode_footer};
use crate::object::root::{DeltaRef, Root};
use crate::object::{FormatError, root_key};
use crate::store::objects::{IndexRead, read_exactly};
use crate::units::Span;

/// Footers read at once.
const READS_AT_ONCE: usize = 64;

/// Loads all deltas. Nodes and pages are loaded when they are needed.
pub(crate) async fn load_index(engine: &Engine, root: &Root) -> Result<Index, OpenError> {
    learn_sessions(engine, root)?;
    let (mut index, known) = match engine.indexes.loaded.find(root) {
        Some(index) => (index, root.deltas.len()),
        None => engine.indexes.prepared.take(root, engine.jobs.mono_ns()),
    };
    index.nodes = root.nodes.iter().copied().collect();
    index.listed = root.deltas.len();
    let mut has_own = false;
    let newer = root.deltas.get(known..).unwrap_or_default();
    // A footer of which a fold left several windows is listed once for each, one after the other.
    let is_same = |one: &DeltaRef, next: &DeltaRef| {
        let once = !canary::active!("footers_are_read_once_a_window");
        once && (one.pack, one.footer_offset) == (next.pack, next.footer_offset)
    };
    let packs: Vec<&[DeltaRef]> = newer.chunk_by(is_same).collect();
    for packs in packs.chunks(READS_AT_ONCE) {
        let reads = packs
            .iter()
            .map(|windows| Box::pin(read_footer(engine, windows[0])));
        for (windows, read) in packs.iter().zip(join_all(reads.collect()).await) {
            let read = read?;
            let is_whole = matches!(read, IndexRead::Whole(_));
            let sections = match decode(engine, &windows[0], read)? {
                // The bytes may have been damaged on their way.
                Err(_) if is_whole => {
                    decode(engine, &windows[0], read_footer(engine, windows[0]).await?)?
                }
                sections => sections,
            };
            match sections {
                Ok(sections) => {
                    let is_own = |section: &Section| section.slice.origin == root.volume;
                    has_own |= sections.iter().any(is_own);
                    apply_windows(&mut index, root, windows, &sections);
                }
                Err(why) => mark_windows_unreadable(engine, &mut index, root, windows, &why),
            }
            engine.port.pause().await;
        }
    }
    if known == 0 && !has_own {
        engine.indexes.loaded.note(root, &mut index);
    }
    Ok(index)
}

/// An index that is loaded while its volume is taken: of a root that no log continues, so the root that the taking leaves
/// names the same.
pub(in crate::store) struct EarlyIndex {
    root: Root,
    loaded: Answer<Result<Index, OpenError>>,
}

impl EarlyIndex {
    pub(in crate::store) fn begin(engine: &Arc<Engine>, root: &Root) -> EarlyIndex {
        let (sender, loaded) = Answer::channel();
        let (shared, of) = (Arc::clone(engine), root.clone());
        engine
            .jobs
            .spawn(async move { sender.send(load_index(&shared, &of).await) });
        EarlyIndex {
            root: root.clone(),
            loaded,
        }
    }

    /// The index of the root that was taken.
    pub(in crate::store) async fn get(
        self,
        engine: &Engine,
        taken: &Root,
    ) -> Result<Index, OpenError> {
        let names = |root: &Root| (root.deltas.clone(), root.nodes.clone());
        match names(&self.root) == names(taken) {
            true => self.loaded.await,
            false => load_index(engine, taken).await,
        }
    }
}

fn apply_windows(index: &mut Index, root: &Root, windows: &[DeltaRef], sections: &[Section]) {
    for window in windows {
        let own = sections
            .iter()
            .filter(|section| root.is_origin(section.slice.origin));
        apply_window(index, window.span, own.flat_map(|part| &part.items));
    }
}

fn mark_windows_unreadable(
    engine: &Engine,
    index: &mut Index,
    root: &Root,
    windows: &[DeltaRef],
    why: &str,
) {
    let key = engine.names.pack_key(windows[0].pack).unwrap_or_default();
    for DeltaRef { span, .. } in windows {
        tracing::error!(
            volume = root.name,
            key,
            why,
            first_sector = span.start,
            sectors = span.sectors(),
            "a pack is lost: reads of what it may hold fail until it is put back or they are written again"
        );
        index.mark_delta_unreadable(*span);
    }
}

async fn read_footer(engine: &Engine, delta: DeltaRef) -> Result<IndexRead, OpenError> {
    let len = u64::from(delta.footer_bytes) + TRAILER_BYTES as u64;
    read_exactly(engine, &pack_key(engine, &delta)?, delta.footer_offset, len).await
}

/// Reads the slices of a delta's pack, or says why they cannot be read.
pub(in crate::store) async fn read_sections(
    engine: &Engine,
    delta: DeltaRef,
) -> Result<Result<Vec<Section>, String>, OpenError> {
    decode(engine, &delta, read_footer(engine, delta).await?)
}

/// Registers the sessions of all objects that the root names.
pub(in crate::store) fn learn_sessions(engine: &Engine, root: &Root) -> Result<(), OpenError> {
    let known = engine.names.register(root.sessions.iter());
    known.map_err(|error| OpenError::Corrupt(format!("{}: {error}", root_key(&root.name))))
}

fn pack_key(engine: &Engine, delta: &DeltaRef) -> Result<String, OpenError> {
    let key = engine.names.pack_key(delta.pack);
    key.map_err(|error| OpenError::Corrupt(format!("pack {}: {error}", delta.pack)))
}

/// Applies the part of a pack that lies within the delta's window; the rest was folded.
fn apply_window<'a>(index: &mut Index, window: Span, items: impl Iterator<Item = &'a Item>) {
    let mut source = DeltaSource::default();
    for (span, delta) in items.map(|item| source.delta_of(item)) {
        let part = span.intersect(window);
        if !part.is_empty() {
            index.apply_delta(part, delta.skip(part.start - span.start));
        }
    }
}

/// Decodes the footer of a delta and checks that it is that pack's. A newer format is an error, not a loss.
fn decode(
    engine: &Engine,
    delta: &DeltaRef,
    read: IndexRead,
) -> Result<Result<Vec<Section>, String>, OpenError> {
    let key = pack_key(engine, delta)?;
    let lost = match read {
        IndexRead::Lost(why) => why,
        IndexRead::Whole(data) => match decode_footer(delta.pack, &data) {
            Ok(footer) => match engine.names.register([footer.session]) {
                Ok(()) => return Ok(Ok(footer.sections)),
                Err(error) => error.to_string(),
            },
            Err(error @ FormatError::Newer(_)) => {
                return Err(OpenError::Corrupt(format!("{key}: {error}")));
            }
            Err(error) => error.to_string(),
        },
    };
    if canary::active!("lost_pack_keeps_volume_closed") {
        return Err(OpenError::Store(format!("{key}: {lost}")));
    }
    Ok(Err(lost))
}
