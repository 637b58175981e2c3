//! Packs that small slices of several volumes share, so that requests to the store follow bytes and not
//! volumes.
//!
//! Each member has a footer of its own in the pack, so opening its volume reads nothing of the others. A volume
//! has at most one slice in a pack, because a footer is applied as a whole and one slice may be stored while the
//! next is not. Small slices wait for others in progress, but not for long: those may wait for memory that these
//! hold.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{Digest, SessionName};
use crate::jobs::Answer;
use crate::lock::lock;
use crate::object::pack::Slice;
use crate::object::pack_writer::{Pack, PackWriter};
use crate::request::tail::{Status, Tail};
use crate::store::flow::pack_plan::{PackPlan, PackUpload};
use crate::store::flow::packing::{add_items, effort, read_content, uploaded_part};
use crate::store::flow::shared_packs_state::{PackMember, PackWaiter, Part};
use crate::store::flow::slices::ServiceEnded;
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::immutable::write;
use crate::store::open::endings::is_final;
use crate::sync::atomic::Ordering;
use crate::units::Span;

/// The content from which on a slice has a pack of its own: it needs few requests for its bytes, and is removed
/// by itself.
const OWN_PACK_BYTES: u64 = 4 << 20;
/// How long small slices wait for others in progress, if a client waits for one of them.
const GATHER_NS: u64 = 20_000_000;
/// The same if no client waits.
const GATHER_NS_MAX: u64 = 100_000_000;

/// A slice in progress that may share a pack.
pub(super) struct ExpectedSlice(Arc<Engine>);

impl ExpectedSlice {
    pub(super) fn new(engine: &Arc<Engine>) -> ExpectedSlice {
        let shared = &engine.shared_packs;
        shared.expected.fetch_add(1, Ordering::AcqRel);
        ExpectedSlice(Arc::clone(engine))
    }
}

impl Drop for ExpectedSlice {
    fn drop(&mut self) {
        let shared = &self.0.shared_packs;
        shared.expected.fetch_sub(1, Ordering::AcqRel);
        shared.changed.wake_all();
    }
}

/// Whether a slice that needs these packs shares one.
pub(super) fn is_shared(engine: &Engine, plans: &[PackPlan]) -> bool {
    let [plan] = plans else {
        return false;
    };
    let most = OWN_PACK_BYTES.min(engine.options.pack_bytes / 2);
    plan.has_items()
        && plan.size_bytes() < most
        && !canary::active!("each_slice_has_a_pack_of_its_own")
}

/// Uploads a slice in a pack with others.
pub(super) async fn upload_shared(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    (slice, plan): (Slice, PackPlan),
    expected: ExpectedSlice,
) -> Result<PackUpload, ServiceEnded> {
    let content = read_content(engine, tail, &plan).await?;
    let (answer, brought) = Answer::channel();
    let is_first = {
        let mut members = lock(&engine.shared_packs.members);
        members.push(PackMember {
            tail: Arc::clone(tail),
            slice,
            plan,
            content,
            answer,
        });
        members.len() == 1
    };
    drop(expected);
    if is_first {
        engine.jobs.spawn(run(Arc::clone(engine)));
    }
    brought.await
}

/// Makes packs until no slice waits for one, each when all expected slices have come.
async fn run(engine: Arc<Engine>) {
    let shared = &engine.shared_packs;
    let pack_bytes = engine.options.pack_bytes;
    loop {
        gather(&engine).await;
        let (members, is_last) = shared.take(pack_bytes);
        engine
            .jobs
            .spawn(upload_members(Arc::clone(&engine), members));
        if is_last {
            return;
        }
    }
}

/// Waits until the next pack is to be made, whether or not further slices are expected.
async fn gather(engine: &Engine) {
    let (shared, pack_bytes) = (&engine.shared_packs, engine.options.pack_bytes);
    let begun_ns = engine.jobs.mono_ns();
    for most_ns in [GATHER_NS, GATHER_NS_MAX] {
        let spent_ns = engine.jobs.mono_ns() - begun_ns;
        let mut gathered = engine.port.sleep(most_ns.saturating_sub(spent_ns));
        let is_over = std::future::poll_fn(|cx| {
            shared.changed.wait(cx.waker());
            let is_over =
                shared.is_full(pack_bytes) || shared.expected.load(Ordering::Acquire) == 0;
            match is_over || Pin::new(&mut gathered).poll(cx).is_ready() {
                true => Poll::Ready(is_over),
                false => Poll::Pending,
            }
        })
        .await;
        if is_over || shared.is_waited_for() {
            return;
        }
    }
}

async fn upload_members(engine: Arc<Engine>, members: Vec<PackMember>) {
    let (tails, parts): (Vec<_>, Vec<_>) = members.into_iter().map(PackMember::split).unzip();
    let brought = upload_parts(&engine, &tails, parts).await;
    for (at, (_, answer)) in tails.into_iter().enumerate() {
        let part = brought.as_ref().map(|(pack, digest, damaged)| PackUpload {
            uploaded: uploaded_part((&pack.0, &pack.1), *digest, at),
            damaged: damaged[at].clone(),
        });
        answer.send(part.ok_or(ServiceEnded));
    }
}

type SharedUpload = ((Pack, Arc<UnnamedObject>), Digest, Vec<Vec<Span>>);

/// `None`: none of the volumes is served any more.
async fn upload_parts(
    engine: &Arc<Engine>,
    tails: &[PackWaiter],
    parts: Vec<Part>,
) -> Option<SharedUpload> {
    let damaged = parts.iter().map(|(_, _, content)| content.damaged());
    let damaged = damaged.collect();
    let mut repeats = SharedRepeats::new(engine, tails);
    // Held until an effective record names it for all members.
    let object = Arc::new(engine.next_object());
    let name = (object.session(), object.id().number);
    let (mut pack, digest) = build(engine, (parts, name), &mut repeats).await?;
    let key = pack.key();
    let data = Bytes::from(std::mem::take(&mut pack.bytes));
    for (tail, _) in tails {
        let share = data.len() as u64 / tails.len() as u64;
        tail.upload
            .uploaded_bytes
            .fetch_add(share, Ordering::Relaxed);
    }
    loop {
        match write(engine, &key, &data).await {
            Ok(()) => {
                tails
                    .iter()
                    .for_each(|(tail, _)| tail.upload.on_store_answer(false));
                return Some(((pack, object), digest, damaged));
            }
            Err(error) if is_final(&error) => return None,
            Err(error) => repeats.wait(&error).await?,
        }
    }
}

async fn build(
    engine: &Arc<Engine>,
    (parts, (session, number)): (Vec<Part>, (SessionName, u64)),
    repeats: &mut SharedRepeats<'_>,
) -> Option<(Pack, Digest)> {
    let effort = effort(engine);
    let bytes = parts.iter().map(|(_, plan, _)| plan.bytes).sum();
    let parts = Arc::new(parts);
    loop {
        let parts = Arc::clone(&parts);
        let work = move || {
            let mut writer = PackWriter::with_effort(session, number, effort);
            for (slice, plan, content) in &*parts {
                add_items(&mut writer, slice, plan, content);
            }
            let pack = writer.finish_parts();
            let digest = Digest::of(&pack.bytes);
            (pack, digest)
        };
        match engine.port.compute(ComputeKind::Pack, bytes, work).await {
            Ok(built) => return Some(built),
            Err(error) => repeats.wait(&OpenError::from(error)).await?,
        }
    }
}

/// As [`Repeats`](crate::store::flow::repeats::Repeats), for several volumes.
struct SharedRepeats<'a> {
    engine: &'a Engine,
    tails: &'a [PackWaiter],
    delay_ns: u64,
}

impl<'a> SharedRepeats<'a> {
    fn new(engine: &'a Engine, tails: &'a [PackWaiter]) -> SharedRepeats<'a> {
        SharedRepeats {
            engine,
            tails,
            delay_ns: engine.options.retry_ns,
        }
    }

    /// `None`: none of them is served any more.
    async fn wait(&mut self, error: &OpenError) -> Option<()> {
        let volumes = self.tails.len();
        tracing::warn!(volumes, %error, "part of an upload failed and will be tried again");
        for (tail, _) in self.tails {
            tail.upload.set_error(Some(error));
            tail.upload.on_store_answer(true);
        }
        self.engine.port.sleep(self.delay_ns).await;
        self.delay_ns = (self.delay_ns * 2).min(self.engine.options.retry_ns * 30);
        let is_live = |(tail, _): &PackWaiter| tail.lock().status == Status::Live;
        self.tails.iter().any(is_live).then_some(())
    }
}
