//! Owns the drawing of a world: how large, how fast, how hostile, with which limits.
//!
//! Worlds are small on purpose, so that every boundary (a full ring, a full journal half, the last
//! free segment, an eviction) is met many times in a run. Each seed turns whole families of
//! faults and of operations off (swarm testing): what is always on hides what it prevents.

use crate::disk::{Corruptible, DiskFaults, PowerCut};
use crate::rng::Rng;
use crate::store::StoreFaults;

/// Limits of the engine, drawn small.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size of the log file in bytes.
    pub log_bytes: u64,
    /// Size of a log segment in bytes.
    pub segment_bytes: u64,
    /// Entries of an index ring, a power of two.
    pub ring_entries: u32,
    /// Bytes of the cache file; may be zero.
    pub cache_bytes: u64,
    /// Bytes of the memory file.
    pub memory_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes at which a pack is closed.
    pub pack_bytes: u64,
    /// Deltas in a root.
    pub deltas_max: usize,
    /// Extents in deltas.
    pub delta_extents_max: usize,
    /// Bytes of index blocks kept in memory, beside a few that always are.
    pub index_bytes: u64,
    /// Time between two looks of compaction at a volume; zero: it is off.
    pub compact_ns: u64,
    /// Packs of which less than this part is alive, in hundredths, are written anew. Above a hundred all are, for ever.
    pub compact_percent: u64,
    /// Requests of a reader in sequence above which a range is written anew.
    pub compact_runs: usize,
    /// Looks at open volumes for one walk over closed ones; zero: these are not compacted.
    pub compact_closed: u64,
    /// Time in which the local disk is scrubbed once; zero: it is not.
    pub scrub_ns: u64,
    /// Recovery-point timer.
    pub rpo_ns: u64,
    /// Frame timer.
    pub frame_interval_ns: u64,
    /// First retry delay.
    pub retry_ns: u64,
}

/// How the rings fare in crashes, in ten thousand.
#[derive(Clone, Debug, Default)]
pub struct RingFaults {
    /// A process crash finds the rings removed.
    pub gone: u32,
    /// The next start after a process crash uses another ring directory; one after it the first again.
    pub elsewhere: u32,
    /// After a host crash an old ring is still there.
    pub stale: u32,
    /// A process crash happens inside a commit.
    pub torn: u32,
}

/// What befalls several hosts on one store. Rates are in ten thousand turns of the operator.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Typical pause between the operator's turns.
    pub operate_ns: u64,
    /// A host is paused.
    pub pause: u32,
    /// How long, typically.
    pub pause_ns: u64,
    /// A host's cache directory is cloned onto another.
    pub clone: u32,
    /// Of attachments, how many take the volume over if they must.
    pub take_over: u32,
    /// Of turns at a volume that is served, how many close it.
    pub close: u32,
    /// Of volumes that were closed, how many are deleted and created again.
    pub recreate: u32,
    /// And how many get another name.
    pub rename: u32,
}

/// Snapshots and forks. Rates are in ten thousand actions of clients.
#[derive(Clone, Debug, Default)]
pub struct PointRates {
    /// Something is done to a snapshot or a fork; zero: there are none.
    pub act: u32,
    /// Forks that there may be, each with clients of its own.
    pub forks: u64,
}

/// A drawn world.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Hosts on the one store.
    pub hosts: u64,
    /// Devices outlive their server, and issue again what was in flight.
    pub reissue: bool,
    /// A share of all store requests fails, and goes on to do so when the clients are done.
    pub partial_failures: bool,
    /// What a computation costs for each KiB that it reads, in virtual time.
    pub compute_ns: u64,
    /// The store is set back to an older copy of itself.
    pub set_back: bool,
    /// What befalls them, if there are several.
    pub fleet: Fleet,
    /// Snapshots and forks of the volumes.
    pub points: PointRates,
    /// Volumes, forks aside.
    pub volumes: u64,
    /// Sectors of each volume.
    pub sectors: u64,
    /// Sectors of a logical block.
    pub block: u64,
    /// Clients of each volume.
    pub clients: u64,
    /// Requests that a client keeps in flight.
    pub depth: usize,
    /// Actions of all clients together before the world heals.
    pub actions: u64,
    /// Events between two crashes, on average; zero: none.
    pub crash_every: u64,
    /// Weights of process crash, host crash, loss of the host.
    pub crash_weights: [u32; 3],
    /// Shape of power cuts.
    pub cut: PowerCut,
    /// Disk faults.
    pub disk: DiskFaults,
    /// Where silent disk faults may strike.
    pub corruptible: Corruptible,
    /// Store faults.
    pub store: StoreFaults,
    /// Ring faults.
    pub rings: RingFaults,
    /// Of ten thousand client actions, how many begin a store outage.
    pub outage: u32,
    /// Of ten thousand starts, how many serve what the log continues before the store was asked.
    pub unchecked: u32,
    /// Of ten thousand process crashes, how many find the store gone.
    pub outage_at_crash: u32,
    /// Typical disk latency.
    pub disk_ns: u64,
    /// Of ten thousand client reads, how many take a hundred times longer: what they read must
    /// stay where it is all the while.
    pub slow_reads: u32,
    /// Typical store latency.
    pub store_ns: u64,
    /// Typical pause between a client's actions.
    pub think_ns: u64,
    /// Typical delay until a woken request or job goes on.
    pub wake_ns: u64,
    /// The engine's limits.
    pub limits: Limits,
}

/// Cache directories are cloned.
const CLONES: bool = true;

const MS: u64 = 1_000_000;

fn limits(rng: &mut Rng, sectors: u64) -> Limits {
    // The smallest segment holds one block of data.
    let segment_bytes = *rng.pick(&[8 << 10, 16 << 10, 32 << 10, 64 << 10]);
    // From a log that is far smaller than the volume to one that holds it several times.
    let wanted = sectors * 512 * rng.within(1, 12) / 4;
    let segments = (wanted / segment_bytes).max(10);
    // Two journal halves take 256 KiB each and 3.6 % of the log on top.
    let log_bytes = ((2 * (256 << 10) + segments * segment_bytes) * 100 / 92 + (64 << 10)) & !4095;
    Limits {
        log_bytes,
        segment_bytes,
        ring_entries: 1 << rng.within(4, 8),
        cache_bytes: *rng.pick(&[0, 64 << 10, 256 << 10, 4 << 20]),
        memory_bytes: *rng.pick(&[64 << 10, 256 << 10, 1 << 20]),
        chunk_bytes: *rng.pick(&[4 << 10, 8 << 10, 16 << 10, 64 << 10]),
        pack_bytes: *rng.pick(&[8 << 10, 64 << 10, 1 << 20]),
        deltas_max: rng.within(1, 6) as usize,
        delta_extents_max: *rng.pick(&[8, 64, 1024]),
        index_bytes: *rng.pick(&[0, 8 << 10, 1 << 20]),
        compact_ns: 0,
        compact_percent: 50,
        compact_runs: 2,
        compact_closed: 0,
        scrub_ns: 0,
        rpo_ns: *rng.pick(&[20 * MS, 200 * MS, 5000 * MS]),
        frame_interval_ns: *rng.pick(&[MS, 10 * MS, 1000 * MS]),
        retry_ns: *rng.pick(&[MS, 20 * MS]),
    }
}

fn disk_faults(seed: u64, rng: &mut Rng) -> DiskFaults {
    let mut faults = DiskFaults::default();
    // A disk on which nothing fails but syncs, and those soon.
    let syncs = &mut Rng::stream(seed, "failing syncs");
    if syncs.below(24) == 0 {
        faults.sync_fail = *syncs.pick(&[100, 500, 2000]);
        return faults;
    }
    // Most worlds have a good disk: there the strictest judgement applies to everything else.
    if rng.below(3) > 0 {
        return faults;
    }
    faults.write_eio = *rng.pick(&[0, 0, 20, 200]);
    faults.write_short = *rng.pick(&[0, 20, 200]);
    faults.full = *rng.pick(&[0, 0, 20]);
    faults.read_eio = *rng.pick(&[0, 0, 20, 200]);
    faults.sync_fail = *rng.pick(&[0, 0, 0, 30]);
    if rng.below(3) == 0 {
        faults.misdirect = *rng.pick(&[0, 30]);
        faults.rot = *rng.pick(&[0, 1000]);
        faults.stale = *rng.pick(&[0, 2000]);
    }
    faults
}

fn store_faults(rng: &mut Rng) -> StoreFaults {
    let mut faults = StoreFaults::default();
    if rng.coin() {
        return faults;
    }
    faults.unavailable = *rng.pick(&[0, 100, 2000]);
    faults.unknown = *rng.pick(&[0, 300, 3000]);
    faults.late = *rng.pick(&[0, 5000]);
    faults.duplicate = *rng.pick(&[0, 1000]);
    faults.get_failed = *rng.pick(&[0, 300]);
    if rng.below(3) == 0 {
        faults.get_corrupt = *rng.pick(&[0, 300]);
        faults.get_truncated = *rng.pick(&[0, 300]);
    }
    faults
}

impl Profile {
    /// Draws the world of a seed.
    pub fn draw(seed: u64) -> Profile {
        let rng = &mut Rng::stream(seed, "profile");
        let sectors = 8 * *rng.pick(&[4, 16, 64, 192]);
        let disk_ns = *rng.pick(&[20_000, 100_000, 2 * MS]);
        let mut profile = Profile {
            hosts: 1,
            reissue: false,
            partial_failures: false,
            compute_ns: 0,
            set_back: false,
            fleet: Fleet::default(),
            points: PointRates::default(),
            volumes: *rng.pick(&[1, 1, 2, 3]),
            sectors,
            block: *rng.pick(&[1, 1, 8]),
            clients: rng.within(1, 3),
            depth: *rng.pick(&[1, 4, 16]),
            actions: rng.within(100, 1200),
            crash_every: *rng.pick(&[0, 300, 1000, 4000]),
            crash_weights: *rng.pick(&[[1, 0, 0], [0, 1, 0], [4, 4, 1], [1, 1, 0], [1, 1, 4]]),
            cut: match rng.below(6) {
                0 => PowerCut::LoseAll,
                1 => PowerCut::KeepAll,
                n => PowerCut::Each([500, 5000, 9500, 9900][n as usize - 2]),
            },
            disk: disk_faults(seed, rng),
            // The journal of the log: everything in it has a checksum. Payload in the log has none
            // until it is sealed, so silent faults there would prove nothing (S8).
            corruptible: Corruptible {
                file: 0,
                below: 512 << 10,
            },
            store: store_faults(rng),
            rings: RingFaults {
                gone: *rng.pick(&[0, 0, 0, 1000]),
                elsewhere: *Rng::stream(seed, "rings elsewhere").pick(&[0, 0, 0, 3000]),
                stale: *rng.pick(&[0, 5000, 10_000]),
                torn: *rng.pick(&[0, 3000]),
            },
            outage: *rng.pick(&[0, 0, 0, 30]),
            unchecked: 0,
            outage_at_crash: 0,
            disk_ns,
            slow_reads: *rng.pick(&[0, 0, 500, 3000]),
            store_ns: *rng.pick(&[200_000, 5 * MS, 50 * MS]),
            think_ns: *rng.pick(&[1000, 100_000, 3 * MS]),
            wake_ns: *rng.pick(&[0, 1000, 200_000]),
            limits: limits(rng, sectors),
        };
        // Drawn last, so that worlds of one host stay what they were.
        profile.draw_fleet(rng);
        profile.reissue = rng.coin();
        if rng.below(6) == 0 {
            profile.disk.unreadable = *rng.pick(&[10, 50, 200]);
        }
        profile.draw_partial_failures(rng);
        profile.compute_ns = *rng.pick(&[0, 0, 20_000, MS]);
        profile.draw_set_back(seed);
        profile.draw_unchecked(seed);
        profile.draw_compaction(seed);
        profile.draw_scrub(seed);
        profile.draw_points(seed);
        profile.draw_renaming(seed);
        profile
    }

    /// Half of the worlds have snapshots, and most of these forks.
    fn draw_points(&mut self, seed: u64) {
        let rng = &mut Rng::stream(seed, "points");
        if self.set_back || rng.coin() {
            return;
        }
        self.points = PointRates {
            act: *rng.pick(&[100, 300, 1000]),
            forks: *rng.pick(&[0, 1, 1, 2]),
        };
        // Of a log and its clone either may go on, and each has the snapshots that only a log has.
        self.fleet.clone = 0;
    }

    /// Most worlds of several hosts rename volumes. Of a log and its clone each takes the volume's name for its own.
    fn draw_renaming(&mut self, seed: u64) {
        let rng = &mut Rng::stream(seed, "renaming");
        if self.hosts > 1 && self.fleet.clone == 0 {
            self.fleet.rename = *rng.pick(&[0, 5000, 9000, 9000]);
        }
        if self.fleet.rename > 0 {
            // What is taken over and over again is seldom closed.
            self.fleet.operate_ns = self.fleet.operate_ns.min(30 * MS);
            self.fleet.take_over *= u32::from(rng.below(3) == 0);
        }
    }

    /// Names in the store: of volumes, and of what may become forks.
    pub fn lines(&self) -> u64 {
        self.volumes + self.points.forks
    }

    /// Most worlds compact, and far more than is of use.
    fn draw_compaction(&mut self, seed: u64) {
        let rng = &mut Rng::stream(seed, "compaction");
        let limits = &mut self.limits;
        limits.compact_ns = *rng.pick(&[0, 20 * MS, 50 * MS, 500 * MS]);
        limits.compact_percent = *rng.pick(&[50, 95, 400]);
        limits.compact_runs = *rng.pick(&[0, 1, 2]);
        // A small pack is a tenth footer, however much of it is alive.
        let is_endless = limits.compact_percent > 50 || limits.compact_runs == 0;
        if limits.compact_ns > 0 && is_endless {
            // It never comes to an end, and a world has to.
            limits.compact_ns = 4000 * MS;
        }
        limits.compact_closed = *rng.pick(&[0, 1, 2]);
        if self.hosts > 1 && limits.compact_closed > 0 {
            // A volume is closed for a moment only, until another host opens it, and what there is to do comes to an end.
            limits.compact_ns = *rng.pick(&[100 * MS, 400 * MS]);
            limits.compact_percent = 50;
            limits.compact_runs = 2;
        }
    }

    /// Most worlds scrub, and far more often than is of use; but a world has to come to an end.
    fn draw_scrub(&mut self, seed: u64) {
        let rng = &mut Rng::stream(seed, "scrub");
        self.limits.scrub_ns = *rng.pick(&[0, 2_000 * MS, 8_000 * MS, 30_000 * MS]);
    }

    /// In some worlds a server serves before the store has answered, which may be away when it starts.
    fn draw_unchecked(&mut self, seed: u64) {
        let rng = &mut Rng::stream(seed, "unchecked");
        self.unchecked = *rng.pick(&[0, 0, 5000, 10_000]);
        if self.unchecked > 0 {
            self.outage_at_crash = *rng.pick(&[0, 5000, 10_000]);
        }
    }

    /// Some worlds have a store of which a share of all requests fails, as long as clients work.
    fn draw_partial_failures(&mut self, rng: &mut Rng) {
        if rng.below(6) == 0 {
            let rate = *rng.pick(&[100, 500, 1000, 2000]);
            self.partial_failures = true;
            self.store.unavailable = rate;
            self.store.unknown = rate;
            self.store.get_failed = rate;
        }
    }

    /// In some worlds of one host the store is set back, while there is a log that knows better.
    fn draw_set_back(&mut self, seed: u64) {
        if self.hosts > 1 || Rng::stream(seed, "is set back").below(16) > 0 {
            return;
        }
        self.set_back = true;
        self.volumes = 1;
        self.crash_weights[2] = 0;
        self.crash_weights[0] = self.crash_weights[0].max(1);
    }

    /// A third of the worlds has several hosts.
    fn draw_fleet(&mut self, rng: &mut Rng) {
        if rng.below(3) > 0 {
            return;
        }
        self.hosts = rng.within(2, 3);
        self.volumes = self.volumes.min(2);
        self.clients = self.clients.min(2);
        self.fleet = Fleet {
            operate_ns: *rng.pick(&[5 * MS, 50 * MS, 300 * MS]),
            pause: *rng.pick(&[0, 500, 2000]),
            pause_ns: *rng.pick(&[20 * MS, 500 * MS]),
            clone: *rng.pick(&[0, 0, 300]) * u32::from(CLONES),
            take_over: *rng.pick(&[0, 5000, 10_000]),
            close: *rng.pick(&[500, 5000]),
            recreate: *rng.pick(&[0, 5000]),
            rename: 0,
        };
    }

    /// Whether a client may be told of an I/O error in this world.
    pub fn errors_allowed(&self) -> bool {
        let d = &self.disk;
        let writes = [d.write_eio, d.write_short, d.full, d.sync_fail];
        let reads = [d.read_eio, d.unreadable];
        let silent = [d.misdirect, d.rot, d.stale];
        let store = [self.store.get_corrupt, self.store.get_truncated];
        writes
            .iter()
            .chain(&reads)
            .chain(&silent)
            .chain(&store)
            .any(|rate| *rate > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_differ_and_every_family_of_faults_is_sometimes_off() {
        let worlds: Vec<Profile> = (0..400).map(Profile::draw).collect();
        let share = |test: fn(&Profile) -> bool| worlds.iter().filter(|w| test(w)).count();
        for count in [
            share(Profile::errors_allowed),
            share(|w| w.crash_every == 0),
            share(|w| w.store.unknown > 0),
            share(|w| w.limits.cache_bytes == 0),
            share(|w| w.volumes > 1),
        ] {
            assert!(count > 40 && count < 360, "{count} of 400");
        }
    }
}
