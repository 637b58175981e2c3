//! Owns the vocabulary of faults and their counters.
//!
//! A fault that is offered but never happens proves nothing, so every kind is counted where it
//! takes effect (not where it is drawn), and a long enough run fails if one stayed at zero.

use std::fmt;

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal,)+) => {
        /// What can go wrong in the simulated world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every kind.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)+];

            /// A short name for reports.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text,)+ }
            }
        }
    };
}

faults! {
    /// The server process died; files and rings stay.
    ProcessCrash => "process crash",
    /// The process died between two stores of one engine call.
    TornCall => "crash inside a commit",
    /// The machine lost power.
    HostCrash => "host crash",
    /// Cache directory and rings are gone; the volume is reopened from the store alone.
    HostLoss => "host loss",
    /// A crash hit while an earlier one was being recovered.
    CrashInRecovery => "crash in recovery",
    /// A start went on with the rings and the journal of the process before.
    LogGoesOn => "log goes on as it was left",
    /// After a power cut, the ring directory still held an old ring.
    RingStale => "stale ring after reboot",
    /// Same boot, but the rings are gone.
    RingGone => "ring gone in the same boot",
    /// Same boot, but the next start looks for the rings in another directory.
    RingElsewhere => "rings in another directory",
    /// A dead process's write landed before its successor opened the log.
    OrphanLanded => "dead process's write landed",
    /// A dead process's write never landed.
    OrphanDropped => "dead process's write dropped",
    /// A pending sector was lost in a power cut.
    SectorLost => "pending sector lost",
    /// A pending sector survived a power cut.
    SectorKept => "pending sector kept",
    /// A sector came back with an older pending version.
    SectorOlder => "older pending version kept",
    /// A write came back with some of its sectors only.
    TornWrite => "torn write",
    /// A write failed, wholly or in part done.
    WriteEio => "write EIO",
    /// A write did less than asked.
    WriteShort => "short write",
    /// The disk was full.
    DiskFull => "disk full",
    /// A read failed.
    ReadEio => "read EIO",
    /// A block of the log can never be read again.
    Unreadable => "unreadable block read",
    /// A sync failed and marked the pages clean.
    SyncFailed => "failed sync",
    /// A write landed at another place.
    Misdirected => "misdirected write",
    /// A bit flipped on the disk.
    BitRot => "bit rot",
    /// A read returned an older durable version.
    StaleRead => "stale read",
    /// A device issued a request again whose server died.
    Reissued => "request issued again",
    /// It took effect again, over a completed write that had been in flight beside it.
    ReissuedOverCompleted => "issued again over a completed",
    /// A computation took its time.
    Computing => "computing took time",
    /// A volume was opened while its last holder had not let go.
    TakeOver => "take-over",
    /// A volume was given back.
    VolumeClosed => "volume closed",
    /// A volume was deleted, and created again under the same name.
    VolumeRecreated => "volume created anew",
    /// What a fenced host kept for rescue was dropped.
    RescueDropped => "rescue tail dropped",
    /// A whole host stood still for a while.
    HostPaused => "host paused",
    /// It went on, and another had its volume.
    ZombieResumed => "zombie came back",
    /// Another host came up with a copy of a cache directory.
    CacheCloned => "cache directory cloned",
    /// The store was set back to an older copy of itself.
    StoreSetBack => "store set back",
    /// And the server refused to go on with it.
    SetBackRefused => "set-back store refused",
    /// A store request failed and was not applied.
    StoreUnavailable => "store unavailable",
    /// A period in which the store answered nothing.
    StoreOutage => "store outage",
    /// A pass of a collector ended.
    PassEnded => "pass of a collector ended",
    /// What was garbage when a pass ended was gone when the next one did.
    GarbageRemoved => "garbage removed",
    /// A compaction moved something: what a reader finds is elsewhere from then on.
    Compacted => "compaction step",
    /// A host opened a volume that nobody had open, to compact it.
    Maintained => "maintenance of a closed volume",
    /// A scrub has come round.
    Scrubbed => "pass of the scrub",
    /// A volume was served before the store had said whose it is.
    ServedUnchecked => "served before the check",
    /// And the process before had died before it served it.
    ServedPastIdleStart => "served before the check, past a start that did not serve",
    /// The store said that it is still this host's.
    Checked => "checked, and goes on",
    /// The store said that it is not.
    UncheckedEnded => "checked, and ended",
    /// A snapshot was acknowledged.
    SnapshotTaken => "snapshot taken",
    /// It was in the log alone then, and the store has it since.
    SnapshotBrought => "snapshot brought to the store",
    /// A process died while it made one.
    SnapshotCut => "crash while a snapshot was made",
    /// Its deletion was acknowledged.
    SnapshotDeleted => "snapshot deleted",
    /// It was read as a whole.
    SnapshotRead => "snapshot read",
    /// Another host than the one that took it did.
    SnapshotReadElsewhere => "snapshot read elsewhere",
    /// Snapshots of several volumes were taken together.
    GroupTaken => "group of snapshots taken",
    /// Members of one were found to be of one moment.
    GroupJudged => "group of snapshots judged",
    /// A fork was made.
    ForkMade => "fork made",
    /// One is in the log, and not in the store yet.
    ForkKept => "fork in the log",
    /// The store has it since.
    ForkBrought => "fork brought to the store",
    /// Another host was asked for one meanwhile, and did not find it.
    ForkNotSeen => "fork in another host's log",
    /// A process died while it made one, or its end was an error.
    ForkUnsure => "fork made or not",
    /// A fork was opened for the first time.
    ForkOpened => "fork opened",
    /// By another host than the one that made it.
    ForkOpenedElsewhere => "fork opened elsewhere",
    /// A volume got another name.
    Renamed => "volume renamed",
    /// A process died while it renamed one, or said that it failed.
    RenameUnsure => "volume renamed or not",
    /// A volume was set back to a snapshot.
    Restored => "volume set back",
    /// A process died while it did so, or said that it failed.
    RestoreUnsure => "volume set back or not",
    /// A store write was applied and its answer lost.
    UnknownApplied => "store answer lost, applied",
    /// A store write was not applied and its answer lost.
    UnknownDropped => "store answer lost, dropped",
    /// A store write took effect after its unknown outcome was reported.
    LateApply => "store write applied late",
    /// A store write was delivered a second time, later.
    Duplicate => "store write delivered twice",
    /// A store read failed with its fate known.
    GetFailed => "store read failed",
    /// A store read answered with a flipped bit.
    GetCorrupt => "store read corrupted",
    /// A store read answered with less than the object.
    GetTruncated => "store read truncated",
}

/// Kinds that drawn worlds do not meet yet, because the engine is known to fail them: see the switches
/// in `profile.rs` and docs/simulator.md.
pub const SWITCHED_OFF: &[Fault] = &[];

/// How often each fault took effect.
#[derive(Clone, PartialEq, Eq)]
pub struct FaultCounts([u64; Fault::ALL.len()]);

impl Default for FaultCounts {
    fn default() -> Self {
        FaultCounts([0; Fault::ALL.len()])
    }
}

impl FaultCounts {
    /// Counts one.
    pub fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// The count of one kind.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &FaultCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// The kinds that never took effect.
    pub fn missing(&self) -> Vec<Fault> {
        Fault::ALL
            .iter()
            .copied()
            .filter(|f| self.of(*f) == 0 && !SWITCHED_OFF.contains(f))
            .collect()
    }
}

impl fmt::Debug for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(Fault::ALL.iter().map(|k| (k.name(), self.of(*k))))
            .finish()
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in Fault::ALL {
            writeln!(f, "  {:<28} {:>10}", fault.name(), self.of(*fault))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_never_fired_is_named() {
        let mut counts = FaultCounts::default();
        for fault in Fault::ALL.iter().filter(|f| **f != Fault::BitRot) {
            counts.count(*fault);
        }
        assert_eq!(counts.missing(), vec![Fault::BitRot]);
        let mut sum = FaultCounts::default();
        sum.add(&counts);
        sum.add(&counts);
        assert_eq!(sum.of(Fault::ReadEio), 2);
    }
}
