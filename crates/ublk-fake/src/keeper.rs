//! A handler that keeps a disk in a file and does what the library promises to bear: it answers
//! at once or late, in parts, with errors, or drops a request; it moves bytes in every data mode.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use blkmq::io::Op as Ask;
use reactor::{Buf, Completion, FileIndex, Op, Port, Token};

use ublk::queue::{Handler, QueueCx};
use ublk::{Answer, Data, Request};

/// How a keeper behaves, each in so many of 256 requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Requests that are kept and begun later.
    pub late: u8,
    /// Requests that fail.
    pub failing: u8,
    /// Reads and writes of which only a part is answered.
    pub parts: u8,
    /// Requests that are dropped.
    pub drops: u8,
    /// Requests over which it panics.
    pub panics: u8,
    /// Writes that it says it did and did not: what a judge must catch.
    pub lies: u8,
}

/// Bytes on their way.
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
pub struct Keeper {
    disk: Arc<OwnedFd>,
    file: Option<FileIndex>,
    habits: Habits,
    random: u64,
    late: Vec<Request>,
    jobs: BTreeMap<u64, Job>,
    next: u64,
}

impl Keeper {
    /// Serves from `disk`.
    pub fn new(disk: Arc<OwnedFd>, habits: Habits, seed: u64) -> Keeper {
        Keeper {
            disk,
            file: None,
            habits,
            random: seed | 1,
            late: Vec::new(),
            jobs: BTreeMap::new(),
            next: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn strikes(&mut self, share: u8) -> bool {
        share > 0 && self.below(256) < u64::from(share)
    }

    fn serve<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        if self.strikes(self.habits.failing) {
            return queue.fail(request, libc::EIO);
        }
        let (read, sector) = match *request.op() {
            Ask::Read { sector, .. } => (true, sector),
            Ask::Write { sector, .. } => (false, sector),
            Ask::Discard {
                sector, sectors, ..
            }
            | Ask::WriteZeroes {
                sector, sectors, ..
            } => {
                let zeroes = vec![0; sectors as usize * 512];
                let wrote = rustix::io::pwrite(&self.disk, &zeroes, sector * 512);
                assert_eq!(wrote, Ok(zeroes.len()), "a memory file takes all");
                return queue.complete(request);
            }
            _ => return queue.complete(request),
        };
        if !read && self.strikes(self.habits.lies) {
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

    fn done<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        let sectors = u64::from(request.bytes() / 512);
        if sectors > 1 && self.strikes(self.habits.parts) {
            let part = 1 + self.below(sectors - 1);
            return queue.answer(request, Answer::Part(part as u32 * 512));
        }
        queue.complete(request);
    }

    fn moved<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, key: u64, job: Job, buf: Option<Buf>) {
        let Job { mut request, step } = job;
        let next = |file, offset, buf| Op::Write { file, offset, buf };
        let op = match (step, buf) {
            (Step::ToFile, Some(buf)) => {
                let Ask::Write { sector, .. } = *request.op() else {
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
                return self.done(queue, request);
            }
        };
        let step = Step::Last;
        self.jobs.insert(key, Job { request, step });
        queue.submit(Token(key), op);
    }
}

impl Handler for Keeper {
    fn on_attached<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        self.file = Some(queue.register(Arc::clone(&self.disk)));
    }

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        if self.strikes(self.habits.drops) {
            return;
        }
        if self.strikes(self.habits.panics) {
            panic!("a handler that panics on purpose");
        }
        if self.strikes(self.habits.late) {
            self.late.push(request);
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
            Ok(()) => self.moved(queue, token.0, job, buf),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                queue.fail(job.request, errno);
            }
        }
    }

    fn on_turn<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        if self.late.is_empty() {
            return;
        }
        // Not in the order of coming.
        let at = self.below(self.late.len() as u64) as usize;
        let request = self.late.swap_remove(at);
        self.serve(queue, request);
        if !self.late.is_empty() {
            queue.request_turn();
        }
    }
}
