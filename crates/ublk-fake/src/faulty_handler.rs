//! A handler that serves a disk from a file, in every data mode, and injects the faults that the
//! library must tolerate: late and short answers, errors, panics, dropped requests.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use blkmq::io::Op as RequestOp;
use reactor::{Buf, Completion, FileIndex, Op, Port, Token};

use ublk::queue::{Handler, QueueCx};
use ublk::{Answer, Data, Request};

/// Faults that a handler injects, each into so many of 256 requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandlerFaults {
    /// Requests that are held back and served later.
    pub delayed: u8,
    /// Requests that fail.
    pub errors: u8,
    /// Reads and writes that are answered in part.
    pub short: u8,
    /// Requests that are dropped.
    pub drops: u8,
    /// Requests over which it panics.
    pub panics: u8,
    /// Writes that it acknowledges and drops: what the oracle must catch.
    pub lost_writes: u8,
}

/// Where the bytes of a request go next.
#[derive(Debug)]
enum Step {
    /// The last step: its end is the request's.
    Last,
    /// A write's bytes were fetched from the window, and go to the file then.
    ToFile,
    /// A read's bytes were fetched from the file, and go to the window then.
    ToWindow,
}

#[derive(Debug)]
struct Job {
    request: Request,
    step: Step,
}

/// Serves one queue of a disk that is a file.
#[derive(Debug)]
pub struct FileHandler {
    disk: Arc<OwnedFd>,
    file: Option<FileIndex>,
    faults: HandlerFaults,
    random: fastrand::Rng,
    delayed: Vec<Request>,
    jobs: BTreeMap<u64, Job>,
    next: u64,
}

impl FileHandler {
    /// Serves from `disk`.
    pub fn new(disk: Arc<OwnedFd>, faults: HandlerFaults, seed: u64) -> FileHandler {
        FileHandler {
            disk,
            file: None,
            faults,
            random: fastrand::Rng::with_seed(seed),
            delayed: Vec::new(),
            jobs: BTreeMap::new(),
            next: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    fn chance(&mut self, share: u8) -> bool {
        share > 0 && self.below(256) < u64::from(share)
    }

    fn serve<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        if self.chance(self.faults.errors) {
            return queue.fail(request, libc::EIO);
        }
        let (read, sector) = match *request.op() {
            RequestOp::Read { sector, .. } => (true, sector),
            RequestOp::Write { sector, .. } => (false, sector),
            RequestOp::Discard {
                sector, sectors, ..
            }
            | RequestOp::WriteZeroes {
                sector, sectors, ..
            } => {
                self.write_zeroes(sector, sectors);
                return queue.complete(request);
            }
            _ => return queue.complete(request),
        };
        if !read && self.chance(self.faults.lost_writes) {
            return queue.complete(request);
        }
        let len = request.bytes();
        let file = self.file.expect("registered when the queue was attached");
        let (offset, key) = (sector * 512, self.next);
        self.next += 1;
        let mut step = Step::Last;
        let op = if let Data::Fixed { slot } = *request.data() {
            let at = 0;
            if read {
                Op::ReadFixed {
                    file,
                    offset,
                    slot,
                    at,
                    len,
                }
            } else {
                Op::WriteFixed {
                    file,
                    offset,
                    slot,
                    at,
                    len,
                }
            }
        } else {
            let window = matches!(request.data(), Data::Window);
            let own = request.take_buffer();
            let fresh = || Buf::allocate(len as usize);
            let Some(buf) = own.or_else(fresh) else {
                return queue.fail(request, libc::ENOMEM);
            };
            match (read, window) {
                (true, true) => step = Step::ToWindow,
                (false, true) => step = Step::ToFile,
                _ => {}
            }
            if read {
                Op::Read { file, offset, buf }
            } else if let Some(offset) = request.window().filter(|_| window) {
                let file = queue.char_device();
                Op::Read { file, offset, buf }
            } else {
                Op::Write { file, offset, buf }
            }
        };
        self.jobs.insert(key, Job { request, step });
        queue.submit(Token(key), op);
    }

    fn write_zeroes(&self, sector: u64, sectors: u64) {
        let zeroes = vec![0; sectors as usize * 512];
        let written = rustix::io::pwrite(&self.disk, &zeroes, sector * 512);
        assert_eq!(written, Ok(zeroes.len()), "a memory file takes all");
    }

    fn complete<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        let sectors = u64::from(request.bytes() / 512);
        // Of the others a part is a failure.
        let is_continued = matches!(request.op(), RequestOp::Read { .. })
            && !matches!(request.data(), Data::Fixed { .. } | Data::Window);
        if is_continued && sectors > 1 && self.chance(self.faults.short) {
            let part = 1 + self.below(sectors - 1);
            return queue.answer(request, Answer::Part(part as u32 * 512));
        }
        queue.complete(request);
    }

    fn on_moved<P: Port>(
        &mut self,
        queue: &mut QueueCx<'_, P>,
        key: u64,
        job: Job,
        buf: Option<Buf>,
    ) {
        let Job { mut request, step } = job;
        let next = |file, offset, buf| Op::Write { file, offset, buf };
        let op = match (step, buf) {
            (Step::ToFile, Some(buf)) => {
                let RequestOp::Write { sector, .. } = *request.op() else {
                    return queue.fail(request, libc::EIO);
                };
                let file = self.file.expect("registered when the queue was attached");
                next(file, sector * 512, buf)
            }
            (Step::ToWindow, Some(buf)) => {
                let window = request
                    .window()
                    .expect("a request with a window has its offset");
                next(queue.char_device(), window, buf)
            }
            (_, buf) => {
                let windowed = matches!(request.data(), Data::Window);
                if let Some(buf) = buf.filter(|_| !windowed) {
                    request.set_buffer(buf);
                }
                return self.complete(queue, request);
            }
        };
        let step = Step::Last;
        self.jobs.insert(key, Job { request, step });
        queue.submit(Token(key), op);
    }
}

impl Handler for FileHandler {
    fn on_attached<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        self.file = Some(queue.register(Arc::clone(&self.disk)));
    }

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        if self.chance(self.faults.drops) {
            return;
        }
        if self.chance(self.faults.panics) {
            panic!("a handler that panics on purpose");
        }
        if self.chance(self.faults.delayed) {
            self.delayed.push(request);
            return queue.request_turn();
        }
        self.serve(queue, request);
    }

    fn on_completion<P: Port>(
        &mut self,
        queue: &mut QueueCx<'_, P>,
        token: Token,
        completion: Completion,
    ) {
        let Some(job) = self.jobs.remove(&token.0) else {
            return;
        };
        let (buf, result) = match completion {
            Completion::Read(buf, result) | Completion::Write(buf, result) => (Some(buf), result),
            Completion::Fixed(result) => (None, result),
            _ => return,
        };
        match result {
            Ok(()) => self.on_moved(queue, token.0, job, buf),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                queue.fail(job.request, errno);
            }
        }
    }

    fn on_turn<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        if self.delayed.is_empty() {
            return;
        }
        // In random order.
        let at = self.below(self.delayed.len() as u64) as usize;
        let request = self.delayed.swap_remove(at);
        self.serve(queue, request);
        if !self.delayed.is_empty() {
            queue.request_turn();
        }
    }
}
