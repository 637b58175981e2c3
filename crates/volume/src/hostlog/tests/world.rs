//! A store, disks and processes for the procedures of the host's log: one seed decides in which order
//! requests land, which answers are lost, and when processes die.
//!
//! It carries out requests and knows no protocol; what hosts do is in `host`, what must hold in `ghost`.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::ghost::Ghost;
use super::host::{Disk, run_process};
use crate::collect::CollectPort;
use crate::driver::{ComputeError, StoreError, StoreOp, StoreReply, Version};
use crate::hostlog::names::{Digest, SessionName};
use crate::hostlog::notes::LogState;
use crate::hostlog::port::{LocalLogUnavailable, LogPort};
use crate::hostlog::stop::Stop;
use crate::units::{HostId, LogSession};

/// A cache directory and the process on it.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) host: HostId,
    pub(super) disk: Disk,
    /// What no durable frame has yet.
    jotted: Option<LogState>,
    pub(super) stopped: Option<Stop>,
    /// Which process of the machine runs; what an older one asked for is void.
    process: u64,
    /// Between two jobs: nothing of it is under way.
    pub(super) is_idle: bool,
    /// It takes every volume, and ends.
    pub(super) takes_all: bool,
}

#[derive(Debug)]
enum PortRequest {
    Store(StoreOp),
    Note,
    Sleep,
}

type Answer = Result<StoreReply, StoreError>;

#[derive(Debug)]
struct Pending {
    machine: usize,
    process: u64,
    ask: PortRequest,
    cell: Arc<Mutex<Option<Answer>>>,
}

/// What may go wrong, and how often.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Budget {
    pub(super) lost_answers: u32,
    pub(super) late: u32,
    pub(super) refusals: u32,
    pub(super) kills: u32,
    pub(super) power_cuts: u32,
    pub(super) copies: u32,
    pub(super) set_backs: u32,
}

type Objects = BTreeMap<String, (Vec<u8>, Version)>;

/// What all machines see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) objects: Objects,
    pub(super) machines: Vec<Machine>,
    pub(super) ghost: Ghost,
    /// Jobs that hosts may still begin.
    pub(super) jobs: u32,
    /// Versions are hashes of the bytes, as with S3, or numbers.
    hashes: bool,
    writes: u64,
    pending: Vec<Pending>,
    late: Vec<StoreOp>,
}

pub(super) type World = Arc<Mutex<Shared>>;

pub(super) fn lock_world(world: &World) -> MutexGuard<'_, Shared> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a process asks.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub(super) world: World,
    pub(super) machine: usize,
    process: u64,
}

struct AnswerFuture(Arc<Mutex<Option<Answer>>>);

impl Future for AnswerFuture {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Port {
    fn ask(&self, ask: PortRequest) -> AnswerFuture {
        let cell = Arc::default();
        let mut shared = lock_world(&self.world);
        shared.pending.push(Pending {
            machine: self.machine,
            process: self.process,
            ask,
            cell: Arc::clone(&cell),
        });
        AnswerFuture(cell)
    }
}

impl LogPort for Port {
    fn store(&self, op: StoreOp) -> impl Future<Output = Answer> + Send {
        self.ask(PortRequest::Store(op))
    }

    async fn sleep(&self, _: u64) {
        let _ = self.ask(PortRequest::Sleep).await;
    }

    fn pause_ns(&self) -> u64 {
        1
    }

    async fn persist_state(&self, state: LogState) -> Result<(), LocalLogUnavailable> {
        self.stage_state(state);
        self.ask(PortRequest::Note)
            .await
            .map(drop)
            .map_err(|_| LocalLogUnavailable)
    }

    fn stage_state(&self, state: LogState) {
        lock_world(&self.world).machines[self.machine].jotted = Some(state);
    }
}

impl CollectPort for Port {
    async fn compute<T: Send + 'static>(
        &self,
        _: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        Ok(work())
    }

    fn pace_ns(&self) -> u64 {
        1
    }
}

impl Shared {
    fn version(&mut self, data: &[u8]) -> Version {
        self.writes += 1;
        Version(match self.hashes {
            true => format!("{:?}", Digest::of(data)),
            false => self.writes.to_string(),
        })
    }

    fn write(&mut self, key: String, data: Vec<u8>) -> Answer {
        let version = self.version(&data);
        self.objects.insert(key, (data, version.clone()));
        Ok(StoreReply::Written { version })
    }

    /// Carries a request out.
    pub(super) fn carry_out(&mut self, op: StoreOp) -> Answer {
        match op {
            StoreOp::Get { key } => match self.objects.get(&key) {
                Some((data, version)) => Ok(StoreReply::Object {
                    data: data.clone(),
                    version: version.clone(),
                }),
                None => Err(StoreError::NotFound),
            },
            StoreOp::GetRange { key, .. } => match self.objects.get(&key) {
                Some((data, _)) => Ok(StoreReply::Range(data.clone())),
                None => Err(StoreError::NotFound),
            },
            StoreOp::Put { key, data } => self.write(key, data.into()),
            StoreOp::Create { key, data } => match self.objects.contains_key(&key) {
                true => Err(StoreError::PreconditionFailed),
                false => self.write(key, data),
            },
            StoreOp::Update { key, data, version } => match self.objects.get(&key) {
                Some((_, standing)) if *standing == version => self.write(key, data),
                _ => Err(StoreError::PreconditionFailed),
            },
            StoreOp::Delete { key } => {
                self.objects.remove(&key);
                Ok(StoreReply::Deleted)
            }
            StoreOp::List { prefix } => {
                let objects = self.objects.iter();
                let found = objects.filter(|(key, _)| key.starts_with(&prefix));
                let keys = found.map(|(key, (data, _))| (key.clone(), data.len() as u64));
                Ok(StoreReply::Keys(keys.collect()))
            }
            StoreOp::ListPart { .. } => unreachable!("these procedures read no list in parts"),
        }
    }

    fn make_durable(&mut self, machine: usize) {
        let machine = &mut self.machines[machine];
        if let Some(state) = machine.jotted.take() {
            machine.disk.state = state;
        }
        machine.disk.on_durable();
    }
}

type Process = Pin<Box<dyn Future<Output = ()>>>;

/// Runs a world.
pub(super) struct Runner {
    pub(super) world: World,
    processes: Vec<Option<Process>>,
    rng: fastrand::Rng,
    budget: Budget,
    backup: Option<(Objects, Ghost)>,
}

fn is_write(op: &StoreOp) -> bool {
    !op.is_read()
}

impl Runner {
    pub(super) fn new(seed: u64, hosts: usize, jobs: u32, budget: Budget) -> Runner {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut shared = Shared {
            jobs,
            hashes: rng.bool(),
            ..Shared::default()
        };
        for host in 0..hosts {
            shared.machines.push(Machine {
                host: HostId([host as u8 + 1; 16]),
                ..Machine::default()
            });
        }
        Runner {
            processes: (0..hosts).map(|_| None).collect(),
            world: Arc::new(Mutex::new(shared)),
            rng,
            budget,
            backup: None,
        }
    }

    /// A process starts on a machine.
    pub(super) fn start(&mut self, machine: usize) {
        let (own, before) = {
            let mut shared = lock_world(&self.world);
            let machine = &mut shared.machines[machine];
            machine.process += 1;
            machine.stopped = None;
            let before = machine.disk.session;
            machine.disk.session = LogSession {
                number: before.number + 1,
                random: self.rng.u64(..),
            };
            let own = SessionName {
                host: machine.host,
                session: machine.disk.session,
            };
            (own, before)
        };
        let process = lock_world(&self.world).machines[machine].process;
        let port = Port {
            world: Arc::clone(&self.world),
            machine,
            process,
        };
        let life = run_process(port, own, before, self.rng.u64(..));
        self.processes[machine] = Some(Box::pin(life));
    }

    /// Its process ends; the ring stays unless the power fails.
    fn kill(&mut self, machine: usize, power_cut: bool) {
        self.processes[machine] = None;
        let framed = self.rng.bool();
        let mut shared = lock_world(&self.world);
        let shared = &mut *shared;
        let pending = std::mem::take(&mut shared.pending);
        for asked in pending {
            if asked.machine != machine {
                shared.pending.push(asked);
                continue;
            }
            match asked.ask {
                PortRequest::Note if framed => shared.make_durable(machine),
                PortRequest::Store(op) if is_write(&op) && self.rng.bool() => shared.late.push(op),
                _ => {}
            }
        }
        let machine = &mut shared.machines[machine];
        machine.jotted = None;
        machine.is_idle = false;
        if power_cut {
            machine.disk.cut_power();
        }
    }

    fn poll(&mut self) {
        for machine in 0..self.processes.len() {
            let Some(process) = &mut self.processes[machine] else {
                continue;
            };
            let mut cx = Context::from_waker(Waker::noop());
            if process.as_mut().poll(&mut cx).is_ready() {
                self.processes[machine] = None;
            }
        }
    }

    /// Runs until no process is left, or `steps` are over: then false.
    pub(super) fn run(&mut self, steps: u32) -> bool {
        for _ in 0..steps {
            self.poll();
            let runs = self.processes.iter().any(Option::is_some);
            if !runs || lock_world(&self.world).ghost.violation.is_some() {
                return true;
            }
            if self.rng.u32(..100) < 3 {
                self.inject_fault();
            } else {
                self.complete_one_request();
            }
        }
        false
    }

    /// Something goes wrong with a machine, or with the store.
    fn inject_fault(&mut self) {
        let machine = self.rng.usize(..self.processes.len());
        let runs = self.processes[machine].is_some();
        match self.rng.u32(..5) {
            0 if runs && self.budget.kills > 0 => {
                self.budget.kills -= 1;
                self.kill(machine, false);
                self.start(machine);
            }
            1 if runs && self.budget.power_cuts > 0 => {
                self.budget.power_cuts -= 1;
                self.kill(machine, true);
                self.start(machine);
            }
            2 if self.budget.copies > 0 => {
                self.budget.copies -= 1;
                self.copy(machine);
            }
            3 if self.budget.set_backs > 0 => self.set_back(),
            _ => {
                let mut shared = lock_world(&self.world);
                if !shared.late.is_empty() {
                    let at = self.rng.usize(..shared.late.len());
                    let op = shared.late.swap_remove(at);
                    let _ = shared.carry_out(op);
                }
            }
        }
    }

    /// A machine gets a copy of another's cache directory, and is started.
    fn copy(&mut self, machine: usize) {
        {
            let mut shared = lock_world(&self.world);
            let from = &shared.machines[machine];
            let copy = Machine {
                host: from.host,
                disk: from.disk.copy(),
                ..Machine::default()
            };
            shared.machines.push(copy);
            shared.ghost.may_stop = true;
        }
        self.processes.push(None);
        self.start(self.processes.len() - 1);
    }

    /// Backs the bucket up, or sets it back, while nobody is in the middle of something: see the
    /// limits in docs/store-protocol.md.
    fn set_back(&mut self) {
        let mut shared = lock_world(&self.world);
        let Some((objects, ghost)) = self.backup.take() else {
            self.backup = Some((shared.objects.clone(), shared.ghost.clone()));
            return;
        };
        let mut running = shared.machines.iter().zip(&self.processes);
        let rests = running.all(|(machine, process)| process.is_none() || machine.is_idle);
        if !rests || !shared.late.is_empty() {
            self.backup = Some((objects, ghost));
            return;
        }
        self.budget.set_backs -= 1;
        shared.objects = objects;
        shared.ghost.set_back(ghost);
    }

    /// Carries out one request that is on its way.
    fn complete_one_request(&mut self) {
        let mut shared = lock_world(&self.world);
        let shared = &mut *shared;
        if shared.pending.is_empty() {
            return;
        }
        let at = self.rng.usize(..shared.pending.len());
        let asked = shared.pending.swap_remove(at);
        if shared.machines[asked.machine].process != asked.process {
            return;
        }
        let answer = match asked.ask {
            PortRequest::Sleep => Ok(StoreReply::Deleted),
            PortRequest::Note => {
                shared.make_durable(asked.machine);
                Ok(StoreReply::Deleted)
            }
            PortRequest::Store(op) => self.budget.carry_out(shared, op, &mut self.rng),
        };
        *asked.cell.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    /// A new host that takes every volume and does no more.
    pub(super) fn add_opener(&mut self) -> usize {
        let mut shared = lock_world(&self.world);
        shared.machines.push(Machine {
            host: HostId([0xee; 16]),
            takes_all: true,
            ..Machine::default()
        });
        self.processes.push(None);
        self.processes.len() - 1
    }

    /// From now on nothing goes wrong, and what was on its way has landed or never will.
    pub(super) fn stop_faults(&mut self) {
        self.budget = Budget::default();
        let mut shared = lock_world(&self.world);
        shared.jobs = 0;
        for op in std::mem::take(&mut shared.late) {
            if self.rng.bool() {
                let _ = shared.carry_out(op);
            }
        }
    }
}

impl Budget {
    fn carry_out(&mut self, shared: &mut Shared, op: StoreOp, rng: &mut fastrand::Rng) -> Answer {
        let unknown = || Err(StoreError::Unknown("the answer was lost".into()));
        match rng.u32(..20) {
            0 if self.lost_answers > 0 && is_write(&op) => {
                self.lost_answers -= 1;
                let _ = shared.carry_out(op);
                unknown()
            }
            1 if self.late > 0 && is_write(&op) => {
                self.late -= 1;
                shared.late.push(op);
                unknown()
            }
            2 if self.refusals > 0 => {
                self.refusals -= 1;
                Err(StoreError::Unavailable("busy".into()))
            }
            _ => shared.carry_out(op),
        }
    }
}
