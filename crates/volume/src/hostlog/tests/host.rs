//! A host of the test world: it writes, publishes, folds, closes and takes volumes, one job at a time.

mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use super::ghost::Content;
use super::world::{Port, lock_world};
use crate::collect::pass::{collect, find_garbage as collect_nothing};
use crate::driver::{StoreOp, StoreReply};
use crate::hostlog::continuing::{OwnTail, TailVerdict, judge_tail};
use crate::hostlog::low_mark::{raise_low_mark, remove_records};
use crate::hostlog::names::{Digest, PACK_PREFIX, Position, SessionName};
use crate::hostlog::notes::LogState;
use crate::hostlog::port::LogPort;
use crate::hostlog::publisher::{Batch, Progress, Publisher};
use crate::hostlog::record::{NamedObject, RecordPack, RecordSlice};
use crate::hostlog::root_updates::{VersionedRoot, read_root};
use crate::hostlog::scan::read_own_log;
use crate::hostlog::stop::Stop;
use crate::object::root::{DeltaRef, Root};
use crate::object::sessions::SessionNames;
use crate::object::{ObjectId, root_key};
use crate::units::{Epoch, HostId, LogSession, Lsn, Span, VolumeId};

pub(super) const VOLUMES: u8 = 3;

pub(super) fn volume_id(number: u8) -> VolumeId {
    VolumeId([number + 1; 16])
}

pub(super) fn volume_name(volume: VolumeId) -> String {
    format!("v{}", volume.0[0])
}

/// What a machine keeps of a volume. The data is in the ring and the log.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail {
    epoch: Epoch,
    data: Content,
    durable: usize,
    stored: usize,
}

/// What survives a process.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    pub(super) session: LogSession,
    pub(super) state: LogState,
    tails: BTreeMap<VolumeId, Tail>,
}

impl Disk {
    /// A frame is durable: all commits up to it are.
    pub(super) fn on_durable(&mut self) {
        for tail in self.tails.values_mut() {
            tail.durable = tail.data.len();
        }
    }

    pub(super) fn cut_power(&mut self) {
        for tail in self.tails.values_mut() {
            tail.data.truncate(tail.durable);
            tail.stored = tail.stored.min(tail.durable);
        }
    }

    /// A copy of the directory: without what is only in memory.
    pub(super) fn copy(&self) -> Disk {
        let mut copy = self.clone();
        copy.cut_power();
        copy
    }
}

/// A volume that is served.
struct ServedVolume {
    known: VersionedRoot,
    /// Packs since the root, each with the position of its record.
    since: Vec<(Position, DeltaRef)>,
}

struct Host {
    port: Port,
    own: SessionName,
    publisher: Publisher<Port>,
    served: BTreeMap<VolumeId, ServedVolume>,
    rng: fastrand::Rng,
    packs: u64,
    /// Of the packs that records name.
    sessions: SessionNames,
    /// What root and log have of continued tails: certain when the log is resolved.
    unsure: Vec<(VolumeId, Lsn, Lsn)>,
}

/// A process, from its start until it stops or has nothing more to do.
pub(super) async fn run_process(port: Port, own: SessionName, before: LogSession, seed: u64) {
    let machine = port.machine;
    let world = port.world.clone();
    if let Err(stop) = begin(port, own, before, seed).await {
        let mut shared = lock_world(&world);
        shared.ghost.stops += 1;
        if !shared.ghost.may_stop {
            let what = format!("a host stops although nothing happened to it: {stop}");
            shared.ghost.violate(what);
        }
        shared.machines[machine].stopped = Some(stop);
    }
}

async fn begin(port: Port, own: SessionName, before: LogSession, seed: u64) -> Result<(), Stop> {
    let disk = lock_world(&port.world).machines[port.machine].disk.clone();
    let publisher = Publisher::new(port.clone(), own, before, disk.state.clone());
    let mut host = Host {
        port,
        own,
        publisher,
        served: BTreeMap::new(),
        rng: fastrand::Rng::with_seed(seed),
        packs: 0,
        sessions: SessionNames::default(),
        unsure: Vec::new(),
    };
    let mut reopened = Vec::new();
    for (volume, tail) in &disk.tails {
        if host.check_continuing_tail(*volume, tail).await? {
            reopened.push(*volume);
        }
    }
    let progress = host.publisher.resolve().await?;
    for (volume, first, last) in std::mem::take(&mut host.unsure) {
        if host.served.contains_key(&volume) {
            host.on_stored(volume, first, last);
        }
    }
    host.apply(progress);
    host.take(&reopened).await?;
    let takes_all = lock_world(&host.port.world).machines[host.port.machine].takes_all;
    for number in 0..if takes_all { VOLUMES } else { 0 } {
        host.take(&[volume_id(number)]).await?;
        if !host.served.contains_key(&volume_id(number)) {
            let mut shared = lock_world(&host.port.world);
            if !shared.ghost.was_set_back {
                shared.ghost.on_refused(volume_id(number));
            }
        }
    }
    host.work().await?;
    if takes_all {
        host.clean_up().await;
    }
    Ok(())
}

impl Host {
    fn tail<R>(&self, volume: VolumeId, change: impl FnOnce(&mut Tail) -> R) -> R {
        let mut shared = lock_world(&self.port.world);
        let tails = &mut shared.machines[self.port.machine].disk.tails;
        change(tails.entry(volume).or_default())
    }

    fn forget(&mut self, volume: VolumeId) {
        self.served.remove(&volume);
        self.publisher.detach(volume);
        let mut shared = lock_world(&self.port.world);
        shared.machines[self.port.machine]
            .disk
            .tails
            .remove(&volume);
    }

    fn next(&self) -> Position {
        self.publisher.state().next
    }

    /// The first look at the root of a tail that goes on. True: it has to be taken again.
    async fn check_continuing_tail(&mut self, volume: VolumeId, tail: &Tail) -> Result<bool, Stop> {
        let name = volume_name(volume);
        let standing = read_root(&self.port, &name).await;
        let standing = standing.map_err(|_| Stop::SetBack("a root is gone".into()))?;
        let state = self.publisher.state();
        let own = OwnTail {
            host: self.own.host,
            volume,
            epoch: tail.epoch,
            stored: Lsn(tail.stored as u64),
            newest: Lsn(tail.data.len() as u64),
            next: state.next,
            is_unresolved: !state.unresolved.is_empty(),
            is_ended: state.ended.contains(&(volume, tail.epoch)),
        };
        match judge_tail(&standing.root, &own) {
            TailVerdict::Continues => {
                let last = state.next.previous();
                let log = read_own_log(&self.port, self.own.host, &standing.root, last).await;
                let broken = |_| Stop::SetBack("this host's log has a hole".into());
                let log = log.map_err(broken)?;
                self.learn_sessions(log.sessions.iter());
                self.unsure
                    .push((volume, Lsn(tail.stored as u64 + 1), log.last));
                self.publisher.attach(volume, name, tail.epoch);
                let (known, since) = (standing, log.deltas);
                self.served.insert(volume, ServedVolume { known, since });
                Ok(false)
            }
            TailVerdict::Reopens => Ok(true),
            TailVerdict::Fenced => {
                self.forget(volume);
                Ok(false)
            }
            TailVerdict::Stop(stop) => Err(stop),
        }
    }

    /// A moment in which nothing is under way that leans on what was read before.
    async fn wait_until_idle(&self) {
        lock_world(&self.port.world).machines[self.port.machine].is_idle = true;
        self.port.sleep(0).await;
        lock_world(&self.port.world).machines[self.port.machine].is_idle = false;
    }

    async fn work(&mut self) -> Result<(), Stop> {
        loop {
            self.wait_until_idle().await;
            let goes_on = {
                let mut shared = lock_world(&self.port.world);
                let goes_on = shared.jobs > 0;
                shared.jobs = shared.jobs.saturating_sub(1);
                goes_on
            };
            if !goes_on {
                return self.publish(None).await;
            }
            let volume = volume_id(self.rng.u8(..VOLUMES));
            let is_served = self.served.contains_key(&volume);
            match self.rng.u32(..26) {
                20..=21 => self.collect().await,
                22 if is_served => self.compact(volume).await?,
                23 => self.raise_all().await,
                0..=1 if !is_served => self.take(&[volume]).await?,
                19 if self.rng.u8(..4) == 0 => {
                    let all = (0..VOLUMES).map(volume_id);
                    let free: Vec<_> = all.filter(|id| !self.served.contains_key(id)).collect();
                    self.take(&free).await?;
                }
                2..=8 if is_served => {
                    let value = self.rng.u64(1..);
                    self.tail(volume, |tail| tail.data.push(value));
                }
                9..=14 => self.publish(None).await?,
                15..=16 if is_served => self.fold(volume).await?,
                17 if is_served => self.close(volume).await?,
                18 | 24..=25 => self.raise(self.own.host, self.next().previous()).await,
                _ => {}
            }
        }
    }

    async fn raise(&self, host: HostId, last: Position) {
        let known = self.served.keys();
        let names = known
            .map(|volume| (*volume, volume_name(*volume)))
            .collect();
        let records = self.publisher.records();
        // What it remembers makes it careful: mostly it reads all, as a collector does.
        let remembers = host == self.own.host && self.packs.is_multiple_of(4);
        let recent = remembers.then(|| records.get());
        let raised = raise_low_mark(&self.port, host, last, &names, recent.as_ref()).await;
        if let Some(low) = raised {
            if host == self.own.host {
                records.forget_below(low);
            }
            remove_records(&self.port, host, low).await;
        }
    }

    /// Whoever collects raises the low marks of all hosts.
    async fn raise_all(&self) {
        let hosts: BTreeSet<HostId> = {
            let shared = lock_world(&self.port.world);
            shared.machines.iter().map(|machine| machine.host).collect()
        };
        for host in hosts {
            self.raise(host, Position(u64::MAX)).await;
        }
    }

    /// When all has come to rest: two passes leave no garbage, and take nothing that a root names.
    async fn clean_up(&self) {
        self.raise_all().await;
        self.collect().await;
        self.collect().await;
        let left = collect_nothing(&self.port, BTreeSet::new()).await;
        let mut shared = lock_world(&self.port.world);
        if shared.ghost.was_set_back {
            return;
        }
        match left {
            Ok(left) if left.garbage.objects == 0 => {}
            left => shared.ghost.violate(format!("S9: garbage stays: {left:?}")),
        }
        for number in 0..VOLUMES {
            let (bytes, _) = &shared.objects[&root_key(&volume_name(volume_id(number)))];
            let root = Root::decode(bytes).expect("a root");
            if content_of(&shared.objects, &root).is_none() {
                shared.ghost.on_refused(volume_id(number));
            }
        }
    }

    /// A pass of the collector.
    async fn collect(&self) {
        let found = collect(&self.port, self.own, 0, BTreeSet::new()).await;
        let mut shared = lock_world(&self.port.world);
        match found {
            Ok(found) => {
                shared.ghost.removed += found.removed.objects;
                if found.recovered.objects > 0 && !shared.ghost.was_set_back {
                    shared.ghost.violate("S9: a candidate is reached".into());
                }
            }
            Err(error) if !shared.ghost.was_set_back => shared.ghost.violate(error.to_string()),
            Err(_) => {}
        }
    }

    /// Makes one pack of a volume's, which only its root will name.
    async fn compact(&mut self, volume: VolumeId) -> Result<(), Stop> {
        self.publish(None).await?;
        if !self.served.contains_key(&volume) {
            return Ok(());
        }
        let tail = self.tail(volume, |tail| tail.clone());
        let lines = tail.data[..tail.stored].iter().enumerate();
        let content: String = lines
            .map(|(lsn, value)| format!("{} {value}\n", lsn + 1))
            .collect();
        let pack = self
            .put(format!("{volume}\n{content}").into_bytes())
            .await?;
        let object = NamedObject {
            volume: 0,
            is_index: false,
            is_kept: false,
            number: pack.number,
        };
        let batch = Batch {
            floor: pack.number,
            volumes: vec![(volume, tail.epoch)],
            objects: vec![object],
            ..Batch::default()
        };
        let progress = self.publisher.publish(batch).await?;
        self.apply(progress);
        let merged = DeltaRef {
            last: Lsn(tail.stored as u64),
            pack: ObjectId::new(self.own, pack.number),
            footer_offset: 0,
            footer_bytes: 0,
            span: Span::new(0, 8),
        };
        let deltas = vec![merged];
        let compacted = |root| Root {
            deltas: deltas.clone(),
            ..root
        };
        self.learn_sessions([self.own].into_iter());
        self.update(volume, false, compacted).await.map(drop)
    }

    /// Puts everything that is not stored yet into a pack or two, and publishes it.
    async fn publish(&mut self, ends: Option<VolumeId>) -> Result<(), Stop> {
        let mut batch = Batch {
            floor: self.packs,
            ..Batch::default()
        };
        if canary::active!("floor_is_above_what_is_on_its_way") {
            batch.floor = u64::MAX;
        }
        let volumes: Vec<_> = self.served.keys().copied().collect();
        for volume in volumes {
            let tail = self.tail(volume, |tail| tail.clone());
            let at = batch.volumes.len() as u16;
            batch.volumes.push((volume, tail.epoch));
            if ends == Some(volume) {
                batch.ends.push(at);
            }
            if tail.stored == tail.data.len() {
                continue;
            }
            let parts = self.rng.u16(1..3);
            for part in 0..parts {
                let pack = batch.packs.len() as u16;
                let own = tail.data.iter().enumerate().skip(tail.stored);
                let own = own.filter(|(lsn, _)| *lsn as u16 % parts == part);
                let content = own.map(|(lsn, value)| format!("{} {value}\n", lsn + 1));
                let content: String = content.collect();
                let pack_bytes = format!("{volume}\n{content}");
                batch.packs.push(self.put(pack_bytes.into_bytes()).await?);
                batch.slices.push(RecordSlice {
                    volume: at,
                    pack,
                    first: Lsn(tail.stored as u64 + 1),
                    count: (tail.data.len() - tail.stored) as u32,
                    span: Span::new(0, 8),
                });
            }
        }
        // The packs are up, and nothing names them yet.
        self.wait_until_idle().await;
        let progress = self.publisher.publish(batch).await?;
        self.apply(progress);
        Ok(())
    }

    async fn put(&mut self, data: Vec<u8>) -> Result<RecordPack, Stop> {
        let number = self.packs;
        self.packs += 1;
        let key = self.own.pack_key(number);
        let digest = Digest::of(&data);
        loop {
            let (key, data) = (key.clone(), data.clone());
            let op = StoreOp::Create { key, data };
            if self.port.store(op).await.is_ok() {
                break;
            }
            let op = StoreOp::Get {
                key: self.own.pack_key(number),
            };
            match self.port.store(op).await {
                Ok(StoreReply::Object { data, .. }) if Digest::of(&data) == digest => break,
                Ok(_) => return Err(Stop::Cloned(self.own.pack_key(number))),
                Err(_) => self.port.sleep(0).await,
            }
        }
        Ok(RecordPack {
            number,
            is_kept: false,
            footer_offset: 0,
            footer_bytes: 0,
            digest,
        })
    }

    fn apply(&mut self, progress: Progress) {
        for volume in progress.fenced {
            self.forget(volume);
        }
        for published in progress.published {
            self.learn_sessions(published.record.sessions());
            for (volume, epoch) in published.volumes {
                let deltas = published.record.deltas_of(volume, epoch);
                for (slice, delta) in deltas {
                    let Some(served) = self.served.get_mut(&volume) else {
                        break;
                    };
                    served.since.push((published.record.position, delta));
                    self.on_stored(volume, slice.first, slice.last());
                }
            }
        }
    }

    fn learn_sessions(&mut self, sessions: impl Iterator<Item = SessionName>) {
        self.sessions
            .extend(sessions)
            .expect("bits are not drawn twice");
    }

    /// What the log has of the volume is stored, and is called so.
    fn on_stored(&self, volume: VolumeId, first: Lsn, last: Lsn) {
        let mut shared = lock_world(&self.port.world);
        let disk = &mut shared.machines[self.port.machine].disk;
        let tail = disk.tails.entry(volume).or_default();
        if last < first {
            return;
        }
        let range = first.0 as usize - 1..last.0 as usize;
        let Some(data) = tail.data.get(range).map(<[u64]>::to_vec) else {
            let what = format!("S2: {volume} lost what a record has");
            return shared.ghost.violate(what);
        };
        tail.stored = tail.stored.max(last.0 as usize);
        let epoch = tail.epoch;
        shared.ghost.on_stored(volume, epoch, first, &data);
    }
}

/// What a root says a volume's data is. None: one of its packs is gone.
pub(super) fn content_of(
    objects: &BTreeMap<String, (Vec<u8>, crate::driver::Version)>,
    root: &Root,
) -> Option<Content> {
    let mut content = Content::new();
    for delta in &root.deltas {
        let name = format!("{:016x}/{:016x}", delta.pack.session, delta.pack.number);
        let packs = objects.range(PACK_PREFIX.to_owned()..);
        let mut named = packs.filter(|(key, _)| key.ends_with(&name));
        let (_, (data, _)) = named.next()?;
        let text = std::str::from_utf8(data).ok()?;
        for line in text.lines().skip(1) {
            let (lsn, value) = line.split_once(' ')?;
            let (lsn, value) = (lsn.parse::<usize>().ok()?, value.parse().ok()?);
            content.resize(content.len().max(lsn), 0);
            content[lsn - 1] = value;
        }
    }
    content.resize(root.lsn.0 as usize, 0);
    Some(content)
}
