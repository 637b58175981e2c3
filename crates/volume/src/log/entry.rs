//! One commit, as the index ring and the frames record it.

use crate::codec::{Reader, TruncatedInput, Writer};
use crate::map::layers::LogAddr;
use crate::units::{Lsn, Span};

/// Bytes of an entry in a frame.
pub(crate) const ENTRY_BYTES: usize = 40;

/// "From this LSN on, these sectors' content is there (or is zeroes)."
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | LSN |
/// | 8 | 8 | first sector of the volume |
/// | 16 | 8 | number of sectors |
/// | 24 | 8 | sector of the log; 0: the sectors read as zeroes |
/// | 32 | 4 | generation of the log segment; 0 with zeroes |
/// | 36 | 4 | zero |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) lsn: Lsn,
    pub(crate) span: Span,
    pub(crate) addr: Option<LogAddr>,
    pub(crate) generation: u32,
}

impl Entry {
    pub(crate) fn encode(&self, w: &mut Writer) {
        for word in self.words() {
            w.u64(word);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<Entry>, TruncatedInput> {
        let words = [r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?];
        Ok(Entry::from_words(words))
    }

    /// The five words of the table above.
    pub(crate) fn words(&self) -> [u64; 5] {
        [
            self.lsn.0,
            self.span.start,
            self.span.sectors(),
            self.addr.map_or(0, LogAddr::sector),
            u64::from(self.generation),
        ]
    }

    /// `None` if the words cannot have been written by [`Entry::words`].
    pub(crate) fn from_words(words: [u64; 5]) -> Option<Entry> {
        let [lsn, start, sectors, addr, generation] = words;
        let end = start.checked_add(sectors)?;
        let span = Span { start, end };
        let generation = u32::try_from(generation).ok()?;
        let ok = lsn > 0 && !span.is_empty();
        ok.then_some(Entry {
            lsn: Lsn(lsn),
            span,
            addr: LogAddr::new(addr),
            generation,
        })
    }
}
