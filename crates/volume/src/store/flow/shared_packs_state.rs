//! The small slices that wait for a shared pack, and the choice of those for the next one.
//!
//! State only, which the engine owns; `shared_packs.rs` has the procedures.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::jobs::{AnswerSender, Signal};
use crate::lock::lock;
use crate::object::pack::Slice;
use crate::request::tail::Tail;
use crate::store::flow::log_content::LogContent;
use crate::store::flow::pack_plan::{PackPlan, PackUpload};
use crate::store::flow::slices::ServiceEnded;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;

/// Slices of one pack, at most.
const MEMBERS_MAX: usize = 1024;

/// Small slices that wait for a pack.
#[derive(Debug, Default)]
pub(crate) struct SharedPacks {
    pub(super) members: Mutex<Vec<PackMember>>,
    /// Slices in progress that may still come to share a pack.
    pub(super) expected: AtomicUsize,
    pub(super) changed: Signal,
}

/// A slice that waits for its pack, with its content.
#[derive(Debug)]
pub(super) struct PackMember {
    pub(super) tail: Arc<Tail>,
    pub(super) slice: Slice,
    pub(super) plan: PackPlan,
    pub(super) content: LogContent,
    pub(super) answer: AnswerSender<Result<PackUpload, ServiceEnded>>,
}

/// The waiter for a part of a pack.
pub(super) type PackWaiter = (Arc<Tail>, AnswerSender<Result<PackUpload, ServiceEnded>>);
/// A member's content.
pub(super) type Part = (Slice, PackPlan, LogContent);

impl SharedPacks {
    pub(super) fn is_full(&self, pack_bytes: u64) -> bool {
        let members = lock(&self.members);
        let bytes: u64 = members.iter().map(|member| member.plan.size_bytes()).sum();
        bytes >= pack_bytes || members.len() >= MEMBERS_MAX
    }

    /// Whether a client waits for one of them.
    pub(super) fn is_waited_for(&self) -> bool {
        let members = lock(&self.members);
        let mut tails = members.iter().map(|member| &member.tail);
        tails.any(|tail| tail.upload.is_waited_for(tail.stored_lsn()))
    }

    /// Takes the members of the next pack: one of each volume, in order. True: no further slice waits, and the
    /// next one starts a new round.
    pub(super) fn take(&self, pack_bytes: u64) -> (Vec<PackMember>, bool) {
        let mut members = lock(&self.members);
        let (mut taken, mut later) = (Vec::new(), Vec::new());
        let (mut bytes, mut volumes) = (0, BTreeSet::new());
        for member in members.drain(..) {
            let fits = bytes < pack_bytes && taken.len() < MEMBERS_MAX;
            let is_first = volumes.insert(member.tail.id().volume);
            if fits && is_first {
                bytes += member.plan.size_bytes();
                taken.push(member);
            } else {
                later.push(member);
            }
        }
        *members = later;
        (taken, members.is_empty())
    }
}

impl PackMember {
    pub(super) fn split(self) -> (PackWaiter, Part) {
        (
            (self.tail, self.answer),
            (self.slice, self.plan, self.content),
        )
    }
}
