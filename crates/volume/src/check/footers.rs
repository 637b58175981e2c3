//! The footers of packs to which no index leads: each is found by the end of its pack.
//!
//! A pack of slices of several volumes has a footer of its own for each before the last one, which has all. Roots name
//! those, so that no volume reads what another wrote; where they stand follows from their lengths.

use super::{CheckError, CheckPort, Fault, ObjectReadError, SIDE_BY_SIDE, no_answer, read_range};
use crate::hostlog::names::{PACK_PREFIX, SessionName, object_of_key};
use crate::jobs::join_all;
use crate::object::pack::{
    Footer, Item, NAME_BYTES, Section, Slice, TRAILER_BYTES, decode_footer, footer_offset,
};
use crate::object::root::DeltaRef;
use crate::object::{FormatError, ObjectId};
use crate::units::Span;

/// The bytes of a pack's end that are read first: most footers are shorter.
const TAIL_BYTES: u64 = 4 << 10;

/// A pack, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedPack {
    pub(crate) session: SessionName,
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

impl ListedPack {
    pub(crate) fn id(&self) -> ObjectId {
        ObjectId::new(self.session, self.number)
    }

    pub(crate) fn key(&self) -> String {
        self.session.pack_key(self.number)
    }
}

/// What a pack holds of one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackPart {
    pub(crate) session: SessionName,
    pub(crate) slice: Slice,
    /// As a root names it.
    pub(crate) delta: DeltaRef,
}

/// All packs in the store.
pub(crate) async fn list_packs(port: &impl CheckPort) -> Result<Vec<ListedPack>, CheckError> {
    let keys = port.list(PACK_PREFIX).await;
    let keys = keys.map_err(|error| no_answer(PACK_PREFIX, &error))?;
    let mut packs: Vec<ListedPack> = Vec::new();
    for (key, bytes) in keys {
        if let Some((session, number)) = object_of_key(&key) {
            packs.push(ListedPack {
                session,
                number,
                bytes,
            });
        }
    }
    packs.sort_unstable();
    Ok(packs)
}

/// What each of these packs holds; `on_read` hears after how many of them.
pub(crate) async fn read_parts(
    port: &impl CheckPort,
    packs: &[ListedPack],
    on_read: impl Fn(usize),
) -> Result<Vec<Result<Vec<PackPart>, Fault>>, CheckError> {
    let mut all = Vec::with_capacity(packs.len());
    for window in packs.chunks(SIDE_BY_SIDE) {
        let reads = window.iter().map(|pack| Box::pin(read_pack(port, *pack)));
        for found in join_all(reads.collect()).await {
            all.push(match found {
                Ok(parts) => Ok(parts),
                Err(ObjectReadError::Fault(fault)) => Err(fault),
                Err(ObjectReadError::Ended(error)) => return Err(error),
            });
        }
        on_read(all.len());
    }
    Ok(all)
}

async fn read_pack(
    port: &impl CheckPort,
    pack: ListedPack,
) -> Result<Vec<PackPart>, ObjectReadError> {
    let key = pack.key();
    let trailer = TRAILER_BYTES as u64;
    if pack.bytes < trailer {
        return Err(ObjectReadError::Fault(Fault::too_short()));
    }
    let tail = pack.bytes.min(TAIL_BYTES);
    let at = pack.bytes - tail;
    let behind = move |data: &[u8]| {
        let footer = footer_offset(data).filter(|footer| *footer < at + tail);
        footer.ok_or(FormatError::Corrupt("it does not end as a pack does"))
    };
    let footer_at = read_range(port, &key, (at, tail), behind).await?;
    let id = pack.id();
    let decode = move |data: &[u8]| parts_of(decode_footer(id, data)?, footer_at);
    let place = (footer_at, pack.bytes - footer_at);
    read_range(port, &key, place, decode).await
}

/// The parts of a pack whose last footer begins at `at`.
fn parts_of(footer: Footer, at: u64) -> Result<Vec<PackPart>, FormatError> {
    let Footer {
        session,
        id,
        sections,
    } = footer;
    let bytes = |section: &Section| {
        let slice = section.slice.footer_bytes(section.items.len());
        NAME_BYTES as u64 + slice
    };
    let is_shared = sections.len() > 1;
    let mut place = at;
    let mut parts = Vec::new();
    for section in sections.into_iter().rev() {
        let bytes = bytes(&section);
        if is_shared {
            let whole = bytes + TRAILER_BYTES as u64;
            place = place
                .checked_sub(whole)
                .ok_or(FormatError::Corrupt("a footer before its pack"))?;
        }
        let delta = DeltaRef {
            pack: id,
            footer_offset: place,
            footer_bytes: u32::try_from(bytes)
                .map_err(|_| FormatError::Corrupt("an endless footer"))?,
            last: section.slice.last,
            span: span_of(&section.items),
        };
        parts.push(PackPart {
            session,
            slice: section.slice,
            delta,
        });
    }
    parts.reverse();
    Ok(parts)
}

/// The sectors between which these items lie.
fn span_of(items: &[Item]) -> Span {
    let spans = || {
        items.iter().map(|item| match item {
            Item::Chunk(chunk) => chunk.span,
            Item::Zeroes { span, .. } => *span,
        })
    };
    Span {
        start: spans().map(|span| span.start).min().unwrap_or(0),
        end: spans().map(|span| span.end).max().unwrap_or(0),
    }
}

/// What a part holds, read by the footer that a root would name.
pub(crate) async fn read_items(
    port: &impl CheckPort,
    part: &PackPart,
) -> Result<Vec<Item>, ObjectReadError> {
    let DeltaRef {
        pack,
        footer_offset,
        footer_bytes,
        ..
    } = part.delta;
    let origin = part.slice.origin;
    let decode = move |data: &[u8]| {
        let footer = decode_footer(pack, data)?;
        match <[Section; 1]>::try_from(footer.sections) {
            Ok([section]) if section.slice.origin == origin => Ok(section.items),
            _ => Err(FormatError::Corrupt("a footer of another slice")),
        }
    };
    let key = part.session.pack_key(pack.number);
    let len = u64::from(footer_bytes) + TRAILER_BYTES as u64;
    read_range(port, &key, (footer_offset, len), decode).await
}
