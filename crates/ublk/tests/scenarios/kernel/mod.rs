//! The running kernel as a world: real devices, real rings, real clients.
//!
//! Needs root and the driver. Each task is a thread with its ring, as the driver's rules about
//! tasks want it; a server's death is the end of all of them and of the character device.

mod client;
mod control;
mod server;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ublk::sys::{ControlCommand, IoCommand, IoDescriptor};
use ublk_fake::ClientRequest;

use super::{ControlReply, IO_BYTES, Kernel, Key, Wait, World};
use server::{CharDevice, Task};

/// How long one thing may take on an emulated machine.
const DEADLINE: Duration = Duration::from_secs(60);

type Answer = Result<Vec<u8>, i32>;

struct Call<T> {
    result: Receiver<T>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Call<T> {
    fn begin(work: impl FnOnce() -> T + Send + 'static) -> Call<T> {
        let (sender, result) = channel();
        let thread = std::thread::spawn(move || {
            let _ = sender.send(work());
        });
        Call {
            result,
            thread: Some(thread),
        }
    }

    fn poll(&mut self, patience: Wait) -> Option<T> {
        let result = match patience {
            Wait::No => self.result.try_recv().ok(),
            Wait::Yes => self.result.recv_timeout(DEADLINE).ok(),
        }?;
        let _ = self.thread.take().map(JoinHandle::join);
        Some(result)
    }
}

pub struct RealWorld {
    kernel: Kernel,
    device: Option<Arc<CharDevice>>,
    id: u32,
    tasks: BTreeMap<usize, Task>,
    calls: Vec<Call<ControlReply>>,
    clients: Vec<Call<Answer>>,
    disk: Option<std::fs::File>,
    memory: BTreeMap<(u16, u16), Vec<u8>>,
    keys_next: u64,
    waiting_since: Instant,
    early: Vec<(Key, i32)>,
}

impl RealWorld {
    /// The running kernel, or why it cannot be used.
    pub fn new() -> Result<RealWorld, String> {
        let control = ublk::sys::CONTROL_PATH;
        if !std::path::Path::new(control).exists() {
            return Err(format!("no {control}"));
        }
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy().into_owned();
        let mut parts = release
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        let kernel = match version {
            version if version < (6, 16) => Kernel::V6_12,
            (6, _) => Kernel::V6_17,
            version if version < (7, 3) => Kernel::V7_2,
            _ => Kernel::V7_3,
        };
        Ok(RealWorld {
            kernel,
            device: None,
            id: 0,
            tasks: BTreeMap::new(),
            calls: Vec::new(),
            clients: Vec::new(),
            disk: None,
            memory: BTreeMap::new(),
            keys_next: 0,
            waiting_since: Instant::now(),
            early: Vec::new(),
        })
    }

    fn task(&mut self, task: usize) -> &mut Task {
        self.tasks.entry(task).or_insert_with(Task::begin)
    }
}

impl World for RealWorld {
    fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn pid(&self) -> i32 {
        std::process::id() as i32
    }

    fn control(&mut self, opcode: u32, command: ControlCommand, argument: Vec<u8>) -> usize {
        self.calls
            .push(Call::begin(move || control::run(opcode, command, argument)));
        self.calls.len() - 1
    }

    fn control_result(&mut self, call: usize, patience: Wait) -> Option<ControlReply> {
        self.calls[call].poll(patience)
    }

    fn open(&mut self, device: u32, queues: u16, depth: u16) -> Result<(), i32> {
        self.id = device;
        let opened = CharDevice::open(device, queues, depth)?;
        self.device = Some(Arc::new(opened));
        Ok(())
    }

    fn close(&mut self) {
        self.device = None;
    }

    fn io(&mut self, task: usize, opcode: u32, sqe_addr: u64, command: IoCommand) -> Key {
        let key = self.keys_next;
        self.keys_next += 1;
        let device = self.device.as_ref().expect("the device is open");
        let fd = device.fd.as_raw_fd();
        let early = self.task(task).command(fd, opcode, sqe_addr, command, key);
        self.early
            .extend(early.into_iter().map(|(key, result)| (Key(key), result)));
        Key(key)
    }

    fn completions(&mut self) -> Vec<(Key, i32)> {
        let mut completions = std::mem::take(&mut self.early);
        for task in self.tasks.values_mut() {
            let more = task.collect();
            completions.extend(more.into_iter().map(|(key, result)| (Key(key), result)));
        }
        if !completions.is_empty() {
            self.waiting_since = Instant::now();
        }
        completions
    }

    fn end_task(&mut self, task: usize) {
        self.tasks.remove(&task);
    }

    fn descriptor(&mut self, queue: u16, tag: u16) -> IoDescriptor {
        let device = self.device.as_ref().expect("the device is open");
        device.descriptor(queue, tag)
    }

    fn memory(&mut self, queue: u16, tag: u16) -> &mut [u8] {
        self.memory
            .entry((queue, tag))
            .or_insert_with(|| vec![0; IO_BYTES as usize])
    }

    fn window(&mut self, offset: u64, into: bool, bytes: &mut [u8]) -> Result<usize, i32> {
        let device = self.device.as_ref().expect("the device is open");
        let moved = if into {
            rustix::io::pwrite(&device.fd, bytes, offset)
        } else {
            rustix::io::pread(&device.fd, &mut *bytes, offset)
        };
        moved.map_err(|errno| -errno.raw_os_error())
    }

    fn fixed(
        &mut self,
        task: usize,
        slot: u16,
        at: u32,
        into: bool,
        bytes: &mut [u8],
    ) -> Result<(), i32> {
        let file = tempfile::tempfile().map_err(|_| -libc::EIO)?;
        if into {
            rustix::io::pwrite(&file, bytes, 0).map_err(|errno| -errno.raw_os_error())?;
        }
        let len = bytes.len() as u32;
        let (key, fd) = (self.keys_next, file.as_raw_fd());
        self.keys_next += 1;
        let (result, early) = self.task(task).fixed(fd, slot, at, len, into, key);
        self.early
            .extend(early.into_iter().map(|(key, result)| (Key(key), result)));
        if result < 0 {
            return Err(result);
        }
        if !into {
            rustix::io::pread(&file, bytes, 0).map_err(|errno| -errno.raw_os_error())?;
        }
        Ok(())
    }

    fn submit(&mut self, request: ClientRequest) -> usize {
        let id = self.id;
        let opened = self.disk.as_ref().and_then(|disk| disk.try_clone().ok());
        let call = Call::begin(move || client::run(id, opened, request));
        self.clients.push(call);
        self.clients.len() - 1
    }

    fn client_result(&mut self, call: usize, patience: Wait) -> Option<Answer> {
        self.clients[call].poll(patience)
    }

    fn set_disk_open(&mut self, open: bool) -> Result<(), i32> {
        self.disk = if open {
            Some(client::open(self.id)?)
        } else {
            None
        };
        Ok(())
    }

    fn pause(&mut self, waited: u32) -> Result<(), String> {
        if waited == 0 {
            self.waiting_since = Instant::now();
        }
        if self.waiting_since.elapsed() > DEADLINE {
            return Err("it did not come in time".into());
        }
        // The condition is looked at again after this; nothing relies on its length.
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}
