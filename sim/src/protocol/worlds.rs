//! The worlds: small casts and budgets, each for the schedules that are named beside it.

use super::action::Job;
use super::peers::PeerWorld;
use super::rules::{Rule, Rules};
use super::state::{Budget, Phase, State};
use super::store::{Pack, Record, RecordKind, Slice};
use super::world::{Judgement, World, attach, host};

/// Which model a world is of.
pub(crate) enum Build {
    Hosts(fn() -> World),
    Peers(fn() -> PeerWorld),
}

/// A world of the table: how it begins, and which rules it is the proof of.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// What its cast does.
    pub(crate) cast: &'static str,
    pub(crate) build: Build,
    /// Schedules of the protocol's page, and the rule that each stands for.
    pub(crate) canaries: &'static [(&'static str, Rule)],
    /// One state in so many is let come to rest.
    pub(crate) settle_one_in: u64,
}

/// Machines with a host each; the volumes are open on machine A.
fn world(machines: usize, volumes: usize, writes: u8) -> World {
    let mut state = State::new();
    for index in 0..machines {
        state.machines[index] = host(index as u8);
    }
    for volume in 0..volumes {
        attach(&mut state, 0, volume);
    }
    state.budget.writes = writes;
    World {
        initial: state,
        rules: Rules::ALL,
        judgement: Judgement::default(),
    }
}

fn ask(world: &mut World, machine: usize, volume: usize, jobs: &[Job]) {
    for job in jobs {
        world.initial.machines[machine].jobs |= job.bit(volume);
    }
}

fn two_takers() -> World {
    let mut world = world(3, 1, 1);
    world.initial.budget.kills = 1;
    ask(&mut world, 1, 0, &[Job::Open]);
    ask(&mut world, 2, 0, &[Job::Open]);
    world
}

fn paused_host_world() -> World {
    let mut world = world(2, 1, 2);
    world.initial.budget.unknown = 1;
    world.initial.budget.late = 1;
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn restart() -> World {
    let mut world = world(1, 1, 2);
    world.initial.budget.kills = 2;
    world.initial.budget.unknown = 1;
    world.initial.budget.late = 1;
    world
}

fn directory_clone() -> World {
    let mut world = world(1, 1, 2);
    world.initial.budget.kills = 1;
    world.initial.budget.directory_clones = 1;
    world
}

fn two_folds() -> World {
    let mut world = two_images();
    committed(&mut world, &[(0, 1)]);
    world.initial.budget.writes = 2;
    world.initial.budget.low_marks = 1;
    world
}

fn clone_and_close() -> World {
    let mut world = two_images();
    committed(&mut world, &[(0, 1)]);
    world.initial.budget.writes = 1;
    world.initial.machines[0].jobs = 0;
    ask(&mut world, 0, 0, &[Job::Close]);
    world
}

fn two_restarts() -> World {
    let mut world = two_images();
    world.initial.machines[0].jobs = 0;
    world.initial.budget.kills = 1;
    world
}

/// A copy of the directory overtakes the original, and removes what the original is about to write.
fn clone_and_low() -> World {
    let mut world = directory_clone();
    world.initial.budget.kills = 0;
    world.initial.budget.writes = 3;
    world.initial.budget.low_marks = 1;
    ask(&mut world, 0, 0, &[Job::Fold]);
    world
}

fn retirement() -> World {
    let mut world = world(2, 1, 2);
    world.initial.budget.retirements = 2;
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn taken_back_world() -> World {
    let mut world = world(2, 1, 2);
    ask(&mut world, 0, 0, &[Job::Open]);
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn many_take_overs() -> World {
    let mut world = world(2, 3, 0);
    world.judgement.fences = Some(1);
    world.judgement.still = true;
    for volume in 0..3 {
        let activity = &mut world.initial.machines[1].activities[volume];
        activity.phase = Phase::Claim;
    }
    world
}

fn power() -> World {
    let mut world = world(1, 1, 2);
    world.initial.budget.power_cuts = 1;
    world.initial.budget.kills = 1;
    world
}

/// Puts a record that host A won and noted, with one write of each of these volumes in one pack.
fn committed(world: &mut World, volumes: &[(usize, u8)]) {
    let state = &mut world.initial;
    let mut pack = Pack {
        session: 1,
        number: state.machines[0].number,
        ..Pack::default()
    };
    let mut slices = [Slice::default(); super::store::VOLUMES];
    for &(volume, writes) in volumes {
        let tail = &mut state.machines[0].disk.tails[volume];
        let from = tail.newest + 1;
        for _ in 0..writes {
            state.ghost.newest += 1;
            tail.newest += 1;
            tail.data[tail.newest as usize - 1] = state.ghost.newest;
            pack.contents[volume][tail.newest as usize - 1] = state.ghost.newest;
            state.ghost.lines[volume].stored[tail.newest as usize - 1] = state.ghost.newest;
        }
        tail.durable = tail.newest;
        tail.stored = tail.newest;
        tail.verified = true;
        slices[volume] = Slice {
            epoch: 1,
            from,
            to: tail.newest,
            pack: 0,
        };
    }
    let (place, _) = state.store.create_pack(pack);
    for slice in slices.iter_mut().filter(|slice| slice.epoch != 0) {
        slice.pack = place;
    }
    let machine = &mut state.machines[0];
    machine.number += 1;
    for (slice, tail) in slices.iter().zip(&mut machine.disk.tails) {
        if slice.epoch != 0 {
            tail.packs[slice.from as usize - 1..slice.to as usize].fill(place + 1);
        }
    }
    let record = Record {
        kind: RecordKind::Commit,
        session: 1,
        slices,
        previous: machine.disk.previous,
        ..Record::default()
    };
    state.store.create_record(0, machine.disk.next, record);
    machine.disk.previous = record.digest();
    machine.disk.next += 1;
}

fn shared_pack() -> World {
    let mut world = world(1, 2, 1);
    world.judgement.garbage = true;
    committed(&mut world, &[(0, 4), (1, 1)]);
    ask(&mut world, 0, 0, &[Job::Delete]);
    ask(&mut world, 0, 1, &[Job::Close]);
    world
}

fn fork() -> World {
    let mut world = world(2, 1, 1);
    world.initial.budget.low_marks = 1;
    world.initial.budget.passes = 1;
    committed(&mut world, &[(0, 1)]);
    ask(&mut world, 0, 0, &[Job::Compact]);
    ask(&mut world, 1, 0, &[Job::Fork]);
    world
}

fn collector() -> World {
    let mut world = world(2, 1, 2);
    world.initial.budget.low_marks = 1;
    world.initial.budget.passes = 1;
    ask(&mut world, 0, 0, &[Job::Fold]);
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn compaction() -> World {
    let mut world = collector();
    world.initial.budget.low_marks = 0;
    world.initial.machines[0].jobs = 0;
    world.initial.machines[1].jobs = 0;
    ask(&mut world, 0, 0, &[Job::Compact]);
    world
}

fn two_images() -> World {
    let mut world = world(1, 1, 3);
    world.initial.budget.image_clones = 1;
    ask(&mut world, 0, 0, &[Job::Fold]);
    world
}

fn restored_bucket_world() -> World {
    let mut world = world(2, 1, 3);
    world.initial.budget.backups = 1;
    world.initial.budget.rollbacks = 1;
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn restore() -> World {
    let mut world = world(2, 1, 3);
    world.initial.budget.unknown = 1;
    ask(&mut world, 0, 0, &[Job::Restore]);
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn idle_volume() -> World {
    let mut world = world(2, 2, 2);
    world.initial.budget.low_marks = 1;
    committed(&mut world, &[(1, 1)]);
    committed(&mut world, &[(1, 1)]);
    ask(&mut world, 0, 1, &[Job::Fold]);
    ask(&mut world, 1, 0, &[Job::Open]);
    world
}

fn close() -> World {
    let mut world = world(1, 1, 2);
    world.initial.budget.kills = 1;
    world.initial.budget.unknown = 1;
    world.initial.budget.late = 1;
    world.initial.budget.late_updates = 1;
    ask(&mut world, 0, 0, &[Job::Close]);
    world
}

fn dead_session() -> World {
    let mut world = world(1, 2, 1);
    world.initial.budget.kills = 1;
    world.initial.budget.late_updates = 1;
    world.initial.budget.passes = 1;
    committed(&mut world, &[(0, 1)]);
    ask(&mut world, 0, 0, &[Job::Compact]);
    world
}

/// A copy of the directory starts a session of its own while the original is at a merged pack.
fn clone_and_collector() -> World {
    let mut world = world(1, 1, 1);
    world.initial.budget.passes = 1;
    committed(&mut world, &[(0, 1)]);
    world.copy_directory(0, 1);
    world.begin_in(0, 0, Job::Compact);
    world
}

/// The copy begins when the object is named; it folds, and the low mark passes that record.
fn clone_and_fold() -> World {
    let mut world = world(1, 1, 1);
    world.initial.budget.passes = 1;
    world.initial.budget.low_marks = 1;
    committed(&mut world, &[(0, 1)]);
    world.begin_in(0, 0, Job::Compact);
    world.run_until(0, 0, Phase::FoldReady);
    world.copy_directory(0, 1);
    ask(&mut world, 1, 0, &[Job::Fold]);
    world
}

fn missing_base() -> World {
    let mut world = world(2, 1, 2);
    world.initial.budget.passes = 1;
    world.judgement.reads = true;
    // The base comes from a host that is no more.
    let state = &mut world.initial;
    state.ghost.newest = 1;
    let mut pack = Pack {
        host: 3,
        ..Pack::default()
    };
    pack.contents[0][0] = 1;
    let (place, _) = state.store.create_pack(pack);
    state.retired[3] = true;
    state.ghost.lines[0].stored[0] = 1;
    state.store.roots[0].packs = 1 << place;
    state.store.roots[0].lsn = 1;
    let tail = &mut state.machines[0].disk.tails[0];
    tail.data[0] = 1;
    (tail.newest, tail.durable, tail.stored) = (1, 1, 1);
    state.machines[0].activities[0].root = state.store.roots[0];
    ask(&mut world, 1, 0, &[Job::Open, Job::Compact]);
    world
}

fn outage() -> World {
    let mut world = world(1, 1, 2);
    world.initial.budget.kills = 1;
    world.initial.budget.outages = 1;
    world
}

fn peers() -> PeerWorld {
    PeerWorld {
        rules: Rules::ALL,
        restarts: 1,
        outages: 0,
        degrades: false,
    }
}

fn degrade() -> PeerWorld {
    PeerWorld {
        rules: Rules::ALL,
        restarts: 0,
        outages: 1,
        degrades: true,
    }
}

/// Three hosts and three volumes with everything to do: for walks.
fn fleet() -> World {
    let mut world = world(3, 2, 8);
    let all = [Job::Open, Job::Close, Job::Fold, Job::Compact, Job::Restore];
    for machine in 0..3 {
        for volume in 0..2 {
            ask(&mut world, machine, volume, &all);
        }
        ask(&mut world, machine, 1, &[Job::Fork]);
        ask(&mut world, machine, 2, &[Job::Open]);
    }
    world.judgement.reads = true;
    world.initial.budget = Budget {
        writes: 8,
        kills: 2,
        power_cuts: 1,
        unknown: 2,
        late: 2,
        late_updates: 2,
        low_marks: 3,
        passes: 2,
        ..Budget::default()
    };
    world
}

fn cloned_fleet() -> World {
    let mut world = fleet();
    world.initial.budget.directory_clones = 1;
    world.initial.budget.retirements = 2;
    world
}

/// A world to count requests in: so many records of three volumes, and then so many volumes with
/// one write more.
pub(crate) fn bench(records: u8, dirty: usize) -> World {
    let mut world = world(2, super::store::VOLUMES, 0);
    for _ in 0..records {
        committed(&mut world, &[(0, 1), (1, 1), (2, 1)]);
    }
    for tail in &mut world.initial.machines[0].disk.tails[..dirty] {
        tail.newest += 1;
        tail.data[tail.newest as usize - 1] = 100 + tail.newest;
    }
    world
}

fn restored_fleet() -> World {
    let mut world = fleet();
    world.initial.budget.backups = 1;
    world.initial.budget.rollbacks = 1;
    world.initial.budget.unknown = 0;
    world.initial.budget.late = 0;
    world.initial.budget.late_updates = 0;
    world
}

fn image_fleet() -> World {
    let mut world = fleet();
    world.initial.budget.image_clones = 1;
    world
}

/// A world for random walks, by name.
pub(crate) type Fleet = (&'static str, fn() -> World);

/// All of them.
pub(crate) const FLEETS: &[Fleet] = &[
    ("fleet", fleet),
    ("cloned-fleet", cloned_fleet),
    ("restored-fleet", restored_fleet),
    ("image-fleet", image_fleet),
];

macro_rules! entry {
    ($name:literal, $kind:ident $build:ident, $settle:literal, $cast:literal, [$(($schedule:literal, $rule:ident)),*]) => {
        Entry {
            name: $name,
            cast: $cast,
            build: Build::$kind($build),
            canaries: &[$(($schedule, Rule::$rule)),*],
            settle_one_in: $settle,
        }
    };
}

/// All worlds, and with them all canaries.
pub(crate) const WORLDS: &[Entry] = &[
    entry!("two-takers", Hosts two_takers, 16, "A serves V; B and C take it; one kill",
        [("a", PredecessorIsKept)]),
    entry!("zombie", Hosts paused_host_world, 8, "A serves V and does not learn that B takes it; an answer is lost, a request is late",
        [("", FencedVolumeIsDropped)]),
    entry!("restart", Hosts restart, 8, "A serves V and is killed twice; an answer is lost, a request is late",
        [("b", DigestsSurvive)]),
    entry!("directory-clone", Hosts directory_clone, 4, "A's cache directory is copied, both are started",
        [("b", DigestsDecide)]),
    entry!("retirement", Hosts retirement, 4, "B takes V, A is retired, A wakes up",
        [("", RetiresUnnamed)]),
    entry!("clone-and-low", Hosts clone_and_low, 16, "a copy of A's directory commits, folds, and the low mark follows; A wakes up",
        [("c", LowAfterWin)]),
    entry!("back-again", Hosts taken_back_world, 8, "V goes from A to B to A",
        [("d", FenceHasEpoch)]),
    entry!("many-take-overs", Hosts many_take_overs, 1, "B takes three volumes of A at once",
        [("e", FenceNamesMany)]),
    entry!("power", Hosts power, 1, "A serves V and loses power",
        [("f", FrameBeforeCreate)]),
    entry!("shared-pack", Hosts shared_pack, 1, "V and W share a pack; V is deleted, W is closed",
        [("g", SharedPacksDissolve)]),
    entry!("fork", Hosts fork, 8, "B forks V while A folds it; low marks and the collector follow",
        [("h", RootsNamePacks), ("", PinBeforeChild), ("", LookAfterPin)]),
    entry!("collector", Hosts collector, 8, "A commits and folds V, B takes it; low marks and the collector follow",
        [("i", LogsBeforeRoots), ("", LowKeepsMarks), ("", SessionProtects), ("", CreateResolvesBeforeFold)]),
    entry!("compaction", Hosts compaction, 8, "A commits and compacts V, B takes it; the collector follows",
        [("", FloorWaits)]),
    entry!("two-images", Hosts two_images, 4, "two machines resume from one memory image of A",
        [("s", PackIsReadBack)]),
    entry!("two-folds", Hosts two_folds, 16, "two machines resume from one memory image of A; both fold, the low mark rises",
        [("", AheadIsClone)]),
    entry!("two-restarts", Hosts two_restarts, 4, "two machines resume from one memory image of A, one is killed and started",
        [("j", StrangerStops)]),
    entry!("clone-and-close", Hosts clone_and_close, 4, "two machines resume from one memory image of A; one closes V",
        [("", EndInLog)]),
    entry!("yesterday", Hosts restored_bucket_world, 8, "B takes V; the bucket is set back",
        [("n", ChainAfterWin), ("", RootAfterFirst), ("", PacksAfterWin)]),
    entry!("restore", Hosts restore, 4, "A restores V in place, B takes it",
        [("o", RestoreRaisesEpoch)]),
    entry!("idle-volume", Hosts idle_volume, 4, "V is idle on A while W is busy; the low mark rises, B takes V",
        [("p", LowAfterFence), ("", LowBeforeDelete), ("", LowKeepsNewest)]),
    entry!("close", Hosts close, 4, "A closes V, is killed and goes on; requests are late",
        [("q", EndedReopens)]),
    entry!("dead-session", Hosts dead_session, 8, "A folds V, is killed, commits W; the collector follows, the fold lands late",
        [("r", ObjectsInLog)]),
    entry!("clone-and-collector", Hosts clone_and_collector, 4, "a copy of A's directory commits; the collector follows, A compacts V",
        [("", ObjectsInLog)]),
    entry!("clone-and-fold", Hosts clone_and_fold, 64, "a copy of A's directory folds V; the low mark and the collector follow, A compacts V",
        [("", MovedBeginsAgain)]),
    entry!("missing-base", Hosts missing_base, 16, "B takes V and folds it; the base is collected, A reads",
        [("t", OtherEpochFences)]),
    entry!("outage", Hosts outage, 1, "A is killed and started while the store is away",
        [("", TailServesAtOnce)]),
    entry!("peers", Peers peers, 4, "the owner acknowledges at peers, one restarts empty; a taker comes",
        [("k", PeerIncarnation), ("l", FenceBeforePeer), ("", PeersTrimStored), ("", AllMembers)]),
    entry!("degrade", Peers degrade, 4, "the owner goes on with fewer peers; a taker comes; the store goes away",
        [("m", RootBeforeSmallerSet), ("", FlushWaitsWithoutStore)]),
];
