//! The state of a world: machines, what they keep on disk and in memory, and what is on its way.
//!
//! A machine is a process with a cache directory. Two machines may have one host's directory: a
//! clone. What is on disk survives loss of power, the ring survives the process.

use std::hash::{Hash, Hasher};

use super::ghost::Ghost;
use super::store::{Content, HOSTS, LSNS, PACKS, Record, Root, Store, VOLUMES};

pub(crate) const MACHINES: usize = 4;
/// Digests that one unresolved position may have.
pub(crate) const DIGESTS: usize = 3;

/// What a machine keeps of a volume beyond its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Tail {
    pub(crate) attached: bool,
    pub(crate) epoch: u8,
    pub(crate) data: Content,
    /// Newest LSN given out: in the ring.
    pub(crate) newest: u8,
    /// Newest LSN in a durable frame.
    pub(crate) durable: u8,
    /// Newest LSN that was called stored.
    pub(crate) stored: u8,
    /// For each LSN that a record of the epoch brought to the store: its pack, plus 1.
    pub(crate) packs: [u8; LSNS],
    /// Whether the root was read after the first record of the epoch.
    pub(crate) verified: bool,
    /// Whether a record that ends the epoch may be in the log.
    pub(crate) ended: bool,
}

/// A cache directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Disk {
    pub(crate) host: u8,
    pub(crate) session: u8,
    /// The position of the next record.
    pub(crate) next: u8,
    /// The digest of the record before it.
    pub(crate) previous: u32,
    /// Digests of creates of `next` that may be on their way.
    pub(crate) digests: [u32; DIGESTS],
    pub(crate) tails: [Tail; VOLUMES],
}

/// Where the committer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum CommitPhase {
    #[default]
    Idle,
    /// The packs are up.
    Packed,
    /// The frame is durable.
    Framed,
    /// The outcome of the create is unknown.
    Unknown,
    /// The record is ours; the low mark is to be read.
    Won,
    /// The record before ours is to be read.
    LowRead,
    /// Roots of new epochs are to be read.
    ChainRead,
    /// The host says that it was cloned or retired, or that the store went back.
    Stopped,
}

/// What a machine does with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// Serves a tail that this start continued; the root was not read yet.
    Checking,
    Live,
    Claim,
    ClaimSent,
    /// The low mark of the predecessor is to be read.
    Low,
    Scan,
    PutFence,
    AfterFence,
    Adopt,
    AdoptSent,
    /// A record of the own log is to end the epoch, before a close, delete or restore.
    End,
    /// The root gets the packs of the records since its mark.
    Fold,
    /// A merged pack is to be written: it gets its number.
    Compact,
    /// The merged pack is on its way.
    PutObject,
    /// A record of the own log is to name it.
    Name,
    FoldReady,
    FoldSent,
    Close,
    CloseSent,
    Delete,
    DeleteSent,
    Restore,
    RestoreSent,
    /// A fork of this volume: parent read, pin put, parent looked at again.
    ForkRead,
    ForkPin,
    ForkLook,
    ForkRoot,
    Fenced,
    /// The open gave up: another claimant came later.
    GaveUp,
}

impl Phase {
    /// Whether the volume takes writes.
    pub(crate) fn is_serving(self) -> bool {
        matches!(
            self,
            Phase::Checking
                | Phase::Live
                | Phase::Fold
                | Phase::Compact
                | Phase::PutObject
                | Phase::Name
                | Phase::FoldReady
                | Phase::FoldSent
        )
    }

    /// Whether the volume's records may be committed, and called stored.
    pub(crate) fn may_commit(self) -> bool {
        self.is_serving() && self != Phase::Checking
    }

    pub(crate) fn is_at_rest(self) -> bool {
        matches!(
            self,
            Phase::Idle | Phase::Live | Phase::Fenced | Phase::GaveUp
        )
    }
}

/// The volatile side of what a machine does with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Activity {
    pub(crate) phase: Phase,
    /// The root as it was read or written last.
    pub(crate) root: Root,
    /// The update on its way.
    pub(crate) update: Root,
    /// Where a scan is, or the mark of a fold.
    pub(crate) position: u8,
    pub(crate) previous: u32,
    pub(crate) content: Content,
    pub(crate) packs: u16,
    /// What comes after the end of the epoch.
    pub(crate) after: Phase,
    /// Of a fold: the number of its object. 255: none.
    pub(crate) object: u8,
    /// Where the store has it.
    pub(crate) place: u8,
}

impl Activity {
    pub(crate) const NONE: Activity = Activity {
        phase: Phase::Idle,
        root: Root::ABSENT,
        update: Root::ABSENT,
        position: 0,
        previous: 0,
        content: [0; LSNS],
        packs: 0,
        after: Phase::Idle,
        object: u8::MAX,
        place: 0,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Power {
    /// There is no such machine.
    #[default]
    None,
    Off,
    On,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) power: Power,
    pub(crate) disk: Disk,
    /// Random bits of the session; a resumed memory image has those of the original.
    pub(crate) bits: u8,
    /// The number of the session's next object.
    pub(crate) number: u8,
    pub(crate) commit: CommitPhase,
    pub(crate) record: Record,
    pub(crate) activities: [Activity; VOLUMES],
    /// What its user may still ask for, as a mask of jobs.
    pub(crate) jobs: u32,
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.power.hash(hasher);
        if self.power == Power::None {
            return;
        }
        self.disk.hash(hasher);
        hasher.write_u32(self.jobs);
        hasher.write_u16(u16::from(self.bits) << 8 | u16::from(self.number));
        self.commit.hash(hasher);
        self.record.hash(hasher);
        for activity in &self.activities {
            activity.phase.hash(hasher);
            if activity.phase != Phase::Idle {
                activity.hash(hasher);
            }
        }
    }
}

impl Machine {
    pub(crate) const NONE: Machine = Machine {
        power: Power::None,
        disk: Disk {
            host: 0,
            session: 0,
            next: 1,
            previous: 0,
            digests: [0; DIGESTS],
            tails: [Tail {
                attached: false,
                epoch: 0,
                data: [0; LSNS],
                newest: 0,
                durable: 0,
                stored: 0,
                packs: [0; LSNS],
                verified: false,
                ended: false,
            }; VOLUMES],
        },
        bits: 0,
        number: 0,
        commit: CommitPhase::Idle,
        record: Record {
            kind: super::store::RecordKind::Absent,
            session: 0,
            bits: 0,
            floor: 0,
            slices: [super::store::Slice {
                epoch: 0,
                from: 0,
                to: 0,
                pack: 0,
            }; VOLUMES],
            objects: [0; VOLUMES],
            below: [0; VOLUMES],
            previous: 0,
        },
        activities: [Activity::NONE; VOLUMES],
        jobs: 0,
    };

    pub(crate) fn is_on(&self) -> bool {
        self.power == Power::On && self.commit != CommitPhase::Stopped
    }

    /// The process ends. The ring stays.
    pub(crate) fn kill(&mut self) {
        self.power = Power::Off;
        self.commit = CommitPhase::Idle;
        self.record = Record::default();
        self.activities = [Activity::NONE; VOLUMES];
        self.number = 0;
    }
}

/// A request whose sender has given up waiting, or is dead; it may still land.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LateRequest {
    Create {
        host: u8,
        position: u8,
        record: Record,
    },
    Update {
        volume: u8,
        expected: u32,
        root: Root,
    },
}

/// The garbage collector: one, somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Collector {
    /// Steps done of this pass; 0: idle.
    pub(crate) step: u8,
    /// Packs that existed when the pass began.
    pub(crate) listed: u16,
    pub(crate) named: u16,
    /// Packs whose session has ended, or that a floor passed.
    pub(crate) ended: u16,
    pub(crate) condemned: u16,
}

/// How often each thing may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budget {
    pub(crate) writes: u8,
    pub(crate) kills: u8,
    pub(crate) power_cuts: u8,
    /// Answers lost: the request took effect.
    pub(crate) unknown: u8,
    /// Creates that land late, or never.
    pub(crate) late: u8,
    /// Root updates that do.
    pub(crate) late_updates: u8,
    pub(crate) directory_clones: u8,
    pub(crate) image_clones: u8,
    pub(crate) low_marks: u8,
    pub(crate) passes: u8,
    pub(crate) backups: u8,
    pub(crate) rollbacks: u8,
    pub(crate) retirements: u8,
    pub(crate) outages: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) machines: [Machine; MACHINES],
    pub(crate) late: Vec<LateRequest>,
    pub(crate) collector: Collector,
    /// Low marks that somebody computed and has not written yet.
    pub(crate) low_targets: [u8; HOSTS],
    /// Hosts of which a whole-host fence exists.
    pub(crate) retired: [bool; HOSTS],
    pub(crate) budget: Budget,
    pub(crate) ghost: Ghost,
    pub(crate) backup: Option<Box<(Store, Ghost)>>,
    pub(crate) store_away: bool,
    /// Fences that were put, to count requests.
    pub(crate) fences: u8,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.store.hash(hasher);
        self.machines.hash(hasher);
        self.late.hash(hasher);
        self.collector.hash(hasher);
        self.low_targets.hash(hasher);
        self.retired.hash(hasher);
        self.budget.hash(hasher);
        self.ghost.hash(hasher);
        self.backup.hash(hasher);
        self.store_away.hash(hasher);
        self.fences.hash(hasher);
    }
}

impl State {
    pub(crate) fn new() -> State {
        State {
            store: Store::new(),
            machines: [Machine::NONE; MACHINES],
            late: Vec::new(),
            collector: Collector::default(),
            low_targets: [0; HOSTS],
            retired: [false; HOSTS],
            budget: Budget::default(),
            ghost: Ghost::default(),
            backup: None,
            store_away: false,
            fences: 0,
        }
    }

    /// Packs that are there, as a mask.
    pub(crate) fn packs(&self) -> u16 {
        (0..PACKS as u8)
            .filter(|index| self.store.pack(*index).is_some())
            .fold(0, |packs, index| packs | 1 << index)
    }
}
