//! The files that plans name: as a transport's owner gives them, and as its reactor knows them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use blkmq::io::{FileId, Piece};
use reactor::{DioAlign, FileIndex};

/// A file that a backend's plans may name.
#[derive(Clone, Debug)]
pub struct BackendFile {
    /// How plans call it.
    pub id: FileId,
    /// The open file. Shared by all queues, connections and reactors.
    pub fd: Arc<OwnedFd>,
    /// What its direct I/O asks for; [`DioAlign::NONE`] where it is opened without `O_DIRECT`.
    pub align: DioAlign,
}

/// A file of a backend, as registered with the reactor that moves its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    /// What plans call it.
    pub(crate) id: FileId,
    /// What the reactor calls it.
    pub(crate) index: FileIndex,
    /// What its direct I/O asks for.
    pub(crate) align: DioAlign,
}

/// The open file of this name.
pub(crate) fn find(files: &[OpenFile], id: FileId) -> Option<&OpenFile> {
    files.iter().find(|open| open.id == id)
}

/// Whether direct I/O takes a piece that lies at `offset` of its file.
pub(crate) fn is_direct(piece: &Piece, offset: u64, align: DioAlign) -> bool {
    piece.at.is_multiple_of(align.memory)
        && offset.is_multiple_of(u64::from(align.offset))
        && piece.len.is_multiple_of(align.offset)
}
