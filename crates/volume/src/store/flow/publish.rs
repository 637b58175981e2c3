//! Publishing: making slices stored. One record of the host's log names the ready slices of all volumes, in order
//! per volume.
//!
//! The order makes a crash at any point harmless. First all packs are in the store, and nothing names them. Then
//! follow the durable state in the local log, which covers the cuts; the record; and the look around. Only then
//! memory changes: the deltas enter the index, uploaded extents become clean, the layers are dropped, and the
//! local log records it. The frozen layers hide all that until the end, so no read sees a step of it.
//!
//! A poisoned log takes no writes, so no record can follow. What its durable frames cover still goes to the
//! store, by an update of each volume's root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::publisher::{Batch, EffectiveRecord, UnverifiedReason};
use crate::hostlog::record::{NamedObject, RecordPack, RecordSlice};
use crate::jobs::AnswerSender;
use crate::log::ring::TailId;
use crate::map::delta::DeltaSource;
use crate::map::layers::{CleanExtent, DirtyExtent};
use crate::object::pack::Item;
use crate::object::root::DeltaRef;
use crate::object::root_key;
use crate::request::tail::{EXTENTS_PER_LOCK, Status, Tail};
use crate::store::flow::cadence::{has_ready, wait_for_record};
use crate::store::flow::reupload::reupload;
use crate::store::flow::slices::{ReadySlice, UploadedPack};
use crate::store::host_log::log_procedures::on_progress;
use crate::store::open::endings;
use crate::store::roots::{begin_update, finish_update, read_any_root};
use crate::sync::atomic::Ordering;
use crate::units::{Epoch, Span};

/// Extents that are processed between two pauses: much less than a millisecond.
const EXTENTS_PER_PAUSE: usize = 8 * EXTENTS_PER_LOCK;

/// Packs and volumes of a record, at most about: a record stays below a megabyte.
const RECORD_PACKS_MAX: usize = 8192;

/// One volume's part of the next record.
struct Part {
    tail: Arc<Tail>,
    epoch: Epoch,
    slices: Vec<Arc<ReadySlice>>,
    objects: Vec<NamedObject>,
    ends: bool,
    answers: Vec<AnswerSender<Result<(), OpenError>>>,
}

/// Publishes for all volumes, as long as the host runs.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut delay = engine.options.retry_ns;
    loop {
        wait_for_record(&engine).await;
        let parts = take_parts(&engine);
        if parts.is_empty() {
            // What was ready is not ready any more.
            engine.port.pause().await;
            continue;
        }
        if engine.poisoned.load(Ordering::Acquire) {
            parts
                .into_iter()
                .for_each(|part| start_by_root(&engine, part));
            continue;
        }
        let outcomes = publish_record(&engine, &parts).await;
        let mut fails = false;
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            let tail = Arc::clone(&part.tail);
            let result = match outcome {
                Outcome::Stored => Ok(()),
                Outcome::Failed(error) => {
                    fails |= !endings::is_final(&error);
                    Err(error)
                }
                Outcome::Doubtful(error) => {
                    // Set before a waiter hears of the failure and asks again.
                    let held_back = wait_for_volume(Arc::clone(&engine), tail);
                    engine.jobs.spawn(held_back);
                    Err(error)
                }
            };
            finish_part(&engine, part, &result);
        }
        engine.request_reclaim();
        if fails {
            engine.port.sleep(delay).await;
            delay = (delay * 2).min(engine.options.retry_ns * 30);
        } else {
            delay = engine.options.retry_ns;
        }
    }
}

/// The outcome of a volume's part of a record.
enum Outcome {
    Stored,
    /// The record failed, or another host has the volume.
    Failed(OpenError),
    /// It is not known whether the part is stored; other volumes are not affected.
    Doubtful(OpenError),
}

fn finish_part(engine: &Arc<Engine>, part: Part, result: &Result<(), OpenError>) {
    if part.slices.is_empty() {
        // A success does not change why slices or a growth are refused.
        let error = result.as_ref().err();
        if let Some(error) = error.filter(|error| endings::is_final(error)) {
            on_done(engine, &part.tail, Some(error));
        }
    } else {
        on_done(engine, &part.tail, result.as_ref().err());
    }
    if part.ends && result.is_ok() {
        part.tail.upload.set_ended();
    }
    for answer in part.answers {
        answer.send(result.clone());
    }
}

/// Holds back this volume's slices until its root can be read.
fn wait_for_volume(engine: Arc<Engine>, tail: Arc<Tail>) -> impl Future<Output = ()> + Send {
    let times = tail.upload.hold_back();
    async move {
        let retry_ns = engine.options.retry_ns;
        let mut delay = (retry_ns << times.min(5)).min(retry_ns * 30);
        loop {
            engine.port.sleep(delay).await;
            delay = (delay * 2).min(retry_ns * 30);
            let is_live = tail.lock().status == Status::Live;
            if !is_live || read_any_root(&engine, tail.name()).await.is_ok() {
                break;
            }
        }
        tail.upload.release();
        engine.host_log.wake();
    }
}

fn on_done(engine: &Arc<Engine>, tail: &Tail, error: Option<&OpenError>) {
    let upload = &tail.upload;
    // A fold may have ended the volume's service meanwhile: that reason is kept, even if this record counts.
    let is_live = tail.lock().status == Status::Live;
    if !is_live && !canary::active!("first_reason_is_forgotten") {
        upload.wake_all();
        return;
    }
    if error.is_some_and(endings::is_final) {
        tail.require_check();
    }
    upload.set_error(error);
    upload.on_store_answer(error.is_some());
    // An unreadable root waits to be put back, as a missing one does.
    let is_refusal =
        |error: &&OpenError| endings::is_refusal(error) || matches!(error, OpenError::Corrupt(_));
    upload.set_refusal(error.filter(is_refusal).cloned());
    if let Some(error) = error {
        let volume = tail.name();
        tracing::warn!(volume, %error, "publishing slices failed");
        if endings::is_final(error) {
            endings::end(engine, tail, error);
        }
    }
    upload.wake_all();
}

/// Takes everything that is ready, and the requests for records.
fn take_parts(engine: &Engine) -> Vec<Part> {
    let mut parts: BTreeMap<TailId, Part> = BTreeMap::new();
    let mut rows = 0;
    for tail in engine.tails().into_iter().filter(has_ready) {
        if rows > RECORD_PACKS_MAX {
            break;
        }
        // Whoever takes the volume from such a hold reads no log.
        debug_assert!(!tail.is_for_maintenance(), "nobody writes to it");
        let Some(head) = tail.upload.head() else {
            continue;
        };
        let part = Part {
            slices: tail.upload.publishable(),
            epoch: head.root.epoch,
            objects: Vec::new(),
            ends: false,
            answers: Vec::new(),
            tail,
        };
        rows += 1 + part
            .slices
            .iter()
            .map(|slice| slice.packs.len())
            .sum::<usize>();
        parts.insert(part.tail.id(), part);
    }
    for asked in engine.host_log.take_record_requests() {
        if asked.ends && asked.tail.upload.has_ended() {
            // An earlier request was dropped halfway.
            asked.answer.send(Ok(()));
            continue;
        }
        let part = parts.entry(asked.tail.id()).or_insert_with(|| Part {
            tail: Arc::clone(&asked.tail),
            epoch: asked.epoch,
            slices: Vec::new(),
            objects: Vec::new(),
            ends: false,
            answers: Vec::new(),
        });
        if asked.ends && part.slices.is_empty() && asked.tail.upload.is_kept_for_end() {
            part.slices = asked.tail.upload.publishable();
        }
        part.objects.extend(asked.objects);
        part.ends |= asked.ends;
        part.answers.push(asked.answer);
    }
    parts.into_values().collect()
}

/// Publishes one record for all parts.
async fn publish_record(engine: &Arc<Engine>, parts: &[Part]) -> Vec<Outcome> {
    let batch = batch_of(engine, parts);
    let progress = {
        let mut publisher = engine.host_log.publisher().await;
        let found = publisher.publish(batch).await;
        match on_progress(engine, found) {
            Ok(progress) => {
                // Before another procedure asks the publisher for its mark.
                add_published(engine, parts, &progress.published);
                progress
            }
            Err(error) => {
                let failed = |_: &Part| Outcome::Failed(error.clone());
                return parts.iter().map(failed).collect();
            }
        }
    };
    let outcome = |part: &Part| {
        let volume = part.tail.id().volume;
        let mut doubts = progress.unverified.iter().rev();
        match doubts.find(|(doubtful, _)| *doubtful == volume) {
            _ if is_published(engine, part, &progress.published) => Outcome::Stored,
            Some((_, doubt)) => Outcome::Doubtful(unverified_error(&part.tail, doubt)),
            None => Outcome::Failed(OpenError::Fenced(part.tail.name().to_owned())),
        }
    };
    let outcomes: Vec<_> = parts.iter().map(outcome).collect();
    for (part, outcome) in parts.iter().zip(&outcomes) {
        if matches!(outcome, Outcome::Stored) {
            for slice in &part.slices {
                apply_published(engine, &part.tail, slice).await;
            }
        }
    }
    outcomes
}

fn unverified_error(tail: &Tail, doubt: &UnverifiedReason) -> OpenError {
    let name = tail.name();
    match doubt {
        UnverifiedReason::RootMissing => OpenError::RootMissing(name.to_owned()),
        UnverifiedReason::RootUnreadable(error) => {
            OpenError::Corrupt(format!("{}: {error}", root_key(name)))
        }
        UnverifiedReason::NoAnswer(key) => OpenError::Store(format!(
            "look at {key}: the store gives no answer about it, so what volume {name} has in this \
             host's newest record is not called stored yet; it will be tried again"
        )),
    }
}

fn batch_of(engine: &Engine, parts: &[Part]) -> Batch {
    let mut batch = Batch {
        floor: engine.unnamed.floor_beside(&named_at_last(parts)),
        ..Batch::default()
    };
    for part in parts {
        let volume = index(batch.volumes.len());
        batch.volumes.push((part.tail.id().volume, part.epoch));
        if part.ends {
            batch.ends.push(volume);
        }
        let objects = part.objects.iter();
        batch
            .objects
            .extend(objects.map(|object| NamedObject { volume, ..*object }));
        let mut first = part.tail.stored_lsn().next();
        for slice in &part.slices {
            debug_assert!(!slice.packs.is_empty(), "its LSNs must stand in a record");
            for pack in &slice.packs {
                let at = index(batch.packs.len());
                batch.packs.push(record_pack(pack));
                batch.slices.push(RecordSlice {
                    volume,
                    pack: at,
                    first,
                    count: u32::try_from(slice.last.0 - first.0 + 1).unwrap_or(u32::MAX),
                    span: pack.reference.span,
                });
            }
            first = slice.last.next();
        }
    }
    batch
}

/// Packs of volumes whose epoch ends with the record. Perhaps no other record follows for long, whose floor would pass them.
/// A pack in which another volume has a slice waits for that slice's record.
fn named_at_last(parts: &[Part]) -> BTreeSet<u64> {
    let last = parts.iter().filter(|part| part.ends);
    let packs = last.flat_map(|part| &part.slices).flat_map(|it| &it.packs);
    let own = packs.filter(|pack| Arc::strong_count(&pack.object) == 1);
    own.map(|pack| pack.object.number()).collect()
}

fn index(at: usize) -> u16 {
    u16::try_from(at).expect("a record's volumes and packs are bounded when they are taken")
}

fn record_pack(pack: &UploadedPack) -> RecordPack {
    let DeltaRef {
        pack: id,
        footer_offset,
        footer_bytes,
        ..
    } = pack.reference;
    RecordPack {
        number: id.number,
        is_kept: false,
        footer_offset: u32::try_from(footer_offset).expect("packs are closed far below that"),
        footer_bytes,
        digest: pack.digest,
    }
}

fn is_published(engine: &Engine, part: &Part, published: &[EffectiveRecord]) -> bool {
    let volume = (part.tail.id().volume, part.epoch);
    let own = published
        .iter()
        .filter(|found| found.record.writer == engine.session_name);
    own.into_iter().any(|found| found.volumes.contains(&volume))
}

/// Records which packs the log names now: the next update of a root takes them in.
fn add_published(engine: &Engine, parts: &[Part], published: &[EffectiveRecord]) {
    for part in parts {
        if let Some(newest) = part.slices.last()
            && is_published(engine, part, published)
        {
            let packs = part.slices.iter().flat_map(|slice| &slice.packs);
            let packs = packs.map(|pack| pack.reference);
            part.tail.upload.add_published(newest.last, packs);
        }
    }
}

/// Publishes by an update of the volume's root, the only way from a poisoned log. Each volume goes by itself, so
/// that a root that does not answer holds up no other volume.
fn start_by_root(engine: &Arc<Engine>, part: Part) {
    // Held-back slices are not ready, so no slice is taken twice.
    let held_back = (!part.slices.is_empty()).then(|| part.tail.upload.hold_back());
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        let tail = Arc::clone(&part.tail);
        let result = publish_by_root(&engine, &part).await;
        finish_part(&engine, part, &result);
        engine.request_reclaim();
        let Some(times) = held_back else {
            return;
        };
        if result.is_err() {
            let retry_ns = engine.options.retry_ns;
            let delay = (retry_ns << times.min(5)).min(retry_ns * 30);
            engine.port.sleep(delay).await;
        }
        tail.upload.release();
        engine.host_log.wake();
    });
}

async fn publish_by_root(engine: &Arc<Engine>, part: &Part) -> Result<(), OpenError> {
    let slices = reupload(engine, &part.tail, &part.slices).await?;
    let _turn = part.tail.upload.turn.take().await;
    if let Some(newest) = slices.last() {
        let mut update = begin_update(engine, &part.tail).await?;
        let packs = slices.iter().flat_map(|slice| &slice.packs);
        update.root.deltas.extend(packs.map(|pack| pack.reference));
        update.root.lsn = update.root.lsn.max(newest.last);
        finish_update(engine, &part.tail, &update).await?;
    }
    for slice in &slices {
        apply_published(engine, &part.tail, slice).await;
    }
    // No record will name them, so no root may: another process of this host's directory could not tell whose
    // they are.
    if !part.objects.is_empty() && !canary::active!("poisoned_log_names_objects") {
        return Err(OpenError::Poisoned);
    }
    Ok(())
}

/// Applies a stored slice: adds it to the index, makes its extents clean, and drops its layers.
async fn apply_published(engine: &Arc<Engine>, tail: &Tail, slice: &ReadySlice) {
    for pack in &slice.packs {
        add_deltas(engine, tail, pack).await;
    }
    tail.lock().index.listed += slice.packs.len();
    report_damage(tail, &slice.damaged);
    let is_live = mark_clean(engine, tail, slice).await;
    tail.set_stored(slice.last);
    tail.upload.on_published(slice.last);
    let now_ns = engine.jobs.mono_ns();
    let took_ns = now_ns.saturating_sub(slice.cut_ns);
    tail.upload.recovery_point.on_uploaded(took_ns);
    if !is_live && engine.tail(tail.id()).is_none() {
        // The log has a record of its removal already.
        return;
    }
    // This record lets recovery skip the uploaded extents, and lets their segments be reused.
    engine.record_tail(tail);
}

async fn add_deltas(engine: &Engine, tail: &Tail, pack: &UploadedPack) {
    let items: Vec<&Item> = pack.sections.iter().flat_map(|part| &part.items).collect();
    let mut source = DeltaSource::default();
    for part in items.chunks(EXTENTS_PER_PAUSE) {
        for items in part.chunks(EXTENTS_PER_LOCK) {
            let mut inner = tail.lock();
            for item in items {
                let (span, delta) = source.delta_of(item);
                inner.index.apply_delta(span, delta);
            }
        }
        engine.port.pause().await;
    }
}

/// Logs which sectors were given up, once they are.
fn report_damage(tail: &Tail, damaged: &[Span]) {
    for span in damaged {
        tail.upload
            .damaged_bytes
            .fetch_add(span.bytes(), Ordering::Relaxed);
        tracing::error!(
            volume = tail.name(),
            first_sector = span.start,
            sectors = span.sectors(),
            "the log could not be read there: these sectors are stored as damaged, and reads of them \
             fail until they are written again"
        );
    }
}

/// Makes the slice's extents clean and drops its layers. Returns false if the volume's service ended meanwhile:
/// its layers are kept for rescue then.
async fn mark_clean(engine: &Arc<Engine>, tail: &Tail, slice: &ReadySlice) -> bool {
    let release_clean = |part: Span, old: CleanExtent| {
        engine.segments.release_clean(old.0, part.sectors());
    };
    let extents: Vec<(Span, DirtyExtent)> = slice
        .merged
        .iter()
        .map(|(span, dirty)| (span, *dirty))
        .collect();
    for part in extents.chunks(EXTENTS_PER_PAUSE) {
        for part in part.chunks(EXTENTS_PER_LOCK) {
            let mut inner = tail.lock();
            if inner.status != Status::Live {
                return false;
            }
            let clean = &mut inner.layers.clean;
            for (span, dirty) in part {
                match dirty.addr {
                    Some(addr) => {
                        engine.segments.add_clean(addr, span.sectors());
                        clean.insert(*span, CleanExtent(addr), release_clean);
                    }
                    None => clean.remove(*span, release_clean),
                }
            }
        }
        engine.port.pause().await;
    }
    let gone = {
        let mut inner = tail.lock();
        if inner.status != Status::Live {
            return false;
        }
        // The store has these as damaged, and so does this host from now on, even if the disk returns something
        // for them later.
        for span in &slice.damaged {
            inner.layers.clean.remove(*span, release_clean);
        }
        inner.ages.on_stored(slice.last);
        let frozen = &mut inner.layers.frozen;
        let stored = frozen.partition_point(|layer| layer.last <= slice.last);
        frozen.drain(..stored).collect::<Vec<_>>()
    };
    let bytes = slice.merged.len() as u64 * 32;
    drop(
        engine
            .port
            .compute(ComputeKind::Release, bytes, move || drop(gone)),
    );
    // From here on no dirty map names these bytes.
    let held = extents
        .iter()
        .filter_map(|(span, dirty)| dirty.addr.map(|addr| (addr, span.sectors())));
    let mut freed = 0;
    for (addr, sectors) in held.chain(slice.hidden.iter().copied()) {
        tail.release_dirty(&engine.segments, addr, sectors);
        freed += sectors * SECTOR_BYTES;
    }
    engine.space.on_published(freed);
    true
}
