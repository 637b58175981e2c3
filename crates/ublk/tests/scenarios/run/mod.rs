//! Carries out a scenario on a world.
//!
//! A real disk gets requests that the scenario did not ask for (whoever looks at new disks):
//! they are told apart by their sector and answered at once, unseen by the steps.

mod params;
mod plumbing;
mod serve;

use std::collections::{BTreeMap, VecDeque};

use ublk::sys::{self, ControlCommand, DeviceInfo, IoDescriptor};
use zerocopy::IntoBytes;

use super::{Addr, Ask, KEPT, Key, Mode, OK, ParamsOf, Pid, Scenario, Step, World};
use params::params_of;

/// Bytes of a client's request.
const CLIENT_BYTES: usize = 4096;

/// A request with the server.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    task: usize,
    queue: u16,
    tag: u16,
    result: i32,
    descriptor: IoDescriptor,
}

/// A command with the driver.
#[derive(Clone, Copy, Debug)]
struct Given {
    task: usize,
    queue: u16,
    tag: u16,
}

struct Run<'a> {
    world: &'a mut dyn World,
    mode: Mode,
    info: DeviceInfo,
    added: bool,
    given: BTreeMap<Key, Given>,
    /// What ended and was not looked at yet.
    events: VecDeque<(Key, i32)>,
    arrived: VecDeque<Arrived>,
    now: Option<Arrived>,
    /// Results of tags that ended without a request.
    aborted: Vec<i32>,
    clients: BTreeMap<char, (usize, Ask)>,
    /// A client's request that ended before its step.
    start: Option<usize>,
    control: Option<usize>,
    tasks: usize,
    /// A request that nobody asked for could not be served: this is the driver's answer.
    lost: Option<i32>,
}

type Done = Result<(), String>;

/// Runs a row in a mode; the error says which step did not go as told.
pub fn run(world: &mut dyn World, row: &Scenario, mode: Mode) -> Done {
    let mut run = Run {
        world,
        mode,
        info: DeviceInfo::default(),
        added: false,
        given: BTreeMap::new(),
        events: VecDeque::new(),
        arrived: VecDeque::new(),
        now: None,
        aborted: Vec::new(),
        clients: BTreeMap::new(),
        start: None,
        control: None,
        tasks: 1,
        lost: None,
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

fn expect(what: &str, got: i32, want: i32) -> Done {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what} is {}, not {}", named(got), named(want)))
    }
}

fn named(result: i32) -> String {
    if result == KEPT.new {
        return "kept".into();
    }
    if result < 0 {
        return std::io::Error::from_raw_os_error(-result).to_string();
    }
    result.to_string()
}

/// What the client writes, and reads.
fn pattern(ask: Ask, len: usize) -> Vec<u8> {
    let seed = if ask == Ask::Read { 0x51 } else { 0xa7 };
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

impl Run<'_> {
    #[expect(clippy::too_many_lines, reason = "a table, not steps")]
    fn step(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        match *step {
            Step::Add(..)
            | Step::AddAgain(..)
            | Step::AddMismatched(..)
            | Step::Granted(..)
            | Step::Params(..)
            | Step::Features(..)
            | Step::Nobody(..) => self.step_before(step),
            Step::Open(want) => {
                let (queues, depth) = (self.info.queues, self.info.depth);
                let result = self.world.open(self.info.device, queues, depth);
                expect("open", result.err().unwrap_or(0), want.on(kernel))
            }
            Step::Close => {
                self.world.close();
                Ok(())
            }
            Step::Fetch(..) | Step::FetchAll | Step::FetchQueue(..) | Step::Up(..) => {
                self.step_fetch(step)
            }
            Step::Start(pid, want) => {
                let call = self.begin(sys::START_DEVICE, self.pid_of(pid));
                self.control_ends(call, want)
            }
            Step::StartBegins => {
                self.start = Some(self.begin(sys::START_DEVICE, self.pid_of(Pid::Own)));
                Ok(())
            }
            Step::StartWaits => self.control_waits(self.start),
            Step::StartEnds(want) => {
                let call = self.start.take().ok_or("no start was begun")?;
                self.control_ends(call, want)
            }
            Step::Client(..)
            | Step::Ended(..)
            | Step::Pending(..)
            | Step::DiskOpen(..)
            | Step::Comes(..)
            | Step::Flags(..)
            | Step::Extent(..) => self.step_client(step),
            Step::Moves
            | Step::Commit(..)
            | Step::CommitBy(..)
            | Step::CommitTag(..)
            | Step::GetData(..)
            | Step::Register(..)
            | Step::Unregister(..)
            | Step::Window(..)
            | Step::WindowOf(..)
            | Step::Fixed(..) => self.step_serve(step),
            Step::Control(opcode, data, want) => {
                let call = self.begin(opcode, data);
                self.control_ends(call, want)
            }
            Step::ControlBegins(opcode, data) => {
                self.control = Some(self.begin(opcode, data));
                Ok(())
            }
            Step::ControlWaits => self.control_waits(self.control),
            Step::ControlEnds(want) => {
                let call = self.control.take().ok_or("no command was begun")?;
                self.control_ends(call, want)
            }
            Step::Aborted(..)
            | Step::State(..)
            | Step::Gone
            | Step::Dies
            | Step::TaskEnds(..)
            | Step::OpenSoon
            | Step::StartSoon
            | Step::Recover(..) => self.step_exit(step),
        }
    }

    fn step_before(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        match *step {
            Step::Add(flags, queues, depth, want) => {
                let flags = self.mode.flags() | flags | sys::F_NO_PART_SCAN;
                let result = self.add(u32::MAX, u32::MAX, flags, queues, depth);
                expect("ADD_DEV", result, want.on(kernel))
            }
            Step::AddAgain(want) => {
                let (info, added) = (self.info, self.added);
                let result = self.add(info.device, info.device, 0, 1, 2);
                (self.info, self.added) = (info, added);
                expect("ADD_DEV", result, want.on(kernel))
            }
            Step::AddMismatched(want) => {
                let result = self.add(7, 8, 0, 1, 2);
                expect("ADD_DEV", result, want.on(kernel))
            }
            Step::Granted(wanted, unwanted) => {
                let flags = self.info.flags;
                if flags & wanted != wanted || flags & unwanted != 0 {
                    return Err(format!("the flags are {flags:#x}"));
                }
                Ok(())
            }
            Step::Params(kind, want) => {
                let params = params_of(kind).as_bytes().to_vec();
                let result = self.call(sys::SET_PARAMS, 0, params)?.0;
                expect("SET_PARAMS", result, want.on(kernel))
            }
            Step::Features(len, want) => {
                let result = self.call(sys::GET_FEATURES, 0, vec![0; len])?.0;
                expect("GET_FEATURES", result, want.on(kernel))
            }
            Step::Nobody(opcode, want) => {
                let command = ControlCommand {
                    device: 900_000,
                    queue: sys::NO_QUEUE,
                    data: 1,
                    ..ControlCommand::default()
                };
                let call = self.world.control(opcode, command, vec![0; 64]);
                self.control_ends(call, want)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    fn step_fetch(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        match *step {
            Step::Fetch(task, queue, tag, addr, want) => {
                let result = self.give(task, sys::IO_FETCH, queue, tag, 0, addr);
                expect("FETCH", result, want.on(kernel))
            }
            Step::FetchAll => self.fetch_queue(0, 0),
            Step::FetchQueue(task, queue) => self.fetch_queue(task, queue),
            Step::Up(flags, queues, depth) => {
                self.step(&Step::Add(flags, queues, depth, OK))?;
                self.step(&Step::Params(ParamsOf::Good, OK))?;
                self.step(&Step::Open(OK))?;
                for queue in 0..queues {
                    self.fetch_queue(usize::from(queue), queue)?;
                }
                self.step(&Step::Start(Pid::Own, OK))
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    fn fetch_queue(&mut self, task: usize, queue: u16) -> Done {
        for tag in 0..self.info.depth {
            let result = self.give(task, sys::IO_FETCH, queue, tag, 0, Addr::Proper);
            expect("FETCH", result, KEPT.new)?;
        }
        Ok(())
    }

    fn step_exit(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        match *step {
            Step::Aborted(count) => {
                self.until(|run| (run.aborted.len() >= count).then_some(()))?;
                self.pump()?;
                let aborted = std::mem::take(&mut self.aborted);
                if aborted != vec![sys::RESULT_ABORT; count] {
                    return Err(format!("ended: {aborted:?}"));
                }
                Ok(())
            }
            Step::State(state) => self.until(|run| {
                let info = run.info_now().ok()?;
                (info.state == state).then_some(())
            }),
            Step::Gone => self.until(|run| {
                let result = run.call(sys::GET_DEVICE_INFO, 0, vec![0; 64]).ok()?.0;
                (result == -libc::ENODEV).then_some(())
            }),
            Step::Dies => {
                for task in 0..self.tasks {
                    self.world.task_ends(task);
                }
                self.world.close();
                self.given.clear();
                self.events.clear();
                self.arrived.clear();
                self.aborted.clear();
                Ok(())
            }
            Step::TaskEnds(task) => {
                self.world.task_ends(task);
                self.given.retain(|_, given| given.task != task);
                self.arrived.retain(|arrived| arrived.task != task);
                Ok(())
            }
            Step::Recover(want) => {
                let result = self.until(|run| {
                    let result = run.call(sys::START_RECOVERY, 0, Vec::new()).ok()?.0;
                    (result != -libc::EBUSY).then_some(result)
                })?;
                expect("START_USER_RECOVERY", result, want.on(kernel))
            }
            Step::OpenSoon => self
                .until(|run| {
                    let (queues, depth) = (run.info.queues, run.info.depth);
                    let result = run.world.open(run.info.device, queues, depth);
                    (result != Err(-libc::EBUSY)).then_some(result)
                })?
                .map_err(named),
            Step::StartSoon => {
                let result = self.until(|run| {
                    let pid = run.pid_of(Pid::Own);
                    let result = run.call(sys::START_DEVICE, pid, Vec::new()).ok()?.0;
                    (result != -libc::EEXIST).then_some(result)
                })?;
                expect("START_DEV", result, 0)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    fn now(&self) -> Result<Arrived, String> {
        self.now.ok_or_else(|| "no request came".into())
    }

    fn pid_of(&self, pid: Pid) -> u64 {
        match pid {
            Pid::Own => self.world.pid() as u64,
            Pid::Wrong => self.world.pid() as u64 + 1,
            Pid::Zero => 0,
        }
    }
}
