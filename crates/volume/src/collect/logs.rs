//! What the logs of hosts name, and which objects will never be named: those of sessions that a later session's
//! record has ended, and those below a session's floor.
//!
//! From a log that is not whole, or cannot be read, nothing is concluded: all objects of its host stay.

use std::collections::{BTreeMap, BTreeSet};

use super::named::NamedObjects;
use super::{CollectPort, SIDE_BY_SIDE};
use crate::hostlog::look_around::read_low_mark;
use crate::hostlog::names::{Digest, HOST_PREFIX, Position, SessionName, record_of_key};
use crate::hostlog::port::{StoredRecord, list, read_record};
use crate::hostlog::record::{Content, Record};
use crate::jobs::join_all;
use crate::object::{FormatError, ObjectId};
use crate::units::{HostId, LogSession, VolumeId};

/// Objects that hosts will not name any more.
#[derive(Debug, Default)]
pub(super) struct EndedSessions {
    hosts: BTreeMap<HostId, HostSessions>,
    /// Records that were read.
    pub(super) records: u64,
    /// Volumes that the records name: each has a root, or had one.
    pub(super) volumes: BTreeSet<VolumeId>,
    /// Hosts from whose logs nothing is concluded.
    pub(super) unsure: Vec<HostId>,
}

#[derive(Debug, Default)]
struct HostSessions {
    /// The newest session with a record: the sessions before it have ended.
    newest: u64,
    floors: BTreeMap<LogSession, u64>,
}

impl EndedSessions {
    /// Whether the object will not be named unless something names it already.
    pub(super) fn is_over(&self, SessionName { host, session }: SessionName, number: u64) -> bool {
        if canary::active!("collector_trusts_no_session") {
            return true;
        }
        let Some(endings) = self.hosts.get(&host) else {
            return false;
        };
        // A poisoned log has no sessions, and no records: what it brings is named by roots alone.
        if session.number == 0 {
            return false;
        }
        let mut floor = endings.floors.get(&session).copied().unwrap_or(0);
        if canary::active!("floors_are_forgotten") {
            floor = 0;
        }
        session.number < endings.newest || number < floor
    }
}

/// Reads the logs of all hosts.
pub(super) async fn read_logs(port: &impl CollectPort, named: &mut NamedObjects) -> EndedSessions {
    let mut listed: BTreeMap<HostId, BTreeSet<Position>> = BTreeMap::new();
    for (key, _) in list(port, HOST_PREFIX).await {
        if let Some((host, position)) = record_of_key(&key) {
            listed.entry(host).or_default().insert(position);
        }
    }
    let mut endings = EndedSessions::default();
    for (host, positions) in listed {
        let mut log = Log {
            port,
            host,
            named: &mut *named,
            volumes: &mut endings.volumes,
            endings: HostSessions::default(),
            previous: None,
            records: 0,
        };
        let is_whole = log.read(&positions).await;
        endings.records += log.records;
        let found = log.endings;
        match is_whole {
            Ok(true) => {
                endings.hosts.insert(host, found);
            }
            result => {
                tracing::warn!(%host, ?result, "the log of a host is not whole: its objects stay");
                endings.unsure.push(host);
            }
        }
    }
    endings
}

struct Log<'a, P> {
    port: &'a P,
    host: HostId,
    named: &'a mut NamedObjects,
    volumes: &'a mut BTreeSet<VolumeId>,
    endings: HostSessions,
    previous: Option<Digest>,
    records: u64,
}

impl<P: CollectPort> Log<'_, P> {
    /// Reads the log from the low mark to its end. False: it has a hole, or records that do not follow each
    /// other.
    async fn read(&mut self, listed: &BTreeSet<Position>) -> Result<bool, FormatError> {
        let Some(mut at) = read_low_mark(self.port, self.host).await else {
            return Ok(false);
        };
        loop {
            let (port, host) = (self.port, self.host);
            let window = at.0..at.0.saturating_add(SIDE_BY_SIDE as u64);
            let read = |at| Box::pin(async move { read_record(port, host, Position(at)).await });
            let found = join_all(window.map(read).collect()).await;
            port.sleep(port.pace_ns()).await;
            let mut is_end = false;
            for found in found {
                let Some(found) = found? else {
                    is_end = true;
                    break;
                };
                if !self.take(&found) {
                    return Ok(false);
                }
                at = at.next();
            }
            if !is_end {
                continue;
            }
            // Records that went meanwhile are below the mark: what they named is in the roots that are read next.
            let low = read_low_mark(self.port, self.host).await;
            match low {
                Some(low) if low > at => {
                    self.previous = None;
                    at = low;
                }
                // One that was listed behind the end: a hole.
                Some(_) => return Ok(listed.range(at..).next().is_none()),
                None => return Ok(false),
            }
        }
    }

    /// Takes a record. False: it does not follow the record before it.
    fn take(&mut self, StoredRecord { record, digest }: &StoredRecord) -> bool {
        self.records += 1;
        let previous = self.previous.replace(*digest);
        self.volumes.extend(record.named_volumes());
        let Content::Slices(slices) = &record.content else {
            return true;
        };
        name_objects(record, self.named);
        let session = record.writer.session;
        self.endings.newest = self.endings.newest.max(session.number);
        let floor = self.endings.floors.entry(session).or_default();
        *floor = slices.floor.max(*floor);
        previous.is_none_or(|previous| previous == slices.previous)
    }
}

/// Adds the objects that a record names.
fn name_objects(record: &Record, named: &mut NamedObjects) {
    let Content::Slices(slices) = &record.content else {
        return;
    };
    for pack in &slices.packs {
        named.add_pack(ObjectId::new(record.session_of(pack), pack.number));
    }
    for object in &slices.objects {
        let session = match object.is_kept {
            true => slices.ends_session,
            false => record.writer.session,
        };
        let id = ObjectId {
            session: session.random,
            number: object.number,
        };
        match object.is_index {
            true => named.add_index(id),
            false => named.add_pack(id),
        }
    }
}
