//! Taking volumes over: claim, read the predecessor's log, fence it, look again, adopt.
//!
//! Only adoption makes a host the owner. A claimant that dies before it never served, and the next claimant finds
//! the same predecessor. Several volumes of one predecessor are taken with one scan and one fence.

use std::collections::BTreeMap;

use super::look_around::read_low_mark;
use super::names::{Digest, Position, SessionName, record_key};
use super::port::{LogPort, Pauses, StoredRecord, read_record};
use super::record::{Content, Record};
use super::root_updates::{
    UpdateError, UpdateOutcome, VersionedRoot, next_epoch, read_root, update_root,
};
use super::scan::{Chain, Scan, ScanError};
use crate::driver::{StoreOp, StoreReply};
use crate::jobs::join_all;
use crate::object::root::{Owner, Predecessor, Root};
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// Attempts of a claim that other hosts win, and of a scan whose records are removed while it reads.
const ATTEMPTS_MAX: u32 = 16;

/// Why a volume was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// Another host holds the volume or is taking it, and the request does not take over.
    Held(Box<Root>),
    /// A later claimant has taken the volume.
    Outrun,
    /// There is no root, or it cannot be used.
    Root(UpdateError),
    /// The volume was deleted.
    Deleted,
    /// The predecessor's log cannot be read.
    Log(UnreadableLog),
}

/// A host's log cannot be read where it is needed: the text has the key, the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableLog(pub String);

impl From<UnreadableLog> for TakeError {
    fn from(error: UnreadableLog) -> TakeError {
        TakeError::Log(error)
    }
}

impl From<UpdateError> for TakeError {
    fn from(error: UpdateError) -> TakeError {
        TakeError::Root(error)
    }
}

/// A volume that is to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeRequest {
    /// Its name.
    pub name: String,
    /// Its new epoch must be above this one, so that a store that was set back gives out no epoch twice.
    pub above: Epoch,
    /// Take it even if another host holds it.
    pub take_over: bool,
    /// Take it only if the root is still this one, which the caller read and judged: it is not read again.
    pub judged: Option<VersionedRoot>,
    /// The newest LSN of the tail that continues the hold.
    pub continues: Option<Lsn>,
    /// The hold is for maintenance: whoever opens the volume takes it away.
    pub maintains: bool,
}

/// Takes volumes for one host.
#[derive(Debug)]
pub struct Taker<'a, P> {
    /// The environment.
    pub port: &'a P,
    /// The host and its session.
    pub own: SessionName,
    /// What to call the host in messages.
    pub label: &'a str,
    /// The last resolved position of the host's own log.
    pub mark: Position,
    /// The time, for display.
    pub unix_ms: u64,
}

/// Results by name.
pub type TakeResults = BTreeMap<String, Result<VersionedRoot, TakeError>>;

impl<P: LogPort> Taker<'_, P> {
    /// Takes those of the volumes that it may. Each one won is owned: its root names this host, and the packs up
    /// to the end of its predecessor's log.
    pub async fn take(&self, wanted: &[TakeRequest]) -> TakeResults {
        let claims = wanted.iter().map(|wanted| Box::pin(self.claim(wanted)));
        let claims = join_all(claims.collect()).await;
        let mut taken = TakeResults::new();
        let mut groups: BTreeMap<Option<HostId>, Vec<(&TakeRequest, VersionedRoot)>> =
            BTreeMap::new();
        for (wanted, claim) in wanted.iter().zip(claims) {
            match claim {
                Ok(claimed) => {
                    let host = claimed.root.predecessor.map(|before| before.host);
                    groups.entry(host).or_default().push((wanted, claimed));
                }
                Err(error) => {
                    taken.insert(wanted.name.clone(), Err(error));
                }
            }
        }
        for (host, claimed) in groups {
            let mut chains = match host {
                Some(host) => {
                    let roots: Vec<_> = claimed.iter().map(|(_, claim)| claim.clone()).collect();
                    self.read_log(host, &roots).await
                }
                None => Vec::new(),
            }
            .into_iter();
            for (wanted, standing) in claimed {
                let name = standing.root.name.clone();
                let adopted = match chains.next().transpose() {
                    Ok(chain) => self.adopt(wanted, standing, chain.as_ref()).await,
                    Err(error) => Err(error.into()),
                };
                taken.insert(name, adopted);
            }
        }
        taken
    }

    fn owner(&self) -> Owner {
        Owner {
            host: self.own.host,
            label: self.label.to_owned(),
        }
    }

    /// Takes the next epoch. From then on the old owner cannot update the root.
    pub(crate) async fn claim(&self, wanted: &TakeRequest) -> Result<VersionedRoot, TakeError> {
        for _ in 0..ATTEMPTS_MAX {
            let found = match &wanted.judged {
                Some(judged) => judged.clone(),
                None => read_root(self.port, &wanted.name).await?,
            };
            let VersionedRoot { root, version } = found;
            if root.deleted {
                return Err(TakeError::Deleted);
            }
            let others = |holder: &Owner| holder.host != self.own.host;
            let is_held = root.owner.as_ref().is_some_and(others)
                || root.claimant.as_ref().is_some_and(others);
            if is_held && !root.is_maintained() && !wanted.take_over {
                return Err(TakeError::Held(Box::new(root)));
            }
            // Nothing of a hold for maintenance is in a log: its root has all of it, and this claim ends its updates.
            let is_followed =
                !root.is_maintained() || canary::active!("maintenance_has_a_successor");
            let followed = root.owner.as_ref().filter(|_| is_followed);
            let followed = followed.map(|owner| Predecessor {
                host: owner.host,
                epoch: root.epoch,
                mark: root.mark,
            });
            let kept = match canary::active!("claim_forgets_the_predecessor") {
                true => None,
                false => root.predecessor,
            };
            let epoch = next_epoch(&root).max(Epoch(wanted.above.0 + 1));
            // Set with the claim: nobody judges the tails again after a claim that was cut short, so no tail of
            // the previous hold may look as if it continued this one.
            let since = match wanted.continues {
                // A maintenance leaves the volume as it was closed, also for a disk that is still there.
                None if wanted.maintains => root.since,
                None if !canary::active!("cut_short_claim_keeps_the_hold") => epoch,
                _ => root.since,
            };
            let mut claim = Root {
                epoch,
                since,
                sequence: root.sequence + 1,
                writer: self.own,
                owner: None,
                claimant: Some(self.owner()),
                predecessor: followed.or(kept),
                unix_ms: self.unix_ms,
                ..root
            };
            claim.set_maintained(wanted.maintains);
            match update_root(self.port, &claim, &version).await? {
                UpdateOutcome::Won(standing) => return Ok(standing),
                UpdateOutcome::Lost(_) if wanted.judged.is_some() => break,
                UpdateOutcome::Lost(_) => {}
            }
        }
        Err(TakeError::Outrun)
    }

    /// Reads and fences the log of the host from which these volumes are taken. Returns, in their order, what the
    /// log has of each. A record that cannot be read fails only the volumes that need it.
    pub(crate) async fn read_log(
        &self,
        host: HostId,
        claimed: &[VersionedRoot],
    ) -> Vec<Result<Chain, UnreadableLog>> {
        let mut read: Vec<Option<Result<Chain, UnreadableLog>>> = vec![None; claimed.len()];
        loop {
            let unread = |at: &usize| read[*at].is_none();
            let group: Vec<usize> = (0..claimed.len()).filter(unread).collect();
            if group.is_empty() {
                break;
            }
            let roots: Vec<_> = group.iter().map(|at| claimed[*at].clone()).collect();
            let (chains, error) = self.read_group(host, &roots).await;
            let position = error.as_ref().map(ScanError::position);
            for (at, chain) in group.into_iter().zip(chains) {
                read[at] = match (&error, position) {
                    (Some(error), Some(position))
                        if chain.needs(position)
                            || canary::active!("one_volumes_record_refuses_all") =>
                    {
                        Some(Err(log_error(host, error)))
                    }
                    // The scan did not get far enough for this volume.
                    (Some(_), _) if chain.is_open() => None,
                    _ => Some(chain.into_result().map_err(|error| log_error(host, &error))),
                };
            }
            // At least the volume with the lowest mark is done, so the next scan begins behind it.
        }
        read.into_iter().flatten().collect()
    }

    /// Reads and fences the log for these volumes, as far as possible.
    async fn read_group(
        &self,
        host: HostId,
        claimed: &[VersionedRoot],
    ) -> (Vec<Chain>, Option<ScanError>) {
        // The host's own log has records up to its resolved position.
        let known = match host == self.own.host {
            true => self.mark,
            false => Position::default(),
        };
        let mut low = read_low_mark(self.port, host).await;
        let mut attempts = 0;
        loop {
            let chains = claimed.iter().map(|VersionedRoot { root, .. }| {
                let none = Predecessor {
                    host,
                    epoch: root.epoch,
                    mark: Position::default(),
                };
                Chain::new(root.volume, root.predecessor.unwrap_or(none), root.lsn)
            });
            let mut scan = Scan::new(host, low, chains.collect()).with_known(known);
            let error = self.fence(host, &mut scan, claimed).await.err();
            let before = std::mem::replace(&mut low, read_low_mark(self.port, host).await);
            // Records may have been removed during the scan; the low mark tells.
            let is_whole = error.is_none() && scan.chains.iter().all(|chain| chain.is_whole());
            let blocked = scan.chains.iter().filter_map(|chain| chain.blocked_at);
            let is_below = blocked.min().is_some_and(|blocked| Some(blocked) < low);
            let is_below = is_below && !canary::active!("low_mark_after_fence_is_not_read");
            let is_raised = !is_whole && low > before;
            if !is_below && !is_raised {
                return (scan.chains, error);
            }
            attempts += 1;
            if attempts >= ATTEMPTS_MAX {
                let error = ScanError::Broken(low.unwrap_or_default());
                scan.chains.iter_mut().for_each(|chain| chain.fail(&error));
                return (scan.chains, None);
            }
        }
    }

    /// Scans to the end of the log, and creates a fence there for all volumes that are not blocked yet.
    async fn fence(
        &self,
        host: HostId,
        scan: &mut Scan,
        claimed: &[VersionedRoot],
    ) -> Result<(), ScanError> {
        let fences: Vec<(VolumeId, Epoch)> = claimed
            .iter()
            .map(|standing| (standing.root.volume, standing.root.epoch))
            .collect();
        while scan.run(self.port).await? {
            let fence = Record {
                log: host,
                position: scan.at,
                writer: self.own,
                content: Content::Fence(fences.clone()),
            };
            let found = self.create(&fence).await;
            let found = found.map_err(|error| ScanError::Unreadable(scan.at, error))?;
            scan.take(&found)?;
        }
        Ok(())
    }

    /// Creates a fence, and returns what stands at its position: the fence, or a record that was created first.
    async fn create(&self, fence: &Record) -> Result<StoredRecord, crate::object::FormatError> {
        let data = fence.encode();
        let digest = Digest::of(&data);
        let op = StoreOp::Create {
            key: record_key(fence.log, fence.position),
            data,
        };
        let mut pauses = Pauses::new();
        loop {
            if let Ok(StoreReply::Written { .. }) = self.port.store(op.clone()).await {
                let record = fence.clone();
                return Ok(StoredRecord { record, digest });
            }
            if let Some(found) = read_record(self.port, fence.log, fence.position).await? {
                return Ok(found);
            }
            pauses.wait(self.port).await;
        }
    }

    /// Makes this host the owner of the volume, with what was read.
    pub(crate) async fn adopt(
        &self,
        wanted: &TakeRequest,
        claimed: VersionedRoot,
        chain: Option<&Chain>,
    ) -> Result<VersionedRoot, TakeError> {
        let VersionedRoot { root, version } = claimed;
        let lsn = chain.map_or(root.lsn, |chain| chain.last);
        let mut deltas = root.deltas.clone();
        let found = chain.iter().flat_map(|chain| &chain.deltas);
        deltas.extend(found.map(|(_, delta)| *delta));
        let mut sessions = root.sessions.clone();
        let found = chain.iter().flat_map(|chain| chain.sessions.iter());
        let named = sessions.extend(found);
        named.map_err(|error| TakeError::Root(UpdateError::Unreadable(error)))?;
        let adoption = Root {
            sequence: root.sequence + 1,
            writer: self.own,
            owner: Some(self.owner()),
            claimant: None,
            predecessor: None,
            mark: self.mark,
            since: match wanted.continues {
                None if !wanted.maintains => root.epoch,
                _ => root.since,
            },
            // A tail that holds more than the store continues this history.
            first: lsn.max(wanted.continues.unwrap_or_default()).next(),
            lsn,
            unix_ms: self.unix_ms,
            deltas,
            sessions,
            ..root
        };
        match update_root(self.port, &adoption, &version).await? {
            UpdateOutcome::Won(standing) => Ok(standing),
            UpdateOutcome::Lost(_) => Err(TakeError::Outrun),
        }
    }
}

fn log_error(host: HostId, error: &ScanError) -> UnreadableLog {
    let (position, why) = match error {
        ScanError::Broken(position) => (
            position,
            "it does not follow the records before it: the store was set back".to_owned(),
        ),
        ScanError::Missing(position) => (
            position,
            "it is gone, though records followed it: somebody removed it. Nothing is taken from this log \
             across it: put it back, with the bytes that it had"
                .to_owned(),
        ),
        ScanError::Unreadable(position, error) => (position, error.to_string()),
    };
    UnreadableLog(format!("{}: {why}", record_key(host, *position)))
}
