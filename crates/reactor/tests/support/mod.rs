//! A probe source that carries out scripts: it runs what a test posts and reports every call it
//! gets through a channel.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report; not every test uses all"
)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::time::Duration;

use reactor::{
    BackendChoice, BackendKind, Buf, Command, Completion, Config, Cx, FileIndex, Op, Reactor,
    Source, Token,
};

pub const DEADLINE: Duration = Duration::from_secs(20);

/// The drivers this host can run; the ring's absence is printed, not hidden.
pub fn backends() -> Vec<BackendKind> {
    let only = |kind| Config {
        backend: BackendChoice::Only(kind),
        ..Config::default()
    };
    match Reactor::start(only(BackendKind::IoUring)) {
        Ok(_) => vec![BackendKind::IoUring, BackendKind::Epoll],
        Err(error) => {
            println!("skipped: io_uring: {error}");
            vec![BackendKind::Epoll]
        }
    }
}

pub fn start(kind: BackendKind) -> Reactor {
    let config = Config {
        backend: BackendChoice::Only(kind),
        entries: 8,
        pool_bytes: 64 << 10,
        reserve_bytes: 8 << 10,
        ..Config::default()
    };
    let reactor = Reactor::start(config).unwrap();
    assert_eq!(reactor.backend(), kind);
    reactor
}

/// A reactor for each driver this host can run, with a probe that detaches when it is to stop.
pub fn each_driver() -> impl Iterator<Item = (Reactor, Remote)> {
    backends().into_iter().map(|kind| {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        (reactor, probe)
    })
}

#[derive(Debug)]
pub enum Event {
    Completion(u64, Completion),
    Wake(u64),
    Turn,
    Dropped,
}

pub type Script = Box<dyn FnOnce(&mut Cx<'_>) + Send>;

pub struct Probe {
    seen: Sender<Event>,
    scripts: Receiver<Script>,
    busy_on_stop: bool,
}

pub const RUN_SCRIPT: u64 = u64::MAX;

impl Source for Probe {
    fn on_completion(&mut self, _cx: &mut Cx<'_>, token: Token, completion: Completion) {
        let _ = self.seen.send(Event::Completion(token.0, completion));
    }
    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        if key == RUN_SCRIPT {
            while let Ok(script) = self.scripts.try_recv() {
                script(cx);
            }
        } else {
            let _ = self.seen.send(Event::Wake(key));
        }
    }
    fn on_turn(&mut self, _cx: &mut Cx<'_>) {
        let _ = self.seen.send(Event::Turn);
    }
    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        if !self.busy_on_stop {
            cx.detach();
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.seen.send(Event::Dropped);
    }
}

/// The test's end of a probe.
pub struct Remote {
    pub seen: Receiver<Event>,
    scripts: Sender<Script>,
    run: Waker,
}

impl Remote {
    pub fn attach(reactor: &Reactor, busy_on_stop: bool) -> Remote {
        let (seen_to, seen) = channel();
        let (scripts, scripts_from) = channel();
        let (waker_to, waker) = channel();
        reactor
            .handle()
            .attach(move |cx| {
                waker_to.send(cx.waker(RUN_SCRIPT)).unwrap();
                Probe {
                    seen: seen_to,
                    scripts: scripts_from,
                    busy_on_stop,
                }
            })
            .unwrap();
        let run = waker.recv_timeout(DEADLINE).unwrap();
        Remote { seen, scripts, run }
    }

    /// Runs `script` on the reactor's thread and returns what it returns.
    pub fn run<R: Send + 'static>(
        &self,
        script: impl FnOnce(&mut Cx<'_>) -> R + Send + 'static,
    ) -> R {
        let (to, from) = channel();
        self.scripts
            .send(Box::new(move |cx| to.send(script(cx)).unwrap()))
            .unwrap();
        self.run.wake_by_ref();
        from.recv_timeout(DEADLINE).unwrap()
    }

    pub fn register(&self, fd: impl Into<OwnedFd>) -> FileIndex {
        let fd: OwnedFd = fd.into();
        self.run(move |cx| cx.register(fd))
    }

    /// A connected pair of sockets, of which the probe's reactor has the second.
    pub fn socket_pair(&self) -> (UnixStream, FileIndex) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, self.register(theirs))
    }

    pub fn submit(&self, token: u64, op: Op) {
        self.run(move |cx| cx.submit(Token(token), op));
    }

    pub fn arm(&self, number: u32, command: Command) {
        self.run(move |cx| cx.arm(number, command));
    }

    pub fn next(&self) -> Event {
        self.seen.recv_timeout(DEADLINE).unwrap()
    }

    pub fn completion(&self, token: u64) -> Completion {
        match self.next() {
            Event::Completion(seen, completion) if seen == token => completion,
            other => panic!("waited for {token}, saw {other:?}"),
        }
    }
}

pub fn buf(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::allocate(len).unwrap();
    buf.fill(byte);
    buf
}

pub fn write(file: FileIndex, offset: u64, buf: Buf) -> Op {
    Op::Write { file, offset, buf }
}

pub fn read(file: FileIndex, offset: u64, len: usize) -> Op {
    let buf = buf(len, 0);
    Op::Read { file, offset, buf }
}

/// Receives what there is, up to `len` bytes.
pub fn recv(file: FileIndex, len: usize) -> Op {
    Op::Recv {
        file,
        buf: buf(len, 0),
        at: 0,
        exact: false,
    }
}

/// Receives `len` bytes.
pub fn recv_exact(file: FileIndex, len: usize) -> Op {
    Op::Recv {
        file,
        buf: buf(len, 0),
        at: 0,
        exact: true,
    }
}

pub fn timeout_ms(ms: u64) -> Op {
    let after = Duration::from_millis(ms);
    Op::Timeout { after }
}
