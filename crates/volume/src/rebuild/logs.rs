//! What the logs of hosts say of the volume: which slices they name, who ended or fenced an epoch.
//!
//! A record counts if no fence and no end of its epoch precedes it in its log. Records below a low mark are gone; what
//! they named was committed, and so was all that came before it in the volume's history.

use std::collections::{BTreeMap, BTreeSet};

use super::target::Target;
use super::{LastHolder, RebuildError, RebuildPort};
use crate::check::footers::PackPart;
use crate::check::{SIDE_BY_SIDE, no_answer};
use crate::driver::StoreError;
use crate::hostlog::marks::LowMark;
use crate::hostlog::names::{
    Digest, HOST_PREFIX, Position, SessionName, low_key, record_key, record_of_key,
};
use crate::hostlog::record::{Content, Record};
use crate::jobs::join_all;
use crate::object::ObjectId;
use crate::object::root::Predecessor;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// The log of one host, as far as it concerns the volume.
#[derive(Debug, Default)]
pub(super) struct HostLog {
    /// Records before it may be gone.
    low: Position,
    /// The last record.
    end: Position,
    /// The newest session with a record.
    newest: u64,
    /// Objects of a session below its floor were named, or given up.
    floors: BTreeMap<u64, u64>,
    /// Packs that a record names for the volume, in an epoch that was not blocked there.
    named: BTreeSet<(VolumeId, Epoch, ObjectId)>,
    /// The last LSN that it has of an epoch.
    tops: BTreeMap<(VolumeId, Epoch), Lsn>,
    /// Epochs that the host ended itself.
    ended: BTreeSet<(VolumeId, Epoch)>,
    /// Epochs below these are blocked by a taker.
    fences: BTreeMap<VolumeId, Epoch>,
}

/// The logs of all hosts that wrote to the volume.
#[derive(Debug)]
pub(super) struct Logs {
    /// None: it is not there, or not whole.
    hosts: BTreeMap<HostId, Option<HostLog>>,
    /// The newest epoch of the volume itself that any record names.
    pub(super) newest: Option<(Epoch, HostId)>,
    /// The newest epoch that any record names, fences included.
    pub(super) epoch: Epoch,
}

/// What a log says of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitEvidence {
    /// It was committed, or its session has gone on without it.
    Committed,
    /// It was not.
    NotCommitted,
    /// The log is there and says nothing.
    Silent,
    /// There is no log that could say it.
    None,
}

impl HostLog {
    fn commit_evidence(&self, part: &PackPart) -> CommitEvidence {
        let slice = &part.slice;
        if self
            .named
            .contains(&(slice.origin, slice.epoch, part.delta.pack))
        {
            return CommitEvidence::Committed;
        }
        let SessionName { session, .. } = part.session;
        // A poisoned log has no records: roots name what it brings.
        if session.number == 0 {
            return CommitEvidence::None;
        }
        if let Some(top) = self.tops.get(&(slice.origin, slice.epoch)) {
            return match slice.last <= *top {
                true => CommitEvidence::Committed,
                false => CommitEvidence::NotCommitted,
            };
        }
        if self.low <= Position::FIRST {
            return CommitEvidence::NotCommitted;
        }
        let floor = self.floors.get(&session.random).copied().unwrap_or(0);
        match session.number < self.newest || part.delta.pack.number < floor {
            true => CommitEvidence::Committed,
            // Somebody took the volume over, or it was given back, without it.
            false if self.is_blocked(slice.origin, slice.epoch) => CommitEvidence::NotCommitted,
            false => CommitEvidence::Silent,
        }
    }

    /// Takes a record. False: it does not follow the one before it.
    fn take(&mut self, record: &Record, volumes: &[VolumeId], previous: Option<Digest>) -> bool {
        self.end = record.position;
        match &record.content {
            Content::Fence(fences) => {
                for (volume, below) in fences {
                    let known = self.fences.entry(*volume).or_default();
                    *known = (*known).max(*below);
                }
                true
            }
            Content::Slices(slices) => {
                let session = record.writer.session;
                self.newest = self.newest.max(session.number);
                let floor = self.floors.entry(session.random).or_default();
                *floor = slices.floor.max(*floor);
                for (volume, epoch) in &slices.volumes {
                    if volumes.contains(volume) && !self.is_blocked(*volume, *epoch) {
                        self.take_slices(record, *volume, *epoch);
                    }
                }
                self.ended.extend(slices.ended_epochs());
                previous.is_none_or(|previous| previous == slices.previous)
            }
        }
    }

    fn take_slices(&mut self, record: &Record, volume: VolumeId, epoch: Epoch) {
        for (slice, delta) in record.deltas_of(volume, epoch) {
            self.named.insert((volume, epoch, delta.pack));
            let top = self.tops.entry((volume, epoch)).or_default();
            *top = slice.last().max(*top);
        }
    }

    fn is_blocked(&self, volume: VolumeId, epoch: Epoch) -> bool {
        let whole_host = crate::hostlog::record::WHOLE_HOST;
        let below = |volume| self.fences.get(&volume).is_some_and(|below| epoch < *below);
        below(volume) || below(whole_host) || self.ended.contains(&(volume, epoch))
    }
}

impl Logs {
    pub(super) fn commit_evidence(&self, part: &PackPart) -> CommitEvidence {
        match self.hosts.get(&part.session.host) {
            Some(Some(log)) => log.commit_evidence(part),
            _ => CommitEvidence::None,
        }
    }

    /// Hosts whose logs say nothing.
    pub(super) fn missing(&self) -> impl Iterator<Item = HostId> {
        let hosts = self.hosts.iter();
        hosts.filter_map(|(host, log)| log.is_none().then_some(*host))
    }

    /// The last hold, if the log of its host does not say that it has ended.
    pub(super) fn last_holder(
        &self,
        target: &Target,
        newest: &Option<(Epoch, HostId)>,
    ) -> Option<LastHolder> {
        if let Some(root) = &target.root {
            let owner = root.owner.as_ref().or(root.claimant.as_ref());
            // Whoever only maintains it has nothing that is not in the store.
            let owner = owner.filter(|_| !root.is_maintained());
            return owner.map(|owner| LastHolder {
                host: owner.host,
                epoch: root.epoch,
            });
        }
        let (epoch, host) = self.newest.max(*newest)?;
        let log = self.hosts.get(&host)?.as_ref()?;
        let is_open =
            log.tops.contains_key(&(target.volume, epoch)) && !log.is_blocked(target.volume, epoch);
        is_open.then_some(LastHolder { host, epoch })
    }

    /// The owner whose log may go on behind what was read.
    pub(super) fn predecessor(
        &self,
        target: &Target,
        newest: &Option<(Epoch, HostId)>,
    ) -> Option<Predecessor> {
        if let Some(root) = &target.root {
            // What a maintainer's log has is of no client, and the rebuilt root does not say that it was one.
            let is_client =
                !root.is_maintained() || canary::active!("rebuilt_maintenance_has_a_successor");
            let owner = root.owner.as_ref().filter(|_| is_client);
            let owner = owner.map(|owner| Predecessor {
                host: owner.host,
                epoch: root.epoch,
                mark: root.mark,
            });
            return owner.or(root.predecessor);
        }
        let (epoch, host) = self.newest.max(*newest)?;
        let log = self.hosts.get(&host)?.as_ref()?;
        (!log.is_blocked(target.volume, epoch)).then_some(Predecessor {
            host,
            epoch,
            mark: log.end,
        })
    }
}

/// Reads the logs of all hosts: any may have had the volume.
pub(super) async fn read(
    port: &impl RebuildPort,
    target: &Target,
    parts: &[PackPart],
) -> Result<Logs, RebuildError> {
    let volumes = target.origins();
    let keys = port.list(HOST_PREFIX).await;
    let keys = keys.map_err(|error| no_answer(HOST_PREFIX, &error))?;
    let mut lasts: BTreeMap<HostId, Position> = BTreeMap::new();
    for (host, position) in keys.iter().filter_map(|(key, _)| record_of_key(key)) {
        let last = lasts.entry(host).or_default();
        *last = position.max(*last);
    }
    let own = parts
        .iter()
        .filter(|part| volumes.contains(&part.slice.origin));
    let writers: BTreeSet<HostId> = own.map(|part| part.session.host).collect();
    let mut logs = Logs {
        hosts: BTreeMap::new(),
        newest: None,
        epoch: Epoch(0),
    };
    let all: BTreeSet<HostId> = lasts
        .keys()
        .copied()
        .chain(writers.iter().copied())
        .collect();
    for host in all {
        let last = lasts.get(&host).copied().unwrap_or_default();
        let log = read_log(port, host, last, &volumes).await?;
        if let Some(log) = &log {
            let own = |(volume, _): &(VolumeId, Epoch)| *volume == target.volume;
            let epochs = log.tops.keys().chain(&log.ended).copied().filter(own);
            let newest = epochs.map(|(_, epoch)| (epoch, host)).max();
            let fence = log.fences.get(&target.volume).copied().unwrap_or_default();
            logs.newest = logs.newest.max(newest);
            logs.epoch = logs.epoch.max(fence);
            logs.epoch = logs.epoch.max(newest.map_or(Epoch(0), |(epoch, _)| epoch));
        }
        if log.is_some() || writers.contains(&host) {
            logs.hosts.insert(host, log);
        }
    }
    Ok(logs)
}

/// Reads a log. None: it has no low mark, or a hole, or records that do not follow each other.
async fn read_log(
    port: &impl RebuildPort,
    host: HostId,
    last: Position,
    volumes: &[VolumeId],
) -> Result<Option<HostLog>, RebuildError> {
    let key = low_key(host);
    let low = match port.get(&key).await {
        Ok((data, _)) => LowMark::decode(&data).ok(),
        Err(StoreError::NotFound) => None,
        Err(error) => return Err(no_answer(&key, &error).into()),
    };
    let Some(low) = low else {
        return Ok(None);
    };
    let mut log = HostLog {
        low: low.position,
        end: low.position.previous(),
        ..HostLog::default()
    };
    let mut previous = None;
    let mut at = low.position;
    // Behind the last one that was listed, too: the host may go on meanwhile.
    loop {
        let window: Vec<Position> = (at.0..at.0 + SIDE_BY_SIDE as u64).map(Position).collect();
        let reads = window
            .iter()
            .map(|at| Box::pin(read_record(port, host, *at)));
        for found in join_all(reads.collect()).await {
            match found? {
                FoundRecord::Record(record, digest) => {
                    if !log.take(&record, volumes, previous) {
                        return Ok(None);
                    }
                    previous = Some(digest);
                    at = at.next();
                }
                FoundRecord::Nothing => return Ok((at > last).then_some(log)),
                FoundRecord::Unreadable => return Ok(None),
            }
        }
    }
}

enum FoundRecord {
    Record(Box<Record>, Digest),
    Nothing,
    Unreadable,
}

async fn read_record(
    port: &impl RebuildPort,
    host: HostId,
    position: Position,
) -> Result<FoundRecord, RebuildError> {
    let key = record_key(host, position);
    let data = match port.get(&key).await {
        Ok((data, _)) => data,
        Err(StoreError::NotFound) => return Ok(FoundRecord::Nothing),
        Err(error) => return Err(no_answer(&key, &error).into()),
    };
    Ok(match Record::decode(&data) {
        Ok(record) if (record.log, record.position) == (host, position) => {
            FoundRecord::Record(Box::new(record), Digest::of(&data))
        }
        _ => FoundRecord::Unreadable,
    })
}
