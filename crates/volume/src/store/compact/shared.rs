//! Which packs with content of an ancestor a fork has written itself.
//!
//! What a fork shares is in packs of its ancestor, which keep it, so they are not chosen. But a compaction of the fork
//! copies what it shares into packs of the fork's own, and these must not keep their garbage for ever. Their footers
//! tell: each has a copy of the volume itself, if only an empty one.

use std::sync::Arc;

use super::choose::{PackUse, SurveyResult};
use super::state::VolumeFacts;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::ObjectId;
use crate::object::pack::{TRAILER_BYTES, decode_footer, footer_offset};
use crate::request::tail::Tail;
use crate::store::objects::{IndexRead, read_exactly};

/// The bytes of a pack's end that are read first: most footers are shorter.
const TAIL_BYTES: u64 = 16 << 10;
/// Packs that one look asks about.
const LOOKS_MAX: usize = 64;

/// Finds out about packs that would be chosen if they were the volume's own. What was found before is known.
pub(super) async fn judge(
    engine: &Arc<Engine>,
    tail: &Tail,
    surveyed: &mut SurveyResult,
    facts: &VolumeFacts,
) -> Result<(), OpenError> {
    let options = &engine.options.compact;
    let mut looks = 0;
    for (id, pack) in &mut surveyed.packs {
        if !pack.is_shared || !pack.is_mostly_garbage(options.live_percent) {
            continue;
        }
        let is_own = match facts.is_own.get(id) {
            Some(known) => *known,
            None if looks == LOOKS_MAX => continue,
            None => {
                looks += 1;
                let is_own = is_own(engine, tail, *id, pack).await?;
                engine.compaction.set_own(tail.id().volume, *id, is_own);
                is_own
            }
        };
        pack.is_shared = !is_own;
    }
    Ok(())
}

async fn is_own(
    engine: &Engine,
    tail: &Tail,
    id: ObjectId,
    pack: &PackUse,
) -> Result<bool, OpenError> {
    let size = pack.size.unwrap_or(0);
    let key = engine.names.pack_key(id);
    let key = key.map_err(|error| OpenError::Corrupt(format!("pack {id}: {error}")))?;
    let mut at = size.saturating_sub(TAIL_BYTES);
    let IndexRead::Whole(mut data) = read_exactly(engine, &key, at, size - at).await? else {
        return Ok(false);
    };
    let place = footer_offset(&data).filter(|place| place + (TRAILER_BYTES as u64) < size);
    let Some(place) = place else {
        return Ok(false);
    };
    if place < at {
        at = place;
        match read_exactly(engine, &key, at, size - at).await? {
            IndexRead::Whole(read) => data = read,
            IndexRead::Lost(_) => return Ok(false),
        }
    }
    let footer = decode_footer(id, data.get((place - at) as usize..).unwrap_or_default());
    let sections = footer.map(|footer| footer.sections).unwrap_or_default();
    let volume = tail.id().volume;
    Ok(sections
        .iter()
        .any(|section| section.slice.origin == volume && section.slice.is_copy()))
}
