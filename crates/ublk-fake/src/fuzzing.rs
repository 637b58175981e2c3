//! The fuzz targets: the same as the tests by seed, with every choice made by the fuzzer. Each
//! function panics where something is wrong.

use std::collections::BTreeSet;

use zerocopy::{FromBytes, IntoBytes};

use crate::control::Outcome;
use crate::deliver::ClientRequest;
use crate::device::{ClientId, ClientOp};
use crate::device::{RingId, TaskId};
use crate::driver::Driver;
use crate::faulty_handler::HandlerFaults;
use crate::profile::Profile;
use crate::ring::RingFaults;
use crate::stress::{self, StressConfig};
use ublk::Features;
use ublk::negotiate::{self, Offer};
use ublk::spec::{Capability, DataMode, DeviceSpec, Disk, ModeChoice, Modes, Want};
use ublk::sys::{self, ControlCommand, DeviceInfo, IoCommand, Params};

/// Choices made by the input of a fuzzer. When the input is used up the choice is always the
/// last, the one that injects no fault.
#[derive(Debug)]
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let mut value = 0;
        let mut left = bound.saturating_sub(1);
        while left > 0 {
            let Some((&first, rest)) = self.0.split_first() else {
                return bound - 1;
            };
            self.0 = rest;
            value = value << 8 | u64::from(first);
            left >>= 8;
        }
        value % bound.max(1)
    }

    fn word(&mut self) -> u64 {
        self.below(u64::MAX)
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn profile(&mut self) -> Profile {
        Profile::ALL[self.below(3) as usize]
    }

    fn is_exhausted(&self) -> bool {
        self.0.is_empty()
    }
}

const MODES: [u64; 6] = [
    0,
    sys::F_NEED_GET_DATA,
    sys::F_USER_COPY,
    sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY,
    sys::F_ZERO_COPY | sys::F_AUTO_BUFFER,
    sys::F_ZERO_COPY,
];

/// The lifecycle of a device over the queue ([`stress::run`]).
pub fn device_lifecycle(input: &[u8]) {
    let mut choices = Choices(input);
    let profile = choices.profile();
    let reissue = [0, sys::F_RECOVERY_REISSUE][choices.below(2) as usize];
    let mut flags = MODES[choices.below(6) as usize] | sys::F_RECOVERY | reissue;
    flags |= sys::F_QUIESCE & profile.features;
    let shares = |byte: u64| (byte as u8) >> 2;
    let queues = 1 + choices.below(3) as u16;
    let config = StressConfig {
        shares: 1,
        profile,
        flags,
        queues,
        one_ring: choices.flag(),
        depth: 1 + choices.below(6) as u16,
        slots: 2 * queues + choices.below(6) as u16,
        own_pool: None,
        pool_bytes: [1, 256 << 10][choices.below(2) as usize],
        handler_faults: HandlerFaults {
            delayed: shares(choices.below(256)),
            errors: shares(choices.below(256)),
            short: shares(choices.below(256)),
            drops: shares(choices.below(256)),
            panics: 0,
            lost_writes: 0,
        },
        ring_faults: RingFaults {
            errors: shares(choices.below(256)),
            delayed: shares(choices.below(256)),
            pool_empty: shares(choices.below(256)),
        },
        kills: shares(choices.below(64)),
        handovers: if flags & sys::F_QUIESCE == 0 {
            0
        } else {
            shares(choices.below(64))
        },
        exits: shares(choices.below(64)),
        steps: 16 + input.len() as u32 / 2,
    };
    if let Err(error) = stress::run(config, &mut |bound| choices.below(bound)) {
        panic!("{error}\n{config:?}");
    }
}

/// Any device spec at any kernel: what is granted was wanted by the spec and given by the driver.
pub fn negotiate(input: &[u8]) {
    let mut choices = Choices(input);
    let mut profile = choices.profile();
    profile.features = choices.word();
    let offer = Offer::new(Features::from_bits(profile.features), choices.word());
    let mut spec = DeviceSpec::new(Disk::new(1 << 30));
    spec.flags = if choices.flag() { choices.word() } else { 0 };
    spec.mode = match choices.below(5) {
        0 => ModeChoice::Auto,
        mode => ModeChoice::Only(DataMode::LADDER[mode as usize - 1]),
    };
    for capability in Capability::ALL {
        let want = [Want::Require, Want::Prefer, Want::Avoid][choices.below(3) as usize];
        spec.wants = spec.wants.with(capability, want);
    }
    let mut serves = Modes::NONE;
    for mode in DataMode::LADDER {
        if choices.flag() {
            serves = serves.and(mode);
        }
    }
    let Ok(ask) = negotiate::choose_flags(&spec, &offer, serves) else {
        return;
    };
    assert!(
        serves.has(ask.mode),
        "a mode that the handler does not serve"
    );
    assert!(
        offer.features().has(ask.flags.bits()),
        "more than is offered"
    );
    let mut info = DeviceInfo {
        queues: 1,
        depth: 4,
        io_bytes_max: spec.io_bytes_max,
        flags: ask.flags.bits(),
        ..DeviceInfo::default()
    };
    let driver = Driver::new(profile);
    let command = ControlCommand {
        queue: sys::NO_QUEUE,
        ..ControlCommand::default()
    };
    let added = driver.control(sys::ADD_DEVICE, command, info.as_mut_bytes());
    if added != Outcome::Done(0) {
        return;
    }
    let Ok(granted) = negotiate::check_grant(&spec, ask, &offer, &info) else {
        return;
    };
    if let ModeChoice::Only(mode) = spec.mode {
        assert_eq!(granted.mode, mode, "a forced mode is that or an error");
    }
    for capability in Capability::ALL {
        let has = info.flags & capability.flag() == capability.flag();
        assert!(
            has || spec.wants.of(capability) != Want::Require,
            "{capability:?} is missing"
        );
    }
}

/// A server that submits any command at any time, beside clients. Whatever it did, once it has
/// exited and the device is stopped every client has one answer and the device can be deleted.
pub fn commands(input: &[u8]) {
    CommandFuzzer::new(input).run();
}

const DEPTH: u16 = 3;
const IO_BYTES: usize = 4096;

struct CommandFuzzer<'a> {
    choices: Choices<'a>,
    driver: Driver,
    rings: Vec<RingId>,
    tasks: u32,
    key: u64,
    memory: Vec<Vec<u8>>,
    open: bool,
    in_flight: BTreeSet<ClientId>,
}

impl CommandFuzzer<'_> {
    fn new(input: &[u8]) -> CommandFuzzer<'_> {
        let mut choices = Choices(input);
        let driver = Driver::new(choices.profile());
        driver.set_release_delay(choices.below(3) as u32);
        CommandFuzzer {
            choices,
            driver,
            rings: Vec::new(),
            tasks: 0,
            key: 0,
            memory: vec![vec![0; IO_BYTES]; usize::from(DEPTH) * 2],
            open: false,
            in_flight: BTreeSet::new(),
        }
    }

    fn control(&self, opcode: u32, data: u64, argument: &mut [u8]) -> Outcome {
        let command = ControlCommand {
            queue: sys::NO_QUEUE,
            data,
            ..ControlCommand::default()
        };
        self.driver.control(opcode, command, argument)
    }

    fn run(mut self) {
        let recovery = [
            0,
            sys::F_RECOVERY,
            sys::F_RECOVERY | sys::F_RECOVERY_REISSUE,
            sys::F_RECOVERY | sys::F_RECOVERY_FAIL_IO,
        ];
        let mut info = DeviceInfo {
            queues: 2,
            depth: DEPTH,
            io_bytes_max: IO_BYTES as u32,
            flags: MODES[self.choices.below(6) as usize] | recovery[self.choices.below(4) as usize],
            ..DeviceInfo::default()
        };
        if info.flags & sys::F_RECOVERY != 0 {
            info.flags |= sys::F_QUIESCE;
        }
        let added = self.control(sys::ADD_DEVICE, 0, info.as_mut_bytes());
        assert_eq!(added, Outcome::Done(0), "ADD_DEV");
        let mut params = Params::read_from_bytes(&[0; size_of::<Params>()]).expect("zeroes are");
        params.len = size_of::<Params>() as u32;
        params.types = sys::PARAM_BASIC;
        params.basic.attributes = sys::ATTR_VOLATILE_CACHE;
        (params.basic.logical_shift, params.basic.physical_shift) = (9, 9);
        params.basic.sectors = 64;
        params.basic.sectors_max = IO_BYTES as u32 >> 9;
        let set = self.control(sys::SET_PARAMS, 0, params.as_mut_bytes());
        assert_eq!(set, Outcome::Done(0), "SET_PARAMS");
        while !self.choices.is_exhausted() {
            self.step();
            self.collect();
            self.driver.check();
        }
        self.end();
    }

    fn step(&mut self) {
        match self.choices.below(16) {
            0 => self.start_server(),
            1..=4 => self.fetch_all(),
            5..=8 => self.random_command(),
            9..=11 => self.submit_request(),
            12 => {
                let opcodes = [
                    sys::START_DEVICE,
                    sys::STOP_DEVICE,
                    sys::START_RECOVERY,
                    sys::END_RECOVERY,
                    sys::QUIESCE_DEVICE,
                    sys::TRY_STOP_DEVICE,
                    sys::GET_FEATURES,
                ];
                let opcode = opcodes[self.choices.below(7) as usize];
                self.control(opcode, 1, &mut [0; 8]);
            }
            13 => {
                let offset = sys::data_offset(
                    self.choices.below(3) as u16,
                    self.choices.below(4) as u16,
                    self.choices.below(5000) as u32,
                );
                let _ = self.driver.read_window(0, offset, &mut [0; 512]);
                let _ = self.driver.write_window(0, offset, &[0; 512]);
            }
            14 => {
                if let Some(ring) = self.rings.pop() {
                    self.driver.close_ring(ring);
                }
            }
            _ => self.kill_server(),
        }
    }

    fn start_server(&mut self) {
        self.open |= self.driver.open(0, 1).is_ok();
        self.tasks += 1;
        self.rings
            .push(self.driver.open_ring(TaskId(self.tasks), 4));
        let _ = self.control(sys::START_DEVICE, 1, &mut []);
    }

    fn fetch_all(&mut self) {
        for queue in 0..2 {
            for tag in 0..DEPTH {
                self.submit_command(sys::IO_FETCH, queue, tag, 0);
            }
        }
    }

    fn random_command(&mut self) {
        let opcodes = [
            sys::IO_COMMIT_AND_FETCH,
            sys::IO_FETCH,
            sys::IO_NEED_GET_DATA,
            sys::IO_REGISTER_BUFFER,
            sys::IO_UNREGISTER_BUFFER,
            0x1234,
        ];
        let results = [IO_BYTES as i32, 512, 0, -libc::EIO, i32::MAX, i32::MIN];
        let opcode = opcodes[self.choices.below(6) as usize];
        let queue = self.choices.below(3) as u16;
        let tag = self.choices.below(u64::from(DEPTH) + 1) as u16;
        let result = results[self.choices.below(6) as usize];
        self.submit_command(opcode, queue, tag, result);
    }

    fn submit_command(&mut self, opcode: u32, queue: u16, tag: u16, result: i32) {
        if self.rings.is_empty() || !self.open {
            return;
        }
        let ring = self.rings[self.choices.below(self.rings.len() as u64) as usize];
        let at = usize::from(queue % 2 * DEPTH + tag % DEPTH);
        let slots = [
            opcode == sys::IO_REGISTER_BUFFER,
            opcode == sys::IO_UNREGISTER_BUFFER,
        ];
        let addr = match self.choices.below(3) {
            _ if slots.contains(&true) => self.choices.below(6),
            0 => self.memory[at].as_mut_ptr() as u64,
            _ => 0,
        };
        let sqe_addr = sys::auto_buffer(self.choices.below(5) as u16, self.choices.below(3) as u8);
        let command = IoCommand {
            queue,
            tag,
            result,
            addr,
        };
        self.key += 1;
        // SAFETY: the address is that of `memory`, which is as long as the largest request and
        // lives until all rings are closed; nothing refers to it meanwhile.
        unsafe {
            self.driver.io(ring, 0, opcode, sqe_addr, command, self.key);
        }
    }

    fn submit_request(&mut self) {
        let op = match self.choices.below(4) {
            0 => ClientOp::Read(4096),
            1 => ClientOp::Write(vec![1; 4096]),
            2 => ClientOp::Flush,
            _ => ClientOp::Write(vec![2; 512]),
        };
        let request = ClientRequest {
            op,
            sector: self.choices.below(70),
            fua: self.choices.flag(),
        };
        let queue = self.choices.below(2) as u16;
        self.in_flight.insert(self.driver.submit(0, queue, request));
    }

    fn collect(&mut self) {
        for &ring in &self.rings {
            self.driver.completions(ring);
        }
        for (id, _) in self.driver.answers() {
            assert!(self.in_flight.remove(&id), "{id:?} was answered twice");
        }
    }

    fn kill_server(&mut self) {
        for ring in std::mem::take(&mut self.rings) {
            self.driver.close_ring(ring);
        }
        if std::mem::take(&mut self.open) {
            self.driver.on_char_close(0);
        }
        self.driver.on_request_timeout(0);
    }

    fn end(&mut self) {
        self.kill_server();
        let stopping = self.control(sys::STOP_DEVICE, 0, &mut []);
        for _ in 0..20 {
            self.control(sys::GET_FEATURES, 0, &mut [0; 8]);
        }
        self.collect();
        if let Outcome::Pending(id) = stopping {
            let result = self.driver.control_result(id);
            assert_eq!(result, Some(0), "STOP_DEV hangs: {:?}", self.driver);
        }
        assert!(
            self.in_flight.is_empty(),
            "without an answer: {:?}",
            self.in_flight
        );
        let deleted = self.control(sys::DELETE_DEVICE, 0, &mut []);
        assert_eq!(deleted, Outcome::Done(0), "DEL_DEV hangs");
    }
}
