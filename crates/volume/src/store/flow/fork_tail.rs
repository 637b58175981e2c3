//! Makes a volume of a tail that is kept for rescue, so that the writes that a take-over left behind can be read.
//!
//! The new volume is what the lost hold was: the store's state at the tail's last own commit, and over it what
//! only this log has. It shares the objects of that state. The tail's extents are packed like slices. The volume
//! exists when its root does; before that nothing names the uploaded objects.
//!
//! The store keeps only the newest root. Its deltas still tell the state at an older LSN as long as no fold has
//! taken a newer delta into pages; after that nothing does, and the fork must never mix two histories. Then the
//! caller can ask for the tail's writes alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::ring::TailId;
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, merge};
use crate::object::ObjectId;
use crate::object::pack::{Ancestor, Slice, VolumeLabel};
use crate::object::root::{DeltaRef, Root};
use crate::request::tail::Tail;
use crate::store::catalog::name_locks::NameLock;
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeSpec, check_spec};
use crate::store::catalog::{create_root, first_root};
use crate::store::flow::pack_plan::plan_packs;
use crate::store::flow::packing::upload_pack;
use crate::store::flow::slice_job::extents_bytes;
use crate::store::flow::slices::UploadedPack;
use crate::store::forks::child::{drop_pin, is_never_made, put_pin};
use crate::store::open::load_index::{learn_sessions, read_sections};
use crate::store::open::rescue::is_lost;
use crate::store::open::tail_claim::TailClaim;
use crate::store::rename::signs::read_root_by_old_name;
use crate::store::roots::why_not_there;
use crate::units::Lsn;

/// A volume made without the base has a size in whole mebibytes.
const BARE_SIZE_STEP_BYTES: u64 = 1 << 20;

/// Why a tail has no base.
const NAME_IS_ANOTHERS: &str = "its name is another volume's now";
const WAS_DELETED: &str = "the volume was deleted";

/// The result of forking a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkedTail {
    /// The new volume.
    pub volume: VolumeInfo,
    /// The LSN of the store's state under the tail's writes; `None`: the rest is zeroes.
    pub base: Option<Lsn>,
    /// The newest of the tail's writes.
    pub newest: Lsn,
    /// Sectors that could not be read from the log: reads of them fail.
    pub damaged_sectors: u64,
}

/// The state under a tail's writes.
struct Base {
    root: Root,
    deltas: Vec<DeltaRef>,
}

/// Makes a volume of the tail's content over the store's state that it continues or, with `without_base`, over
/// zeroes. The tail stays as it is.
pub(crate) async fn fork_tail(
    engine: &Arc<Engine>,
    id: TailId,
    name: &str,
    without_base: bool,
) -> Result<ForkedTail, OpenError> {
    let missing = || OpenError::Invalid(format!("no tail of volume {} is here", id.volume));
    let tail = engine.tail(id).ok_or_else(missing)?;
    if !is_lost(&tail) {
        return Err(OpenError::Invalid(format!(
            "the tail of volume {} waits for its volume: once that opens here, everything in it goes to the \
             store",
            tail.name()
        )));
    }
    let _claim = {
        let _busy = NameLock::take(engine, tail.name())?;
        TailClaim::take(engine, &tail)?
    };
    let (newest, layers) = tail.freeze().ok_or_else(missing)?;
    let bytes = layers.iter().map(|layer| extents_bytes(&layer.map)).sum();
    let merged = move || merge(layers.iter().map(|layer| &*layer.map), |_, _| {});
    let extents = engine
        .port
        .compute(ComputeKind::Merge, bytes, merged)
        .await?;
    let base = match without_base {
        true => None,
        false => Some(find_base(engine, &tail).await?),
    };
    let mut root = forked_root(engine, &tail, name, &extents, base.as_ref())?;
    root.lsn = newest;
    root.first = tail.stored_lsn().next();
    let (packs, damaged_sectors) = upload_extents(engine, &tail, &root, extents).await?;
    root.deltas.extend(packs.iter().map(|pack| pack.reference));
    let named = root.sessions.extend(engine.own_sessions());
    named.map_err(|error| OpenError::Corrupt(format!("{name}: {error}")))?;
    let created = make_volume(engine, &tail, root, base.as_ref()).await;
    if created.is_err() {
        // The root may still be written, and then it names them.
        packs.iter().for_each(|pack| pack.object.hold_forever());
    }
    Ok(ForkedTail {
        volume: created?,
        base: base.map(|_| tail.stored_lsn()),
        newest,
        damaged_sectors,
    })
}

/// Pins what the new volume names, checks that its base was still there then, and creates its root.
async fn make_volume(
    engine: &Arc<Engine>,
    tail: &Tail,
    root: Root,
    base: Option<&Base>,
) -> Result<VolumeInfo, OpenError> {
    let (parent, child) = (tail.id().volume, root.volume);
    put_pin(engine, parent, &root).await?;
    let found = match base {
        Some(base) if !canary::active!("fork_never_looks_at_its_base_again") => {
            check_base(engine, tail, base).await
        }
        _ => Ok(()),
    };
    if let Err(error) = found {
        drop_pin(engine, parent, child).await;
        return Err(error);
    }
    let created = create_root(engine, root).await;
    if created.as_ref().is_err_and(is_never_made) {
        drop_pin(engine, parent, child).await;
    }
    created
}

/// Checks, after the upload, that the base's objects were named until the pin was written.
async fn check_base(engine: &Arc<Engine>, tail: &Tail, base: &Base) -> Result<(), OpenError> {
    let volume = tail.id().volume;
    let standing = read_root_by_old_name(engine, tail.name(), volume).await?;
    let standing = standing.root;
    if standing.is_leaving() {
        return Err(why_not_there(&standing));
    }
    let deltas: BTreeSet<ObjectId> = standing.deltas.iter().map(|delta| delta.pack).collect();
    let has_all = standing.nodes == base.root.nodes
        && base.deltas.iter().all(|delta| deltas.contains(&delta.pack));
    let why = match () {
        () if standing.volume != base.root.volume => NAME_IS_ANOTHERS.to_owned(),
        () if standing.deleted => WAS_DELETED.to_owned(),
        () if has_all => return Ok(()),
        () => "it was merged with what came later, or set back, while the tail was uploaded".into(),
    };
    Err(OpenError::BaseGone {
        volume: tail.name().to_owned(),
        stored_lsn: tail.stored_lsn().0,
        why,
    })
}

/// The first root of the new volume: the state under the tail's writes, without these.
fn forked_root(
    engine: &Engine,
    tail: &Tail,
    name: &str,
    extents: &ExtentMap<DirtyExtent>,
    base: Option<&Base>,
) -> Result<Root, OpenError> {
    let end = extents.iter().map(|(span, _)| span.end).max().unwrap_or(0);
    let bare_bytes = (end * blkmq::io::SECTOR_BYTES)
        .next_multiple_of(BARE_SIZE_STEP_BYTES)
        .max(BARE_SIZE_STEP_BYTES);
    let spec = VolumeSpec {
        name: name.to_owned(),
        bytes: base.map_or(bare_bytes, |base| base.root.bytes),
        block: base.map_or(512, |base| base.root.block),
    };
    check_spec(&spec)?;
    let mut root = first_root(engine, spec);
    if let Some(Base { root: from, deltas }) = base {
        let parent = Ancestor {
            volume: from.volume,
            last: tail.stored_lsn(),
        };
        let above = from.lineage();
        let lineage: Vec<Ancestor> = [parent].into_iter().chain(above.iter().copied()).collect();
        root.set_lineage(&lineage);
        if let Some(folded) = from.folded_lsn() {
            root.set_folded(folded);
        }
        root.deltas = deltas.clone();
        root.nodes = from.nodes.clone();
        let named = root.sessions.extend(from.sessions.iter());
        named.map_err(|error| OpenError::Corrupt(format!("{name}: {error}")))?;
    }
    Ok(root)
}

/// Finds the store's state at the tail's last own commit, if it can still be told.
async fn find_base(engine: &Arc<Engine>, tail: &Tail) -> Result<Base, OpenError> {
    let (name, stored) = (tail.name(), tail.stored_lsn());
    let gone = |why: String| OpenError::BaseGone {
        volume: name.to_owned(),
        stored_lsn: stored.0,
        why,
    };
    let root = match read_root_by_old_name(engine, name, tail.id().volume).await {
        Ok(head) if head.root.volume != tail.id().volume => {
            return Err(gone(NAME_IS_ANOTHERS.to_owned()));
        }
        Ok(head) if head.root.is_leaving() => return Err(why_not_there(&head.root)),
        // Objects that a tombstone names are not kept.
        Ok(head) if head.root.deleted && !canary::active!("tombstone_is_a_base") => {
            return Err(gone(WAS_DELETED.to_owned()));
        }
        Ok(head) => head.root,
        Err(OpenError::NoSuchVolume(_)) => return Err(gone("its root is not there".to_owned())),
        Err(error) => return Err(error),
    };
    if root.lsn < stored || !root.follows(tail.upload.mark()) {
        return Err(gone("the store was set back since".to_owned()));
    }
    let merged = match root.folded_lsn() {
        Some(folded) if folded <= stored => None,
        Some(folded) => Some(format!(
            "it was merged with what came later, or set back to a snapshot since, up to LSN {}",
            folded.0
        )),
        None => Some("its root does not say up to where it was merged".to_owned()),
    };
    if let Some(why) = merged
        && !canary::active!("fork_mixes_histories")
    {
        return Err(gone(why));
    }
    learn_sessions(engine, &root)?;
    let mut deltas = Vec::new();
    for delta in &root.deltas {
        let key = || engine.names.pack_key(delta.pack).unwrap_or_default();
        let sections = read_sections(engine, *delta).await?;
        let sections = sections.map_err(|why| gone(format!("{} is lost: {why}", key())))?;
        let mut own = sections
            .iter()
            .filter(|part| root.is_origin(part.slice.origin));
        // A pack that a fork took over from its ancestor is older than all of its own.
        let is_older = |slice: &Slice| slice.origin != root.volume || slice.last <= stored;
        if own.all(|part| is_older(&part.slice)) {
            deltas.push(*delta);
        }
    }
    Ok(Base { root, deltas })
}

/// Uploads the extents, as packs of a slice of the new volume. Also returns how many sectors could not be read.
async fn upload_extents(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    root: &Root,
    extents: ExtentMap<DirtyExtent>,
) -> Result<(Vec<UploadedPack>, u64), OpenError> {
    let mut slice = Slice {
        origin: root.volume,
        epoch: root.epoch,
        first: root.first,
        since: root.since,
        begin: root.first,
        last: root.lsn,
        packs: 1,
        volume: VolumeLabel {
            name: root.name.as_str().into(),
            size: root.size(),
        },
        lineage: root.lineage(),
    };
    let (chunk, pack) = (engine.options.chunk_bytes, engine.options.pack_bytes);
    let bytes = extents_bytes(&extents);
    let plan = move || plan_packs(&extents, u64::from(chunk), pack);
    let plans = engine.port.compute(ComputeKind::Merge, bytes, plan).await?;
    slice.packs = plans.len() as u32;
    let mut packs = Vec::new();
    let mut damaged = 0;
    for plan in plans {
        let _permit = engine.upload_budget.acquire(tail.id(), plan.bytes).await;
        // Failed steps are repeated for some minutes, so that the packs need not be uploaded again. No record
        // names these packs: a later session, or a copy of this host, must not end their session.
        let object = match canary::active!("rescue_packs_are_of_a_session") {
            true => engine.next_object(),
            false => engine.unrecorded.allocate(),
        };
        let brought = upload_pack(engine, tail, (slice.clone(), plan), object).await;
        let brought = brought.map_err(|_| {
            let why = tail.upload.last_error().unwrap_or_default();
            OpenError::Store(format!("{}: nothing was made; try again: {why}", root.name))
        })?;
        damaged += brought
            .damaged
            .iter()
            .map(|span| span.sectors())
            .sum::<u64>();
        packs.push(brought.uploaded);
    }
    Ok((packs, damaged))
}
