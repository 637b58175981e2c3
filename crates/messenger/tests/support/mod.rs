//! What the tests over real sockets share: a handler that remembers, and a proxy that can cut,
//! stall and count connections. Both end with the test, also when it panics.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

pub(crate) mod fuzz;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use messenger::auth::{Credentials, NoneForm};
use messenger::{
    CloseReason, Config, Connection, Event, Handler, Messenger, ReceivedMessage, Target,
};

/// How long a test waits for what must happen. Far above what it takes, so that a loaded machine
/// does not fail it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// One event that a handler received.
#[derive(Debug)]
pub(crate) enum RecordedEvent {
    Opened(String),
    Message(ReceivedMessage),
    Done(u64),
    Interrupted { parked: bool },
    Alive,
    Closed(CloseReason, Vec<u64>),
}

#[derive(Debug, Default)]
struct RecordedEvents {
    events: Vec<RecordedEvent>,
    connections: Vec<Connection>,
}

/// A handler that keeps all events.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    recorded: Mutex<RecordedEvents>,
    changed: Condvar,
}

impl Handler for Recorder {
    fn event(&self, connection: &Connection, event: Event) {
        let one = match event {
            Event::Opened { peer, .. } => RecordedEvent::Opened(peer),
            Event::Message(m) => RecordedEvent::Message(m),
            Event::Done { tid, .. } => RecordedEvent::Done(tid),
            Event::Interrupted { parked, .. } => RecordedEvent::Interrupted { parked },
            Event::Alive { .. } => RecordedEvent::Alive,
            Event::Closed {
                reason,
                unacknowledged,
            } => RecordedEvent::Closed(reason, unacknowledged.iter().map(|m| m.tid).collect()),
            other => panic!("an event this test does not know: {other:?}"),
        };
        let mut recorded = self.recorded.lock().unwrap();
        if recorded
            .connections
            .iter()
            .all(|c| c.session() != connection.session())
        {
            recorded.connections.push(connection.clone());
        }
        recorded.events.push(one);
        drop(recorded);
        self.changed.notify_all();
    }
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until `look` finds something in the recorded events.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, look: impl Fn(&[RecordedEvent]) -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        let mut recorded = self.recorded.lock().unwrap();
        loop {
            if let Some(found) = look(&recorded.events) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last: Vec<_> = recorded.events.iter().rev().take(5).collect();
                panic!(
                    "{what} did not happen; recorded {} events, last {last:?}",
                    recorded.events.len()
                );
            }
            recorded = self.changed.wait_timeout(recorded, left).unwrap().0;
        }
    }

    pub(crate) fn wait_opened(&self, times: usize) -> String {
        self.wait("opening", |events| {
            events
                .iter()
                .filter_map(|h| match h {
                    RecordedEvent::Opened(peer) => Some(peer.clone()),
                    _ => None,
                })
                .nth(times - 1)
        })
    }

    pub(crate) fn wait_closed(&self) -> (CloseReason, Vec<u64>) {
        self.wait("closing", |events| {
            events.iter().find_map(|h| match h {
                RecordedEvent::Closed(reason, tids) => Some((reason.clone(), tids.clone())),
                _ => None,
            })
        })
    }

    /// Waits for `n` messages; their tids in the order they came.
    pub(crate) fn wait_messages(&self, n: usize) -> Vec<u64> {
        self.wait("receiving", |events| {
            let tids: Vec<_> = messages(events).map(|m| m.tid).collect();
            (tids.len() >= n).then_some(tids)
        })
    }

    pub(crate) fn wait_parked(&self) {
        self.wait("parking", |events| {
            events
                .iter()
                .any(|h| matches!(h, RecordedEvent::Interrupted { parked: true }))
                .then_some(())
        });
    }

    pub(crate) fn count(&self, what: impl Fn(&RecordedEvent) -> bool) -> usize {
        self.recorded
            .lock()
            .unwrap()
            .events
            .iter()
            .filter(|h| what(h))
            .count()
    }

    /// The sessions of the recorded events, in order.
    pub(crate) fn connection(&self, nth: usize) -> Connection {
        self.recorded.lock().unwrap().connections[nth].clone()
    }
}

pub(crate) fn messages(events: &[RecordedEvent]) -> impl Iterator<Item = &ReceivedMessage> {
    events.iter().filter_map(|h| match h {
        RecordedEvent::Message(m) => Some(m),
        _ => None,
    })
}

/// Waits for a condition that nothing announces.
#[track_caller]
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !check() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Quick timers, no keepalive of its own.
pub(crate) fn config() -> Config {
    Config {
        keepalive_interval: None,
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(100),
        handshake_timeout: Duration::from_secs(5),
        ..Config::default()
    }
}

pub(crate) fn open_credentials(name: &str) -> Credentials {
    Credentials::None {
        name: name.to_owned(),
        form: NoneForm::Monitor,
    }
}

pub(crate) fn start(name: &str, config: Config) -> Messenger {
    Messenger::start(config, open_credentials(name)).unwrap()
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Two hosts with a proxy between them and a lossless session open.
pub(crate) struct Pair {
    pub(crate) a: Messenger,
    pub(crate) b: Messenger,
    pub(crate) b_addr: SocketAddr,
    pub(crate) proxy: Proxy,
    pub(crate) connection: Connection,
    pub(crate) a_recorder: Arc<Recorder>,
    pub(crate) b_recorder: Arc<Recorder>,
}

impl Pair {
    pub(crate) fn new(config: Config) -> Self {
        Self::with(config, Target::lossless)
    }

    pub(crate) fn with(config: Config, target: impl Fn(SocketAddr) -> Target) -> Self {
        let (a, b) = (start("a", config.clone()), start("b", config));
        let (a_recorder, b_recorder) = (Recorder::new(), Recorder::new());
        let b_addr = b.listen(loopback(), b_recorder.clone()).unwrap();
        let proxy = Proxy::new(b_addr);
        let connection = a.open(target(proxy.addr), a_recorder.clone()).unwrap();
        assert_eq!(a_recorder.wait_opened(1), "b");
        assert_eq!(b_recorder.wait_opened(1), "a");
        Self {
            a,
            b,
            b_addr,
            proxy,
            connection,
            a_recorder,
            b_recorder,
        }
    }
}

#[derive(Debug, Default)]
struct Controls {
    ended: AtomicBool,
    stalled: AtomicBool,
    accepted: AtomicUsize,
    live: Mutex<Vec<TcpStream>>,
}

/// Forwards connections to `upstream`, until a switch changes that.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    controls: Arc<Controls>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn new(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let addr = listener.local_addr().unwrap();
        let controls = Arc::new(Controls::default());
        let shared = Arc::clone(&controls);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(upstream) else {
                    continue;
                };
                forward(&client, &server, &shared);
                forward(&server, &client, &shared);
            }
        });
        Self {
            addr,
            controls,
            thread: Some(thread),
        }
    }

    /// Ends every connection, in mid-frame if it comes so.
    pub(crate) fn cut(&self) {
        for stream in self.controls.live.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Bytes are dropped silently.
    pub(crate) fn stall(&self, yes: bool) {
        self.controls.stalled.store(yes, Ordering::SeqCst);
    }

    /// How many connections were made so far.
    pub(crate) fn accepted(&self) -> usize {
        self.controls.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.controls.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        self.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.cut();
    }
}

fn forward(from: &TcpStream, to: &TcpStream, controls: &Arc<Controls>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    from.set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    controls
        .live
        .lock()
        .unwrap()
        .push(from.try_clone().unwrap());
    let controls = Arc::clone(controls);
    std::thread::spawn(move || {
        let mut buf = vec![0; 16 << 10];
        while !controls.ended.load(Ordering::SeqCst) {
            if controls.stalled.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            let read = from.read(&mut buf);
            // What came in while it was stalled waits, too.
            while controls.stalled.load(Ordering::SeqCst) && !controls.ended.load(Ordering::SeqCst)
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            match read {
                Ok(0) => break,
                Ok(n) if to.write_all(&buf[..n]).is_err() => break,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}
