//! Owns the bytes of a file at one moment, in pages that copies share.
//!
//! Worlds are copied at every crash that is enumerated: a copy must cost next to nothing, and what
//! two copies do after that must not be seen by the other.

use std::ops::Range;
use std::rc::Rc;

use super::{POISON, SECTOR};

/// Sectors of a page.
const SECTORS: u64 = 16;
const BYTES: usize = SECTORS as usize * SECTOR;

type Page = [u8; BYTES];

static NEVER_WRITTEN: Page = [POISON; BYTES];

/// The bytes of a file. What was never written is poison.
#[derive(Clone, Debug, Default)]
pub(super) struct Image(Vec<Option<Rc<Page>>>);

fn within(sector: u64) -> Range<usize> {
    let at = (sector % SECTORS) as usize * SECTOR;
    at..at + SECTOR
}

impl Image {
    pub(super) fn sector(&self, sector: u64) -> &[u8] {
        let page = self.0.get((sector / SECTORS) as usize);
        let page = page.and_then(Option::as_deref).unwrap_or(&NEVER_WRITTEN);
        &page[within(sector)]
    }

    pub(super) fn sector_mut(&mut self, sector: u64) -> &mut [u8] {
        let page = (sector / SECTORS) as usize;
        if self.0.len() <= page {
            self.0.resize(page + 1, None);
        }
        let page = self.0[page].get_or_insert_with(|| Rc::new(NEVER_WRITTEN));
        &mut Rc::make_mut(page)[within(sector)]
    }

    pub(super) fn read(&self, sectors: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((sectors.end - sectors.start) as usize * SECTOR);
        for sector in sectors {
            bytes.extend_from_slice(self.sector(sector));
        }
        bytes
    }
}
