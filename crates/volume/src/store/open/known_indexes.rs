//! What of a volume's index need not be read when it is opened, for this host has it. It does not know the engine, which owns it.

use crate::store::open::loaded_deltas::LoadedDeltas;
use crate::store::open::prepared::PreparedIndexes;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct KnownIndexes {
    pub(in crate::store) prepared: PreparedIndexes,
    pub(in crate::store) loaded: LoadedDeltas,
}
