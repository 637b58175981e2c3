//! The driver's validation of parameters.

use crate::device::Device;
use crate::profile::Profile;
use ublk::sys::{self, Params};

/// A page, as the kernel has it.
pub(super) const PAGE_SHIFT: u8 = 12;

/// Whether the driver takes these; `EINVAL` where not.
pub(super) fn valid(profile: &Profile, device: &Device, params: &Params) -> Result<(), i32> {
    let refuse = |bad: bool| if bad { Err(-libc::EINVAL) } else { Ok(()) };
    let has = |kind: u32| params.types & kind != 0;
    refuse(!has(sys::PARAM_BASIC))?;
    let basic = &params.basic;
    refuse(!(9..=PAGE_SHIFT).contains(&basic.logical_shift))?;
    refuse(basic.logical_shift > basic.physical_shift)?;
    refuse(basic.sectors_max > device.info.io_bytes_max >> 9)?;
    if has(sys::PARAM_DISCARD) {
        let discard = &params.discard;
        refuse(discard.discard_sectors_max != 0 && discard.segments_max != 1)?;
        refuse(discard.granularity == 0)?;
    }
    refuse(has(sys::PARAM_NODES))?;
    let newer = |kind: u32| has(kind) && profile.params & kind != 0;
    if newer(sys::PARAM_DMA_ALIGN) {
        let mask = params.dma_alignment;
        refuse(mask >= 1 << PAGE_SHIFT || !(mask + 1).is_power_of_two())?;
    }
    if newer(sys::PARAM_SEGMENT) {
        let border = params.segment_boundary;
        let power = border.checked_add(1).is_none_or(u64::is_power_of_two);
        refuse(!power || border < (1 << PAGE_SHIFT) - 1)?;
        refuse(params.segment_bytes_max < 1 << PAGE_SHIFT)?;
    }
    Ok(())
}
