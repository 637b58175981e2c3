//! The fake driver as a world.

use std::collections::BTreeMap;

use ublk::sys::{ControlCommand, IoCommand, IoDescriptor};
use ublk_fake::{ClientId, ClientRequest, ControlId, Driver, Outcome, Profile, RingId, TaskId};
use zerocopy::FromBytes;

use super::{ControlReply, IO_BYTES, Kernel, Key, SLOTS, Wait, World};

/// Waits after which nothing more can happen: the fake does everything at once, or after a few
/// control commands.
const WAITS_MAX: u32 = 20;

enum Call {
    Done(ControlReply),
    Pending(ControlId, Vec<u8>),
}

pub struct FakeWorld {
    driver: Driver,
    kernel: Kernel,
    device: Option<(u32, std::os::fd::OwnedFd)>,
    queues: u16,
    disk: u32,
    rings: BTreeMap<usize, RingId>,
    tasks_next: u32,
    keys_next: u64,
    calls: Vec<Option<Call>>,
    answers: BTreeMap<ClientId, Result<Vec<u8>, i32>>,
    clients: Vec<ClientId>,
    memory: BTreeMap<(u16, u16), Vec<u8>>,
    opened: bool,
}

impl FakeWorld {
    pub fn new(kernel: Kernel) -> FakeWorld {
        let profile = match kernel {
            Kernel::V6_12 => Profile::V6_12,
            Kernel::V6_17 => Profile::V6_17,
            Kernel::V7_2 => Profile::V7_2,
            Kernel::V7_3 => Profile::V7_3,
        };
        let driver = Driver::new(profile);
        driver.set_release_delay(3);
        FakeWorld {
            driver,
            kernel,
            device: None,
            queues: 1,
            disk: 0,
            rings: BTreeMap::new(),
            tasks_next: 0,
            keys_next: 0,
            calls: Vec::new(),
            answers: BTreeMap::new(),
            clients: Vec::new(),
            memory: BTreeMap::new(),
            opened: false,
        }
    }

    fn ring(&mut self, task: usize) -> RingId {
        if let Some(&ring) = self.rings.get(&task) {
            return ring;
        }
        self.tasks_next += 1;
        let ring = self.driver.open_ring(TaskId(self.tasks_next), SLOTS);
        self.rings.insert(task, ring);
        ring
    }
}

impl World for FakeWorld {
    fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn pid(&self) -> i32 {
        77
    }

    fn control(&mut self, opcode: u32, command: ControlCommand, mut argument: Vec<u8>) -> usize {
        let call = match self.driver.control(opcode, command, &mut argument) {
            Outcome::Done(result) => Call::Done((result, argument)),
            Outcome::Pending(id) => Call::Pending(id, argument),
        };
        self.calls.push(Some(call));
        self.calls.len() - 1
    }

    fn control_result(&mut self, call: usize, _patience: Wait) -> Option<ControlReply> {
        match self.calls[call].take()? {
            Call::Done(done) => Some(done),
            Call::Pending(id, argument) => match self.driver.control_result(id) {
                Some(result) => Some((result, argument)),
                None => {
                    self.calls[call] = Some(Call::Pending(id, argument));
                    None
                }
            },
        }
    }

    fn open(&mut self, device: u32, queues: u16, _depth: u16) -> Result<(), i32> {
        let opened = self.driver.open(device, self.pid());
        let fd = opened.map_err(|error| -error.raw_os_error().unwrap_or(libc::EIO))?;
        self.device = Some((device, fd));
        self.disk = device;
        self.queues = queues;
        Ok(())
    }

    fn close(&mut self) {
        if let Some((device, _)) = self.device.take() {
            self.driver.on_char_close(device);
        }
    }

    fn io(&mut self, task: usize, opcode: u32, sqe_addr: u64, command: IoCommand) -> Key {
        let ring = self.ring(task);
        let key = self.keys_next;
        self.keys_next += 1;
        let device = self.device.as_ref().expect("the device is open").0;
        // SAFETY: addresses are those of `memory`, which lives and stays where it is as long as
        // this world, and which only the steps between two calls look at.
        unsafe {
            self.driver.io(ring, device, opcode, sqe_addr, command, key);
        }
        Key(key)
    }

    fn completions(&mut self) -> Vec<(Key, i32)> {
        let rings: Vec<RingId> = self.rings.values().copied().collect();
        rings
            .into_iter()
            .flat_map(|ring| self.driver.completions(ring))
            .map(|(key, result)| (Key(key), result))
            .collect()
    }

    fn end_task(&mut self, task: usize) {
        if let Some(ring) = self.rings.remove(&task) {
            self.driver.close_ring(ring);
        }
    }

    fn descriptor(&mut self, queue: u16, tag: u16) -> IoDescriptor {
        let (_, fd) = self.device.as_ref().expect("the device is open");
        let mut bytes = [0; size_of::<IoDescriptor>()];
        let at = u64::from(queue) * 98_304 + u64::from(tag) * bytes.len() as u64;
        rustix::io::pread(fd, &mut bytes[..], at).expect("descriptors can be read");
        IoDescriptor::read_from_bytes(&bytes).expect("as long as one")
    }

    fn memory(&mut self, queue: u16, tag: u16) -> &mut [u8] {
        self.memory
            .entry((queue, tag))
            .or_insert_with(|| vec![0; IO_BYTES as usize])
    }

    fn window(&mut self, offset: u64, into: bool, bytes: &mut [u8]) -> Result<usize, i32> {
        let device = self.device.as_ref().expect("the device is open").0;
        if into {
            self.driver.write_window(device, offset, bytes)
        } else {
            self.driver.read_window(device, offset, bytes)
        }
    }

    fn fixed(
        &mut self,
        task: usize,
        slot: u16,
        at: u32,
        into: bool,
        bytes: &mut [u8],
    ) -> Result<(), i32> {
        let ring = self.ring(task);
        self.driver.move_fixed(ring, slot, at, into, bytes)
    }

    fn submit(&mut self, request: ClientRequest) -> usize {
        self.clients.push(self.driver.submit(self.disk, 0, request));
        self.clients.len() - 1
    }

    fn client_result(&mut self, call: usize, _: Wait) -> Option<Result<Vec<u8>, i32>> {
        self.answers.extend(self.driver.answers());
        self.answers.remove(&self.clients[call])
    }

    fn set_disk_open(&mut self, open: bool) -> Result<(), i32> {
        if self.opened == open {
            return Ok(());
        }
        self.opened = open;
        self.driver.disk_open(self.disk, open)
    }

    fn pause(&mut self, waited: u32) -> Result<(), String> {
        if waited >= WAITS_MAX {
            return Err("it never came".into());
        }
        // Something else asks the driver something: late things get nearer.
        let command = ControlCommand {
            device: u32::MAX,
            ..ControlCommand::default()
        };
        self.driver
            .control(ublk::sys::GET_FEATURES, command, &mut [0; 8]);
        Ok(())
    }
}
