//! Uploads slices again that were uploaded before the local log was poisoned.
//!
//! Their packs belong to this process's session, and no record names them. From now on only a root may name them.
//! But a session ends whatever root updates are in flight: a start that lost the poison mark, or a copy of the
//! directory, publishes a record, and then the collector removes the packs. So a root on a poisoned log must
//! never name a pack of a session that can end.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::Tail;
use crate::store::flow::slice_job::{slice_of, upload_packs};
use crate::store::flow::slices::{ReadySlice, ServiceEnded};

/// Returns the slices with packs of a session that nothing ends. The volume's flow has them from then on, so that
/// a later failure uploads nothing again.
pub(in crate::store) async fn reupload(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    slices: &[Arc<ReadySlice>],
) -> Result<Vec<Arc<ReadySlice>>, OpenError> {
    let ended = |ServiceEnded| OpenError::Poisoned;
    let mut brought = Vec::new();
    for slice in slices {
        brought.push(match can_end(engine, slice) {
            true => reupload_slice(engine, tail, slice).await.map_err(ended)?,
            false => Arc::clone(slice),
        });
    }
    Ok(brought)
}

fn can_end(engine: &Engine, slice: &ReadySlice) -> bool {
    let lasting = engine.unrecorded.session();
    let is_lasting = |session| session == lasting;
    let mut packs = slice.packs.iter();
    !packs.all(|pack| is_lasting(pack.object.session()))
        && !canary::active!("packs_of_before_stay_in_their_session")
}

async fn reupload_slice(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    before: &ReadySlice,
) -> Result<Arc<ReadySlice>, ServiceEnded> {
    let slice = slice_of(tail, (before.begin, before.last))?;
    let merged = Arc::clone(&before.merged);
    let (packs, damaged) = upload_packs(engine, tail, (slice, &merged), None).await?;
    let slice = Arc::new(ReadySlice {
        begin: before.begin,
        last: before.last,
        cut_ns: before.cut_ns,
        merged,
        hidden: before.hidden.clone(),
        packs,
        damaged,
    });
    tail.upload.replace_ready(&slice);
    Ok(slice)
}
