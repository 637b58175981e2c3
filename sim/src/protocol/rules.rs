//! The rules of the store protocol, each a switch of the model.
//!
//! A rule is a sentence of docs/store-protocol.md. With all of them on every world must be clean;
//! with one of them off the world that is named for it must break a promise, or the rule is idle.

macro_rules! rules {
    ($($rule:ident $name:literal $sentence:literal)*) => {
        /// A rule of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rule { $(
            #[doc = $sentence]
            $rule,
        )* }

        impl Rule {
            /// All rules, in the order of their schedules.
            pub const ALL: &'static [Rule] = &[$(Rule::$rule,)*];

            /// The name by which the command line and the tables know it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Rule::$rule => $name,)* }
            }

            /// What it asks for.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Rule::$rule => $sentence,)* }
            }
        }
    };
}

rules! {
    PredecessorIsKept "predecessor-is-kept"
        "A claim keeps the predecessor that an unfinished claim has left."
    DigestsSurvive "digests-survive"
        "An unresolved position keeps all its digests over restarts."
    DigestsDecide "digests-decide"
        "A record at an unresolved position is ours only if its digest is one of ours."
    LowAfterWin "low-after-win"
        "After a won create the host reads its low mark: missing or above the record, nothing is stored."
    FenceHasEpoch "fence-has-epoch"
        "A fence blocks epochs below its own, not the volume."
    FenceNamesMany "fence-names-many"
        "One fence names all volumes that a taker takes from a host."
    FrameBeforeCreate "frame-before-create"
        "A durable frame holds the cuts and the digest before the create is sent."
    SharedPacksDissolve "shared-packs-dissolve"
        "Compaction rewrites what a closed volume holds of a mostly dead pack."
    RootsNamePacks "roots-name-packs"
        "Roots, snapshots and forks name packs, never records."
    LogsBeforeRoots "logs-before-roots"
        "The collector reads logs before roots: names flow from records to roots."
    StrangerStops "stranger-stops"
        "A host that meets a stranger's record in its log stops."
    PeerIncarnation "peer-incarnation"
        "A peer that lost its memory has a new incarnation and is no member."
    FenceBeforePeer "fence-before-peer"
        "A taker fences and reads the log before it fences and reads a peer."
    RootBeforeSmallerSet "root-before-smaller-set"
        "A smaller peer set is in the root before it acknowledges."
    ChainAfterWin "chain-after-win"
        "After a won create the host compares the record before it with the digest that it knows."
    RestoreRaisesEpoch "restore-raises-epoch"
        "Restore in place raises the epoch and advances the mark; LSNs go on."
    LowAfterFence "low-after-fence"
        "After the fence exists the taker reads the low mark: above the fence, it starts again."
    RetiresUnnamed "retires-unnamed"
        "A host is retired when no root names it as owner, claimant or predecessor."
    MovedBeginsAgain "moved-begins-again"
        "An update that finds the root moved begins again, with a new object."
    PackIsReadBack "pack-is-read-back"
        "A pack that exists already is read back; a stranger's bytes mean a clone."
    OtherEpochFences "other-epoch-fences"
        "An owner that meets 404 and finds another epoch in the root is fenced."
    FencedVolumeIsDropped "fenced-volume-is-dropped"
        "A host that meets a fence drops the volumes it names before it goes on."
    CreateResolvesBeforeFold "create-resolves-before-fold"
        "A fold names a position as its mark only when the create there is resolved."
    LowKeepsMarks "low-keeps-marks"
        "The low mark never passes the mark of a volume that a record names."
    LowKeepsNewest "low-keeps-newest"
        "The low mark never passes the host's newest own commit."
    LowBeforeDelete "low-before-delete"
        "The low mark is raised before a record below it is deleted."
    SessionProtects "session-protects"
        "An object that nothing names is collected only when its session has ended or a floor passed it."
    FloorWaits "floor-waits"
        "A floor never passes an object that no record has named yet."
    ObjectsInLog "objects-in-log"
        "An object that only a root is to name is named in the owner's log before the root update is sent."
    PinBeforeChild "pin-before-child"
        "A pin names what a child needs before the child's root exists."
    LookAfterPin "look-after-pin"
        "After the pin exists the parent's root is read again: if it moved, the fork starts anew."
    RootAfterFirst "root-after-first"
        "After the first record of an epoch the owner reads the root: it must name the owner and the epoch."
    PacksAfterWin "packs-after-win"
        "After a won create the host looks whether the packs are still there."
    EndInLog "end-in-log"
        "Close, delete and restore in place end the epoch by a record of the owner's own log first."
    EndedReopens "ended-reopens"
        "A start whose tail may have ended its epoch takes the volume over from itself."
    AheadIsClone "ahead-is-clone"
        "A root of the owner's epoch that is ahead of the owner's log was written by a clone."
    TailServesAtOnce "tail-serves-at-once"
        "An unbroken tail serves at once, also while the store is away."
    PeersTrimStored "peers-trim-stored"
        "Peers trim only what an effective record covers."
    AllMembers "all-members"
        "A FLUSH at rung peer needs every member, so a taker needs one."
    FlushWaitsWithoutStore "flush-waits-without-store"
        "While the store is away a member cannot be removed, and the FLUSH waits."
}

/// The rules that are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules(u64);

impl Rules {
    pub(crate) const ALL: Rules = Rules(u64::MAX);

    pub(crate) fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u64))
    }

    pub(crate) fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u64) != 0
    }
}
