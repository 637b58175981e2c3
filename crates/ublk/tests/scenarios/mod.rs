//! One table of scenarios, run on the fake driver and on real kernels, so that the fake is known
//! to answer as the kernels do.
//!
//! A scenario is data ([`Scenario`]); [`run`] carries it out on a [`World`]: `fake` or `kernel`.
//! Each row runs in each of its modes, on a device of its own.

#[allow(dead_code)]
pub mod fake;
pub mod kernel;
mod rows;
pub mod run;
mod table;
mod table_exit;
mod table_requests;

use ublk::sys::{self, ControlCommand, IoCommand, IoDescriptor};
use ublk_fake::ClientRequest;

/// Where the clients of scenarios read and write: far from whatever looks for partitions.
pub const SECTOR: u64 = 40_000;
/// The disk's size in sectors.
pub const SECTORS: u64 = 131_072;
/// The largest request in bytes.
pub const IO_BYTES: u32 = 64 << 10;
/// Buffer slots of each ring.
pub const SLOTS: u16 = 8;

/// How data get to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Copy,
    GetData,
    UserCopy,
    ZeroCopy,
    /// Zero copy where the driver registers buffers by itself.
    Auto,
}

impl Mode {
    pub const ALL: &[Mode] = &[
        Mode::Copy,
        Mode::GetData,
        Mode::UserCopy,
        Mode::ZeroCopy,
        Mode::Auto,
    ];

    /// The flags that ask for it.
    pub fn flags(self) -> u64 {
        match self {
            Mode::Copy => 0,
            Mode::GetData => sys::F_NEED_GET_DATA,
            Mode::UserCopy => sys::F_USER_COPY,
            Mode::ZeroCopy => sys::F_ZERO_COPY,
            Mode::Auto => sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY,
        }
    }
}

/// Which kernel a world is, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernel {
    V6_12,
    V6_17,
    V7_2,
    V7_3,
}

/// A result that may differ between kernels.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Before tags had tasks of their own (6.16).
    pub old: i32,
    /// Since.
    pub new: i32,
}

impl Expected {
    pub fn for_kernel(self, kernel: Kernel) -> i32 {
        if kernel == Kernel::V6_12 {
            self.old
        } else {
            self.new
        }
    }
}

/// The same result on every kernel.
pub const fn all(result: i32) -> Expected {
    Expected {
        old: result,
        new: result,
    }
}

/// Success.
pub const OK: Expected = all(0);
/// The driver keeps the command, and completes it later.
pub const QUEUED: Expected = all(i32::MAX);

/// The buffer that a fetch or commit names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr {
    /// What the mode wants.
    Proper,
    /// None.
    None,
    /// The tag's buffer, whatever the mode says.
    Buffer,
    /// The submission entry's address, raw; the buffer as the mode wants it.
    Sqe(u64),
}

/// Who a process says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pid {
    Own,
    Wrong,
    Zero,
}

/// Ways of getting parameters wrong, and right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamsKind {
    Good,
    NoBasic,
    ShiftTooSmall,
    ShiftTooLarge,
    LogicalAbovePhysical,
    RequestTooLarge,
    DiscardGranularityZero,
    DiscardTwoSegments,
    NodesGiven,
    LengthZero,
    TypesZero,
}

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Write,
    WriteFua,
    Flush,
    Discard,
    Zeroes,
}

impl RequestKind {
    /// The operation that the driver names to the server.
    fn operation(self) -> u8 {
        match self {
            RequestKind::Read => sys::OP_READ,
            RequestKind::Write | RequestKind::WriteFua => sys::OP_WRITE,
            RequestKind::Flush => sys::OP_FLUSH,
            RequestKind::Discard => sys::OP_DISCARD,
            RequestKind::Zeroes => sys::OP_WRITE_ZEROES,
        }
    }
}

/// One step of a scenario. Steps about "the request" mean the one that came last. Some stand for a usual
/// sequence of others ([`Step::parts`]).
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// ADD_DEV with the mode's flags, these, and so many queues and tags.
    Add(u64, u16, u16, Expected),
    /// ADD_DEV with the number of the scenario's device.
    AddAgain(Expected),
    /// ADD_DEV and its command name different devices.
    AddMismatched(Expected),
    /// These flags were granted, and those not.
    Granted(u64, u64),
    Params(ParamsKind, Expected),
    Open(Expected),
    /// Unmaps and closes the character device.
    Close,
    /// FETCH by a task, of queue and tag.
    Fetch(usize, u16, u16, Addr, Expected),
    /// Every tag of queue 0, by task 0.
    FetchAll,
    /// Every tag of a queue, by a task.
    FetchQueue(usize, u16),
    /// START_DEV, waited for.
    Start(Pid, Expected),
    /// START_DEV, not waited for.
    BeginStart,
    /// It has not ended.
    StartPending,
    /// It ends.
    StartResult(Expected),
    /// Add, parameters, open; with these flags, queues and tags.
    Prepare(u64, u16, u16),
    /// Prepare, fetch all, start.
    BringUp(u64, u16, u16),
    /// A client submits a request, and the server receives it.
    Deliver(char, RequestKind),
    /// The request's data are moved, all of it is committed, and its client's request ends well.
    Finish(char),
    /// Deliver and finish.
    Serve(char, RequestKind),
    /// A new server takes the device over.
    TakeOver,
    /// A client asks for 4 KiB at [`SECTOR`]; the letter names it.
    Submit(char, RequestKind),
    /// The server receives a request, with this operation and result of the FETCH.
    Receive(u8, Expected),
    /// The request's descriptor has these flags, and not those.
    Flags(u32, u32),
    /// The request's descriptor is for so many sectors, from so far behind [`SECTOR`].
    Extent(u32, u64),
    /// Moves the request's data in its direction; those of a write are checked.
    MoveData,
    /// The request is committed with this result.
    Commit(i32, Addr, Expected),
    /// The request is committed by a task that does not own it.
    CommitBy(usize, i32, Expected),
    /// A commit of queue 0 and a tag that need not be the request's.
    CommitTag(u16, Expected),
    /// NEED_GET_DATA for the request.
    GetData(Addr, Expected),
    /// REGISTER_IO_BUF of the request into a slot.
    Register(u64, Expected),
    Unregister(u64, Expected),
    /// Reads (true: writes) so many bytes of the request's window, from so far inside.
    Window(bool, u32, usize, Expected),
    /// The window of a tag that no request has.
    WindowOf(u16, u16, Expected),
    /// A fixed operation on a slot, 512 bytes: into the request, or out of it.
    Fixed(u16, bool, u32, Expected),
    /// The client's request ends with this result.
    ClientResult(char, Expected),
    /// The client's request has not ended.
    ClientPending(char),
    /// A control command on the device: inline argument, result. Waited for.
    Control(u32, u64, Expected),
    /// One that is not waited for.
    BeginControl(u32, u64),
    ControlPending,
    ControlResult(Expected),
    /// A control command on a device that does not exist.
    UnknownDevice(u32, Expected),
    /// So many tags were aborted since the last such step, all with ENODEV.
    Aborted(usize),
    /// The device gets to this state.
    State(u16),
    /// Waits until the device is gone.
    DeviceGone,
    /// Takes the server away as a kill does: rings, then everything else.
    KillServer,
    /// Ends one task and its ring.
    EndTask(usize),
    /// START_USER_RECOVERY by the inline argument; EBUSY is tried again.
    Recover(Expected),
    /// Opens the character device, again and again while it has another user.
    OpenRetrying,
    /// START_DEV, again and again while the old disk is there.
    StartRetrying,
    /// A client has the disk open from here on, or no more.
    DiskOpen(bool),
    /// GET_FEATURES with an argument so long.
    Features(usize, Expected),
}

impl Step {
    /// The steps that this one stands for; none where it stands for itself.
    pub fn parts(self) -> Vec<Step> {
        match self {
            Step::Prepare(flags, queues, depth) => vec![
                Step::Add(flags, queues, depth, OK),
                Step::Params(ParamsKind::Good, OK),
                Step::Open(OK),
            ],
            Step::BringUp(flags, queues, depth) => {
                let mut parts = vec![Step::Prepare(flags, queues, depth)];
                parts.extend((0..queues).map(|queue| Step::FetchQueue(queue.into(), queue)));
                parts.push(Step::Start(Pid::Own, OK));
                parts
            }
            Step::Deliver(client, kind) => vec![
                Step::Submit(client, kind),
                Step::Receive(kind.operation(), OK),
            ],
            Step::Finish(client) => vec![
                Step::MoveData,
                Step::Commit(4096, Addr::Proper, QUEUED),
                Step::ClientResult(client, OK),
            ],
            Step::Serve(client, kind) => vec![Step::Deliver(client, kind), Step::Finish(client)],
            Step::TakeOver => vec![
                Step::Recover(OK),
                Step::OpenRetrying,
                Step::FetchAll,
                Step::Control(sys::END_RECOVERY, OWN_PID, OK),
            ],
            _ => Vec::new(),
        }
    }
}

/// Inline argument of a control command: the process that the driver knows.
pub const OWN_PID: u64 = u64::MAX;
/// One that it does not.
pub const WRONG_PID: u64 = u64::MAX - 1;

/// A need that no kernel has: the row makes it warn, which fails a run in a guest. It runs there
/// where `UBLK_ROWS_WARN` is set.
pub const KERNEL_WARNS: u64 = 1 << 63;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What holds.
    pub name: &'static str,
    /// The kernels that it is for: from, to.
    pub kernels: (Kernel, Kernel),
    /// The kernel's flags that it needs, beside those of the mode.
    pub needs: u64,
    pub modes: &'static [Mode],
    pub steps: &'static [Step],
}

/// Every row.
pub fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    let requests = table_requests::ROWS.iter();
    table::ROWS.iter().chain(requests).chain(table_exit::ROWS)
}

/// Names a command that was given to a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// Whether to wait for something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    Yes,
}

/// A control command's result and its argument as it came back.
pub type ControlReply = (i32, Vec<u8>);

/// What scenarios run on.
pub trait World {
    fn kernel(&self) -> Kernel;
    /// The process that the driver sees.
    fn pid(&self) -> i32;
    /// Begins a control command and names it.
    fn control(&mut self, opcode: u32, command: ControlCommand, argument: Vec<u8>) -> usize;
    fn control_result(&mut self, call: usize, patience: Wait) -> Option<ControlReply>;
    fn open(&mut self, device: u32, queues: u16, depth: u16) -> Result<(), i32>;
    /// Unmaps and closes the character device.
    fn close(&mut self);
    /// Gives a request command to the ring of a task.
    fn io(&mut self, task: usize, opcode: u32, sqe_addr: u64, command: IoCommand) -> Key;
    /// Commands that have completed.
    fn completions(&mut self) -> Vec<(Key, i32)>;
    /// Closes a task's ring and ends the task.
    fn end_task(&mut self, task: usize);
    fn descriptor(&mut self, queue: u16, tag: u16) -> IoDescriptor;
    /// The bytes of a tag's buffer.
    fn memory(&mut self, queue: u16, tag: u16) -> &mut [u8];
    /// Reads or writes the character device.
    fn window(&mut self, offset: u64, into_request: bool, bytes: &mut [u8]) -> Result<usize, i32>;
    /// A fixed operation between a slot and a file that holds `bytes`.
    fn fixed(
        &mut self,
        task: usize,
        slot: u16,
        at: u32,
        into_request: bool,
        bytes: &mut [u8],
    ) -> Result<(), i32>;
    /// Begins a client's request and names it.
    fn submit(&mut self, request: ClientRequest) -> usize;
    fn client_result(&mut self, call: usize, patience: Wait) -> Option<Result<Vec<u8>, i32>>;
    /// A client opens or closes the disk.
    fn set_disk_open(&mut self, open: bool) -> Result<(), i32>;
    /// Lets others go on for a moment while something is waited for; an error at the deadline.
    fn pause(&mut self, waited: u32) -> Result<(), String>;
}
