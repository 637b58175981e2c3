//! A small file that can be changed on a full disk: its space is taken when it is made.
//!
//! It has two slots of fixed size. A change overwrites the slot that does not hold the newest
//! content, and syncs it: a crash in between leaves the other one. What need not outlive a loss of power is
//! not synced, and never goes where this process has synced something last. Nothing is allocated, so neither
//! a full disk nor a quota can refuse a change; only content that outgrows the slots needs a larger
//! file. Format: docs/format.md "Small files of reserved space". Must never know what the content
//! means.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::create::write_atomically;

/// Bytes of a slot at first: room for the disks of a few thousand volumes.
const SLOT_BYTES: usize = 1 << 20;
const SLOTS: u64 = 2;
const MAGIC: &str = "firn-reserved-1";

/// The file, and which of its slots is the newest.
#[derive(Debug)]
pub(crate) struct ReservedFile {
    path: PathBuf,
    file: File,
    slot_bytes: usize,
    /// Of the newest content; its slot is this number modulo two.
    sequence: u64,
}

impl ReservedFile {
    /// Opens the file, or makes it if it is missing; its newest content, if it has any.
    ///
    /// # Errors
    /// `InvalidData` if it has a size of its own, or two slots that hold nothing whole.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Vec<u8>>)> {
        match open_file(path) {
            Err(error) if error.kind() == Io::NotFound => {
                let made = make(path, SLOT_BYTES, 0, &[])?;
                Ok((made, None))
            }
            opened => Self::load(path, opened?),
        }
    }

    fn load(path: &Path, file: File) -> io::Result<(Self, Option<Vec<u8>>)> {
        let bytes = file.metadata()?.len();
        let foreign = || io::Error::new(Io::InvalidData, "it is damaged, or not firn's");
        let slot_bytes = usize::try_from(bytes / SLOTS).map_err(io::Error::other)?;
        if slot_bytes < SLOT_BYTES || !bytes.is_multiple_of(SLOTS) {
            return Err(foreign());
        }
        let mut newest: Option<(u64, Vec<u8>)> = None;
        for slot in 0..SLOTS {
            let mut image = vec![0; slot_bytes];
            file.read_exact_at(&mut image, slot * slot_bytes as u64)?;
            let whole = decode(&image).filter(|(sequence, _)| sequence % SLOTS == slot);
            newest = newest
                .into_iter()
                .chain(whole)
                .max_by_key(|(sequence, _)| *sequence);
        }
        let (sequence, content) = newest.ok_or_else(foreign)?;
        let reserved = ReservedFile {
            path: path.to_owned(),
            file,
            slot_bytes,
            sequence,
        };
        Ok((reserved, (sequence > 0).then_some(content)))
    }

    /// Replaces the content, durably. After an error the file has the old or the new content.
    pub(crate) fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        self.write(content, true)
    }

    /// Replaces the content for as long as this system is up. After a loss of power the file may have what it had
    /// when it was opened, or what [`ReservedFile::replace`] wrote last.
    pub(crate) fn replace_unsynced(&mut self, content: &[u8]) -> io::Result<()> {
        self.write(content, false)
    }

    fn write(&mut self, content: &[u8], is_synced: bool) -> io::Result<()> {
        let sequence = self.sequence + 1;
        let image = encode(sequence, content);
        if image.len() > self.slot_bytes || canary::active!("small_files_take_new_space") {
            let slot_bytes = self.slot_bytes.max(image.len().next_power_of_two());
            *self = make(&self.path, slot_bytes, sequence, content)?;
            return Ok(());
        }
        let offset = (sequence % SLOTS) * self.slot_bytes as u64;
        self.file.write_all_at(&image, offset)?;
        if is_synced {
            self.file.sync_data()?;
            // Not before: after an error, and until it is known to be whole, the next change must overwrite
            // the same slot again, never the one that is known to be.
            self.sequence = sequence;
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).open(path)
}

/// Makes the file with all of its space written, so that no later write allocates anything.
fn make(path: &Path, slot_bytes: usize, sequence: u64, content: &[u8]) -> io::Result<ReservedFile> {
    let mut image = vec![0; slot_bytes * 2];
    let first = encode(sequence, content);
    let start = usize::from(!sequence.is_multiple_of(SLOTS)) * slot_bytes;
    image[start..start + first.len()].copy_from_slice(&first);
    write_atomically(path, &image)?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(ReservedFile {
        path: path.to_owned(),
        file: open_file(path)?,
        slot_bytes,
        sequence,
    })
}

/// A line that says what follows, and the content.
fn encode(sequence: u64, content: &[u8]) -> Vec<u8> {
    let digest = digest(sequence, content);
    let mut image = format!("{MAGIC} {sequence} {} {digest}\n", content.len()).into_bytes();
    image.extend_from_slice(content);
    image
}

fn decode(image: &[u8]) -> Option<(u64, Vec<u8>)> {
    let end = image.iter().take(256).position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&image[..end]).ok()?;
    let mut words = line.strip_prefix(MAGIC)?.split_ascii_whitespace();
    let sequence = words.next()?.parse().ok()?;
    let len: usize = words.next()?.parse().ok()?;
    let content = image[end + 1..].get(..len)?;
    (words.next()? == digest(sequence, content)).then(|| (sequence, content.to_vec()))
}

fn digest(sequence: u64, content: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(content);
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(path: &Path) -> Option<Vec<u8>> {
        ReservedFile::open(path).unwrap().1
    }

    #[test]
    fn a_change_is_there_wholly_or_not_at_all_and_takes_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attached");
        let (mut file, first) = ReservedFile::open(&path).unwrap();
        assert_eq!(first, None);
        assert_eq!(content(&path), None, "it is made with its space");
        let blocks =
            |path: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap());
        let reserved = blocks(&path);
        assert!(reserved * 512 >= 2 * SLOT_BYTES as u64, "{reserved}");
        for round in 0..5_u8 {
            let text = vec![round; 1000 * usize::from(round)];
            file.replace(&text).unwrap();
            assert_eq!(content(&path), Some(text));
        }
        assert_eq!(blocks(&path), reserved);
        // Each byte of the newest slot torn off in turn leaves the one before.
        let whole = fs::read(&path).unwrap();
        let slot = (file.sequence % SLOTS) as usize * SLOT_BYTES;
        for torn in [0, 5, 20, 60, 100, 4000] {
            let mut bytes = whole.clone();
            bytes[slot + torn] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(content(&path), Some(vec![3; 3000]), "{torn}");
        }
    }

    #[test]
    fn what_is_not_synced_is_read_back_and_never_overwrites_what_was_synced_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts");
        let (mut file, _) = ReservedFile::open(&path).unwrap();
        file.replace(b"synced").unwrap();
        for round in 0..5_u8 {
            file.replace_unsynced(&[round; 100]).unwrap();
            assert_eq!(content(&path), Some(vec![round; 100]));
        }
        // A loss of power tears the slot that was not synced.
        let mut bytes = fs::read(&path).unwrap();
        let slot = ((file.sequence + 1) % SLOTS) as usize * SLOT_BYTES;
        bytes[slot + 100] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(content(&path), Some(b"synced".to_vec()));
        file.replace(b"synced again").unwrap();
        assert_eq!(content(&path), Some(b"synced again".to_vec()));
    }

    #[test]
    fn content_that_outgrows_the_space_gets_more_and_a_foreign_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attached");
        let (mut file, _) = ReservedFile::open(&path).unwrap();
        for len in [10, SLOT_BYTES, 3 * SLOT_BYTES, 10] {
            let text = vec![7; len];
            file.replace(&text).unwrap();
            assert_eq!(content(&path), Some(text));
        }
        for bytes in [b"a\nb\n".to_vec(), vec![0; 2 * SLOT_BYTES], Vec::new()] {
            fs::write(&path, &bytes).unwrap();
            let error = ReservedFile::open(&path).unwrap_err();
            assert_eq!(error.kind(), Io::InvalidData);
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
}
