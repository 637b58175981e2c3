//! The disk that the clients of a device see: size, blocks, cache, limits. It is checked by the kernel's
//! rules before a command is issued, so that a mistake is explained and leaves no device behind.

use crate::error::Error;
use crate::sys;

const SECTOR: u64 = blkmq::io::SECTOR_BYTES;
/// The smallest page size of any kernel: the driver's limits on block sizes and alignments are in pages.
const PAGE: u32 = 4096;

/// What a disk promises about completed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// They are durable. The kernel sends no FLUSH.
    WriteThrough,
    /// They are durable after a FLUSH.
    Volatile {
        /// Single writes may ask to be durable when they complete.
        fua: bool,
    },
}

/// What a disk can discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Unit in bytes.
    pub granularity: u32,
    /// Largest discard in bytes; zero means that none is taken.
    pub bytes_max: u64,
    /// Largest zeroing in bytes; zero means that the client writes zeroes instead.
    pub zeroes_bytes_max: u64,
}

/// Limits on the memory of a request, for a file that gets its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Memory ranges of one request.
    pub max: u16,
    /// Largest range in bytes, at least 4096.
    pub bytes_max: u32,
    /// No range crosses a multiple of this many bytes, a power of two from 4096 on.
    pub boundary: u64,
}

/// A disk, as its clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Size in bytes.
    pub bytes: u64,
    /// Smallest unit of addressing in bytes: 512 to 4096.
    pub logical_block: u32,
    /// Unit that is written without partial updates, in bytes.
    pub physical_block: u32,
    /// Smallest good size of a request in bytes.
    pub io_min: u32,
    /// Best size of a request in bytes.
    pub io_opt: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// It is rotational.
    pub rotational: bool,
    /// What it promises about completed writes.
    pub cache: Cache,
    /// What can be discarded.
    pub discard: Option<Discard>,
    /// Memory of requests is aligned to this many bytes: a power of two up to 4096.
    pub dma_alignment: Option<u32>,
    /// Limits on the memory of a request.
    pub segments: Option<Segments>,
    /// Requests do not cross a multiple of this many bytes.
    pub chunk: Option<u32>,
}

impl Disk {
    /// A disk of `bytes` with 512-byte blocks in 4096-byte pages, a volatile cache and FUA.
    pub fn new(bytes: u64) -> Disk {
        Disk {
            bytes,
            logical_block: 512,
            physical_block: 4096,
            io_min: 4096,
            io_opt: 4096,
            read_only: false,
            rotational: false,
            cache: Cache::Volatile { fua: true },
            discard: None,
            dma_alignment: None,
            segments: None,
            chunk: None,
        }
    }

    /// The driver's parameters, for requests of at most `io_bytes_max`.
    pub fn params(&self, io_bytes_max: u32) -> Result<sys::Params, Error> {
        let mut params = sys::Params {
            len: size_of::<sys::Params>() as u32,
            types: sys::PARAM_BASIC,
            basic: self.basic(io_bytes_max)?,
            ..sys::Params::default()
        };
        if let Some(discard) = &self.discard {
            params.types |= sys::PARAM_DISCARD;
            params.discard = self.discard(discard)?;
        }
        if let Some(alignment) = self.dma_alignment {
            params.types |= sys::PARAM_DMA_ALIGN;
            params.dma_alignment = alignment_mask(alignment)?;
        }
        if let Some(segments) = self.segments {
            params.types |= sys::PARAM_SEGMENT;
            params.segment_boundary = boundary_mask(&segments)?;
            params.segment_bytes_max = segments.bytes_max;
            params.segments_max = segments.max;
        }
        Ok(params)
    }

    fn basic(&self, io_bytes_max: u32) -> Result<sys::BasicParams, Error> {
        let logical_shift = shift("logical block", self.logical_block, PAGE)?;
        let physical_shift = shift("physical block", self.physical_block, 1 << 20)?;
        if logical_shift > physical_shift {
            return Err(Error::invalid(
                "the logical block is larger than the physical one",
                "use a physical block that is at least the logical one",
            ));
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(u64::from(self.logical_block)) {
            return Err(Error::invalid(
                format!("{} bytes are not a valid size of a disk", self.bytes),
                format!(
                    "use a multiple of {}, its logical block",
                    self.logical_block
                ),
            ));
        }
        let chunk = self.chunk.unwrap_or(0);
        if !chunk.is_multiple_of(self.logical_block) {
            return Err(Error::invalid(
                "the chunk is not a multiple of the logical block",
                format!("use a multiple of {}", self.logical_block),
            ));
        }
        Ok(sys::BasicParams {
            attributes: self.attributes(),
            logical_shift,
            physical_shift,
            io_opt_shift: shift("best request", self.io_opt, 1 << 30)?,
            io_min_shift: shift("smallest good request", self.io_min, 1 << 30)?,
            sectors_max: io_bytes_max / SECTOR as u32,
            chunk_sectors: chunk / SECTOR as u32,
            sectors: self.bytes / SECTOR,
            virt_boundary_mask: 0,
        })
    }

    fn attributes(&self) -> u32 {
        let mut attributes = match self.cache {
            Cache::WriteThrough => 0,
            Cache::Volatile { fua: false } => sys::ATTR_VOLATILE_CACHE,
            Cache::Volatile { fua: true } => sys::ATTR_VOLATILE_CACHE | sys::ATTR_FUA,
        };
        if self.read_only {
            attributes |= sys::ATTR_READ_ONLY;
        }
        if self.rotational {
            attributes |= sys::ATTR_ROTATIONAL;
        }
        attributes
    }

    fn discard(&self, discard: &Discard) -> Result<sys::DiscardParams, Error> {
        if discard.granularity == 0 || !discard.granularity.is_multiple_of(self.logical_block) {
            return Err(Error::invalid(
                format!(
                    "{} bytes are not a valid unit of discards",
                    discard.granularity
                ),
                format!("use a multiple of {}", self.logical_block),
            ));
        }
        // Whole units, as many as the field holds.
        let sectors = |bytes: u64| {
            let unit = u64::from(discard.granularity) / SECTOR;
            let most = u64::from(u32::MAX).min(bytes / SECTOR);
            u32::try_from(most - most % unit).expect("it is at most u32::MAX")
        };
        Ok(sys::DiscardParams {
            alignment: 0,
            granularity: discard.granularity,
            discard_sectors_max: sectors(discard.bytes_max),
            zeroes_sectors_max: sectors(discard.zeroes_bytes_max),
            segments_max: 1,
            reserved: 0,
        })
    }
}

/// The power of two that `bytes` is, from a sector to `max`.
fn shift(what: &str, bytes: u32, max: u32) -> Result<u8, Error> {
    if bytes.is_power_of_two() && (SECTOR as u32..=max).contains(&bytes) {
        return Ok(bytes.trailing_zeros() as u8);
    }
    Err(Error::invalid(
        format!("{bytes} bytes are not a valid size of the {what}"),
        format!("use a power of two from 512 to {max}"),
    ))
}

fn alignment_mask(alignment: u32) -> Result<u32, Error> {
    if alignment.is_power_of_two() && alignment <= PAGE {
        return Ok(alignment - 1);
    }
    Err(Error::invalid(
        format!("{alignment} bytes are not a valid alignment of memory"),
        "use a power of two up to 4096",
    ))
}

fn boundary_mask(segments: &Segments) -> Result<u64, Error> {
    if segments.max == 0 || segments.bytes_max < PAGE {
        return Err(Error::invalid(
            "segments are too few or too small",
            "use at least one, of at least 4096 bytes",
        ));
    }
    if !segments.boundary.is_power_of_two() || segments.boundary < u64::from(PAGE) {
        return Err(Error::invalid(
            format!(
                "{} bytes are not a valid boundary of segments",
                segments.boundary
            ),
            "use a power of two from 4096 on",
        ));
    }
    Ok(segments.boundary - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_disk_says_what_it_was_told_in_the_kernels_words() {
        let disk = Disk {
            read_only: true,
            discard: Some(Discard {
                granularity: 4096,
                bytes_max: u64::MAX,
                zeroes_bytes_max: 1 << 20,
            }),
            dma_alignment: Some(512),
            segments: Some(Segments {
                max: 32,
                bytes_max: 32768,
                boundary: 4096,
            }),
            ..Disk::new(1 << 30)
        };
        let params = disk.params(1 << 20).unwrap();
        assert_eq!(params.len, 136);
        assert_eq!(params.types, 0b11_0011);
        assert_eq!(params.basic.sectors, 1 << 21);
        assert_eq!(params.basic.sectors_max, 2048);
        assert_eq!(
            (params.basic.logical_shift, params.basic.physical_shift),
            (9, 12)
        );
        assert_eq!(params.basic.attributes, 0b1101);
        assert_eq!(params.discard.discard_sectors_max, u32::MAX - 7);
        assert_eq!(params.discard.zeroes_sectors_max, 2048);
        assert_eq!(params.discard.segments_max, 1);
        assert_eq!(params.dma_alignment, 511);
        assert_eq!(params.segment_boundary, 4095);
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_in_words() {
        let disk = || Disk::new(1 << 30);
        let wrong = [
            Disk { bytes: 0, ..disk() },
            Disk {
                bytes: 1000,
                ..disk()
            },
            Disk {
                logical_block: 8192,
                physical_block: 8192,
                ..disk()
            },
            Disk {
                logical_block: 4096,
                physical_block: 512,
                ..disk()
            },
            Disk {
                io_opt: 5000,
                ..disk()
            },
            Disk {
                chunk: Some(700),
                ..disk()
            },
            Disk {
                dma_alignment: Some(8192),
                ..disk()
            },
            Disk {
                dma_alignment: Some(3),
                ..disk()
            },
            Disk {
                discard: Some(Discard {
                    granularity: 0,
                    bytes_max: 1,
                    zeroes_bytes_max: 1,
                }),
                ..disk()
            },
            Disk {
                segments: Some(Segments {
                    max: 1,
                    bytes_max: 512,
                    boundary: 4096,
                }),
                ..disk()
            },
            Disk {
                segments: Some(Segments {
                    max: 1,
                    bytes_max: 4096,
                    boundary: 512,
                }),
                ..disk()
            },
        ];
        for disk in wrong {
            let error = disk.params(1 << 20).unwrap_err();
            assert!(error.remedy().starts_with("use "), "{disk:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_passes_keeps_the_kernels_rules(
            bytes in 1_u64..1 << 50,
            logical in 0_u32..1 << 14,
            physical in 0_u32..1 << 14,
            granularity in 0_u32..1 << 14,
            alignment in 0_u32..1 << 14,
            snap in any::<bool>(),
        ) {
            let snapped = |n: u32| if snap { n.next_power_of_two() } else { n };
            let disk = Disk {
                bytes: if snap { bytes << 12 } else { bytes },
                logical_block: snapped(logical),
                physical_block: snapped(physical),
                discard: Some(Discard { granularity, bytes_max: bytes, zeroes_bytes_max: 0 }),
                dma_alignment: Some(snapped(alignment)),
                ..Disk::new(0)
            };
            if let Ok(params) = disk.params(1 << 20) {
                let basic = params.basic;
                prop_assert!((9..=12).contains(&basic.logical_shift));
                prop_assert!(basic.logical_shift <= basic.physical_shift);
                prop_assert_eq!(basic.sectors * 512, disk.bytes);
                prop_assert!(params.discard.granularity != 0);
                prop_assert!(params.dma_alignment < 4096);
                prop_assert!((params.dma_alignment + 1).is_power_of_two());
            }
        }
    }
}
