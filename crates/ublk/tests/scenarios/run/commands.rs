//! Submits commands to the world, waits for their completions, and sorts these by what they mean.

use ublk::sys::{self, ControlCommand, DeviceInfo, IoCommand};
use zerocopy::{FromBytes, IntoBytes};

use super::super::{
    Addr, Expected, IO_BYTES, Kernel, Key, Mode, OWN_PID, Pid, QUEUED, RequestKind, SECTOR,
    WRONG_PID, Wait,
};
use super::{FetchedRequest, Run, StepResult, SubmittedCommand, describe, expect};

impl Run<'_> {
    /// Waits until `what` is there; requests of others than the clients are served meanwhile.
    pub(super) fn wait_until<T>(
        &mut self,
        mut what: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, String> {
        for waited in 0.. {
            self.pump()?;
            if let Some(found) = what(self) {
                return Ok(found);
            }
            if let Some(errno) = self.stray_error {
                return Err(format!(
                    "a stray request was not taken back: {}",
                    describe(errno)
                ));
            }
            self.world.pause(waited)?;
        }
        unreachable!("the deadline comes first")
    }

    pub(super) fn add(
        &mut self,
        command_device: u32,
        device: u32,
        flags: u64,
        queues: u16,
        depth: u16,
    ) -> i32 {
        let info = DeviceInfo {
            device,
            flags,
            queues,
            depth,
            io_bytes_max: IO_BYTES,
            ..DeviceInfo::default()
        };
        let command = ControlCommand {
            device: command_device,
            queue: sys::NO_QUEUE,
            ..ControlCommand::default()
        };
        let bytes = info.as_bytes().to_vec();
        let call = self.world.control(sys::ADD_DEVICE, command, bytes);
        let (result, bytes) = self
            .world
            .control_result(call, Wait::Yes)
            .expect("ADD_DEV waits for nobody");
        if result == 0 {
            let (info, _) = DeviceInfo::read_from_prefix(&bytes).expect("as long as it was");
            self.info = info;
            self.added = true;
            self.tasks = self.tasks.max(usize::from(info.queues)).max(2);
        }
        result
    }

    pub(super) fn info_now(&mut self) -> Result<DeviceInfo, String> {
        let (result, bytes) = self.call(sys::GET_DEVICE_INFO, 0, vec![0; 64])?;
        expect("GET_DEV_INFO", result, 0)?;
        let (info, _) = DeviceInfo::read_from_prefix(&bytes).expect("as long as it was");
        Ok(info)
    }

    pub(super) fn begin(&mut self, opcode: u32, data: u64) -> usize {
        self.begin_with(opcode, data, Vec::new())
    }

    pub(super) fn begin_with(&mut self, opcode: u32, data: u64, argument: Vec<u8>) -> usize {
        let data = match data {
            OWN_PID => self.pid_of(Pid::Own),
            WRONG_PID => self.pid_of(Pid::Wrong),
            data => data,
        };
        let command = ControlCommand {
            device: self.info.device,
            queue: sys::NO_QUEUE,
            data,
            ..ControlCommand::default()
        };
        self.world.control(opcode, command, argument)
    }

    pub(super) fn call(
        &mut self,
        opcode: u32,
        data: u64,
        argument: Vec<u8>,
    ) -> Result<(i32, Vec<u8>), String> {
        let call = self.begin_with(opcode, data, argument);
        for waited in 0.. {
            if let Some(done) = self.world.control_result(call, Wait::No) {
                return Ok(done);
            }
            self.pump()?;
            self.world.pause(waited)?;
        }
        unreachable!("the deadline comes first")
    }

    pub(super) fn expect_control_result(&mut self, call: usize, expected: Expected) -> StepResult {
        let kernel = self.world.kernel();
        let done = self.wait_until(|run| run.world.control_result(call, Wait::No))?;
        expect("the control command", done.0, expected.for_kernel(kernel))
    }

    pub(super) fn expect_control_pending(&mut self, call: Option<usize>) -> StepResult {
        let call = call.ok_or("no command was begun")?;
        self.pump()?;
        match self.world.control_result(call, Wait::No) {
            None => Ok(()),
            Some((result, _)) => Err(format!("it ended with {}", describe(result))),
        }
    }

    /// What the mode puts where a fetch or commit names its buffer.
    pub(super) fn addresses(&mut self, queue: u16, tag: u16, addr: Addr) -> (u64, u64) {
        let buffer = self.world.memory(queue, tag).as_mut_ptr() as u64;
        let slot = sys::auto_buffer(tag, sys::AUTO_BUFFER_FALLBACK);
        let sqe = if self.mode == Mode::Auto { slot } else { 0 };
        let own = matches!(self.mode, Mode::Copy | Mode::GetData);
        match addr {
            Addr::Proper if own => (sqe, buffer),
            Addr::Proper | Addr::None => (sqe, 0),
            Addr::Buffer => (sqe, buffer),
            Addr::Sqe(raw) if own => (raw, buffer),
            Addr::Sqe(raw) => (raw, 0),
        }
    }

    /// Submits a command; its result if it completed at once, [`QUEUED`] otherwise.
    pub(super) fn submit_command(
        &mut self,
        task: usize,
        opcode: u32,
        queue: u16,
        tag: u16,
        result: i32,
        addr: Addr,
    ) -> i32 {
        let tag_bounded = tag.min(self.info.depth.max(1) - 1);
        let queue_bounded = queue.min(self.info.queues.max(1) - 1);
        let (sqe_addr, addr) = self.addresses(queue_bounded, tag_bounded, addr);
        let command = IoCommand {
            queue,
            tag,
            result,
            addr,
        };
        let key = self.world.io(task, opcode, sqe_addr, command);
        let submitted = SubmittedCommand { task, queue, tag };
        let result = self.immediate_result(key, submitted);
        let taken = result >= 0 || result == sys::RESULT_ABORT;
        if opcode == sys::IO_NEED_GET_DATA || result == QUEUED.new || !taken {
            return result;
        }
        // The driver accepted it, and a request for the tag was there already.
        self.submitted.insert(key, submitted);
        self.events.push_front((key, result));
        QUEUED.new
    }

    pub(super) fn raw(&mut self, task: usize, opcode: u32, queue: u16, tag: u16, addr: u64) -> i32 {
        let command = IoCommand {
            queue,
            tag,
            result: 0,
            addr,
        };
        let key = self.world.io(task, opcode, 0, command);
        self.immediate_result(key, SubmittedCommand { task, queue, tag })
    }

    pub(super) fn immediate_result(&mut self, key: Key, submitted: SubmittedCommand) -> i32 {
        self.events.extend(self.world.completions());
        let own = self.events.iter().position(|&(other, _)| other == key);
        match own.and_then(|at| self.events.remove(at)) {
            Some((_, result)) => result,
            None => {
                self.submitted.insert(key, submitted);
                QUEUED.new
            }
        }
    }

    /// Handles all completions that are there.
    pub(super) fn pump(&mut self) -> StepResult {
        loop {
            self.events.extend(self.world.completions());
            let Some((key, result)) = self.events.pop_front() else {
                return Ok(());
            };
            self.on_completed(key, result);
        }
    }

    pub(super) fn on_completed(&mut self, key: Key, result: i32) {
        let Some(SubmittedCommand { task, queue, tag }) = self.submitted.remove(&key) else {
            return;
        };
        if result < 0 {
            self.aborted.push(result);
            return;
        }
        let descriptor = self.world.descriptor(queue, tag);
        let fetched = FetchedRequest {
            task,
            queue,
            tag,
            result,
            descriptor,
        };
        let near = descriptor.sector.abs_diff(SECTOR) < 64;
        if std::env::var_os("UBLK_TRACE").is_some() {
            println!("  fetched {queue}/{tag}: {result}, {descriptor:?}");
        }
        let flushes = self
            .clients
            .values()
            .any(|&(_, kind)| kind == RequestKind::Flush);
        let is_ours = if descriptor.op() == sys::OP_FLUSH {
            // A write that must be durable can bring a flush with it.
            flushes
        } else {
            near
        };
        if is_ours {
            self.fetched.push_back(fetched);
            return;
        }
        // Another reader of the disk, such as a scan for partitions: it is empty.
        let bytes = descriptor.sectors * 512;
        if result == sys::RESULT_NEED_GET_DATA {
            self.submit_command(task, sys::IO_NEED_GET_DATA, queue, tag, 0, Addr::Buffer);
        }
        self.world.memory(queue, tag).fill(0);
        let result = self.commit(fetched, bytes as i32, Addr::Proper);
        if result != QUEUED.new {
            self.stray_error.get_or_insert(result);
        }
    }

    pub(super) fn commit(&mut self, current: FetchedRequest, result: i32, addr: Addr) -> i32 {
        let opcode = sys::IO_COMMIT_AND_FETCH;
        self.submit_command(
            current.task,
            opcode,
            current.queue,
            current.tag,
            result,
            addr,
        )
    }

    /// Ends everything, however the steps ended, and deletes the device.
    pub(super) fn clean_up(&mut self) -> StepResult {
        let _ = self.world.set_disk_open(false);
        let all = usize::from(self.info.queues) * usize::from(self.info.depth);
        if self.added && self.world.kernel() == Kernel::V6_12 && self.submitted.len() < all {
            // That kernel does not cancel commands of a queue that never became ready. Where
            // requests are with the server, their end comes with that of the tasks.
            let call = self.begin(sys::STOP_DEVICE, 0);
            for waited in 0..2000 {
                self.pump()?;
                let result = self.world.control_result(call, Wait::No);
                if result.is_some() || self.world.pause(waited).is_err() {
                    break;
                }
            }
        }
        for task in 0..self.tasks {
            self.world.end_task(task);
        }
        self.world.close();
        self.submitted.clear();
        if !self.added {
            return Ok(());
        }
        let result = self.call(sys::DELETE_DEVICE, 0, Vec::new())?.0;
        if result == -libc::ENODEV {
            return Ok(());
        }
        expect("DEL_DEV at the end", result, 0)
    }
}
