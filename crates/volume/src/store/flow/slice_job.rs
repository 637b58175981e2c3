//! The job of one slice: from frozen layers in the log to packs in the store.
//!
//! It ends when all its packs are in the store and a durable frame covers its cut (so that the local state never
//! falls behind the store's, and no LSN is given out twice), or when the volume is not served any more. No
//! failure ends it: each pack repeats by itself what fails.

use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::{Answer, join_all};
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, LogAddr, merge};
use crate::object::pack::{Slice, VolumeLabel};
use crate::request::tail::{Status, Tail};
use crate::store::flow::compute::compute;
use crate::store::flow::pack_plan::{PackPlan, PackUpload, plan_packs};
use crate::store::flow::packing::upload_pack;
use crate::store::flow::shared_packs::{ExpectedSlice, is_shared, upload_shared};
use crate::store::flow::slices::{CutSlice, ReadySlice, ServiceEnded, UploadedPack};
use crate::units::{Epoch, Lsn, Span};

pub(super) async fn run(engine: Arc<Engine>, tail: Arc<Tail>, cut: CutSlice) {
    let (last, round) = (cut.last, engine.committer().next_round());
    let Ok(ready) = prepare(&engine, &tail, cut).await else {
        return;
    };
    // The round covers the cut: its durability suffices, because the committer tells the tail a moment later, on
    // its own thread. If the round fails, an earlier one in flight may have covered it.
    let covered = tail.framed_lsn() >= last || engine.committer().durable(&engine, round).await;
    if !covered && tail.framed_lsn() < last {
        // Commits that no durable frame covers must not get into the store (R10); only a restart helps.
        tail.upload.set_error(Some(&OpenError::Poisoned));
        tail.upload.wake_all();
        return;
    }
    tail.upload.on_slice_ready(ready);
    engine.host_log.wake();
}

async fn prepare(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    cut: CutSlice,
) -> Result<ReadySlice, ServiceEnded> {
    if tail.framed_lsn() < cut.last {
        // The frame will be durable by the time the packs are in the store.
        engine.committer().request_round(engine);
    }
    let expected = ExpectedSlice::new(engine);
    let slice = slice_of(tail, (cut.begin, cut.last))?;
    let (merged, hidden) = merge_layers(engine, tail, &cut).await?;
    let brought = upload_packs(engine, tail, (slice, &merged), Some(expected)).await?;
    let (packs, damaged) = brought;
    Ok(ReadySlice {
        begin: cut.begin,
        last: cut.last,
        cut_ns: cut.cut_ns,
        merged,
        hidden,
        packs,
        damaged,
    })
}

/// The slice's identity in packs, of which it is not known yet how many there are.
pub(super) fn slice_of(tail: &Tail, (begin, last): (Lsn, Lsn)) -> Result<Slice, ServiceEnded> {
    let root = tail.upload.head().ok_or(ServiceEnded)?.root;
    Ok(Slice {
        origin: root.volume,
        epoch: if canary::active!("slices_of_one_epoch") {
            Epoch(0)
        } else {
            root.epoch
        },
        first: root.first,
        since: root.since,
        begin,
        last,
        packs: 1,
        volume: VolumeLabel {
            name: root.name.as_str().into(),
            size: tail.size(),
        },
        lineage: root.lineage(),
    })
}

/// Uploads the extents of a slice. `expected`: small ones may share a pack with other volumes.
pub(super) async fn upload_packs(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    (mut slice, merged): (Slice, &Arc<ExtentMap<DirtyExtent>>),
    expected: Option<ExpectedSlice>,
) -> Result<(Vec<UploadedPack>, Vec<Span>), ServiceEnded> {
    let chunk_bytes = u64::from(engine.options.chunk_bytes);
    let pack_bytes = match canary::active!("log_is_read_one_place_at_a_time") {
        true => u64::MAX,
        false => engine.options.pack_bytes,
    };
    let extents = Arc::clone(merged);
    let cost = (ComputeKind::Merge, extents_bytes(&extents));
    let plan = move || plan_packs(&extents, chunk_bytes, pack_bytes);
    let mut plans = compute(engine, tail, cost, plan).await?;
    if plans.is_empty() {
        // Only the slice's LSNs are left. A record has them as those of an empty pack, so that there is no gap
        // before the next slice, and an opener finds what was reported as stored.
        plans.push(PackPlan::default());
    }
    slice.packs = plans.len() as u32;
    let mut expected = expected.filter(|_| is_shared(engine, &plans));
    let mut answers = Vec::new();
    for plan in plans {
        let part = (slice.clone(), plan);
        answers.push(start_pack(engine, tail, part, expected.take()).await?);
    }
    let mut packs = Vec::new();
    let mut damaged = Vec::new();
    for answer in join_all(answers).await {
        let pack = answer?;
        packs.push(pack.uploaded);
        damaged.extend(pack.damaged);
    }
    Ok((packs, damaged))
}

/// Starts a pack once there is memory for it; with `expected` a shared one.
async fn start_pack(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    (slice, plan): (Slice, PackPlan),
    expected: Option<ExpectedSlice>,
) -> Result<Answer<Result<PackUpload, ServiceEnded>>, ServiceEnded> {
    let permit = engine.upload_budget.acquire(tail.id(), plan.bytes).await;
    // Of a tail that is closing a poisoned log has the last slices uploaded again.
    if tail.lock().status != Status::Live && !tail.upload.is_kept_for_end() {
        return Err(ServiceEnded);
    }
    let (sender, answer) = Answer::channel();
    let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
    engine.clone().jobs.spawn(async move {
        sender.send(match expected {
            Some(expected) => upload_shared(&engine, &tail, (slice, plan), expected).await,
            None => {
                let object = engine.next_object();
                upload_pack(&engine, &tail, (slice, plan), object).await
            }
        });
        drop(permit);
    });
    Ok(answer)
}

/// Merges the slice's layers into one map, and returns what they hide of each other.
async fn merge_layers(
    engine: &Engine,
    tail: &Tail,
    cut: &CutSlice,
) -> Result<(Arc<ExtentMap<DirtyExtent>>, Vec<(LogAddr, u64)>), ServiceEnded> {
    if let [layer] = &cut.layers[..] {
        return Ok((Arc::clone(&layer.map), Vec::new()));
    }
    let layers = cut.layers.clone();
    let bytes = layers.iter().map(|layer| extents_bytes(&layer.map)).sum();
    compute(engine, tail, (ComputeKind::Merge, bytes), move || {
        let mut hidden = Vec::new();
        let merged = merge(layers.iter().map(|layer| &*layer.map), |addr, sectors| {
            hidden.push((addr, sectors));
        });
        (Arc::new(merged), hidden)
    })
    .await
}

/// The approximate memory of a map.
pub(super) fn extents_bytes(map: &ExtentMap<DirtyExtent>) -> u64 {
    32 * map.len() as u64
}
