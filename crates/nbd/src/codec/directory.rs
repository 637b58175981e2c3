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

/// What is known of an export that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportState<E> {
    /// It can be used.
    Open(E),
    /// It is being opened, and whoever asks for it waits. By its own name.
    Opening(String),
    /// There is none, or not for this client.
    Absent,
}

impl<E> ExportState<E> {
    /// The same of what `change` makes of an open one.
    pub fn map<T>(self, change: impl FnOnce(E) -> T) -> ExportState<T> {
        match self {
            ExportState::Open(export) => ExportState::Open(change(export)),
            ExportState::Opening(name) => ExportState::Opening(name),
            ExportState::Absent => ExportState::Absent,
        }
    }
}

/// The export that an option asks for is being opened, and nothing was answered: its own name.
#[derive(Debug)]
pub(super) struct Opening(pub(super) String);

/// Where exports are looked up. Answers from memory.
pub trait Directory {
    /// What the transmission phase needs of an export that was found.
    type Export;

    /// The export of this name. The empty name asks for the default export.
    fn find(&self, name: &str) -> ExportState<(Self::Export, ExportInfo)>;

    /// All exports that are to be listed, those that are being opened among them.
    fn list(&self) -> Vec<ExportEntry>;
}
