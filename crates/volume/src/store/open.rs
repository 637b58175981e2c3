//! Opening and closing volumes.
//!
//! Opening takes the volume's epoch by conditional update of its root: from then on no other
//! host can commit to it (S7). Whether the local tail continues the root is decided by `since`,
//! the epoch in which the owner's unbroken hold began; a tail that does not is kept for rescue
//! and never replayed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkmq::io::Geometry;

use crate::driver::{StoreOp, StoreReply};
use crate::error::OpenError;
use crate::jobs::lock;
use crate::log::frame::Record;
use crate::log::ring::{Ring, TailId, region_words};
use crate::map::index::{Index, delta_of};
use crate::map::layers::{Frozen, Layers};
use crate::object::pack::{Item, TRAILER_BYTES, decode_footer};
use crate::object::page::decode_node;
use crate::object::root::{Owner, Root};
use crate::recover::RecoveredTail;
use crate::request::Volume;
use crate::request::tail::{Inner, Status, Tail};
use crate::request::watermark::Ages;
use crate::shared::Shared;
use crate::store::catalog::check_name;
use crate::store::roots::{
    Head, Replaced, TRIES, commit_root, patient, read_root, replace_root, store_error,
};
use crate::store::upload;
use crate::units::{Epoch, Lsn, VolumeId};

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Take the volume from a host that has not let go, and lose what that has not uploaded.
    pub take_over: bool,
}

/// Holds a volume's name while it is opened, closed or deleted.
pub(crate) struct Busy {
    shared: Arc<Shared>,
    name: String,
}

impl Busy {
    pub(crate) fn take(shared: &Arc<Shared>, name: &str) -> Result<Busy, OpenError> {
        if !lock(&shared.busy).insert(name.to_owned()) {
            return Err(OpenError::InUse(name.to_owned()));
        }
        Ok(Busy {
            shared: Arc::clone(shared),
            name: name.to_owned(),
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.shared.busy).remove(&self.name);
    }
}

/// A recovered tail that nobody has opened yet.
pub(crate) fn dormant(id: TailId, found: RecoveredTail) -> Tail {
    let dirty: u64 = found
        .map
        .iter()
        .filter(|(_, dirty)| dirty.addr.is_some())
        .map(|(span, _)| span.sectors())
        .sum();
    let mut layers = Layers::default();
    if !found.map.is_empty() {
        layers.frozen.push(Frozen {
            map: Arc::new(found.map),
            last: found.newest,
        });
    }
    let inner = Inner {
        status: Status::Dormant,
        geometry: Geometry {
            bytes: 0,
            logical_block: 512,
            physical_block: 4096,
            read_only: true,
        },
        layers,
        index: Index::default(),
        newest: found.newest,
        reserved: 0,
        ring: None,
        uploading: false,
        ages: Ages::default(),
        #[cfg(canary)]
        late: None,
    };
    let tail = Tail::new(id, found.name, found.rescue, inner, found.stored);
    tail.dirty_born(dirty);
    tail
}

/// What an open found out about local tails of a volume.
pub(crate) fn local_tails(shared: &Shared, volume: VolumeId) -> Vec<Arc<Tail>> {
    shared
        .tails()
        .into_iter()
        .filter(|tail| tail.id().volume == volume)
        .collect()
}

pub(crate) async fn open(
    shared: &Arc<Shared>,
    name: &str,
    mode: OpenMode,
) -> Result<Volume, OpenError> {
    check_name(name)?;
    let _busy = Busy::take(shared, name)?;
    let (head, continuing) = take_epoch(shared, name, mode).await?;
    let index = load_index(shared, &head.root).await?;
    let root = &head.root;
    let id = TailId {
        volume: root.volume,
        since: root.since,
    };
    let tail = match continuing {
        Some(tail) => tail,
        None => {
            let none = RecoveredTail {
                name: root.name.clone(),
                stored: root.lsn,
                rescue: false,
                newest: root.lsn,
                map: crate::map::ExtentMap::default(),
            };
            Arc::new(dormant(id, none))
        }
    };
    go_live(shared, &tail, head, index).await?;
    Ok(Volume {
        shared: Arc::clone(shared),
        tail,
    })
}

/// Takes the volume's next epoch. The tail is the local one, if it continues the root.
async fn take_epoch(
    shared: &Arc<Shared>,
    name: &str,
    mode: OpenMode,
) -> Result<(Head, Option<Arc<Tail>>), OpenError> {
    for _ in 0..TRIES {
        let head = read_root(shared, name).await?;
        let tails = local_tails(shared, head.root.volume);
        if tails.iter().any(|tail| tail.lock().status == Status::Live) {
            return Err(OpenError::InUse(name.to_owned()));
        }
        let ours = head
            .root
            .owner
            .as_ref()
            .is_some_and(|owner| owner.host == shared.host);
        if let Some(owner) = head.root.owner.as_ref().filter(|_| !ours)
            && !(mode.take_over || shared.options.take_over)
        {
            return Err(OpenError::Held {
                volume: name.to_owned(),
                owner: format!("{} ({})", owner.label, owner.host),
                stored_lsn: head.root.lsn.0,
            });
        }
        let continuing = tails
            .iter()
            .find(|tail| {
                // A fenced tail has a history of its own, whatever the root says now.
                let whole = !tail.is_rescue() && tail.lock().status == Status::Dormant;
                ours && whole && tail.id().since == head.root.since
            })
            .cloned();
        let epoch = Epoch(head.root.epoch.0 + 1);
        let (since, lsn) = (head.root.since, head.root.lsn);
        let root = Root {
            epoch,
            since: if continuing.is_some() {
                head.root.since
            } else {
                epoch
            },
            sequence: head.root.sequence + 1,
            nonce: shared.next_nonce(),
            owner: Some(Owner {
                host: shared.host,
                label: shared.label.clone(),
            }),
            unix_ms: shared.jobs.now().unix_ms,
            ..head.root
        };
        match replace_root(shared, &root, &head.version).await? {
            Replaced::Won(version) => {
                let continuing_id = continuing.as_ref().map(|tail| tail.id());
                for tail in tails.iter().filter(|tail| Some(tail.id()) != continuing_id) {
                    set_aside(shared, tail, since, lsn);
                }
                return Ok((Head { root, version }, continuing));
            }
            // Somebody was faster; look again at who.
            Replaced::By(_) | Replaced::Gone => {}
        }
    }
    Err(OpenError::Store(format!(
        "{name}: its root changes faster than it can be taken"
    )))
}

/// A tail that does not continue the root, which was last held since `since` and is at `lsn`:
/// kept if it holds something that the store does not have, never replayed.
fn set_aside(shared: &Arc<Shared>, tail: &Arc<Tail>, since: Epoch, lsn: Lsn) {
    // Of this very hold, and given back: a crash came before the log knew.
    let given_back = tail.id().since == since && tail.newest() <= lsn;
    let holds = tail.lock().layers.dirty_extents() > 0;
    if given_back || !holds {
        forget(shared, tail);
        return;
    }
    if !tail.is_rescue() {
        tracing::warn!(
            volume = tail.name(),
            newest = tail.newest().0,
            stored = tail.stored().0,
            "another host took this volume over; what was not uploaded is kept in the log"
        );
        tail.keep_for_rescue();
        shared
            .committer()
            .record(shared, Record::Tail(tail.record()));
    }
}

/// Loads all deltas and the directory.
async fn load_index(shared: &Shared, root: &Root) -> Result<Index, OpenError> {
    let mut index = Index::default();
    index.nodes.extend(root.nodes.iter().copied());
    for (node, block) in &root.nodes {
        let key = block.object.index_key();
        let data = read(shared, &key, block.offset.into(), block.bytes.into()).await?;
        let pages = decode_node(root.volume, *node, &data)
            .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
        index.directory.extend(pages);
    }
    for delta in &root.deltas {
        let key = delta.pack.pack_key();
        let len = u64::from(delta.footer_bytes) + TRAILER_BYTES as u64;
        let data = read(shared, &key, delta.footer_offset, len).await?;
        let items = decode_footer(delta.pack, &data)
            .map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
        for item in items.iter().filter(|item| origin(item) == root.volume) {
            let (span, delta) = delta_of(item);
            index.apply(span, delta);
        }
    }
    Ok(index)
}

fn origin(item: &Item) -> VolumeId {
    match item {
        Item::Chunk(chunk) => chunk.origin,
        Item::Zeroes { origin, .. } => *origin,
    }
}

async fn read(shared: &Shared, key: &str, offset: u64, len: u64) -> Result<Vec<u8>, OpenError> {
    let op = StoreOp::GetRange {
        key: key.to_owned(),
        offset,
        len,
    };
    match patient(shared, op).await {
        Ok(StoreReply::Range(data)) if data.len() as u64 == len => Ok(data),
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer has another length"
        ))),
        Err(error) => Err(store_error(key, &error)),
    }
}

/// An empty ring for a tail. What an old one held was sealed by recovery before anything was
/// opened. None if the log is poisoned: nothing will be committed, and the old ring stays, for it
/// says so.
fn open_ring(shared: &Shared, tail: TailId, entries: u32) -> Result<Option<Ring>, OpenError> {
    if shared.poisoned.load(Ordering::Acquire) {
        return Ok(None);
    }
    let region = shared.rings.open(tail, region_words(entries));
    let region = region.map_err(OpenError::Disk)?;
    Ok(Some(Ring::format(region, tail, shared.host, shared.home)))
}

/// Gives a tail that nobody has opened yet an empty ring of the smallest size, for a successor to
/// find. Without one it would report a loss, so that is the worst that a failure does.
pub(crate) fn empty_ring(shared: &Shared, tail: &Tail) {
    if tail.is_rescue() {
        return;
    }
    match open_ring(shared, tail.id(), 1) {
        Ok(ring) => tail.lock().ring = ring,
        Err(error) => {
            let volume = tail.name();
            tracing::warn!(volume, %error, "there will be no index ring until it is opened");
        }
    }
}

/// Makes the tail serve: its ring, its record in the log, its uploads.
async fn go_live(
    shared: &Arc<Shared>,
    tail: &Arc<Tail>,
    head: Head,
    index: Index,
) -> Result<(), OpenError> {
    let root = &head.root;
    let geometry = Geometry {
        bytes: root.bytes,
        logical_block: root.block,
        physical_block: 4096,
        read_only: false,
    };
    let ring = open_ring(shared, tail.id(), shared.options.ring_entries)?;
    let stale = {
        let mut inner = tail.lock();
        let stale = inner.layers.drop_stored(root.lsn);
        inner.newest = inner.newest.max(root.lsn);
        inner.index = index;
        inner.geometry = geometry;
        inner.ages = Ages::default();
        let newest = inner.newest;
        if newest > root.lsn {
            inner.ages.acked(newest, shared.jobs.mono_ns());
        }
        inner.ring = ring;
        tail.set_framed(newest);
        stale
    };
    for (addr, sectors) in stale {
        tail.dirty_dead(shared, addr, sectors);
    }
    tail.set_stored(root.lsn);
    tail.upload.set_head(head);
    shared.add_tail(Arc::clone(tail));
    if shared.poisoned.load(Ordering::Acquire) {
        // It may have happened after the ring was made and before the tail was there to be told.
        tail.poison_ring();
    }
    if !shared.committer().is_poisoned() {
        // Recovery reads the rings of tails that frames name: none may be written before.
        let round = shared.committer().next_round();
        shared
            .committer()
            .record(shared, Record::Tail(tail.record()));
        if !shared.committer().durable(shared, round).await {
            return Err(OpenError::Poisoned);
        }
    }
    tail.lock().status = Status::Live;
    shared
        .jobs
        .spawn(upload::run(Arc::clone(shared), Arc::clone(tail)));
    Ok(())
}

pub(crate) async fn close(shared: &Arc<Shared>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let _busy = Busy::take(shared, tail.name())?;
    upload::stored(shared, tail, tail.newest()).await?;
    {
        let mut inner = tail.lock();
        if inner.newest > tail.stored() {
            return Err(OpenError::InUse(tail.name().to_owned()));
        }
        inner.status = Status::Closed;
    }
    tail.upload.raise();
    shared.wake_parked();
    let head = tail
        .upload
        .head()
        .ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?;
    let root = Root {
        owner: None,
        ..head.root.clone()
    };
    commit_root(shared, tail, root, &head.version).await?;
    forget(shared, tail);
    Ok(())
}

/// The tail holds nothing that the store does not have: take it out of the log.
pub(crate) fn forget(shared: &Arc<Shared>, tail: &Arc<Tail>) {
    let stale = tail.lock().layers.clear();
    for (addr, sectors, clean) in stale {
        if clean {
            shared.segments.clean_dead(addr, sectors);
        } else {
            tail.dirty_dead(shared, addr, sectors);
        }
    }
    let id = tail.id();
    shared.remove_tail(id);
    let round = shared.committer().next_round();
    shared.committer().record(shared, Record::Gone(id));
    shared.call_reclaim();
    let shared = Arc::clone(shared);
    shared.clone().jobs.spawn(async move {
        // As long as a frame names the tail, recovery would miss its ring.
        if shared.committer().durable(&shared, round).await && shared.tail(id).is_none() {
            shared.rings.remove(id);
        }
    });
}
