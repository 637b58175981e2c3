//! What the core keeps for each source, by slot.

use crate::call::CallTarget;
use crate::ids::{FileIndex, SourceId};

/// A source's slot.
#[derive(Default)]
pub(super) struct SourceState {
    pub(super) generation: u32,
    pub(super) present: bool,
    pub(super) detaching: bool,
    pub(super) turn_requested: bool,
    /// Operations in flight and completions not delivered yet, without armed commands.
    pub(super) ops: u32,
    /// Armed commands that the kernel has, or whose results were not taken yet.
    pub(super) armed: u32,
    /// Their one file, and its target unless it is being closed.
    pub(super) armed_file: Option<(FileIndex, Option<CallTarget>)>,
}

/// The state of a source, if it is attached.
#[inline]
pub(super) fn find(sources: &mut [SourceState], id: SourceId) -> Option<&mut SourceState> {
    let state = sources.get_mut(id.slot as usize)?;
    (state.present && state.generation == id.generation).then_some(state)
}
