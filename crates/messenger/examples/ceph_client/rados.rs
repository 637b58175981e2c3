//! A RADOS client that is just large enough to prove the messenger against a real Ceph: one
//! monitor, one OSD, no authentication, crc mode; write, read, stat.
//!
//! Everything about resending is here and not in the messenger: Ceph grants clients lossy sessions
//! only. An operation keeps its tid over all attempts, so the OSD recognises one it has done.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use messenger::addr::EntityAddr;
use messenger::auth::{Credentials, NoneForm};
use messenger::wire::{Put, Reader, WireError};
use messenger::{
    CloseReason, Config, Connection, Event, Handler, Message, Messenger, Payload, ReceivedMessage,
    Target,
};

use crate::map::{OsdMap, Pool, name_hash, placement_group};

/// The feature bits of Ceph 16's era. Old encodings are accepted for years; newer servers answer
/// in them.
pub(crate) const FEATURES: u64 = 0x3f01_cfbf_fffd_ffff;

const MSG_MON_MAP: u16 = 4;
const MSG_MON_SUBSCRIBE: u16 = 15;
const MSG_OSD_MAP: u16 = 41;
const MSG_OSD_OP: u16 = 42;
const MSG_OSD_OP_REPLY: u16 = 43;

const OP_READ: u16 = 0x1201;
const OP_STAT: u16 = 0x1202;
const OP_WRITE_FULL: u16 = 0x2202;
const FLAG_ONDISK: u32 = 0x4;
const FLAG_READ: u32 = 0x10;
const FLAG_WRITE: u32 = 0x20;
const NO_SNAP: u64 = u64::MAX - 1;
const SUBSCRIBE_ONCE: u8 = 1;
const OP_LEN: usize = 38;

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// It was not done before the deadline.
    Deadline(&'static str),
    /// The cluster said no, with this error number.
    Refused(&'static str, i32),
    /// The session to the monitor ended.
    Closed(CloseReason),
    /// An answer cannot be read.
    Malformed(WireError),
    /// No such pool.
    NoPool(String),
    /// The messenger does not start, or does not take a message.
    Messenger(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(what) => write!(f, "{what} was not done in time"),
            Self::Refused(what, errno) => write!(f, "{what} failed with error {errno}"),
            Self::Closed(reason) => write!(f, "the session to the monitor ended: {reason}"),
            Self::Malformed(e) => write!(f, "an answer cannot be read: {e}"),
            Self::NoPool(name) => write!(f, "there is no pool {name}"),
            Self::Messenger(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<WireError> for Error {
    fn from(e: WireError) -> Self {
        Self::Malformed(e)
    }
}

#[derive(Debug, Default)]
struct ReceivedEvents {
    messages: VecDeque<ReceivedMessage>,
    opened: Option<(String, u64)>,
    alive: u64,
    closed: Option<CloseReason>,
}

/// Keeps what one session heard until the caller looks.
#[derive(Debug, Default)]
struct EventCollector {
    heard: Mutex<ReceivedEvents>,
    changed: Condvar,
}

impl Handler for EventCollector {
    fn event(&self, _: &Connection, event: Event) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Opened { peer, global_id } => heard.opened = Some((peer, global_id)),
            Event::Message(m) => heard.messages.push_back(m),
            Event::Alive { .. } => heard.alive += 1,
            Event::Closed { reason, .. } => heard.closed = Some(reason),
            _ => {}
        }
        drop(heard);
        self.changed.notify_all();
    }
}

impl EventCollector {
    fn wait<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&mut ReceivedEvents) -> Option<T>,
    ) -> Option<T> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = look(&mut heard) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(heard, left);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Session {
    connection: Connection,
    ear: Arc<EventCollector>,
    addr: EntityAddr,
}

/// A client of a cluster.
pub(crate) struct Rados {
    messenger: Messenger,
    mon: Session,
    osd: Option<Session>,
    /// The number the monitor gave us.
    pub(crate) global_id: u64,
    /// The monitor map, as it came.
    pub(crate) mon_map: Vec<u8>,
    map: OsdMap,
    tid: u64,
    lane: u32,
    /// How many sessions to the OSD were opened.
    pub(crate) osd_sessions: u32,
}

fn credentials(form: NoneForm) -> Credentials {
    Credentials::None {
        name: "admin".to_owned(),
        form,
    }
}

impl Rados {
    /// Connects to a monitor and waits for the maps.
    pub(crate) fn connect(mon: SocketAddr, patience: Duration) -> Result<Self, Error> {
        let config = Config {
            features: FEATURES,
            keepalive_interval: Some(Duration::from_secs(10)),
            ..Config::default()
        };
        let messenger = Messenger::start(config, credentials(NoneForm::Monitor))
            .map_err(|e| Error::Messenger(e.to_string()))?;
        let until = Instant::now() + patience;
        let ear = Arc::new(EventCollector::default());
        let lane = std::process::id();
        let target = Target::lossy(mon).in_lane(lane);
        let addr = target.addr;
        let connection = messenger
            .open(target, ear.clone())
            .map_err(|e| Error::Messenger(e.to_string()))?;
        let mon = Session {
            connection,
            ear,
            addr,
        };
        let opened = mon.ear.wait(until, |h| match (&h.opened, &h.closed) {
            (Some((_, id)), _) => Some(Ok(*id)),
            (None, Some(reason)) => Some(Err(Error::Closed(reason.clone()))),
            (None, None) => None,
        });
        let global_id = opened.unwrap_or(Err(Error::Deadline("opening the monitor's session")))?;
        let mut rados = Self {
            messenger,
            mon,
            osd: None,
            global_id,
            mon_map: Vec::new(),
            map: OsdMap::default(),
            tid: 0,
            lane,
            osd_sessions: 0,
        };
        rados.subscribe()?;
        while rados.map.epoch == 0 || rados.mon_map.is_empty() {
            rados.hear_monitor(until)?;
        }
        Ok(rados)
    }

    /// The OSD map as it is known.
    pub(crate) fn map(&self) -> &OsdMap {
        &self.map
    }

    fn send(session: &Session, message: Message) -> Result<(), Error> {
        let sent = session.connection.send(message);
        sent.map(drop).map_err(|e| Error::Messenger(e.to_string()))
    }

    /// Asks for the newest maps, once.
    fn subscribe(&self) -> Result<(), Error> {
        let mut front = Vec::new();
        front.put_u32(2);
        for what in ["monmap", "osdmap"] {
            front.put_bytes(what.as_bytes());
            front.put_u64(0);
            front.put_u8(SUBSCRIBE_ONCE);
        }
        front.put_bytes(b"localhost");
        let mut message = Message::new(
            MSG_MON_SUBSCRIBE,
            0,
            Payload {
                front: front.into(),
                ..Payload::default()
            },
        );
        message.version = 3;
        Self::send(&self.mon, message)
    }

    fn hear_monitor(&mut self, until: Instant) -> Result<(), Error> {
        let heard = self.mon.ear.wait(until, |h| match h.messages.pop_front() {
            Some(m) => Some(Ok(m)),
            None => h.closed.clone().map(Err),
        });
        match heard {
            None => Err(Error::Deadline("an answer of the monitor")),
            Some(Err(reason)) => Err(Error::Closed(reason)),
            Some(Ok(m)) if m.kind == MSG_MON_MAP => {
                self.mon_map = Reader::new(&m.payload.front).bytes("monitor map")?.to_vec();
                Ok(())
            }
            Some(Ok(m)) if m.kind == MSG_OSD_MAP => self.take_map(&m.payload.front),
            Some(Ok(_)) => Ok(()),
        }
    }

    /// Takes the newest full map; changes to it are not asked for.
    fn take_map(&mut self, front: &[u8]) -> Result<(), Error> {
        let mut r = Reader::new(front);
        r.take(16, "fsid")?;
        for _ in 0..r.count(8, "incremental maps")? {
            r.u32("epoch")?;
            r.bytes("incremental map")?;
        }
        for _ in 0..r.count(8, "full maps")? {
            r.u32("epoch")?;
            let map = OsdMap::decode(r.bytes("full map")?)?;
            if map.epoch > self.map.epoch {
                self.map = map;
            }
        }
        Ok(())
    }

    /// Asks both peers for a sign of life.
    pub(crate) fn keepalive(&mut self, patience: Duration) -> Result<(), Error> {
        let until = Instant::now() + patience;
        self.osd_session(until)?;
        for session in [Some(&self.mon), self.osd.as_ref()].into_iter().flatten() {
            let before = session.ear.wait(until, |h| Some(h.alive)).unwrap_or(0);
            session
                .connection
                .keepalive()
                .map_err(|e| Error::Messenger(e.to_string()))?;
            session
                .ear
                .wait(until, |h| (h.alive > before).then_some(()))
                .ok_or(Error::Deadline("a keepalive"))?;
        }
        Ok(())
    }

    /// A session to the OSD, as the newest map names it. An OSD that restarted has the same port
    /// and another nonce, and hangs up on who asks for the old one.
    fn osd_session(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            let addr = self.map.osds.get(&0).copied();
            if let Some(osd) = &self.osd {
                let closed = osd.ear.wait(Instant::now(), |h| h.closed.clone());
                if closed.is_none() && Some(osd.addr) == addr {
                    return Ok(());
                }
                osd.connection.close();
                let was = osd.addr;
                self.osd = None;
                if Some(was) == addr {
                    self.next_map(until)?;
                    continue;
                }
            }
            match addr {
                None => self.next_map(until)?,
                Some(addr) => {
                    self.open_osd(addr)?;
                    return Ok(());
                }
            }
        }
    }

    fn open_osd(&mut self, addr: EntityAddr) -> Result<(), Error> {
        let ear = Arc::new(EventCollector::default());
        let target = Target {
            addr,
            lane: self.lane,
            lossy: true,
            global_id: self.global_id,
            credentials: Some(credentials(NoneForm::Daemon)),
        };
        let opened = self.messenger.open(target, ear.clone());
        let connection = opened.map_err(|e| Error::Messenger(e.to_string()))?;
        self.osd = Some(Session {
            connection,
            ear,
            addr,
        });
        self.osd_sessions += 1;
        Ok(())
    }

    /// Asks the monitor again, at most five times a second.
    fn next_map(&mut self, until: Instant) -> Result<(), Error> {
        if Instant::now() >= until {
            return Err(Error::Deadline("finding the OSD"));
        }
        std::thread::sleep(Duration::from_millis(200));
        self.subscribe()?;
        let soon = Instant::now() + Duration::from_secs(2);
        match self.hear_monitor(soon.min(until)) {
            Ok(()) | Err(Error::Deadline(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Replaces an object.
    pub(crate) fn write_full(
        &mut self,
        pool: &str,
        name: &str,
        bytes: &[u8],
        patience: Duration,
    ) -> Result<(), Error> {
        let op = Op {
            code: OP_WRITE_FULL,
            flags: FLAG_WRITE | FLAG_ONDISK,
            len: bytes.len() as u64,
        };
        self.operate(pool, name, &op, bytes, patience).map(drop)
    }

    /// Reads a whole object.
    pub(crate) fn read(
        &mut self,
        pool: &str,
        name: &str,
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let op = Op {
            code: OP_READ,
            flags: FLAG_READ,
            len: 0,
        };
        self.operate(pool, name, &op, &[], patience)
    }

    /// The size of an object.
    pub(crate) fn stat(
        &mut self,
        pool: &str,
        name: &str,
        patience: Duration,
    ) -> Result<u64, Error> {
        let op = Op {
            code: OP_STAT,
            flags: FLAG_READ,
            len: 0,
        };
        let out = self.operate(pool, name, &op, &[], patience)?;
        Ok(Reader::new(&out).u64("object size")?)
    }

    fn operate(
        &mut self,
        pool: &str,
        name: &str,
        op: &Op,
        data: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let until = Instant::now() + patience;
        let pool = self
            .map
            .pools
            .get(pool)
            .ok_or_else(|| Error::NoPool(pool.to_owned()))?
            .clone();
        self.tid += 1;
        let tid = self.tid;
        let mut attempt = 0;
        loop {
            self.osd_session(until)?;
            let Some(osd) = &self.osd else { continue };
            let front = op.encode(&pool, name, self.map.epoch, attempt, data.len());
            let payload = Payload {
                front: front.into(),
                data: data.to_vec().into(),
                ..Payload::default()
            };
            let mut message = Message::new(MSG_OSD_OP, tid, payload);
            (message.version, message.compat) = (8, 3);
            attempt += 1;
            if osd.connection.send(message).is_err() {
                continue;
            }
            let answer = osd.ear.wait(until, |h| {
                while let Some(m) = h.messages.pop_front() {
                    if m.kind == MSG_OSD_OP_REPLY && m.tid == tid {
                        return Some(Some(m));
                    }
                }
                h.closed.as_ref().map(|_| None)
            });
            match answer {
                None => return Err(Error::Deadline(op.name())),
                // The session ended: once more, on the next one.
                Some(None) => {}
                Some(Some(m)) => return op.answer(&m),
            }
        }
    }
}

struct Op {
    code: u16,
    flags: u32,
    len: u64,
}

impl Op {
    fn name(&self) -> &'static str {
        match self.code {
            OP_WRITE_FULL => "write",
            OP_READ => "read",
            _ => "stat",
        }
    }

    /// The front of an MOSDOp, version 8.
    fn encode(&self, pool: &Pool, name: &str, epoch: u32, attempt: u32, data: usize) -> Vec<u8> {
        let hash = name_hash(name.as_bytes());
        let mut out = Vec::with_capacity(256);
        let mut pg = Vec::new();
        pg.put_u8(1);
        pg.put_i64(pool.id);
        pg.put_u32(placement_group(hash, pool.pg_num));
        pg.put_i32(-1);
        pg.put_u8(0xff); // no shard
        out.put_versioned(1, 1, &pg);
        out.put_u32(hash);
        out.put_u32(epoch);
        out.put_u32(self.flags);
        out.put_versioned(2, 2, &[0; 21]); // request id: taken from the session and the tid
        out.put(&[0; 24]); // trace
        out.put_u32(0); // client incarnation
        out.put(&[0; 8]); // modification time
        let mut locator = Vec::new();
        locator.put_i64(pool.id);
        locator.put_i32(-1);
        locator.put_u32(0); // key
        locator.put_u32(0); // namespace
        out.put_versioned(5, 4, &locator);
        out.put_bytes(name.as_bytes());
        out.put_u16(1);
        let start = out.len();
        out.put_u16(self.code);
        out.put_u32(0);
        out.put_u64(0); // offset
        out.put_u64(self.len);
        out.put_u64(0);
        out.put_u32(0);
        out.resize(start + OP_LEN - 4, 0);
        out.put_u32(u32::try_from(data).expect("an object is small"));
        out.put_u64(NO_SNAP);
        out.put_u64(0);
        out.put_u32(0);
        out.put_u32(attempt);
        out.put_u64(FEATURES);
        out
    }

    fn answer(&self, m: &ReceivedMessage) -> Result<Vec<u8>, Error> {
        let mut r = Reader::new(&m.payload.front);
        r.bytes("object name")?;
        r.take(17, "placement group")?;
        r.u64("flags")?;
        let result = r.i32("result")?;
        if result < 0 {
            return Err(Error::Refused(self.name(), result));
        }
        Ok(m.payload.data.to_vec())
    }
}
