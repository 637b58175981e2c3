//! Exports as the handshake looks them up: the way from the codec to whoever has them.

use super::ExportInfo;

/// One line of an export list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name.
    pub name: String,
    /// Description; empty for none.
    pub description: String,
}

/// Where exports are looked up. Answers from memory.
pub trait Directory {
    /// What the transmission phase needs of an export that was found.
    type Export;

    /// The export of this name. The empty name asks for the default export.
    fn find(&self, name: &str) -> Option<(Self::Export, ExportInfo)>;

    /// All exports that are to be listed.
    fn list(&self) -> Vec<ExportEntry>;
}
