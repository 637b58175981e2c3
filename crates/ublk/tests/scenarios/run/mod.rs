//! Carries out a scenario on a world.
//!
//! A real disk gets requests of others than the scenario's clients (a scan for partitions). They are
//! recognized by their sector and answered at once; the steps do not see them.

mod commands;
mod params;
mod serve;

use std::collections::{BTreeMap, VecDeque};

use ublk::sys::{self, ControlCommand, DeviceInfo, IoDescriptor};
use zerocopy::IntoBytes;

use super::{Addr, Key, Mode, Pid, QUEUED, RequestKind, Scenario, Step, World};
use params::params_of;

/// Bytes of a client's request.
const CLIENT_BYTES: usize = 4096;

/// A request that the server has fetched.
#[derive(Clone, Copy, Debug)]
struct FetchedRequest {
    task: usize,
    queue: u16,
    tag: u16,
    result: i32,
    descriptor: IoDescriptor,
}

/// A command that the driver has.
#[derive(Clone, Copy, Debug)]
struct SubmittedCommand {
    task: usize,
    queue: u16,
    tag: u16,
}

struct Run<'a> {
    world: &'a mut dyn World,
    mode: Mode,
    info: DeviceInfo,
    added: bool,
    submitted: BTreeMap<Key, SubmittedCommand>,
    /// Completions that were not handled yet.
    events: VecDeque<(Key, i32)>,
    fetched: VecDeque<FetchedRequest>,
    current: Option<FetchedRequest>,
    /// Results of commands that were aborted.
    aborted: Vec<i32>,
    clients: BTreeMap<char, (usize, RequestKind)>,
    /// A START_DEV that was begun.
    start: Option<usize>,
    control: Option<usize>,
    tasks: usize,
    /// What the driver answered where a request of no client of ours could not be committed.
    stray_error: Option<i32>,
}

type StepResult = Result<(), String>;

/// Runs a row in a mode; the error names the step that failed.
pub fn run(world: &mut dyn World, row: &Scenario, mode: Mode) -> StepResult {
    let mut run = Run {
        world,
        mode,
        info: DeviceInfo::default(),
        added: false,
        submitted: BTreeMap::new(),
        events: VecDeque::new(),
        fetched: VecDeque::new(),
        current: None,
        aborted: Vec::new(),
        clients: BTreeMap::new(),
        start: None,
        control: None,
        tasks: 1,
        stray_error: None,
    };
    let mut verdict = Ok(());
    for (index, step) in row.steps.iter().enumerate() {
        verdict = run.step(step);
        if let Err(error) = &verdict {
            verdict = Err(format!("step {index}, {step:?}: {error}"));
            break;
        }
    }
    let cleaned = run.clean_up();
    verdict.and(cleaned)
}

fn expect(what: &str, got: i32, expected: i32) -> StepResult {
    if got == expected {
        Ok(())
    } else {
        Err(format!(
            "{what} is {}, not {}",
            describe(got),
            describe(expected)
        ))
    }
}

fn describe(result: i32) -> String {
    if result == QUEUED.new {
        return "kept".into();
    }
    if result < 0 {
        return std::io::Error::from_raw_os_error(-result).to_string();
    }
    result.to_string()
}

/// What the client writes, and reads.
fn pattern(kind: RequestKind, len: usize) -> Vec<u8> {
    let seed = if kind == RequestKind::Read {
        0x51
    } else {
        0xa7
    };
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

impl Run<'_> {
    #[expect(clippy::too_many_lines, reason = "a table, not steps")]
    fn step(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        match *step {
            Step::Add(..)
            | Step::AddAgain(..)
            | Step::AddMismatched(..)
            | Step::Granted(..)
            | Step::Params(..)
            | Step::Features(..)
            | Step::UnknownDevice(..) => self.step_setup(step),
            Step::Open(expected) => {
                let (queues, depth) = (self.info.queues, self.info.depth);
                let result = self.world.open(self.info.device, queues, depth);
                expect(
                    "open",
                    result.err().unwrap_or(0),
                    expected.for_kernel(kernel),
                )
            }
            Step::Close => {
                self.world.close();
                Ok(())
            }
            Step::Prepare(..)
            | Step::BringUp(..)
            | Step::Deliver(..)
            | Step::Finish(..)
            | Step::Serve(..)
            | Step::TakeOver => {
                for part in step.parts() {
                    let done = self.step(&part);
                    done.map_err(|error| format!("{part:?}: {error}"))?;
                }
                Ok(())
            }
            Step::Fetch(..) | Step::FetchAll | Step::FetchQueue(..) => self.step_fetch(step),
            Step::Start(pid, expected) => {
                let call = self.begin(sys::START_DEVICE, self.pid_of(pid));
                self.expect_control_result(call, expected)
            }
            Step::BeginStart => {
                self.start = Some(self.begin(sys::START_DEVICE, self.pid_of(Pid::Own)));
                Ok(())
            }
            Step::StartPending => self.expect_control_pending(self.start),
            Step::StartResult(expected) => {
                let call = self.start.take().ok_or("no start was begun")?;
                self.expect_control_result(call, expected)
            }
            Step::Submit(..)
            | Step::ClientResult(..)
            | Step::ClientPending(..)
            | Step::DiskOpen(..)
            | Step::Receive(..)
            | Step::Flags(..)
            | Step::Extent(..) => self.step_client(step),
            Step::MoveData
            | Step::Commit(..)
            | Step::CommitBy(..)
            | Step::CommitTag(..)
            | Step::GetData(..)
            | Step::Register(..)
            | Step::Unregister(..)
            | Step::Window(..)
            | Step::WindowOf(..)
            | Step::Fixed(..) => self.step_server(step),
            Step::Control(opcode, data, expected) => {
                let call = self.begin(opcode, data);
                self.expect_control_result(call, expected)
            }
            Step::BeginControl(opcode, data) => {
                self.control = Some(self.begin(opcode, data));
                Ok(())
            }
            Step::ControlPending => self.expect_control_pending(self.control),
            Step::ControlResult(expected) => {
                let call = self.control.take().ok_or("no command was begun")?;
                self.expect_control_result(call, expected)
            }
            Step::Aborted(..)
            | Step::State(..)
            | Step::DeviceGone
            | Step::KillServer
            | Step::EndTask(..)
            | Step::OpenRetrying
            | Step::StartRetrying
            | Step::Recover(..) => self.step_exit(step),
        }
    }

    fn step_setup(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        match *step {
            Step::Add(flags, queues, depth, expected) => {
                let flags = self.mode.flags() | flags | sys::F_NO_PART_SCAN;
                let result = self.add(u32::MAX, u32::MAX, flags, queues, depth);
                expect("ADD_DEV", result, expected.for_kernel(kernel))
            }
            Step::AddAgain(expected) => {
                let (info, added) = (self.info, self.added);
                let result = self.add(info.device, info.device, 0, 1, 2);
                (self.info, self.added) = (info, added);
                expect("ADD_DEV", result, expected.for_kernel(kernel))
            }
            Step::AddMismatched(expected) => {
                let result = self.add(7, 8, 0, 1, 2);
                expect("ADD_DEV", result, expected.for_kernel(kernel))
            }
            Step::Granted(wanted, unwanted) => {
                let flags = self.info.flags;
                if flags & wanted != wanted || flags & unwanted != 0 {
                    return Err(format!("the flags are {flags:#x}"));
                }
                Ok(())
            }
            Step::Params(kind, expected) => {
                let params = params_of(kind).as_bytes().to_vec();
                let result = self.call(sys::SET_PARAMS, 0, params)?.0;
                expect("SET_PARAMS", result, expected.for_kernel(kernel))
            }
            Step::Features(len, expected) => {
                let result = self.call(sys::GET_FEATURES, 0, vec![0; len])?.0;
                expect("GET_FEATURES", result, expected.for_kernel(kernel))
            }
            Step::UnknownDevice(opcode, expected) => {
                let command = ControlCommand {
                    device: 900_000,
                    queue: sys::NO_QUEUE,
                    data: 1,
                    ..ControlCommand::default()
                };
                let call = self.world.control(opcode, command, vec![0; 64]);
                self.expect_control_result(call, expected)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    fn step_fetch(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        match *step {
            Step::Fetch(task, queue, tag, addr, expected) => {
                let result = self.submit_command(task, sys::IO_FETCH, queue, tag, 0, addr);
                expect("FETCH", result, expected.for_kernel(kernel))
            }
            Step::FetchAll => self.fetch_queue(0, 0),
            Step::FetchQueue(task, queue) => self.fetch_queue(task, queue),
            _ => unreachable!("not a step of this part"),
        }
    }

    fn fetch_queue(&mut self, task: usize, queue: u16) -> StepResult {
        for tag in 0..self.info.depth {
            let result = self.submit_command(task, sys::IO_FETCH, queue, tag, 0, Addr::Proper);
            expect("FETCH", result, QUEUED.new)?;
        }
        Ok(())
    }

    fn step_exit(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        match *step {
            Step::Aborted(count) => {
                self.wait_until(|run| (run.aborted.len() >= count).then_some(()))?;
                self.pump()?;
                let aborted = std::mem::take(&mut self.aborted);
                if aborted != vec![sys::RESULT_ABORT; count] {
                    return Err(format!("ended: {aborted:?}"));
                }
                Ok(())
            }
            Step::State(state) => self.wait_until(|run| {
                let info = run.info_now().ok()?;
                (info.state == state).then_some(())
            }),
            Step::DeviceGone => self.wait_until(|run| {
                let result = run.call(sys::GET_DEVICE_INFO, 0, vec![0; 64]).ok()?.0;
                (result == -libc::ENODEV).then_some(())
            }),
            Step::KillServer => {
                for task in 0..self.tasks {
                    self.world.end_task(task);
                }
                self.world.close();
                self.submitted.clear();
                self.events.clear();
                self.fetched.clear();
                self.aborted.clear();
                Ok(())
            }
            Step::EndTask(task) => {
                self.world.end_task(task);
                self.submitted.retain(|_, submitted| submitted.task != task);
                self.fetched.retain(|fetched| fetched.task != task);
                Ok(())
            }
            Step::Recover(expected) => {
                let result = self.wait_until(|run| {
                    let result = run.call(sys::START_RECOVERY, 0, Vec::new()).ok()?.0;
                    (result != -libc::EBUSY).then_some(result)
                })?;
                expect("START_USER_RECOVERY", result, expected.for_kernel(kernel))
            }
            Step::OpenRetrying => self
                .wait_until(|run| {
                    let (queues, depth) = (run.info.queues, run.info.depth);
                    let result = run.world.open(run.info.device, queues, depth);
                    (result != Err(-libc::EBUSY)).then_some(result)
                })?
                .map_err(describe),
            Step::StartRetrying => {
                let result = self.wait_until(|run| {
                    let pid = run.pid_of(Pid::Own);
                    let result = run.call(sys::START_DEVICE, pid, Vec::new()).ok()?.0;
                    (result != -libc::EEXIST).then_some(result)
                })?;
                expect("START_DEV", result, 0)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    fn current(&self) -> Result<FetchedRequest, String> {
        self.current.ok_or_else(|| "no request came".into())
    }

    fn pid_of(&self, pid: Pid) -> u64 {
        match pid {
            Pid::Own => self.world.pid() as u64,
            Pid::Wrong => self.world.pid() as u64 + 1,
            Pid::Zero => 0,
        }
    }
}
