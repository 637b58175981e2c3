//! The engine of one hardware queue: what its transport calls.
//!
//! It owns the queue, the requests whose bytes move or that wait for a buffer, and the backend's
//! files as registered with the reactor. It must not wait (R1), and it must not give back a plan
//! while an operation for it is in flight. `steps` takes each request through its steps.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkmq::error::ErrorKind;
use blkmq::io::Backend;
use blkmq::{Admission, AdmittedRequest, Completer, Device, Queue};
use reactor::{Completion, FileIndex, Op, Port, Token};

use crate::files::{BackendFile, OpenFile};
use crate::job::{Job, JobCompleter, JobPool, QueueKick, Stage};
use crate::latency::{Latencies, Step, ThreadTable, Timeline};
use crate::token::{self, Kind};
use crate::transport::{Request, Transport};

/// A request as the core carries it.
pub(crate) type AdmittedJob<B, R> = AdmittedRequest<Box<Job<B, R>>>;

/// What an engine is made for.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// All files that plans may name.
    pub files: Vec<BackendFile>,
    /// Tags of its hardware queue.
    pub depth: u16,
    /// How often parked requests are looked at for their time-out.
    pub tick: Duration,
    /// For transports with buffer slots: a file of zeroes, as long as the longest request, from
    /// which the holes of reads are filled.
    pub zeroes: Option<Arc<OwnedFd>>,
    /// Where it counts how long its requests take.
    pub latencies: Arc<Latencies>,
}

/// Serves a backend to one hardware queue of a transport.
pub struct RequestEngine<B: Backend, R: Request> {
    pub(crate) backend: Arc<B>,
    /// To be registered on attach.
    unregistered: Vec<BackendFile>,
    unregistered_zeroes: Option<Arc<OwnedFd>>,
    /// `None` once the engine is retired.
    queue: Option<Queue<Box<Job<B, R>>>>,
    kick: Arc<QueueKick>,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) zeroes: Option<FileIndex>,
    /// Requests whose bytes move or that wait for a buffer, by the core's tag.
    active: Vec<Option<AdmittedJob<B, R>>>,
    pub(crate) jobs: JobPool<B, R>,
    tick: Duration,
    began: Instant,
    ticking: bool,
    pub(crate) latencies: Arc<Latencies>,
    /// That of the reactor's thread, from the attach on.
    pub(crate) latency_table: Option<Arc<ThreadTable>>,
    /// Requests until the next one whose every step is timed.
    until_sample: u32,
}

impl<B: Backend, R: Request> RequestEngine<B, R> {
    /// An engine whose requests are admitted through `device`, whose owner may quiesce and cancel
    /// it. Requests that end inside the core go to `completer`. Takes a sleeping lock: not to be
    /// called on a reactor's thread (R4).
    pub fn new(
        backend: Arc<B>,
        device: &Arc<Device>,
        options: EngineOptions,
        completer: Arc<impl Completer<R> + 'static>,
    ) -> RequestEngine<B, R> {
        let kick = Arc::<QueueKick>::default();
        let completer = Arc::new(JobCompleter {
            completer,
            latencies: Arc::clone(&options.latencies),
        });
        let queue = device.add_queue(options.depth, completer, kick.clone());
        RequestEngine {
            backend,
            unregistered: options.files,
            unregistered_zeroes: options.zeroes,
            queue: Some(queue),
            kick,
            files: Vec::new(),
            zeroes: None,
            active: Vec::new(),
            jobs: JobPool::new(),
            tick: options.tick,
            began: Instant::now(),
            ticking: false,
            latencies: options.latencies,
            latency_table: None,
            until_sample: 0,
        }
    }

    /// Binds the engine to the reactor of its source, before the first request. The source calls
    /// [`RequestEngine::run`] when it is woken with `run_key`.
    pub fn attach(&mut self, port: &mut impl Port, run_key: u64) {
        self.kick.set_waker(port.waker(run_key));
        self.latency_table = Some(self.latencies.table_of_this_thread());
        let open = self.unregistered.drain(..).map(|file| OpenFile {
            id: file.id,
            index: port.register(file.fd),
            align: file.align,
        });
        self.files = open.collect();
        self.zeroes = self.unregistered_zeroes.take().map(|fd| port.register(fd));
    }

    /// Takes a request of the transport's.
    pub fn admit<T: Transport<Request = R>>(&mut self, cx: &mut T, request: R) {
        let Some(queue) = &mut self.queue else {
            return cx.reject(request);
        };
        let timeline = Timeline::new(self.until_sample == 0, cx.port().turn_time_ns());
        self.until_sample = match self.until_sample {
            0 => Step::SAMPLED_EVERY - 1,
            more => more - 1,
        };
        match queue.admit(self.jobs.get(request, timeline)) {
            Admission::Run(admitted) => self.begin(cx, admitted),
            Admission::Parked => self.start_tick(cx.port()),
            Admission::Refused => {}
        }
    }

    /// Goes on with the requests that the core hands out.
    pub fn run<T: Transport<Request = R>>(&mut self, cx: &mut T) {
        // Taken out for the call, because a request that goes on borrows all of `self`.
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        // Each by itself: a panic over one must neither take the queue along nor leave behind
        // those that are woken already, which nobody wakes again.
        queue.run(|mut admitted| {
            let turn_time_ns = cx.port().turn_time_ns();
            admitted.payload_mut().timeline.on_resumed(turn_time_ns);
            cx.catch_panic(|cx| self.begin(cx, admitted));
        });
        self.queue = Some(queue);
    }

    /// An operation whose token [is the engine's](crate::is_engine_token) has ended.
    pub fn on_completion<T: Transport<Request = R>>(
        &mut self,
        cx: &mut T,
        token: Token,
        completion: Completion,
    ) {
        match token::parse(token) {
            Kind::Tick => self.on_tick(cx.port()),
            Kind::Piece(tag, piece) => self.on_piece_moved(cx, tag, piece, completion),
            Kind::Buffer(tag) => self.on_buffer(cx, tag, completion),
            Kind::Copy(tag) => self.on_copied(cx, tag, completion),
        }
    }

    /// Gives up the queue. Parked requests end with [`ErrorKind::Closed`], through the completer;
    /// the others go on, so that no plan is given back under an operation in flight.
    pub fn retire(&mut self) {
        self.queue = None;
    }

    /// Ends the requests that wait for a buffer, in the same way: nothing of theirs is in flight.
    pub fn end_buffer_waiters(&mut self) {
        for tag in 0..self.active.len() as u16 {
            let waits = self.active[usize::from(tag)]
                .as_ref()
                .is_some_and(|one| matches!(one.payload().stage, Stage::Buffer));
            if let Some(admitted) = waits.then(|| self.take(tag)).flatten() {
                admitted.complete(Err(ErrorKind::Closed));
            }
        }
    }

    /// Whether a request's bytes move, or it waits for a buffer. Looks at every tag.
    pub fn is_moving(&self) -> bool {
        self.active.iter().any(Option::is_some)
    }

    /// Closes the backend's files, once nothing moves any more.
    pub fn close_files(&mut self, port: &mut impl Port) {
        let files = self.files.drain(..).map(|file| file.index);
        files
            .chain(self.zeroes.take())
            .for_each(|file| port.close(file));
    }

    pub(crate) fn put(&mut self, admitted: AdmittedJob<B, R>) {
        let at = usize::from(admitted.tag().number());
        if self.active.len() <= at {
            self.active.resize_with(at + 1, || None);
        }
        let before = self.active[at].replace(admitted);
        debug_assert!(before.is_none(), "a tag belongs to one request");
    }

    pub(crate) fn take(&mut self, tag: u16) -> Option<AdmittedJob<B, R>> {
        self.active.get_mut(usize::from(tag))?.take()
    }

    /// Starts the clock of parked requests.
    pub(crate) fn start_tick(&mut self, port: &mut impl Port) {
        if !std::mem::replace(&mut self.ticking, true) {
            port.submit(token::TICK, Op::Timeout { after: self.tick });
        }
    }

    fn on_tick(&mut self, port: &mut impl Port) {
        self.ticking = false;
        let Some(queue) = &mut self.queue else {
            return;
        };
        queue.expire(self.began.elapsed());
        if queue.handle().load().parked > 0 {
            self.start_tick(port);
        }
    }
}

impl<B: Backend, R: Request> fmt::Debug for RequestEngine<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestEngine")
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}
