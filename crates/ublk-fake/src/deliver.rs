//! Requests between the block layer and the server: which tag carries one, what its descriptor
//! says, and what the server's result means to the client.

use zerocopy::IntoBytes;

use crate::data::{copy_from_server, copy_to_server};
use crate::device::{ArmedCommand, ClientId, ClientOp, Request};
use crate::device::{descriptor_stride, queue_descriptors_bytes};
use crate::kernel::{Kernel, SlotUse};
use ublk::sys::{self, IoDescriptor};

/// Zero-byte results of one write after which the fake ends what the kernel would repeat for ever.
const ZERO_RESULTS_MAX: u32 = 8;

impl Kernel {
    /// Submits a request of a client; its completion is an entry in `answers`.
    pub(super) fn submit(&mut self, id: u32, queue: u16, request: ClientRequest) -> ClientId {
        let client = ClientId(self.client_next);
        self.client_next += 1;
        match self.admit(id, client, request) {
            Ok(request) => {
                let device = self.devices.get_mut(&id).expect("admitted to a device");
                let queue = usize::from(queue % device.info.queues);
                device.queues[queue].waiting.push_back(request);
            }
            Err(answer) => self.answers.push((client, answer)),
        }
        self.run_until_idle();
        client
    }

    /// What the block layer makes of a client's request, or its answer.
    fn admit(
        &self,
        id: u32,
        client: ClientId,
        request: ClientRequest,
    ) -> Result<Request, Result<Vec<u8>, i32>> {
        let device = self.devices.get(&id).filter(|device| device.disk);
        let Some(device) = device else {
            return Err(Err(-libc::ENXIO));
        };
        if device.stopping {
            return Err(Err(-libc::EIO));
        }
        let params = &device.params;
        let attributes = params.basic.attributes;
        let cached = attributes & sys::ATTR_VOLATILE_CACHE != 0;
        let discards = params.types & sys::PARAM_DISCARD != 0;
        let (op, pages, len) = match request.op {
            ClientOp::Read(len) => (sys::OP_READ, vec![0; len as usize], len as usize),
            ClientOp::Write(bytes) => {
                let len = bytes.len();
                (sys::OP_WRITE, bytes, len)
            }
            ClientOp::Flush if !cached => return Err(Ok(Vec::new())),
            ClientOp::Flush => (sys::OP_FLUSH, Vec::new(), 0),
            ClientOp::Discard(_) | ClientOp::WriteZeroes(_) if !discards => {
                return Err(Err(-libc::EOPNOTSUPP));
            }
            ClientOp::Discard(len) => (sys::OP_DISCARD, Vec::new(), len as usize),
            ClientOp::WriteZeroes(len) => (sys::OP_WRITE_ZEROES, Vec::new(), len as usize),
        };
        if op != sys::OP_READ && op != sys::OP_FLUSH && attributes & sys::ATTR_READ_ONLY != 0 {
            return Err(Err(-libc::EPERM));
        }
        if request.sector + (len as u64).div_ceil(512) > params.basic.sectors {
            return Err(Err(-libc::EIO));
        }
        let takes_fua = attributes & sys::ATTR_FUA != 0;
        let durable = request.fua && cached && op == sys::OP_WRITE;
        Ok(Request {
            client,
            op,
            sector: request.sector,
            pages,
            len,
            done: 0,
            fua: durable && takes_fua,
            then_flush: durable && !takes_fua,
            zero_results: 0,
        })
    }

    /// Dispatches waiting requests to free tags; whether it dispatched any.
    pub(super) fn dispatch(&mut self, id: u32) -> bool {
        let mut moved = false;
        for queue in 0..self.devices[&id].queues.len() {
            if let Some(errno) = self.find_refusal(id, queue) {
                moved |= self.fail_waiting(id, queue, errno);
                continue;
            }
            while let Some((tag, request)) = self.next_dispatch(id, queue) {
                self.deliver(id, queue as u16, tag as u16, request);
                moved = true;
            }
        }
        moved
    }

    /// The errno with which new requests of a queue fail, if they do.
    fn find_refusal(&self, id: u32, queue: usize) -> Option<i32> {
        let device = &self.devices[&id];
        if !device.disk {
            return Some(-libc::EIO);
        }
        if device.info.state == sys::STATE_FAIL_IO {
            return Some(-libc::EREMOTEIO);
        }
        // No server will fetch again.
        let canceling = device.queues[queue].canceling;
        let aborted = device.stopping && (device.is_recoverable() || canceling);
        let unserved = canceling && !device.queues_io();
        (aborted || unserved).then_some(-libc::EIO)
    }

    pub(super) fn fail_waiting(&mut self, id: u32, queue: usize, errno: i32) -> bool {
        let device = self.devices.get_mut(&id).expect("the device is there");
        let failed = std::mem::take(&mut device.queues[queue].waiting);
        let some = !failed.is_empty();
        self.answers.extend(
            failed
                .into_iter()
                .map(|request| (request.client, Err(errno))),
        );
        some
    }

    /// The next waiting request and a free tag for it.
    fn next_dispatch(&mut self, id: u32, queue: usize) -> Option<(usize, Request)> {
        let held_by_state = self.profile.task_per_queue && self.devices[&id].is_recoverable();
        let device = self.devices.get_mut(&id)?;
        let queue = &mut device.queues[queue];
        // While a new server fetches, a queue serves once all of it is fetched.
        if held_by_state || queue.canceling || !queue.is_ready() || queue.waiting.is_empty() {
            return None;
        }
        let tag = queue.tags.iter().position(crate::device::Tag::is_free)?;
        Some((tag, queue.waiting.pop_front()?))
    }

    /// Gives a request to the server through a free tag.
    fn deliver(&mut self, id: u32, queue: u16, tag: u16, request: Request) {
        let device = self.devices.get_mut(&id).expect("the device is there");
        let (copies, get_data) = (!device.server_copies(), device.needs_get_data());
        let state = &mut device.queues[usize::from(queue)].tags[usize::from(tag)];
        let ArmedCommand { ring, key } = state.armed.expect("a free tag is armed");
        let has_data = request.has_data();
        let write = request.op == sys::OP_WRITE;
        let mut moved = request.bytes_left();
        state.needs_register = false;
        state.fetched = false;
        if let Some(auto) = state.auto.filter(|_| has_data) {
            let client = request.client;
            state.request = Some(request);
            let at = SlotUse {
                device: id,
                queue,
                tag,
            };
            if !self.auto_register_slot(ring, auto.slot, at) {
                let state = self.state(id, queue, tag);
                if !auto.fallback {
                    state.request = None;
                    self.stats.slot_failures += 1;
                    self.answers.push((client, Err(-libc::EIO)));
                    return;
                }
                state.needs_register = true;
            }
        } else if write && copies && get_data {
            state.request = Some(request);
            state.awaits_get_data = true;
        } else if write && copies {
            match copy_to_server(&request, state.addr) {
                Ok(bytes) => moved = bytes,
                Err(crate::device::Fault) => {
                    self.answers.push((request.client, Err(-libc::EIO)));
                    return;
                }
            }
            state.request = Some(request);
        } else {
            state.request = Some(request);
        }
        let state = self.state(id, queue, tag);
        state.armed = None;
        state.owned = true;
        let result = if state.awaits_get_data {
            sys::RESULT_NEED_GET_DATA
        } else {
            sys::RESULT_OK
        };
        self.write_descriptor(id, queue, tag, moved);
        self.post(ring, key, result);
    }

    fn state(&mut self, id: u32, queue: u16, tag: u16) -> &mut crate::device::Tag {
        let device = self.devices.get_mut(&id).expect("the device is there");
        &mut device.queues[usize::from(queue)].tags[usize::from(tag)]
    }

    /// Writes a tag's descriptor; `bytes` of the request are there to be served.
    pub(super) fn write_descriptor(&mut self, id: u32, queue: u16, tag: u16, bytes: usize) {
        let copies = !self.devices[&id].server_copies();
        let state = self.state(id, queue, tag);
        let request = state.request.as_ref().expect("only requests are described");
        let mut op_flags = u32::from(request.op);
        if request.fua {
            op_flags |= sys::IO_FUA;
        }
        if state.needs_register {
            op_flags |= sys::IO_NEED_REGISTER_BUFFER;
        }
        let descriptor = IoDescriptor {
            op_flags,
            sectors: (bytes / 512) as u32,
            sector: request.sector + (request.done / 512) as u64,
            addr: if copies { state.addr } else { 0 },
        };
        let device = &self.devices[&id];
        let of_queue = u64::from(queue) * queue_descriptors_bytes(&device.info);
        let at = of_queue + u64::from(tag) * descriptor_stride(&device.info);
        rustix::io::pwrite(&device.memory, descriptor.as_bytes(), at)
            .expect("the descriptors' memory is as long as all of them");
    }

    /// Applies the result of the server to the request of a tag.
    pub(super) fn apply_result(&mut self, id: u32, queue: u16, tag: u16, result: i32) {
        let copies = !self.devices[&id].server_copies();
        let state = self.state(id, queue, tag);
        let addr = state.addr;
        let mut request = state.request.take().expect("a result is for a request");
        if result < 0 {
            let answer = Err(-client_errno(result.saturating_neg()));
            self.answers.push((request.client, answer));
            return;
        }
        if !request.has_data() {
            self.complete_request(id, queue, request);
            return;
        }
        let mut bytes = result as usize;
        if bytes > request.bytes_left() {
            self.stats.oversized_results += 1;
            bytes = request.bytes_left();
        }
        let read = request.op == sys::OP_READ;
        if read && bytes == 0 {
            self.answers.push((request.client, Err(-libc::EIO)));
            return;
        }
        if read && copies {
            bytes = copy_from_server(&mut request, addr, bytes);
        }
        request.done += bytes;
        if request.bytes_left() == 0 {
            self.complete_request(id, queue, request);
            return;
        }
        if bytes == 0 {
            request.zero_results += 1;
            self.stats.zero_results += 1;
        }
        if request.zero_results >= ZERO_RESULTS_MAX {
            self.answers.push((request.client, Err(-libc::EIO)));
            return;
        }
        self.stats.requeued += 1;
        let device = self.devices.get_mut(&id).expect("the device is there");
        device.queues[usize::from(queue)]
            .waiting
            .push_front(request);
    }

    /// Completes a request: to the client, or by queueing the flush that emulates its FUA.
    fn complete_request(&mut self, id: u32, queue: u16, mut request: Request) {
        if request.then_flush {
            request.op = sys::OP_FLUSH;
            request.then_flush = false;
            (request.sector, request.len, request.done) = (0, 0, 0);
            request.pages.clear();
            let device = self.devices.get_mut(&id).expect("the device is there");
            device.queues[usize::from(queue)]
                .waiting
                .push_front(request);
            return;
        }
        let pages = if request.op == sys::OP_READ {
            request.pages
        } else {
            Vec::new()
        };
        self.answers.push((request.client, Ok(pages)));
    }
}

/// A request of a client to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// The operation.
    pub op: ClientOp,
    /// First sector.
    pub sector: u64,
    /// Durable when it ends.
    pub fua: bool,
}

/// The errno that a client sees for the server's.
fn client_errno(errno: i32) -> i32 {
    const KNOWN: [i32; 11] = [
        libc::EOPNOTSUPP,
        libc::ETIMEDOUT,
        libc::ENOSPC,
        libc::ENOLINK,
        libc::EREMOTEIO,
        libc::EBADE,
        libc::ENODATA,
        libc::EILSEQ,
        libc::ENOMEM,
        libc::EAGAIN,
        libc::EINVAL,
    ];
    if KNOWN.contains(&errno) {
        errno
    } else {
        libc::EIO
    }
}
