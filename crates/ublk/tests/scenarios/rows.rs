//! Short words for the tables.

use ublk::sys::RESULT_NEED_GET_DATA;

use super::Kernel::{V6_12, V6_17, V7_2, V7_3};
use super::{Expected, Kernel, Mode, Scenario, all};

pub(super) const ALL_KERNELS: (Kernel, Kernel) = (V6_12, V7_3);
/// Those that ask for the rest of every short result again; 7.3 takes most for the whole request.
pub(super) const UNTIL_7_2: (Kernel, Kernel) = (V6_12, V7_2);
pub(super) const SINCE_6_17: (Kernel, Kernel) = (V6_17, V7_3);
pub(super) const NEED_GET_DATA: Expected = all(RESULT_NEED_GET_DATA);
/// Modes in which the kernel delivers a write with its data where the server finds them.
pub(super) const WITHOUT_GET_DATA: &[Mode] =
    &[Mode::Copy, Mode::UserCopy, Mode::ZeroCopy, Mode::Auto];
pub(super) const COPY_ONLY: &[Mode] = &[Mode::Copy];

/// A row for every kernel.
pub(super) const fn row(
    name: &'static str,
    modes: &'static [Mode],
    steps: &'static [super::Step],
) -> Scenario {
    row_where(name, ALL_KERNELS, 0, modes, steps)
}

/// A row for some kernels only, or only where they offer what it needs.
pub(super) const fn row_where(
    name: &'static str,
    kernels: (Kernel, Kernel),
    needs: u64,
    modes: &'static [Mode],
    steps: &'static [super::Step],
) -> Scenario {
    Scenario {
        name,
        kernels,
        needs,
        modes,
        steps,
    }
}

pub(super) const fn fails(errno: i32) -> Expected {
    all(-errno)
}

/// Before 6.16, and since.
pub(super) const fn fails_old_new(old: i32, new: i32) -> Expected {
    Expected {
        old: -old,
        new: -new,
    }
}
