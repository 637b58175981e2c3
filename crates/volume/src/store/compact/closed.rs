//! Volumes that nobody has open: this host opens those that there is something to do for, compacts them, and closes
//! them again.
//!
//! ```text
//! walk: roots, in the order of names -> closed ones, of which this host was the last writer
//!    -> survey by the root alone; nothing to do: remembered, so that the next walk costs one read of the root
//!    -> open for maintenance: epoch and fence as for any opening, and the root says that it may be taken away
//!         fold, compact, close
//! ```
//!
//! It must never get in anybody's way. Whoever wants the volume on this host has it closed after the present step; another
//! host takes it at once, for no client was ever told of anything that is in this hold.

use std::collections::HashMap;
use std::sync::Arc;

use super::hold::Holding;
use super::{Selection, is_allowed, look, relocate};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::open::dormant::stored_tail;
use crate::store::open::holds::{is_nowhere, local_tails};
use crate::store::open::let_go;
use crate::store::open::load_index::load_index;
use crate::store::open::{discard_tail, open_for_maintenance};
use crate::store::parts::RootWalk;
use crate::store::roots::READS_AT_ONCE;
use crate::sync::atomic::Ordering;
use crate::units::{Epoch, VolumeId};

/// A walk over so many roots is followed by a pause of at least an interval.
const ROOTS_PER_INTERVAL: u64 = 1024;
/// Volumes of which another host was the last writer are looked at in one walk of so many, in case that host is gone.
const OTHERS_WALKS: u64 = 16;
/// A volume whose root has not moved for so many walks, while another host maintains it, was left behind.
const LEFT_WALKS: u32 = 4;
/// A volume of which something could not be done is passed over for twice as many walks each time, up to these.
const REST_WALKS_MAX: u32 = 63;
/// Volumes of which something is remembered; beyond it some are looked at again needlessly.
const KNOWN_MAX: usize = 1 << 16;

/// What a root was when it was looked at: epoch and sequence tell one commit of it from all others.
type RootVersion = (Epoch, u64);

/// What the walks of this process remember.
#[derive(Default)]
struct Memory {
    /// Closed volumes for which there was nothing to do.
    settled: HashMap<VolumeId, RootVersion>,
    /// Volumes that another host maintains, or has left behind, and walks since their roots moved.
    others: HashMap<VolumeId, (RootVersion, u32)>,
    /// Closed volumes of which something could not be done.
    failed: HashMap<VolumeId, Rest>,
}

/// The walks that pass over a volume of which something could not be done.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// Walks that are still to come.
    left: u32,
    /// So many follow the next failure; the first is followed by none.
    next: u32,
}

impl Rest {
    fn after_failure(self) -> Rest {
        Rest {
            left: self.next,
            next: (self.next * 2 + 1).min(REST_WALKS_MAX),
        }
    }
}

/// How the work on a volume has ended.
enum Worked {
    /// There is nothing left to do.
    Whole,
    /// Something could not be folded.
    Part,
    /// Somebody wants the volume, or has taken it.
    Left,
}

/// Walks over the volumes of the store, as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let looks = engine.options.compact.closed_looks;
    if looks == 0 {
        return;
    }
    let mut memory = Memory::default();
    let mut roots = 0;
    let random = engine.next_nonce() % looks;
    let first = |ns: u64| ns.saturating_mul(looks / 2 + random / 2 + 1);
    engine.compact_interval.wait(&engine.port, first).await;
    loop {
        match walk(&engine, &mut memory).await {
            Ok(walked) => roots = walked,
            // The next walk tries again.
            Err(error) => tracing::debug!(%error, "a walk over closed volumes was cut short"),
        }
        let pause = |ns: u64| ns.saturating_mul(looks.max(roots / ROOTS_PER_INTERVAL));
        engine.compact_interval.wait(&engine.port, pause).await;
    }
}

/// Looks at each volume once. Returns how many there are.
async fn walk(engine: &Arc<Engine>, memory: &mut Memory) -> Result<u64, OpenError> {
    let mut walk = RootWalk::of_volumes(engine, None);
    let mut walked = 0;
    while let Some(found) = walk.next_each(READS_AT_ONCE).await? {
        for read in found {
            engine.host_log.check_not_stopped()?;
            walked += 1;
            match read {
                Ok(head) => visit(engine, head, memory).await,
                // The others are looked at all the same.
                Err(error) => tracing::debug!(%error, "a root was passed over"),
            }
        }
        engine.port.pause().await;
    }
    Ok(walked)
}

async fn visit(engine: &Arc<Engine>, head: KnownRoot, memory: &mut Memory) {
    // A poisoned log publishes no record, and a root may name only what a record has named.
    let is_idle = engine.compact_interval.ns() == 0 || engine.poisoned.load(Ordering::Acquire);
    if is_idle || !is_turn(engine, &head.root, memory) {
        return;
    }
    let (name, volume) = (head.root.name.clone(), head.root.volume);
    match maintain(engine, head, memory).await {
        Ok(()) => {}
        // Somebody uses it by now.
        Err(OpenError::InUse(_) | OpenError::Busy(_) | OpenError::Held { .. }) => {}
        Err(error) => {
            engine.compaction.on_failure();
            put_off(memory, volume);
            tracing::debug!(volume = name, %error, "a closed volume was not maintained");
        }
    }
}

/// Whether this walk looks at a volume.
fn is_turn(engine: &Engine, root: &Root, memory: &mut Memory) -> bool {
    let version = version_of(root);
    if root.deleted || root.labels().is_some() {
        return false;
    }
    if !is_nowhere(root, &local_tails(engine, root.volume)) {
        return false;
    }
    let holder = root.owner.as_ref().or(root.claimant.as_ref());
    if root.is_maintained() && holder.is_some_and(|holder| holder.host != engine.host) {
        let before = memory.others.get(&root.volume);
        let walks = before.map_or(0, |(of, walks)| if *of == version { walks + 1 } else { 0 });
        remember(&mut memory.others, root.volume, (version, walks));
        return walks >= LEFT_WALKS;
    }
    memory.others.remove(&root.volume);
    if root.is_maintained() {
        return true;
    }
    if let Some(rest) = memory.failed.get_mut(&root.volume)
        && rest.left > 0
    {
        rest.left -= 1;
        return false;
    }
    let is_own = root.writer.host == engine.host;
    (is_own || engine.next_nonce().is_multiple_of(OTHERS_WALKS))
        && memory.settled.get(&root.volume) != Some(&version)
}

fn version_of(root: &Root) -> RootVersion {
    (root.epoch, root.sequence)
}

fn remember<T>(known: &mut HashMap<VolumeId, T>, volume: VolumeId, what: T) {
    if known.len() >= KNOWN_MAX && !known.contains_key(&volume) {
        known.clear();
    }
    known.insert(volume, what);
}

/// The next walks pass over the volume.
fn put_off(memory: &mut Memory, volume: VolumeId) {
    let rest = memory.failed.get(&volume).copied().unwrap_or_default();
    remember(&mut memory.failed, volume, rest.after_failure());
}

/// Opens the volume if there is something to do for it, does that, and closes it.
async fn maintain(
    engine: &Arc<Engine>,
    head: KnownRoot,
    memory: &mut Memory,
) -> Result<(), OpenError> {
    let (name, volume) = (head.root.name.clone(), head.root.volume);
    let version = version_of(&head.root);
    let deltas_max = engine.options.compact.closed_deltas;
    // One that was left open has to be closed again, whatever there is to do.
    let is_due = head.root.is_maintained() || head.root.deltas.len() > deltas_max;
    if !is_due {
        match has_work(engine, &head).await? {
            Some(true) => {}
            Some(false) => {
                remember(&mut memory.settled, volume, version);
                return Ok(());
            }
            None => return Ok(()),
        }
    }
    let _holding = Holding::begin(&engine.compaction.maintained, &name);
    let tail = open_for_maintenance(engine, &head).await?;
    tracing::debug!(volume = name, "a closed volume is open to be maintained");
    engine.compaction.on_maintained();
    let worked = work(engine, &tail).await;
    close(engine, &tail).await?;
    match worked? {
        Worked::Part if !canary::active!("failed_fold_settles_a_closed_volume") => {
            put_off(memory, volume);
        }
        Worked::Whole | Worked::Part => {
            memory.failed.remove(&volume);
            if let Some(closed) = tail.upload.head() {
                remember(&mut memory.settled, volume, version_of(&closed.root));
            }
        }
        Worked::Left => {}
    }
    Ok(())
}

/// Closes the volume, or forgets it if another host has taken it. As long as it is live here nobody else may find it so.
async fn close(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    while tail.lock().status == Status::Live {
        match let_go::close(engine, tail).await {
            Ok(()) => return Ok(()),
            // Something that fails holds the lock of the name, or the store is away.
            Err(error) if tail.lock().status == Status::Live => {
                tracing::debug!(volume = tail.name(), %error, "not closed yet");
                engine.port.sleep(engine.options.retry_ns).await;
            }
            Err(error) => {
                discard_tail(engine, tail);
                return Err(error);
            }
        }
    }
    discard_tail(engine, tail);
    Ok(())
}

/// Whether a survey of the volume, as its root is, finds something to write anew; none: it was left in the middle.
async fn has_work(engine: &Arc<Engine>, head: &KnownRoot) -> Result<Option<bool>, OpenError> {
    if head.root.nodes.is_empty() {
        return Ok(Some(false));
    }
    let index = load_index(engine, &head.root).await?;
    // A view: the engine does not know this tail, so nobody but the survey sees it.
    let view = Arc::new(stored_tail(&head.root));
    {
        let mut inner = view.lock();
        inner.index = index;
        inner.status = Status::Live;
    }
    view.upload.set_head(head.clone());
    let chosen = choose(engine, &view).await?;
    Ok(chosen.map(|chosen| !chosen.is_empty()))
}

/// What to write anew. In a volume that nobody writes to everything is cold.
async fn choose(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<Option<Selection>, OpenError> {
    let volume = tail.id().volume;
    let mut facts = engine.compaction.facts(volume);
    facts.surveyed = Some(tail.stored_lsn());
    Ok(look(engine, tail, &facts).await?.map(|(_, chosen)| chosen))
}

/// Folds and compacts the volume until there is nothing left that can be done.
async fn work(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<Worked, OpenError> {
    if tail.lock().index.unfolded_deltas() > 0 {
        tail.upload.set_fold_asked(true);
        tail.upload.wake_all();
        // It may wait for a record.
        engine.host_log.hurry();
        let is_done = || {
            let is_over = !is_allowed(engine, tail) || !tail.upload.is_fold_asked();
            is_over.then_some(())
        };
        let folded = tail.upload.changed.wait_until(is_done);
        engine
            .compaction
            .maintained
            .unless_asked(tail.name(), folded)
            .await;
    }
    loop {
        let chosen = match is_allowed(engine, tail) {
            true => choose(engine, tail).await?,
            false => None,
        };
        let Some(chosen) = chosen else {
            return Ok(Worked::Left);
        };
        relocate(engine, tail, &chosen).await?;
        // A pass that chose nothing would choose nothing again.
        if !chosen.has_more || chosen.is_empty() {
            break;
        }
    }
    // Nobody writes to it, so what is left was there before the fold.
    let is_folded = tail.lock().index.unfolded_deltas() == 0;
    Ok(match is_allowed(engine, tail) {
        true if is_folded => Worked::Whole,
        true => Worked::Part,
        false => Worked::Left,
    })
}
