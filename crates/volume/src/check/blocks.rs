//! What index blocks and footers say of where a volume's content is, one form for both; and what is wrong with it.
//!
//! Pure: it reads nothing.

use crate::object::pack::{Chunk, Item, Section};
use crate::object::page::Page;
use crate::object::root::{DeltaRef, Root};
use crate::units::Span;

use super::Fault;

/// Sectors of a volume, and the chunk that they are a part of.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) span: Span,
    pub(super) chunk: Chunk,
}

/// Sectors of a volume that cannot be read, and the object that is the cause.
#[derive(Clone, Debug)]
pub(super) struct UnreadableSectors {
    pub(super) object: String,
    pub(super) span: Span,
    pub(super) fault: Fault,
}

/// The extents of a page.
pub(super) fn extents_of_page(page: &Page) -> Vec<Extent> {
    let extents = page.extents();
    extents
        .map(|(span, chunk, _)| Extent { span, chunk })
        .collect()
}

/// The extents that a footer has for this volume within the delta's window: what lies outside was folded.
pub(super) fn extents_of_footer(
    root: &Root,
    delta: &DeltaRef,
    sections: &[Section],
) -> Vec<Extent> {
    let own = sections
        .iter()
        .filter(|section| root.is_origin(section.slice.origin));
    let items = own.flat_map(|section| &section.items);
    items
        .filter_map(|item| match item {
            Item::Chunk(chunk) => {
                let span = chunk.span.intersect(delta.span);
                let chunk = chunk.clone();
                (!span.is_empty()).then_some(Extent { span, chunk })
            }
            Item::Zeroes { .. } => None,
        })
        .collect()
}
