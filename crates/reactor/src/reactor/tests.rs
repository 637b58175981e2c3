//! Stops with operations that end with the ring only.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::buf::Buf;
use crate::core::{Cx, Source};
use crate::ids::Token;
use crate::op::Completion;

const DEADLINE: Duration = Duration::from_secs(20);

/// A source with an armed command that never ends.
struct ArmedSource {
    dropped: Sender<()>,
    stays: bool,
}

/// Begins an armed command that ends with the ring only.
fn arm_endless_poll(cx: &mut Cx<'_>, socket: UnixStream) {
    let file = cx.register(OwnedFd::from(socket));
    cx.core.arm_poll(cx.me, 1, file);
}

impl ArmedSource {
    fn armed_on(
        cx: &mut Cx<'_>,
        socket: UnixStream,
        dropped: Sender<()>,
        stays: bool,
    ) -> ArmedSource {
        arm_endless_poll(cx, socket);
        ArmedSource { dropped, stays }
    }
}

impl Source for ArmedSource {
    fn on_completion(&mut self, _: &mut Cx<'_>, _: Token, _: Completion) {}
    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        if !self.stays {
            cx.detach();
        }
    }
}

impl Drop for ArmedSource {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

fn ring() -> Option<Reactor> {
    let config = Config {
        backend: BackendChoice::Only(BackendKind::IoUring),
        ..Config::default()
    };
    match Reactor::start(config) {
        Ok(reactor) => Some(reactor),
        Err(error) => {
            println!("skipped: io_uring: {error}");
            None
        }
    }
}

#[test]
fn a_stop_closes_the_ring_under_armed_commands_at_once_and_nothing_is_left_open() {
    for stays in [false, true] {
        let Some(reactor) = ring() else { return };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (to, dropped) = channel();
        reactor
            .handle()
            .attach(move |cx| ArmedSource::armed_on(cx, theirs, to, stays))
            .unwrap();
        let began = Instant::now();
        let within = if stays {
            Duration::from_millis(50)
        } else {
            DEADLINE
        };
        let report = reactor.stop(within);
        assert!(began.elapsed() < DEADLINE / 2, "{report:?}");
        assert_eq!(
            (report.ops_armed, report.ops_abandoned, report.thread_stuck),
            (1, 0, false)
        );
        assert_eq!(report.sources_forced, usize::from(stays));
        assert!(report.drain_time >= if stays { within } else { Duration::ZERO });
        assert!(report.drain_time + report.close_time + report.exit_time <= began.elapsed());
        dropped.try_recv().expect("the source is dropped");
        // Neither the operation nor the ring's table keeps the socket: the kernel cancels what
        // a closed ring had by itself, some milliseconds later.
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        let seen = (&ours).read(&mut [0; 1]);
        assert_eq!(seen.unwrap(), 0, "its socket is open");
    }
}

#[test]
fn a_detached_source_with_an_armed_command_stays_until_the_ring_is_closed() {
    let Some(reactor) = ring() else { return };
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (to, dropped) = channel();
    let (stats_to, stats_from) = channel();
    let handle = reactor.handle().clone();
    handle
        .attach(move |cx| {
            cx.detach();
            ArmedSource::armed_on(cx, theirs, to, false)
        })
        .unwrap();
    // Each message is taken in a turn after the departures of the one before.
    for _ in 0..10 {
        let stats_to = stats_to.clone();
        handle
            .post(move |core| stats_to.send(core.stats()).unwrap())
            .unwrap();
        let stats = stats_from.recv_timeout(DEADLINE).unwrap();
        assert_eq!((stats.sources, stats.armed_commands), (1, 1));
    }
    dropped
        .try_recv()
        .expect_err("dropped under a command in flight");
    assert_eq!(reactor.stop(DEADLINE).ops_armed, 1);
    dropped.try_recv().expect("the source is dropped");
}

/// Memory that reports on which thread it was freed.
struct FreeReporter(Sender<Option<String>>);

impl Drop for FreeReporter {
    fn drop(&mut self) {
        let name = std::thread::current().name().map(str::to_owned);
        let _ = self.0.send(name);
    }
}

/// A source whose armed commands name memory.
struct MemoryOwner {
    memory: Option<Buf>,
    panics: bool,
    dropped: Sender<()>,
}

impl Source for MemoryOwner {
    fn on_completion(&mut self, _: &mut Cx<'_>, _: Token, _: Completion) {}
    fn release_armed_memory(&mut self) -> Vec<Buf> {
        assert!(!self.panics, "planted");
        self.memory.take().into_iter().collect()
    }
}

impl Drop for MemoryOwner {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

#[test]
fn memory_that_armed_commands_name_outlives_the_rings_thread() {
    for panics in [false, true] {
        let Some(reactor) = ring() else { return };
        let (freed_to, freed_on) = channel();
        let (dropped, source_dropped) = channel();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let attached = reactor.handle().attach(move |cx| {
            arm_endless_poll(cx, theirs);
            let own = Buf::allocate(4096).expect("memory");
            let start = std::ptr::NonNull::new(own.as_ptr().cast_mut()).expect("an address");
            let owner = Box::new((FreeReporter(freed_to), own));
            // SAFETY: the memory is that of `own`, which nothing uses while its owner lives.
            let memory = unsafe { Buf::from_foreign(start, 4096, owner) };
            MemoryOwner {
                memory: Some(memory),
                panics,
                dropped,
            }
        });
        attached.unwrap();
        reactor.stop(DEADLINE);
        if panics {
            // What it would have named is not known: neither goes.
            source_dropped.try_recv().expect_err("the source is gone");
            freed_on.try_recv().expect_err("the memory is gone");
            continue;
        }
        source_dropped.try_recv().expect("the source is dropped");
        let thread = freed_on
            .recv_timeout(DEADLINE)
            .expect("the memory is freed");
        assert_eq!(thread.as_deref(), Some("reactor-join"));
    }
}

/// A reactor with one source whose armed command never ends.
struct ArmedReactor {
    reactor: Reactor,
    /// The other end of its socket.
    ours: UnixStream,
    /// Hears when the source is dropped.
    dropped: Receiver<()>,
}

fn start_armed_reactor(stays: bool) -> Option<ArmedReactor> {
    let reactor = ring()?;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (to, dropped) = channel();
    let attached = reactor
        .handle()
        .attach(move |cx| ArmedSource::armed_on(cx, theirs, to, stays));
    attached.unwrap();
    Some(ArmedReactor {
        reactor,
        ours,
        dropped,
    })
}

#[test]
fn a_drained_reactor_keeps_its_ring_until_it_is_stopped() {
    for stays in [false, true] {
        let Some(ArmedReactor {
            mut reactor,
            ours,
            dropped,
        }) = start_armed_reactor(stays)
        else {
            return;
        };
        let within = Duration::from_millis(if stays { 50 } else { 20_000 });
        assert!(reactor.drain(within));
        assert!(reactor.drain(within), "it is drained already");
        dropped.try_recv().expect_err("the source is still there");
        ours.set_nonblocking(true).unwrap();
        let open = (&ours).read(&mut [0; 1]).unwrap_err();
        assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
        let handle = reactor.handle().clone();
        let (ran_to, late) = channel();
        handle.post(move |_| ran_to.send(()).unwrap()).unwrap();
        let report = reactor.stop(DEADLINE);
        assert_eq!(
            (report.ops_armed, report.ops_abandoned, report.thread_stuck),
            (1, 0, false)
        );
        assert_eq!(report.sources_forced, usize::from(stays));
        dropped.try_recv().expect("the source is dropped");
        late.try_recv().expect_err("nothing is done any more");
        ours.set_nonblocking(false).unwrap();
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!((&ours).read(&mut [0; 1]).unwrap(), 0, "its socket is open");
    }
}

#[test]
fn a_drained_reactor_that_is_dropped_ends() {
    let Some(ArmedReactor {
        mut reactor,
        ours: _ours,
        dropped,
    }) = start_armed_reactor(false)
    else {
        return;
    };
    assert!(reactor.drain(DEADLINE));
    drop(reactor);
    dropped.try_recv().expect("the source is dropped");
}

#[test]
fn a_thread_that_does_not_end_is_reported_and_left() {
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = ended.recv();
        None
    });
    let report = join(thread, Instant::now() + Duration::from_millis(20)).unwrap();
    assert!(report.thread_stuck);
    drop(end);
}

#[test]
fn the_thread_is_an_io_flusher_where_it_was_asked_for_and_granted() {
    for asked in [true, false] {
        let reactor = Reactor::start(Config {
            io_flusher: asked,
            ..Config::default()
        })
        .unwrap();
        let (to, is_flusher) = channel();
        reactor
            .handle()
            .post(move |_| to.send(rustix::process::is_io_flusher()).unwrap())
            .unwrap();
        match is_flusher.recv_timeout(DEADLINE).unwrap() {
            Ok(is) => assert_eq!((is, reactor.is_io_flusher()), (asked, asked)),
            // Without CAP_SYS_RESOURCE even asking is refused.
            Err(error) => {
                println!("skipped: I/O flusher: {error}");
                assert!(!reactor.is_io_flusher());
            }
        }
    }
}

#[test]
fn a_reactor_that_cannot_start_says_which_step_failed_and_what_helps() {
    let config = Config {
        reserve_bytes: 1 << 30,
        ..Config::default()
    };
    let error = Reactor::start(config).expect_err("no buffer is that large");
    let message = error.to_string();
    assert!(
        message.contains("a reserve of 1073741824 bytes"),
        "{message}"
    );
    assert!(message.contains("configure a smaller reserve"), "{message}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    assert!(inner.is_some_and(|start: &StartError| start.raw_os_error().is_none()));
}
