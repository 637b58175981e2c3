//! The publisher: one create in flight per host, with every slice that is ready.
//!
//! The packs are in the store before a batch is handed to it. Then, as docs/store-protocol.md has it under
//! "Publishing": it makes the position and the record's digest durable in the local log, sends the create, reads
//! the position where the answer is not *won*, looks around, and only then reports the slices as stored. It never
//! repeats a record under another name, and never continues where something does not fit: [`Stop`] is final.

pub use super::look_around::{OwnedVolume, UnverifiedReason};
use super::look_around::{OwnedVolumes, check_previous, look_around};
use super::low_mark::make_low_mark;
use super::names::{Digest, Position, SessionName, record_key};
use super::notes::LogState;
use super::port::{LocalLogUnavailable, LogPort, Pauses, StoredRecord, read_record};
use super::recent_records::SharedRecords;
use super::record::{Content, NamedObject, Record, RecordPack, RecordSlice, Slices};
use super::stop::Stop;
use crate::driver::{StoreOp, StoreReply};
use crate::jobs::join;
use crate::object::FormatError;
use crate::units::{Epoch, LogSession, VolumeId};

/// What is ready to be published. Slices are in the order of each volume's history.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// See [`Slices::floor`].
    pub floor: u64,
    /// The packs, all in the store.
    pub packs: Vec<RecordPack>,
    /// The volumes, in the epochs in which they are owned.
    pub volumes: Vec<(VolumeId, Epoch)>,
    /// The slices.
    pub slices: Vec<RecordSlice>,
    /// Objects of root updates that are sent once the record counts.
    pub objects: Vec<NamedObject>,
    /// Indexes of the volumes whose epoch ends with this record: everything of the epoch is in this record or
    /// before it.
    pub ends: Vec<u16>,
}

/// A record that is effective for these volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveRecord {
    /// The record. Its slices of other volumes do not count.
    pub record: Record,
    /// Volumes whose slices in the record are stored.
    pub volumes: Vec<(VolumeId, Epoch)>,
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Records that are effective now, in order. A record of an earlier start may come before this batch's.
    pub published: Vec<EffectiveRecord>,
    /// Volumes that another host has taken: nothing more of their epoch will be stored.
    pub fenced: Vec<VolumeId>,
    /// Volumes of which nothing is reported as stored for now, and why. Their slices have to be published again.
    pub unverified: Vec<(VolumeId, UnverifiedReason)>,
}

/// The one publisher of a host.
#[derive(Debug)]
pub struct Publisher<P> {
    port: P,
    own: SessionName,
    /// The previous session, until a record of this session has ended it.
    ends_session: LogSession,
    state: LogState,
    volumes: OwnedVolumes,
    /// The newest state is not durable yet.
    is_staged: bool,
    records: SharedRecords,
    /// The record before `next` was read just now.
    has_read_previous: bool,
    /// The position whose predecessor the caller that has the publisher now has found where it was.
    checked_next: Option<Position>,
    stopped: Option<Stop>,
}

impl<P: LogPort> Publisher<P> {
    /// The publisher of a session. `before` is the previous session, which the first record ends: afterwards the
    /// collector may remove what nothing names of it.
    pub fn new(port: P, own: SessionName, before: LogSession, mut state: LogState) -> Publisher<P> {
        if canary::active!("unresolved_digests_are_forgotten") {
            state.unresolved.clear();
        }
        Publisher {
            port,
            own,
            ends_session: before,
            records: SharedRecords::new(state.next),
            state,
            volumes: OwnedVolumes::new(),
            is_staged: false,
            has_read_previous: false,
            checked_next: None,
            stopped: None,
        }
    }

    /// Adds a volume that this host owns from now on, or whose epoch continues after a start.
    pub fn attach(&mut self, volume: VolumeId, name: String, epoch: Epoch) {
        self.state.ended.retain(|(id, _)| *id != volume);
        let owned = OwnedVolume {
            name,
            epoch,
            is_verified: false,
        };
        self.volumes.insert(volume, owned);
        self.stage_state();
    }

    /// Removes a volume that this host does not own any more.
    pub fn detach(&mut self, volume: VolumeId) {
        self.volumes.remove(&volume);
        self.state.ended.retain(|(id, _)| *id != volume);
        self.stage_state();
    }

    /// The state of the log. Everything before `next` is resolved.
    pub fn state(&self) -> &LogState {
        &self.state
    }

    /// What this process remembers of its records.
    pub fn records(&self) -> &SharedRecords {
        &self.records
    }

    /// Stops publishing: the caller found out that the host must stop. The first reason is kept.
    pub fn stop(&mut self, stop: &Stop) {
        self.stopped.get_or_insert_with(|| stop.clone());
    }

    /// Another caller has the publisher: what the last one found in the store may have changed.
    pub fn forget_checks(&mut self) {
        self.checked_next = None;
    }

    /// Why the publisher stopped, if it did.
    pub fn stop_reason(&self) -> Option<&Stop> {
        self.stopped.as_ref()
    }

    /// Resolves a create of an earlier start. To be called once, when the volumes whose tails go on are attached,
    /// and before anything else is published.
    ///
    /// # Errors
    /// If the host must stop.
    pub async fn resolve(&mut self) -> Result<Progress, Stop> {
        let mut progress = Progress::default();
        let result = self.resolve_earlier(&mut progress).await;
        self.keep_stop(result).map(|()| progress)
    }

    async fn resolve_earlier(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        self.check_stopped()?;
        if self.state.unresolved.is_empty() {
            return Ok(());
        }
        match self.find(progress).await? {
            // It may land yet: its digests stay until something stands there.
            PositionContent::Nothing | PositionContent::Passed => Ok(()),
            PositionContent::Ours(found) => self.on_won(*found, progress).await,
        }
    }

    /// Reads the log up to its end: it resolves a create of an earlier start, finds the fences that takers put
    /// there since the last record, and detects another process that writes as this host.
    ///
    /// # Errors
    ///
    /// If the host must stop.
    pub async fn catch_up(&mut self) -> Result<Progress, Stop> {
        let mut progress = Progress::default();
        let result = self.pass_all(&mut progress).await;
        self.has_read_previous = false;
        self.keep_stop(result).map(|()| progress)
    }

    async fn pass_all(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        self.check_stopped()?;
        // An earlier call may have been dropped halfway.
        let mut ahead = Some(self.look_at_end().await?);
        self.has_read_previous = self.checked_next.is_some();
        loop {
            let found = match ahead.take() {
                Some(read) => self.judge(read, progress).await?,
                None => self.find(progress).await?,
            };
            // The record just read need not be read again as the previous one.
            self.has_read_previous = matches!(found, PositionContent::Passed);
            match found {
                // It may land yet: its digests stay until something stands there.
                PositionContent::Nothing => return Ok(()),
                PositionContent::Passed => {}
                PositionContent::Ours(found) => self.on_won(*found, progress).await?,
            }
        }
    }

    /// The mark for a root update: the last resolved position, which is still there and durably noted.
    ///
    /// After a store was set back, a fold would otherwise put into the root what is gone. And a crash would lose
    /// a mark that is only in memory, so that a later record could stand at or below it.
    ///
    /// # Errors
    /// If the host must stop.
    pub async fn mark(&mut self) -> Result<Position, Stop> {
        let result = self.check_mark().await;
        self.keep_stop(result)?;
        Ok(self.state.next.previous())
    }

    async fn check_mark(&mut self) -> Result<(), Stop> {
        self.check_stopped()?;
        let is_checked = self.checked_next.take() == Some(self.state.next);
        if !is_checked && !canary::active!("fold_believes_its_log") {
            check_previous(&self.port, self.own.host, &self.state).await?;
        }
        if self.is_staged && !canary::active!("mark_is_not_noted") {
            self.persist_state().await?;
        }
        Ok(())
    }

    /// Makes the state of the log durable.
    async fn persist_state(&mut self) -> Result<(), Stop> {
        let noted = self.port.persist_state(self.state.clone()).await;
        noted.map_err(|LocalLogUnavailable| Stop::LocalLog)?;
        self.is_staged = false;
        Ok(())
    }

    /// Has the state written with the next frame of the local log.
    fn stage_state(&mut self) {
        self.port.stage_state(self.state.clone());
        self.is_staged = true;
    }

    /// Publishes what is ready.
    ///
    /// # Errors
    /// If the host must stop: then nothing of the batch is stored.
    pub async fn publish(&mut self, batch: Batch) -> Result<Progress, Stop> {
        let mut progress = Progress::default();
        let result = self.publish_batch(batch, &mut progress).await;
        self.keep_stop(result).map(|()| progress)
    }

    async fn publish_batch(&mut self, batch: Batch, progress: &mut Progress) -> Result<(), Stop> {
        self.check_stopped()?;
        self.has_read_previous = false;
        if !self.state.has_low_mark {
            make_low_mark(&self.port, self.own.host).await?;
            self.state.has_low_mark = true;
        }
        loop {
            let Some(record) = self.record_of(&batch) else {
                return Ok(());
            };
            let bytes = record.encode();
            let digest = Digest::of(&bytes);
            self.note_create(&record, digest).await?;
            match self.create(bytes, digest, progress).await? {
                PositionContent::Ours(found) => {
                    let is_this = found.digest == digest;
                    self.on_won(*found, progress).await?;
                    if is_this {
                        return Ok(());
                    }
                }
                PositionContent::Passed | PositionContent::Nothing => {}
            }
        }
    }

    /// The record of the batch's slices of volumes that are still owned. `None`: no volume of the batch is.
    fn record_of(&self, batch: &Batch) -> Option<Record> {
        let is_owned = |at: u16| {
            let (volume, epoch) = batch.volumes[usize::from(at)];
            let owned = self.volumes.get(&volume);
            owned.is_some_and(|owned| owned.epoch == epoch)
        };
        let slices: Vec<_> = batch
            .slices
            .iter()
            .filter(|slice| is_owned(slice.volume))
            .copied()
            .collect();
        let ends: Vec<_> = batch
            .ends
            .iter()
            .filter(|end| is_owned(**end))
            .copied()
            .collect();
        let objects: Vec<_> = batch
            .objects
            .iter()
            .filter(|object| is_owned(object.volume))
            .copied()
            .collect();
        if slices.is_empty() && ends.is_empty() && objects.is_empty() {
            return None;
        }
        let content = Slices {
            floor: batch.floor,
            previous: self.state.previous,
            ends_session: self.ends_session,
            packs: batch.packs.clone(),
            volumes: batch.volumes.clone(),
            slices,
            ends,
            objects,
            table: Vec::new(),
        };
        Some(Record {
            log: self.own.host,
            position: self.state.next,
            writer: self.own,
            content: Content::Slices(content),
        })
    }

    /// Records in the local log, before the create is sent, what the record says and that it may land.
    async fn note_create(&mut self, record: &Record, digest: Digest) -> Result<(), Stop> {
        if !self.state.unresolved.contains(&digest) {
            self.state.unresolved.push(digest);
        }
        if let Content::Slices(slices) = &record.content {
            let ended: Vec<_> = slices.ended_epochs().collect();
            self.state.ended.retain(|known| !ended.contains(known));
            self.state.ended.extend(ended);
        }
        if canary::active!("create_before_frame") {
            self.stage_state();
            return Ok(());
        }
        self.persist_state().await
    }

    /// Sends the create, and repeats it until it is known what stands at its position.
    async fn create(
        &mut self,
        bytes: Vec<u8>,
        digest: Digest,
        progress: &mut Progress,
    ) -> Result<PositionContent, Stop> {
        let op = StoreOp::Create {
            key: record_key(self.own.host, self.state.next),
            data: bytes,
        };
        let mut pauses = Pauses::new();
        loop {
            if let Ok(StoreReply::Written { .. }) = self.port.store(op.clone()).await {
                let record = created_record(&op)?;
                return Ok(PositionContent::Ours(Box::new(StoredRecord {
                    record,
                    digest,
                })));
            }
            match self.find(progress).await? {
                PositionContent::Nothing => pauses.wait(&self.port).await,
                standing => return Ok(standing),
            }
        }
    }

    /// Reads the position of the next record, and beside that the one before it, so that a mark can be given out there.
    async fn look_at_end(&mut self) -> Result<ReadPosition, Stop> {
        let Publisher {
            port, own, state, ..
        } = &*self;
        let next = state.next;
        if canary::active!("fold_believes_its_log") {
            return Ok(read_record(port, own.host, next).await);
        }
        let (found, previous) = join(
            read_record(port, own.host, next),
            check_previous(port, own.host, state),
        )
        .await;
        previous?;
        self.checked_next = Some(next);
        Ok(found)
    }

    /// Reads what stands at the position of the next record.
    async fn find(&mut self, progress: &mut Progress) -> Result<PositionContent, Stop> {
        let found = read_record(&self.port, self.own.host, self.state.next).await;
        self.judge(found, progress).await
    }

    async fn judge(
        &mut self,
        found: ReadPosition,
        progress: &mut Progress,
    ) -> Result<PositionContent, Stop> {
        let position = self.state.next;
        let found = found
            .map_err(|error| Stop::unreadable(&record_key(self.own.host, position), &error))?;
        let Some(found) = found else {
            return Ok(PositionContent::Nothing);
        };
        if let Content::Fence(_) = found.record.content {
            self.on_fence(&found, progress).await?;
            return Ok(PositionContent::Passed);
        }
        let ours = self.state.unresolved.contains(&found.digest);
        if ours || canary::active!("strangers_record_is_ours") {
            return Ok(PositionContent::Ours(Box::new(found)));
        }
        Err(Stop::foreign_record(self.own.host, position))
    }

    /// Handles a taker's fence at the position of the next record.
    async fn on_fence(
        &mut self,
        fence: &StoredRecord,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if !std::mem::take(&mut self.has_read_previous) {
            check_previous(&self.port, self.own.host, &self.state).await?;
        }
        self.state.pass(fence.digest);
        self.records.add(&fence.record, fence.digest);
        self.stage_state();
        let blocked = |(volume, owned): (&VolumeId, &OwnedVolume)| {
            let is_blocked = fence.record.blocks(*volume, owned.epoch);
            (is_blocked && !canary::active!("fence_is_passed_over")).then_some(*volume)
        };
        let blocked: Vec<_> = self.volumes.iter().filter_map(blocked).collect();
        for volume in blocked {
            self.fence(volume, progress);
        }
        Ok(())
    }

    /// Drops a volume that another host has taken: nothing more of it is published.
    fn fence(&mut self, volume: VolumeId, progress: &mut Progress) {
        if self.volumes.remove(&volume).is_some() {
            progress.fenced.push(volume);
        }
    }

    /// Handles a record of this host that stands in the log: looks around, and records it as resolved.
    async fn on_won(&mut self, found: StoredRecord, progress: &mut Progress) -> Result<(), Stop> {
        let StoredRecord { record, digest } = found;
        let Content::Slices(slices) = &record.content else {
            return Err(Stop::foreign_record(self.own.host, record.position));
        };
        let Publisher {
            port, own, state, ..
        } = self;
        let around = look_around(port, *own, state, &mut self.volumes, (&record, slices)).await?;
        for volume in around.fenced {
            self.fence(volume, progress);
        }
        if record.writer == self.own {
            self.ends_session = LogSession::default();
        }
        self.state.pass(digest);
        self.records.add(&record, digest);
        self.stage_state();
        let is_owned = |(volume, epoch): &(VolumeId, Epoch)| {
            let owned = self.volumes.get(volume);
            owned.is_some_and(|owned| owned.epoch == *epoch)
        };
        let is_doubtful = |volume| {
            around
                .unverified
                .iter()
                .any(|(doubtful, _)| *doubtful == volume)
        };
        let named = slices.volumes.iter().copied();
        let counts = named.filter(|named| is_owned(named) && !is_doubtful(named.0));
        let volumes = counts.collect();
        // After the end of an epoch nothing of it may be published, but the same again where the look around had no
        // answer about it.
        let forgets = canary::active!("end_without_an_answer_is_the_end");
        let is_over =
            |named: &(VolumeId, Epoch)| is_owned(named) && (forgets || !is_doubtful(named.0));
        let ended: Vec<_> = slices.ended_epochs().filter(is_over).collect();
        for (volume, _) in ended {
            self.volumes.remove(&volume);
        }
        progress.unverified.extend(around.unverified);
        progress.published.push(EffectiveRecord { record, volumes });
        Ok(())
    }

    fn check_stopped(&self) -> Result<(), Stop> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    fn keep_stop(&mut self, result: Result<(), Stop>) -> Result<(), Stop> {
        // A local log that takes no writes fails again at each call, so this reason need not be kept.
        if let Err(stop) = &result
            && *stop != Stop::LocalLog
        {
            self.stopped.get_or_insert_with(|| stop.clone());
        }
        result
    }
}

/// What reading a position gives.
type ReadPosition = Result<Option<StoredRecord>, FormatError>;

/// What stands at the position of the next record.
enum PositionContent {
    Nothing,
    /// A fence; the next record goes behind it.
    Passed,
    /// A record that this host sent.
    Ours(Box<StoredRecord>),
}

/// The record of a create.
fn created_record(op: &StoreOp) -> Result<Record, Stop> {
    match op {
        StoreOp::Create { data, .. } => Record::decode(data).map_err(|_| Stop::LocalLog),
        _ => Err(Stop::LocalLog),
    }
}
