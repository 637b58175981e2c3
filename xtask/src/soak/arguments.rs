//! The arguments of `cargo xtask soak`, and the sizes, faults and bounds that follow from them.
//!
//! What a soak writes is bounded by rate and time, so that the store, which only grows, fits the
//! scratch disk and nothing must be deleted while the server uses it.

use std::path::PathBuf;
use std::time::Duration;

use crate::vm;

pub(super) const MIB: u64 = 1 << 20;

/// Where a soak's volumes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StoreKind {
    /// A directory on the scratch disk
    #[default]
    Directory,
    /// MinIO, killed and suspended too: beside the server, or outside of its guest where that has a network
    Minio,
}

/// Arguments of `cargo xtask soak`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Disks, all of one server
    #[arg(long, default_value_t = 4)]
    pub(super) devices: usize,
    /// How long the disks are in use
    #[arg(long, conflicts_with = "seconds")]
    pub(super) minutes: Option<u64>,
    /// The same in seconds; ten unless told
    #[arg(long)]
    pub(super) seconds: Option<u64>,
    /// Where: uml (where it has been built, that is usual), or a packaged kernel
    #[arg(long)]
    pub(super) kernel: Option<String>,
    /// Without a guest: on this machine, over NBD, the server's programs of a user's own
    #[arg(long, conflicts_with_all = ["kernel", "scale"])]
    pub(super) nbd: bool,
    /// Hosts on one store, each with a server; volumes move between them while they are in use
    #[arg(long, default_value_t = 1, requires = "nbd")]
    pub(super) hosts: usize,
    /// Seconds between two moves
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub(super) move_every: u64,
    /// Seconds after which a server is upgraded in use, again and again; never unless told
    #[arg(long, value_name = "SECONDS", conflicts_with = "scale")]
    pub(super) upgrade_every: Option<u64>,
    /// How the disks' bytes travel: auto, zero-copy, user-copy, get-data, copy
    #[arg(long, default_value = "auto")]
    pub(super) data_mode: String,
    /// Decides the requests and the store's faults
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads on each disk; one of them goes through the page cache
    #[arg(long, default_value_t = 4)]
    pub(super) threads: usize,
    /// MiB a second of each disk, reads and writes together
    #[arg(long, default_value_t = 8.0)]
    pub(super) rate: f64,
    /// MiB of each disk; more in all than log and cache hold, unless told
    #[arg(long)]
    pub(super) span: Option<u64>,
    /// Where the volumes live
    #[arg(long, value_enum, default_value_t)]
    pub(super) store: StoreKind,
    /// A store without planned faults, and not disturbed
    #[arg(long)]
    pub(super) no_faults: bool,
    /// Instead of using disks: what so many idle ones cost, a row each, as in 16,64,256
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    pub(super) scale: Vec<usize>,
    /// End with everything in a JSON document
    #[arg(long)]
    pub(super) json: bool,
    /// The server to test, instead of building it
    #[arg(long)]
    pub(super) program: Option<PathBuf>,
    /// A bug planted in the server, which must have been built with planted bugs
    #[arg(long, hide = true)]
    pub(super) canary: Option<String>,
    /// The guest's memory; 2G unless told, 3G with MinIO
    #[arg(long)]
    pub(super) memory: Option<String>,
    /// The guest's processors; two unless told, one with MinIO in User-Mode Linux, where it stops to answer on two
    #[arg(long)]
    pub(super) cpus: Option<u32>,
    /// MinIO's program
    #[arg(long, hide = true)]
    pub(super) minio: Option<PathBuf>,
    /// Where MinIO is, if it is outside of the guest
    #[arg(long, hide = true)]
    pub(super) store_url: Option<String>,
    /// Already in the guest
    #[arg(long, hide = true)]
    pub(super) inside: bool,
}

impl Arguments {
    pub(super) fn time(&self) -> Duration {
        let minutes = self.minutes.map(|minutes| 60 * minutes);
        Duration::from_secs(minutes.or(self.seconds).unwrap_or(10))
    }

    pub(super) fn is_short(&self) -> bool {
        self.time() < Duration::from_secs(60)
    }

    pub(super) fn kernel(&self) -> &str {
        match &self.kernel {
            Some(kernel) => kernel,
            None if vm::has_user_mode() => "uml",
            None => "recent",
        }
    }

    pub(super) fn memory(&self) -> &str {
        match (&self.memory, self.store) {
            (Some(memory), _) => memory,
            (None, StoreKind::Directory) => "2G",
            (None, StoreKind::Minio) => "3G",
        }
    }

    /// Whether MinIO runs outside of the guest: under an emulator it would answer some requests a second.
    pub(super) fn has_store_outside(&self) -> bool {
        self.store == StoreKind::Minio && self.kernel() != "uml"
    }

    pub(super) fn cpus(&self) -> u32 {
        let usual = match self.store == StoreKind::Minio && !self.has_store_outside() {
            true => 1,
            false => 2,
        };
        self.cpus.unwrap_or(usual)
    }

    pub(super) fn span_mib(&self) -> u64 {
        self.span
            .unwrap_or_else(|| (1024 / self.devices as u64).clamp(64, 512))
    }

    pub(super) fn log_mib(&self) -> u64 {
        // The smallest that there is, and more where more is in flight; a short run makes it quickly.
        let each = if self.is_short() { 0 } else { 8 };
        64 + each * self.devices as u64
    }

    pub(super) fn cache_mib(&self) -> u64 {
        16 + 2 * self.devices as u64
    }

    /// The most that the scratch disk can come to hold: every byte that the rate allows, as if nothing were
    /// compressed, half as much again for indexes, and the log and the cache.
    pub(super) fn bound_mib(&self) -> u64 {
        let moved = self.rate * self.time().as_secs_f64() * self.devices as f64;
        let local = (self.log_mib() + self.cache_mib()) * self.hosts as u64;
        (moved * 1.5) as u64 + local + 1024
    }

    /// The store's faults, with outages that fit the time.
    pub(super) fn faults(&self) -> String {
        if self.no_faults {
            return String::new();
        }
        let every = (self.time() / 6).clamp(Duration::from_secs(4), Duration::from_secs(120));
        // The plan begins anew with each program of a server.
        let life = self.upgrade_every.map_or(every, |seconds| {
            Duration::from_secs(seconds) * self.hosts as u32
        });
        let every = every.min(life / 2);
        let lasts = every.div_f64(4.0).min(Duration::from_secs(25));
        // In a short run each kind must fire within few requests.
        let rates = if self.is_short() {
            "refuse=100,lose-request=150,lose-answer=150"
        } else {
            "refuse=30,lose-request=20,lose-answer=20"
        };
        format!(
            "seed={},{rates},delay=200,delay-max=250ms,outage-every={}ms,outage-for={}ms",
            self.seed,
            every.as_millis(),
            lasts.as_millis()
        )
    }
}
