//! What lies over what in the rebuilt volume: packs that are hidden altogether are left out of its root.

use std::collections::BTreeSet;

use super::{RebuildError, RebuildPort, Unknown};
use crate::check::footers::{PackPart, read_items};
use crate::check::{ObjectReadError, SIDE_BY_SIDE};
use crate::jobs::join_all;
use crate::map::{ExtentMap, SectorRun};
use crate::object::pack::Item;
use crate::units::{Lsn, Span};

/// Sectors of which a part is the newest.
#[derive(Clone, Copy, Debug)]
struct Visible {
    part: u32,
    lsn: Lsn,
    is_zeroes: bool,
}

impl SectorRun for Visible {
    fn skip(&self, _sectors: u64) -> Visible {
        *self
    }
}

/// What can be seen of a volume's parts.
pub(super) struct Content {
    map: ExtentMap<Visible>,
    /// Those of which something can be seen, zeroes included, by their place in the order.
    pub(super) visible: BTreeSet<usize>,
    /// Bytes of content.
    pub(super) bytes: u64,
    /// The sector behind the last content.
    pub(super) end: u64,
    pub(super) unknown: Vec<Unknown>,
}

impl Content {
    /// Bytes of content that are older than an LSN.
    pub(super) fn bytes_before(&self, lsn: Lsn) -> u64 {
        let older = |it: &(Span, &Visible)| !it.1.is_zeroes && it.1.lsn < lsn;
        self.map
            .iter()
            .filter(older)
            .map(|(span, _)| span.bytes())
            .sum()
    }
}

/// Lays the parts over each other, in order.
pub(super) async fn lay(
    port: &impl RebuildPort,
    parts: &[PackPart],
) -> Result<Content, RebuildError> {
    let mut content = Content {
        map: ExtentMap::default(),
        visible: BTreeSet::new(),
        bytes: 0,
        end: 0,
        unknown: Vec::new(),
    };
    let mut nth = 0;
    for window in parts.chunks(SIDE_BY_SIDE) {
        let reads = window.iter().map(|part| Box::pin(read_items(port, part)));
        for (part, items) in window.iter().zip(join_all(reads.collect()).await) {
            match items {
                Ok(items) => lay_items(&mut content.map, nth, &items),
                Err(ObjectReadError::Fault(fault)) => content.unknown.push(Unknown::Pack {
                    key: part.session.pack_key(part.delta.pack.number),
                    why: fault.why,
                }),
                Err(ObjectReadError::Ended(error)) => return Err(error.into()),
            }
            nth += 1;
        }
    }
    for (span, visible) in content.map.iter() {
        content.visible.insert(visible.part as usize);
        if !visible.is_zeroes {
            content.bytes += span.bytes();
            content.end = span.end;
        }
    }
    Ok(content)
}

fn lay_items(map: &mut ExtentMap<Visible>, nth: usize, items: &[Item]) {
    for item in items {
        let (span, lsn, is_zeroes) = match item {
            Item::Chunk(chunk) => (chunk.span, chunk.lsn, false),
            Item::Zeroes { span, lsn, .. } => (*span, *lsn, true),
        };
        let visible = Visible {
            part: nth as u32,
            lsn,
            is_zeroes,
        };
        map.insert(span, visible, |_, _| {});
    }
}
