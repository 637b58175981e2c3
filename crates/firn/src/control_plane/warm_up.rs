//! Warming up: what this server has at hand of an open volume, and reading ahead of one that it is about to have.
//!
//! Hints and no more: neither changes anything in the store or of what a volume holds.

use std::ops::Range;

use crate::control_plane::ControlPlane;
use crate::control_plane::attach::refuse_snapshot;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{HintList, HintRange, PrepareRange, PrepareRequest, Prepared};

/// Ranges of a part of the list, unless it is asked for fewer.
const HINTS_MAX: usize = 10_000;

const SECTOR_BYTES: u64 = 512;

impl ControlPlane {
    /// What reads of an open volume find here, behind this offset.
    pub(crate) async fn hints(
        &self,
        name: &str,
        from: Option<u64>,
        limit: Option<usize>,
    ) -> Result<HintList> {
        let Some(open) = self.volumes.get(name) else {
            return Err(Failure::new(
                FailureCode::NotOpenYet,
                format!(
                    "volume {name} is not open here; the server that has it open knows what it has at hand"
                ),
            ));
        };
        let from = from.unwrap_or_default() / SECTOR_BYTES;
        let limit = limit.map_or(HINTS_MAX, |limit| limit.clamp(1, HINTS_MAX));
        let part = self.host.hints(&open.volume, from, limit).await;
        let part = part.map_err(Failure::from)?;
        let ranges = part.hints.into_iter();
        Ok(HintList {
            ranges: ranges
                .map(|hint| HintRange {
                    offset: hint.sectors.start * SECTOR_BYTES,
                    bytes: (hint.sectors.end - hint.sectors.start) * SECTOR_BYTES,
                    is_hot: hint.is_hot,
                })
                .collect(),
            next: part.next.map(|sector| sector * SECTOR_BYTES),
        })
    }

    /// Reads ahead of a volume that is not open here.
    pub(crate) async fn prepare(&self, name: &str, request: PrepareRequest) -> Result<Prepared> {
        refuse_snapshot(name)?;
        let ranges = request.ranges.iter().map(sectors_of).collect();
        let warmed = self.host.prepare_volume(name, ranges).await;
        let warmed = warmed.map_err(Failure::from)?;
        Ok(Prepared {
            ranges: warmed.ranges,
            fetched_bytes: warmed.fetched_bytes,
        })
    }
}

/// All sectors that the range touches; what lies outside of the volume is left out when it is read.
fn sectors_of(range: &PrepareRange) -> Range<u64> {
    let end = range.offset.saturating_add(range.bytes);
    range.offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_any_size_is_one_of_sectors() {
        let range = |offset, bytes| sectors_of(&PrepareRange { offset, bytes });
        assert_eq!(range(4096, 4096), 8..16);
        assert_eq!(range(1, 1), 0..1);
        assert_eq!(range(4096, 0), 8..8);
        assert_eq!(
            range(u64::MAX, u64::MAX),
            (u64::MAX / 512)..(u64::MAX / 512 + 1)
        );
    }
}
