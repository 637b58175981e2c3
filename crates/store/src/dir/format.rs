//! What says that a directory is a firn store, and of which format.
//!
//! `.firn-store/format` holds one line. A directory that is not empty and has no such file is
//! refused, so that `--store ~` by mistake fills nobody's home with packs; so is a newer format.

use std::fs;
use std::io::ErrorKind as Io;
use std::path::Path;

use super::direct::DirectBuffers;
use super::file::{PRIVATE_DIR, io_error, sync_dir};
use super::temp::TempFile;
use crate::{Error, Kind, Op, Result};

const PREFIX: &str = "firn directory store, format ";
const FORMAT: u32 = 1;

pub(super) fn check_or_create(root: &Path, buffers: &DirectBuffers) -> Result<()> {
    let path = root.join(PRIVATE_DIR).join("format");
    let object = format!("store {}", root.display());
    let failed = |source| io_error(Op::Open, &object, source);
    match fs::read_to_string(&path) {
        Ok(text) => return check(&object, &text),
        Err(source) if source.kind() == Io::NotFound => {}
        Err(source) if source.kind() == Io::InvalidData => return check(&object, ""),
        Err(source) => return Err(failed(source)),
    }
    refuse_foreign_files(root, &object)?;
    let mut temp = TempFile::create(root).map_err(failed)?;
    temp.fill(format!("{PREFIX}{FORMAT}\n").as_bytes(), buffers)
        .map_err(failed)?;
    match temp.link_to(&path) {
        // Another process created the store meanwhile.
        Err(source) if source.kind() == Io::AlreadyExists => {}
        linked => linked.map_err(failed)?,
    }
    sync_dir(&root.join(PRIVATE_DIR)).map_err(failed)?;
    sync_dir(root).map_err(failed)?;
    // The directories above may be as new. Those that this user may not open are not.
    for above in root.ancestors().skip(1) {
        match sync_dir(above) {
            Err(source) if source.kind() != Io::PermissionDenied => return Err(failed(source)),
            _ => {}
        }
    }
    Ok(())
}

fn check(object: &str, text: &str) -> Result<()> {
    let incompatible =
        |detail: String| Err(Error::new(Kind::Incompatible, Op::Open, object, detail));
    match text.trim_end().strip_prefix(PREFIX).map(str::parse::<u32>) {
        Some(Ok(FORMAT)) => Ok(()),
        Some(Ok(newer)) => incompatible(format!(
            "it has format {newer}, this firn knows only format {FORMAT}; use a newer firn"
        )),
        _ => incompatible(format!(
            "its file {PRIVATE_DIR}/format is damaged; if you are sure that this is a firn \
             store, restore the file with the line {:?}",
            format!("{PREFIX}{FORMAT}")
        )),
    }
}

fn refuse_foreign_files(root: &Path, object: &str) -> Result<()> {
    let entries = fs::read_dir(root).map_err(|source| io_error(Op::Open, object, source))?;
    for entry in entries {
        let name = entry
            .map_err(|source| io_error(Op::Open, object, source))?
            .file_name();
        if name != PRIVATE_DIR && name != "lost+found" {
            return Err(Error::new(
                Kind::Incompatible,
                Op::Open,
                object,
                format!(
                    "the directory is not empty (it has {}) and is not a firn store; name an \
                     empty or new directory, or, if this is a copy of a store, copy its \
                     {PRIVATE_DIR}/format too",
                    name.display()
                ),
            ));
        }
    }
    Ok(())
}
