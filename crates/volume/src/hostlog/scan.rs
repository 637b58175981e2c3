//! Reading another host's log from a mark on: what it holds of the volumes that are being taken from it.
//!
//! Slices count in the order of the log and must follow each other by LSN, up to the first fence or end that
//! blocks their epoch. The digest that each record has of its predecessor is checked.

use super::look_around::read_low_mark;
use super::names::{Digest, Position};
use super::port::{LogPort, StoredRecord, read_record};
use super::record::Content;
use crate::jobs::join_all;
use crate::object::FormatError;
use crate::object::root::{DeltaRef, Predecessor, Root};
use crate::object::sessions::SessionNames;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// Records that are read in parallel, at most.
const WINDOW_MAX: u64 = 64;
/// Distances behind an empty position at which a record is looked for. A record behind a hole is found if at
/// least three times as many records follow the hole as the hole has.
const LOOKS_BEHIND: [u64; 6] = [1, 4, 16, 64, 256, 1024];
/// Attempts of a scan whose records are removed while it reads.
pub(super) const ATTEMPTS_MAX: u32 = 16;

/// What the log holds of one volume's epoch beyond its root.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    volume: VolumeId,
    epoch: Epoch,
    mark: Position,
    /// The LSN up to which the volume's history is known, including the root's part.
    pub(crate) last: Lsn,
    /// The packs, oldest first, each with the position of its record.
    pub(super) deltas: Vec<(Position, DeltaRef)>,
    /// The sessions of the packs, and of others of the log.
    pub(super) sessions: SessionNames,
    /// The position of the fence or end behind which nothing counts.
    pub(super) blocked_at: Option<Position>,
    /// The log's records of this volume do not fit; other volumes are not affected.
    broken: Option<ScanError>,
}

/// Why a scan did not reach the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// Records do not follow each other: some were removed meanwhile, or the store was set back.
    Broken(Position),
    /// No record stands there, although there are, or were, records behind it.
    Missing(Position),
    /// The object there is not a record.
    Unreadable(Position, FormatError),
}

/// A scan of one host's log.
#[derive(Debug)]
pub(super) struct Scan {
    host: HostId,
    pub(super) chains: Vec<Chain>,
    /// The next position to read.
    pub(super) at: Position,
    /// Digest of the record before it, if that was read.
    previous: Option<Digest>,
    /// Records of the next window.
    window: u64,
    /// The last one to read.
    last: Position,
    /// Records are known to have stood up to here.
    known: Position,
}

impl Chain {
    /// A chain that begins where the root ends.
    pub(super) fn new(volume: VolumeId, predecessor: Predecessor, last: Lsn) -> Chain {
        Chain {
            volume,
            epoch: predecessor.epoch,
            mark: predecessor.mark,
            last,
            deltas: Vec::new(),
            sessions: SessionNames::default(),
            blocked_at: None,
            broken: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.blocked_at.is_none() && self.broken.is_none()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.broken.is_none()
    }

    /// Discards what was read of it.
    pub(super) fn fail(&mut self, error: &ScanError) {
        self.broken = Some(error.clone());
    }

    /// Whether the chain needs the record at this position.
    pub(super) fn needs(&self, position: Position) -> bool {
        self.is_open() && self.mark < position
    }

    /// What was read of the volume, unless it does not fit.
    pub(super) fn into_result(self) -> Result<Chain, ScanError> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }

    /// Appends a record's slices of the volume.
    fn take(&mut self, found: &StoredRecord) -> Result<(), ScanError> {
        let at = found.record.position;
        if at <= self.mark {
            return Ok(());
        }
        let known = self.sessions.extend(found.record.sessions());
        known.map_err(|error| ScanError::Unreadable(at, error))?;
        let mut taken: Option<(Lsn, u32)> = None;
        for (slice, delta) in found.record.deltas_of(self.volume, self.epoch) {
            let is_part = taken == Some((slice.first, slice.count));
            if slice.last() <= self.last && !is_part {
                continue;
            }
            if slice.first > self.last.next() {
                return Err(ScanError::Broken(at));
            }
            taken = Some((slice.first, slice.count));
            self.last = self.last.max(slice.last());
            self.deltas.push((at, delta));
        }
        Ok(())
    }
}

impl ScanError {
    /// The position of the record at fault.
    pub(super) fn position(&self) -> Position {
        match self {
            ScanError::Broken(at) | ScanError::Missing(at) | ScanError::Unreadable(at, _) => *at,
        }
    }
}

impl Scan {
    /// A scan from the lowest mark of these volumes, but not below the log's low mark.
    pub(super) fn new(host: HostId, low: Option<Position>, chains: Vec<Chain>) -> Scan {
        let marks = || chains.iter().map(|chain| chain.mark);
        let from = marks().min().unwrap_or_default().next();
        // The owner of each root passed the record at that root's mark.
        let known = marks().max().unwrap_or_default();
        Scan {
            host,
            chains,
            at: low.map_or(from, |low| low.max(from)),
            previous: None,
            window: 1,
            last: Position(u64::MAX),
            known,
        }
    }

    /// Sets the position up to which records are known to have stood.
    pub(super) fn with_known(mut self, known: Position) -> Scan {
        self.known = self.known.max(known);
        self
    }

    /// Reads until every chain is blocked, or until the first empty position: then it returns true.
    pub(super) async fn run(&mut self, port: &impl LogPort) -> Result<bool, ScanError> {
        while self.at <= self.last && self.chains.iter().any(Chain::is_open) {
            let end = self
                .at
                .0
                .saturating_add(self.window)
                .min(self.last.next().0);
            let positions = self.at.0..end;
            let host = self.host;
            let read = |at| Box::pin(async move { read_record(port, host, Position(at)).await });
            let mut window = join_all(positions.map(read).collect()).await.into_iter();
            while let Some(found) = window.next() {
                let found = found.map_err(|error| ScanError::Unreadable(self.at, error))?;
                if let Some(found) = found {
                    self.take(&found)?;
                    continue;
                }
                let is_followed = window.any(|found| !matches!(found, Ok(None)));
                if self.is_end(port, is_followed).await? {
                    return Ok(true);
                }
                break;
            }
            self.window = (self.window * 2).min(WINDOW_MAX);
        }
        Ok(false)
    }

    /// Whether the log ends at the empty position. False: a record has appeared there meanwhile.
    ///
    /// # Errors
    ///
    /// If records follow the empty position. A log has no holes, so somebody removed what stood there, and a
    /// fence in the hole would cut off everything behind it.
    async fn is_end(&self, port: &impl LogPort, is_followed: bool) -> Result<bool, ScanError> {
        if canary::active!("hole_is_the_end") {
            return Ok(true);
        }
        if self.at <= self.known {
            return Err(ScanError::Missing(self.at));
        }
        let host = self.host;
        let look = |behind: &u64| {
            let at = Position(self.at.0.saturating_add(*behind));
            Box::pin(async move { read_record(port, host, at).await })
        };
        let is_followed = is_followed || {
            let looks = join_all(LOOKS_BEHIND.iter().map(look).collect()).await;
            looks.iter().any(|found| !matches!(found, Ok(None)))
        };
        if !is_followed {
            return Ok(true);
        }
        // The owner and other takers keep writing meanwhile, so positions are read in order.
        match read_record(port, host, self.at).await {
            Ok(None) => Err(ScanError::Missing(self.at)),
            _ => Ok(false),
        }
    }

    /// Takes the record at `at` into the chains.
    pub(super) fn take(&mut self, found: &StoredRecord) -> Result<(), ScanError> {
        if let (Content::Slices(slices), Some(previous)) = (&found.record.content, self.previous)
            && slices.previous != previous
        {
            return Err(ScanError::Broken(self.at));
        }
        for chain in self.chains.iter_mut().filter(|chain| chain.is_open()) {
            if let Err(error) = chain.take(found) {
                chain.fail(&error);
                continue;
            }
            // Records up to the mark were judged when they were folded into the root.
            if self.at > chain.mark && found.record.blocks(chain.volume, chain.epoch) {
                chain.blocked_at = Some(self.at);
            }
        }
        self.previous = Some(found.digest);
        self.at = self.at.next();
        Ok(())
    }
}

/// The LSN up to which the store has a volume: by its root, and by the log of its holder beyond the root.
///
/// # Errors
/// If records are missing or do not fit, which may also be because the root changed meanwhile.
pub async fn read_stored(port: &impl LogPort, root: &Root) -> Result<Lsn, ScanError> {
    read_beyond_root(port, root).await.map(|found| found.last)
}

/// What the log of a volume's holder has beyond its root: a prefix of what was stored.
///
/// # Errors
/// As [`read_stored`].
pub async fn read_beyond_root(port: &impl LogPort, root: &Root) -> Result<OwnLog, ScanError> {
    // A hold for maintenance leaves nothing there.
    let owner = root.owner.as_ref().filter(|_| !root.is_maintained());
    let owner = owner.map(|owner| Predecessor {
        host: owner.host,
        epoch: root.epoch,
        mark: root.mark,
    });
    let Some(holder) = owner.or(root.predecessor) else {
        return Ok(OwnLog {
            last: root.lsn,
            deltas: Vec::new(),
            sessions: SessionNames::default(),
        });
    };
    let low = read_low_mark(port, holder.host).await;
    let chain = Chain::new(root.volume, holder, root.lsn);
    let mut scan = Scan::new(holder.host, low, vec![chain]);
    scan.run(port).await?;
    let chain = scan.chains.swap_remove(0).into_result()?;
    Ok(OwnLog {
        last: chain.last,
        deltas: chain.deltas,
        sessions: chain.sessions,
    })
}

/// What an owner's own log holds of a volume beyond its root.
#[derive(Clone, Debug)]
pub struct OwnLog {
    /// The LSN up to which the log has it.
    pub last: Lsn,
    /// The packs, oldest first, each with the position of its record.
    pub deltas: Vec<(Position, DeltaRef)>,
    /// The sessions of the packs.
    pub sessions: SessionNames,
}

/// What an owner's own log holds of a volume beyond its root, up to its last resolved record.
///
/// # Errors
/// If records are missing or do not fit.
pub async fn read_own_log(
    port: &impl LogPort,
    host: HostId,
    root: &Root,
    last: Position,
) -> Result<OwnLog, ScanError> {
    let own = Predecessor {
        host,
        epoch: root.epoch,
        mark: root.mark,
    };
    let mut broken = ScanError::Broken(last);
    for _ in 0..ATTEMPTS_MAX {
        // No record below the low mark names the volume.
        let low = read_low_mark(port, host).await;
        let chain = Chain::new(root.volume, own, root.lsn);
        let mut scan = Scan::new(host, low, vec![chain]);
        scan.last = last;
        let read = match scan.run(port).await {
            Ok(false) => scan.chains.swap_remove(0).into_result(),
            Ok(true) => Err(ScanError::Broken(scan.at)),
            Err(error) => Err(error),
        };
        match read {
            Ok(chain) => {
                return Ok(OwnLog {
                    last: chain.last,
                    deltas: chain.deltas,
                    sessions: chain.sessions,
                });
            }
            Err(error @ (ScanError::Broken(_) | ScanError::Missing(_))) => broken = error,
            Err(error) => return Err(error),
        }
    }
    Err(broken)
}
