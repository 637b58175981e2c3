//! Parameters of a disk, right and wrong.

use ublk::sys::{self, Params};

use super::super::{IO_BYTES, ParamsKind, SECTORS};

pub(super) fn params_of(kind: ParamsKind) -> Params {
    let mut params = Params {
        len: size_of::<Params>() as u32,
        types: sys::PARAM_BASIC | sys::PARAM_DISCARD,
        ..Params::default()
    };
    params.basic.attributes = sys::ATTR_VOLATILE_CACHE | sys::ATTR_FUA;
    params.basic.logical_shift = 9;
    params.basic.physical_shift = 12;
    params.basic.io_opt_shift = 12;
    params.basic.io_min_shift = 9;
    params.basic.sectors_max = IO_BYTES >> 9;
    params.basic.sectors = SECTORS;
    params.discard.granularity = 4096;
    params.discard.discard_sectors_max = 65_536;
    params.discard.zeroes_sectors_max = 65_536;
    params.discard.segments_max = 1;
    match kind {
        ParamsKind::Good => {}
        ParamsKind::NoBasic => params.types = sys::PARAM_DISCARD,
        ParamsKind::ShiftTooSmall => params.basic.logical_shift = 8,
        ParamsKind::ShiftTooLarge => {
            params.basic.logical_shift = 13;
            params.basic.physical_shift = 13;
        }
        ParamsKind::LogicalAbovePhysical => {
            params.basic.logical_shift = 12;
            params.basic.physical_shift = 9;
        }
        ParamsKind::RequestTooLarge => params.basic.sectors_max = (IO_BYTES >> 9) + 8,
        ParamsKind::DiscardGranularityZero => params.discard.granularity = 0,
        ParamsKind::DiscardTwoSegments => params.discard.segments_max = 2,
        ParamsKind::NodesGiven => params.types |= sys::PARAM_NODES,
        ParamsKind::LengthZero => params.len = 0,
        ParamsKind::TypesZero => params.types = 0,
    }
    params
}
