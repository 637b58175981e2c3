//! A pass: list, read logs, roots and pins, and judge; then remove what an earlier pass found as well, and keep
//! what this one found for the next.

use std::collections::BTreeSet;

pub use super::error::CollectError;

use super::candidates::{CANDIDATES_KEY, CANDIDATES_MAX, Candidate, Candidates, HEAD_BYTES};
use super::listing::{Listing, list_objects, remove};
use super::logs::{EndedSessions, read_logs};
use super::named::NamedObjects;
use super::owners::{check_roots, owners};
use super::trace::Trace;
use super::{CollectPort, SIDE_BY_SIDE};
use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::hostlog::names::SessionName;
use crate::hostlog::port::read;
use crate::jobs::join_all;
use crate::object::FormatError;
use crate::units::VolumeId;

/// Windows of removals after which a pass checks whether another pass has ended meanwhile.
const WINDOWS_A_LOOK: usize = 16;

/// Reads of candidates that cannot be decoded before they count as damaged.
const CANDIDATE_READS: u32 = 5;

/// A number of objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// What a pass found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Packs that are reachable.
    pub live_packs: Amount,
    /// Index objects that are reachable.
    pub live_indexes: Amount,
    /// Garbage that this pass found: a later pass removes it.
    pub garbage: Amount,
    /// Unreachable objects that may still be named, because their session has not ended.
    pub held: Amount,
    /// Garbage that an earlier pass had found as well, removed.
    pub removed: Amount,
    /// Garbage that could not be removed this time.
    pub failed: Amount,
    /// The store's error about one of those.
    pub why_failed: Option<String>,
    /// Candidates of an earlier pass that are reached now. It must never happen.
    pub recovered: Amount,
    /// Roots that were read.
    pub roots: u64,
    /// Pins that were read.
    pub pins: u64,
    /// Those of them whose children have roots of their own.
    pub needless_pins: u64,
    /// Records that were read.
    pub records: u64,
    /// Index blocks that were read.
    pub index_blocks: u64,
    /// Their bytes.
    pub index_bytes: u64,
    /// Hosts whose logs are not whole: nothing of theirs is removed.
    pub unsure_hosts: u64,
    /// Names of volumes that are on their way to others, which was perhaps cut short.
    pub leaving: Vec<String>,
    /// Names of snapshots that seem to have stayed behind when their volumes got other names.
    pub strays: Vec<String>,
    /// Needless pins that could not be removed this time.
    pub failed_pins: u64,
    /// Another collector ended a pass meanwhile, and this one left the rest to it.
    pub is_overtaken: bool,
}

impl Findings {
    /// Why a pass that had something to remove could remove nothing at all, if that was so: a collector that is
    /// not allowed to remove has failed, however well it finds garbage.
    pub fn reason_nothing_was_removed(&self) -> Option<&str> {
        let went = self.removed.objects + self.needless_pins.saturating_sub(self.failed_pins);
        let why = self.why_failed.as_deref()?;
        (went == 0 && !canary::active!("passes_that_remove_nothing_end_well")).then_some(why)
    }
}

/// Finds garbage and changes nothing. `served` are volumes that must have roots, besides those that logs name.
///
/// # Errors
/// If what a pass must read cannot be read.
pub async fn find_garbage(
    port: &impl CollectPort,
    served: BTreeSet<VolumeId>,
) -> Result<Findings, CollectError> {
    let known = read_candidates(port).await?;
    let verdicts = examine(port, &known.candidates, served).await?;
    Ok(verdicts.findings)
}

/// Makes a pass: removes the garbage that an earlier pass found as well, and keeps what this one found.
///
/// # Errors
/// As [`find_garbage`]; then nothing was removed.
pub async fn collect(
    port: &impl CollectPort,
    own: SessionName,
    unix_ms: u64,
    served: BTreeSet<VolumeId>,
) -> Result<Findings, CollectError> {
    let known = read_candidates(port).await?;
    let Verdicts {
        mut findings,
        listing,
        doomed,
        mut fresh,
        needless,
    } = examine(port, &known.candidates, served).await?;
    let mut left = Vec::new();
    for (nth, window) in doomed.chunks(SIDE_BY_SIDE).enumerate() {
        // A host that was suspended meanwhile leaves the rest to the others.
        let is_due =
            nth % WINDOWS_A_LOOK == 0 || canary::active!("each_window_reads_the_candidates");
        if is_due && !is_newest(port, &known).await {
            findings.is_overtaken = true;
            return Ok(findings);
        }
        let removals = window.iter().map(|at| {
            let key = listing.key(&listing.objects[*at]);
            Box::pin(remove(port, key))
        });
        for (at, removed) in window.iter().zip(join_all(removals.collect()).await) {
            let listed = &listing.objects[*at];
            match removed {
                Ok(()) => findings.removed.add(listed.bytes),
                Err(why) => {
                    findings.failed.add(listed.bytes);
                    findings.why_failed = Some(why);
                    left.push(*at);
                }
            }
        }
        port.sleep(port.pace_ns()).await;
    }
    if canary::active!("failed_removals_are_forgotten") {
        left.clear();
    }
    if canary::active!("candidates_are_forgotten") {
        fresh.clear();
    }
    let kept = left.iter().chain(&fresh).take(CANDIDATES_MAX);
    let next = Candidates {
        passes: known.candidates.passes + 1,
        unix_ms,
        writer: own,
        objects: kept.map(|at| candidate(&listing, *at)).collect(),
    };
    findings.is_overtaken = !write_candidates(port, &next, known.version).await;
    if findings.is_overtaken {
        return Ok(findings);
    }
    // Only now: a pass that began before, and may not have seen the child, finds that another has ended and removes
    // nothing. One that begins now sees the child.
    for window in needless.chunks(SIDE_BY_SIDE) {
        let removals = window.iter().map(|key| Box::pin(remove(port, key.clone())));
        for removed in join_all(removals.collect()).await {
            if let Err(why) = removed {
                findings.failed_pins += 1;
                findings.why_failed = Some(why);
            }
        }
        port.sleep(port.pace_ns()).await;
    }
    Ok(findings)
}

fn candidate(listing: &Listing, at: usize) -> Candidate {
    let listed = &listing.objects[at];
    Candidate {
        session: listing.session(listed),
        is_index: listed.is_index,
        number: listed.number,
    }
}

/// A pass's verdicts: what to remove and what to keep.
struct Verdicts {
    findings: Findings,
    listing: Listing,
    /// Garbage that an earlier pass found as well.
    doomed: Vec<usize>,
    /// Garbage that no earlier pass found.
    fresh: Vec<usize>,
    /// Keys of pins whose children have roots of their own.
    needless: Vec<String>,
}

async fn examine(
    port: &impl CollectPort,
    known: &Candidates,
    served: BTreeSet<VolumeId>,
) -> Result<Verdicts, CollectError> {
    let listing = list_objects(port).await?;
    let mut named = NamedObjects::default();
    let mut findings = Findings::default();
    let roots_first = canary::active!("collector_reads_roots_before_logs");
    let mut endings = EndedSessions::default();
    if !roots_first {
        endings = read_logs(port, &mut named).await;
    }
    let mut trace = Trace::new(port, &mut named);
    trace.run().await?;
    let mut volumes = served;
    volumes.append(&mut endings.volumes);
    let rooted = std::mem::take(&mut trace.volumes);
    check_roots(port, &rooted, &volumes).await?;
    findings.roots = trace.roots;
    findings.leaving = std::mem::take(&mut trace.leaving);
    findings.strays = std::mem::take(&mut trace.strays);
    findings.pins = trace.pins;
    let needless = std::mem::take(&mut trace.needless);
    findings.needless_pins = needless.len() as u64;
    findings.index_blocks = trace.index_blocks;
    findings.index_bytes = trace.index_bytes;
    if roots_first {
        endings = read_logs(port, &mut named).await;
    }
    findings.records = endings.records;
    findings.unsure_hosts = endings.unsure.len() as u64;
    let GarbageVerdict {
        doomed,
        fresh,
        held,
    } = judge(&listing, &named, &endings, known, &mut findings);
    // An idle volume is in no log: what is left of it says whose it is.
    if !canary::active!("objects_go_without_their_root") && !doomed.is_empty() {
        check_roots(port, &rooted, &owners(port, &listing, &doomed).await?).await?;
        // What a fork shares is its parent's by name: only the fork's own objects, which may stay, say that its root
        // is gone. What no record names comes before its volume's first root.
        let is_recorded = |at: &usize| listing.session(&listing.objects[*at]).session.number > 0;
        let staying: Vec<usize> = fresh
            .iter()
            .chain(&held)
            .copied()
            .filter(is_recorded)
            .collect();
        if !canary::active!("owners_of_what_stays_are_not_asked_for") {
            check_roots(port, &rooted, &owners(port, &listing, &staying).await?).await?;
        }
    }
    Ok(Verdicts {
        findings,
        listing,
        doomed,
        fresh,
        needless,
    })
}

/// What nothing names.
#[derive(Default)]
struct GarbageVerdict {
    /// Garbage that an earlier pass found as well.
    doomed: Vec<usize>,
    /// Garbage that no earlier pass found.
    fresh: Vec<usize>,
    /// What may still be named.
    held: Vec<usize>,
}

/// Divides what nothing names.
fn judge(
    listing: &Listing,
    named: &NamedObjects,
    endings: &EndedSessions,
    known: &Candidates,
    findings: &mut Findings,
) -> GarbageVerdict {
    let known: BTreeSet<&Candidate> = known.objects.iter().collect();
    let mut judged = GarbageVerdict::default();
    for (at, listed) in listing.objects.iter().enumerate() {
        let is_known = || known.contains(&candidate(listing, at));
        let is_named = named.has(listed.is_index, listing.id(listed))
            && !(canary::active!("recovered_candidates_go") && is_known());
        if is_named {
            match listed.is_index {
                true => findings.live_indexes.add(listed.bytes),
                false => findings.live_packs.add(listed.bytes),
            }
            if is_known() {
                findings.recovered.add(listed.bytes);
                let key = listing.key(listed);
                tracing::error!(
                    key,
                    "a pass took this for garbage, and it is reached: it stays"
                );
            }
        } else if !endings.is_over(listing.session(listed), listed.number) {
            findings.held.add(listed.bytes);
            judged.held.push(at);
        } else {
            findings.garbage.add(listed.bytes);
            // With the right order one pass is enough: the second is there for what nobody thought of.
            let at_once = canary::active!("collector_reads_roots_before_logs")
                || canary::active!("candidates_go_in_the_same_pass");
            match is_known() || at_once {
                true => judged.doomed.push(at),
                false => judged.fresh.push(at),
            }
        }
    }
    judged
}

#[derive(Default)]
struct StoredCandidates {
    candidates: Candidates,
    /// `None`: no pass has ended yet.
    version: Option<Version>,
    /// The first bytes of the object.
    head: Vec<u8>,
}

async fn read_candidates(port: &impl CollectPort) -> Result<StoredCandidates, CollectError> {
    let mut reads = 0;
    loop {
        let Some((data, version)) = read(port, CANDIDATES_KEY).await else {
            return Ok(StoredCandidates::default());
        };
        reads += 1;
        let candidates = match Candidates::decode(&data) {
            Ok(candidates) => candidates,
            Err(error @ FormatError::Newer(_)) => return Err(CollectError::NewerCandidates(error)),
            Err(_) if reads < CANDIDATE_READS => {
                port.sleep(port.pause_ns()).await;
                continue;
            }
            Err(error) if canary::active!("damaged_candidates_end_passes") => {
                return Err(CollectError::Unreadable(CANDIDATES_KEY.into(), error));
            }
            // Damaged ones prove nothing: this pass puts its own in their place.
            Err(error) => {
                tracing::warn!(key = CANDIDATES_KEY, %error, "it proves nothing, and is made anew");
                Candidates::default()
            }
        };
        return Ok(StoredCandidates {
            candidates,
            version: Some(version),
            head: data[..data.len().min(HEAD_BYTES)].to_vec(),
        });
    }
}

/// Whether no pass has ended since these candidates were read.
async fn is_newest(port: &impl CollectPort, known: &StoredCandidates) -> bool {
    if canary::active!("each_window_reads_the_candidates") {
        let standing = read_candidates(port).await;
        return standing.is_ok_and(|standing| standing.version == known.version);
    }
    if canary::active!("slept_collector_removes") {
        return true;
    }
    let op = StoreOp::GetRange {
        key: CANDIDATES_KEY.to_owned(),
        offset: 0,
        len: known.head.len().max(1) as u64,
    };
    let mut pause = port.pause_ns();
    loop {
        match port.store(op.clone()).await {
            Ok(StoreReply::Range(head)) => {
                return !known.head.is_empty() && head.starts_with(&known.head);
            }
            Err(StoreError::NotFound) => return known.version.is_none(),
            // It is shorter than it was.
            Ok(_) | Err(StoreError::OutOfRange) => return false,
            Err(_) => {}
        }
        port.sleep(pause).await;
        pause = (pause * 2).min(port.pause_ns() * 30);
    }
}

/// False: another collector wrote them first, or nobody can say. An answer that was lost ends no pass by itself: what
/// stands there does, or pins would stay as long as answers are lost.
async fn write_candidates(
    port: &impl CollectPort,
    next: &Candidates,
    version: Option<Version>,
) -> bool {
    let (key, data) = (CANDIDATES_KEY.to_owned(), next.encode());
    let op = match version {
        Some(version) => StoreOp::Update { key, data, version },
        None => StoreOp::Create { key, data },
    };
    // Where it is not known the next pass reads what stands there, too.
    match port.store(op).await {
        Ok(StoreReply::Written { .. }) => true,
        Err(StoreError::Unknown(_)) if !canary::active!("lost_answer_ends_no_pass") => {
            let standing = read(port, CANDIDATES_KEY).await;
            standing.is_some_and(|(data, _)| data == next.encode())
        }
        _ => false,
    }
}
