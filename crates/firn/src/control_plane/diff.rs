//! What differs between two volumes or snapshots, a part at a time.
//!
//! The engine tells it; this file gives each part the name under which the next one is asked for. That says of which
//! states it is, so that no part is of others than those before it.

use volume::units::{Lsn, VolumeId, parse_hex_identity};
use volume::{ChangedRange, DiffPlace, OpenError};

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, Result};
use crate::model::{Diff, DiffKind, DiffRange, DiffSide};

/// Ranges of a part, unless it is asked for fewer.
const RANGES_MAX: usize = 10_000;

impl ControlPlane {
    /// Where `to` differs from `from`, at most `limit` ranges, behind what the part before had.
    pub(crate) async fn diff(
        &self,
        from: &str,
        to: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Diff> {
        let place = match after {
            None => None,
            Some(text) => Some(parse_place(text).ok_or_else(|| {
                Failure::invalid(format!(
                    "after={text}: it is not what `next` of a part of a diff said"
                ))
            })?),
        };
        let limit = limit.map_or(RANGES_MAX, |limit| limit.clamp(1, RANGES_MAX));
        let part = match self.host.diff(from, to, place, limit).await {
            Ok(part) => part,
            Err(OpenError::NoSuchSnapshot(name)) => {
                let volume = name.split('@').next().unwrap_or_default().to_owned();
                let error = OpenError::NoSuchSnapshot(name);
                return Err(self.failure_of_point(&volume, error).await);
            }
            Err(error) => return Err(Failure::from(error)),
        };
        Ok(Diff {
            from: side(part.from),
            to: side(part.to),
            ranges: part.ranges.into_iter().map(range).collect(),
            next: part.next.map(place_text),
        })
    }
}

fn side(side: volume::DiffSide) -> DiffSide {
    DiffSide {
        name: side.name,
        id: side.id.to_string(),
        size_bytes: side.bytes,
        lsn: side.lsn.0,
    }
}

fn range(range: ChangedRange) -> DiffRange {
    DiffRange {
        offset: range.offset,
        bytes: range.bytes,
        kind: match range.is_zeroed {
            true => DiffKind::Zero,
            false => DiffKind::Data,
        },
    }
}

fn place_text(place: DiffPlace) -> String {
    let (from, to) = (place.from, place.to);
    format!(
        "{}-{}-{}-{}-{}",
        from.0, from.1.0, to.0, to.1.0, place.sector
    )
}

fn parse_place(text: &str) -> Option<DiffPlace> {
    let fields: Vec<&str> = text.split('-').collect();
    let [from, from_lsn, to, to_lsn, sector] = fields.as_slice() else {
        return None;
    };
    let state = |id: &str, lsn: &str| {
        let id = parse_hex_identity(id).map(VolumeId)?;
        Some((id, Lsn(lsn.parse().ok()?)))
    };
    Some(DiffPlace {
        from: state(from, from_lsn)?,
        to: state(to, to_lsn)?,
        sector: sector.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back_as_it_was_written_and_nothing_else_is_one() {
        let place = DiffPlace {
            from: (VolumeId([1; 16]), Lsn(7)),
            to: (VolumeId([0xab; 16]), Lsn(u64::MAX)),
            sector: 1 << 40,
        };
        assert_eq!(parse_place(&place_text(place)), Some(place));
        for text in ["", "1-2-3-4-5", &place_text(place)[1..], "----"] {
            assert_eq!(parse_place(text), None, "{text}");
        }
    }
}
