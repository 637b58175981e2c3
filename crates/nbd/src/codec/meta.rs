//! Metadata contexts: which there are, how clients select them, and what each says of an extent.
//!
//! `base:allocation` is the protocol's own. `firn:dirty` says what the store may not have yet: a
//! tool that copies a volume out of the store sees what it would miss.

use blkmq::io::Extent;

use super::wire;

/// A metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaContext {
    /// `base:allocation`: holes and zeroes.
    Allocation,
    /// `firn:dirty`: not in the store yet.
    Dirty,
}

impl MetaContext {
    const ALL: [MetaContext; 2] = [MetaContext::Allocation, MetaContext::Dirty];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            MetaContext::Allocation => "base:allocation",
            MetaContext::Dirty => "firn:dirty",
        }
    }

    /// Its number in the replies of a session that selected it.
    pub fn id(self) -> u32 {
        match self {
            MetaContext::Allocation => 1,
            MetaContext::Dirty => 2,
        }
    }

    /// What it says of an extent.
    pub fn state(self, extent: &Extent) -> u32 {
        match self {
            MetaContext::Allocation if extent.allocated => 0,
            MetaContext::Allocation => wire::STATE_HOLE | wire::STATE_ZERO,
            MetaContext::Dirty if extent.dirty => wire::STATE_DIRTY,
            MetaContext::Dirty => 0,
        }
    }

    /// Whether a query of LIST_META_CONTEXT means it: its name, or its namespace alone.
    fn is_listed_by(self, query: &str) -> bool {
        let namespace = self.name().split_inclusive(':').next();
        query == self.name() || Some(query) == namespace
    }
}

/// Selected contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSet(u32);

impl ContextSet {
    /// Those that any of `queries` asks for, to list them: all, where there is no query.
    pub(super) fn listed_by(queries: &[&str]) -> ContextSet {
        ContextSet::of(|context| {
            queries.is_empty() || queries.iter().any(|query| context.is_listed_by(query))
        })
    }

    /// Those that `queries` name.
    pub(super) fn selected_by(queries: &[&str]) -> ContextSet {
        ContextSet::of(|context| queries.contains(&context.name()))
    }

    fn of(holds: impl Fn(MetaContext) -> bool) -> ContextSet {
        let chosen = MetaContext::ALL
            .into_iter()
            .filter(|context| holds(*context));
        ContextSet(chosen.map(|context| 1 << context.id()).sum())
    }

    /// As a byte: bit N is the context of number N.
    pub(super) fn bits(self) -> u8 {
        self.0 as u8
    }

    /// What `bits` made; `None` where a bit stands for no context.
    pub(super) fn from_bits(bits: u8) -> Option<ContextSet> {
        let set = ContextSet(u32::from(bits));
        let known = ContextSet::of(|_| true);
        (set.0 & !known.0 == 0).then_some(set)
    }

    /// Whether none is selected.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The selected ones.
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        let is_selected = move |context: &MetaContext| self.0 & 1 << context.id() != 0;
        MetaContext::ALL.into_iter().filter(is_selected)
    }
}
