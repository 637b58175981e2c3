//! Rows about commands: what a device is added with, who may give which command when.

use libc::{EACCES, EBUSY, EEXIST, EINVAL, ENODEV, EOPNOTSUPP};
use ublk::sys::*;

use super::Addr::{self, Proper};
use super::Kernel::{V6_12, V7_2, V7_3};
use super::Step::*;
use super::rows::{COPY_ONLY, SINCE_6_17, fails, fails_old_new, row, row_where};
use super::{Mode, OK, ParamsKind, Pid, QUEUED, Scenario};

pub(super) const ROWS: &[Scenario] = &[
    row(
        "features are eight bytes",
        COPY_ONLY,
        &[
            Features(8, OK),
            Features(4, fails(EINVAL)),
            Features(16, fails(EINVAL)),
        ],
    ),
    row(
        "flags that are always set are granted unasked and unknown ones are masked",
        Mode::ALL,
        &[
            Add(1 << 60, 1, 2, OK),
            Granted(F_IOCTL_ENCODE | F_COMPLETE_IN_TASK, 1 << 60),
        ],
    ),
    row_where(
        "tags have tasks of their own without asking",
        SINCE_6_17,
        F_PER_IO_TASK,
        COPY_ONLY,
        &[Add(0, 1, 2, OK), Granted(F_PER_IO_TASK, 0)],
    ),
    row(
        "get-data is dropped beside user copy",
        &[Mode::GetData],
        &[
            Add(F_USER_COPY, 1, 2, OK),
            Granted(F_USER_COPY, F_NEED_GET_DATA),
        ],
    ),
    row_where(
        "zero copy is masked by a kernel that lacks it",
        (V6_12, V6_12),
        0,
        COPY_ONLY,
        &[
            Add(F_ZERO_COPY | F_AUTO_BUFFER, 1, 2, OK),
            Granted(0, F_ZERO_COPY | F_AUTO_BUFFER),
        ],
    ),
    row_where(
        "sets of recovery flags that make no sense are refused",
        SINCE_6_17,
        F_RECOVERY_FAIL_IO,
        COPY_ONLY,
        &[
            Add(F_RECOVERY_REISSUE, 1, 2, fails(EINVAL)),
            Add(F_RECOVERY_FAIL_IO, 1, 2, fails(EINVAL)),
            Add(
                F_RECOVERY | F_RECOVERY_REISSUE | F_RECOVERY_FAIL_IO,
                1,
                2,
                fails(EINVAL),
            ),
            Add(F_QUIESCE, 1, 2, fails(EINVAL)),
            Add(F_RECOVERY | F_RECOVERY_FAIL_IO, 1, 2, OK),
        ],
    ),
    row_where(
        "reissue without recovery is taken by a kernel that does not look",
        (V6_12, V6_12),
        0,
        COPY_ONLY,
        &[Add(F_RECOVERY_REISSUE, 1, 2, OK)],
    ),
    row(
        "queues and depth out of range are refused",
        COPY_ONLY,
        &[
            Add(0, 0, 2, fails(EINVAL)),
            Add(0, 1, 0, fails(EINVAL)),
            Add(0, 1, 4097, fails(EINVAL)),
            Add(0, 4097, 2, fails(EINVAL)),
        ],
    ),
    row(
        "a number that is taken is refused",
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            AddAgain(fails(EEXIST)),
            AddMismatched(fails(EINVAL)),
        ],
    ),
    row(
        "commands for a device that does not exist find none",
        COPY_ONLY,
        &[
            UnknownDevice(START_DEVICE, fails(ENODEV)),
            UnknownDevice(STOP_DEVICE, fails(ENODEV)),
            UnknownDevice(DELETE_DEVICE, fails(ENODEV)),
            UnknownDevice(GET_DEVICE_INFO, fails(ENODEV)),
            UnknownDevice(START_RECOVERY, fails(ENODEV)),
        ],
    ),
    row_where(
        "commands that a kernel lacks are not supported",
        (V6_12, V6_12),
        0,
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            Control(UPDATE_SIZE, 8, fails(EOPNOTSUPP)),
            Control(QUIESCE_DEVICE, 8, fails(EOPNOTSUPP)),
            Control(TRY_STOP_DEVICE, 0, fails(EOPNOTSUPP)),
        ],
    ),
    row_where(
        "quiesce needs its flag",
        SINCE_6_17,
        F_QUIESCE,
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            Control(QUIESCE_DEVICE, 8, fails(EOPNOTSUPP)),
        ],
    ),
    row_where(
        "a device without a disk cannot be resized, quiesced or stopped safely",
        (V7_2, V7_3),
        F_QUIESCE | F_SAFE_STOP,
        COPY_ONLY,
        &[
            Add(F_RECOVERY | F_QUIESCE, 1, 2, OK),
            Control(UPDATE_SIZE, 8, fails(ENODEV)),
            Control(QUIESCE_DEVICE, 8, fails(ENODEV)),
            Control(TRY_STOP_DEVICE, 0, fails(ENODEV)),
            Control(STOP_DEVICE, 0, OK),
        ],
    ),
    row(
        "parameters that make no sense are refused",
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            Params(ParamsKind::NoBasic, fails(EINVAL)),
            Params(ParamsKind::ShiftTooSmall, fails(EINVAL)),
            Params(ParamsKind::ShiftTooLarge, fails(EINVAL)),
            Params(ParamsKind::LogicalAbovePhysical, fails(EINVAL)),
            Params(ParamsKind::RequestTooLarge, fails(EINVAL)),
            Params(ParamsKind::DiscardGranularityZero, fails(EINVAL)),
            Params(ParamsKind::DiscardTwoSegments, fails(EINVAL)),
            Params(ParamsKind::NodesGiven, fails(EINVAL)),
            Params(ParamsKind::LengthZero, fails(EINVAL)),
            Params(ParamsKind::TypesZero, fails(EINVAL)),
            Params(ParamsKind::Good, OK),
            Params(ParamsKind::Good, OK),
        ],
    ),
    row(
        "parameters cannot be set once the disk was started",
        COPY_ONLY,
        &[BringUp(0, 1, 2), Params(ParamsKind::Good, fails(EACCES))],
    ),
    row(
        "start wants parameters and a process",
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            Start(Pid::Own, fails(EINVAL)),
            Params(ParamsKind::NodesGiven, fails(EINVAL)),
            Start(Pid::Own, fails(EINVAL)),
            Params(ParamsKind::Good, OK),
            Start(Pid::Zero, fails(EINVAL)),
        ],
    ),
    row(
        "start waits until every tag is fetched",
        Mode::ALL,
        &[
            Prepare(0, 1, 2),
            BeginStart,
            Fetch(0, 0, 0, Proper, QUEUED),
            StartPending,
            Fetch(0, 0, 1, Proper, QUEUED),
            StartResult(OK),
            State(STATE_LIVE),
        ],
    ),
    row_where(
        "start is refused to a process that does not have the device open",
        SINCE_6_17,
        F_PER_IO_TASK,
        COPY_ONLY,
        &[
            Prepare(0, 1, 1),
            FetchAll,
            Start(Pid::Wrong, fails(EINVAL)),
            Start(Pid::Own, OK),
        ],
    ),
    row(
        "a live disk is not started again",
        COPY_ONLY,
        &[BringUp(0, 1, 2), Start(Pid::Own, fails(EEXIST))],
    ),
    row(
        "the character device is opened once",
        COPY_ONLY,
        &[Add(0, 1, 2, OK), Open(OK), Open(fails(EBUSY))],
    ),
    row(
        "a tag is fetched once",
        Mode::ALL,
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 0, 0, Proper, QUEUED),
            Fetch(0, 0, 0, Proper, fails_old_new(EBUSY, EINVAL)),
            Fetch(0, 0, 1, Proper, QUEUED),
            Fetch(0, 0, 1, Proper, fails_old_new(EBUSY, EBUSY)),
        ],
    ),
    row(
        "a fetch names a queue and a tag that there are",
        Mode::ALL,
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 1, 0, Proper, fails(EINVAL)),
            Fetch(0, 0, 2, Proper, fails(EINVAL)),
            Fetch(0, 0, 1, Proper, QUEUED),
        ],
    ),
    row(
        "in copy mode a fetch names a buffer and can be given again with one",
        COPY_ONLY,
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 0, 0, Addr::None, fails(EINVAL)),
            Fetch(0, 0, 0, Proper, QUEUED),
        ],
    ),
    row(
        "with get-data a fetch may do without a buffer",
        &[Mode::GetData],
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 0, 0, Addr::None, QUEUED),
            Fetch(0, 0, 1, Addr::Buffer, QUEUED),
        ],
    ),
    row(
        "where the server moves the data a fetch names no buffer and can be given again without",
        &[Mode::UserCopy, Mode::ZeroCopy, Mode::Auto],
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 0, 0, Addr::Buffer, fails(EINVAL)),
            Fetch(0, 0, 0, Proper, QUEUED),
        ],
    ),
    row_where(
        "reserved bits beside a slot are refused and the fetch can be given again",
        SINCE_6_17,
        F_AUTO_BUFFER,
        &[Mode::Auto],
        &[
            Add(0, 1, 2, OK),
            Open(OK),
            Fetch(0, 0, 0, Addr::Sqe(1 << 24), fails(EINVAL)),
            Fetch(0, 0, 0, Addr::Sqe(2 << 16), fails(EINVAL)),
            Fetch(0, 0, 0, Proper, QUEUED),
        ],
    ),
    row(
        "a tag that the driver has is not committed",
        Mode::ALL,
        &[BringUp(0, 1, 2), CommitTag(1, fails(EBUSY))],
    ),
    row(
        "a tag that nobody fetched is not committed",
        Mode::ALL,
        &[Add(0, 1, 2, OK), Open(OK), CommitTag(1, fails(EINVAL))],
    ),
];
