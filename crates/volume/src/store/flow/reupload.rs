//! Slices that were brought before the local log was poisoned, brought once more.
//!
//! Their packs are of this process's session, and no record names them. From now on only a root may, and a session
//! ends whatever roots are on their way: a start that forgot the poison, or a copy of the directory, publishes, and a
//! collector takes the packs. So a root on a poisoned log never names a pack of a session that can end.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::Tail;
use crate::store::flow::slice_job::{slice_of, upload_packs};
use crate::store::flow::slices::{ReadySlice, ServiceEnded};

/// The slices, with packs of a session that nothing ends. The volume's flow has them from then on, so what fails
/// behind this brings nothing again.
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
    let slice = slice_of(tail, before.last)?;
    let merged = Arc::clone(&before.merged);
    let (packs, damaged) = upload_packs(engine, tail, (slice, &merged), None).await?;
    let slice = Arc::new(ReadySlice {
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
