//! The store of a soak that is no directory: MinIO beside the server, killed and suspended now and then.
//!
//! Its objects are on the scratch disk, and every MinIO that is started goes on with them. It is down for
//! seconds each time, and runs again when the soak's requests end: what is read at the end is read from
//! a store that answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use s3_testbed::{Minio, MinioConfig, url_at};

use super::world::{Tally, ThreadActivity, World, lock};
use crate::{Failure, minio, vm};

/// The shortest and the longest time that MinIO is away.
const AWAY_MIN: Duration = Duration::from_millis(500);
const AWAY_MAX: Duration = Duration::from_secs(20);

/// A MinIO, its bucket and its objects.
#[derive(Debug)]
pub(super) struct ObjectStore {
    minio: Mutex<Minio>,
    address: SocketAddr,
}

impl ObjectStore {
    /// Starts one with its objects below `dir`.
    pub(super) fn start(program: &Path, dir: &Path) -> Result<ObjectStore, Failure> {
        let minio = Minio::start(MinioConfig {
            program: program.to_owned(),
            access_key: minio::ACCESS_KEY.to_owned(),
            secret_key: minio::SECRET_KEY.to_owned(),
            data: Some(dir.join("objects")),
            environment: Vec::new(),
        })?;
        Ok(ObjectStore {
            address: minio.address,
            minio: Mutex::new(minio),
        })
    }

    pub(super) fn url(&self) -> String {
        url_at(self.address)
    }

    /// The same for a server in a guest, of which this process is outside.
    pub(super) fn url_in_guest(&self) -> Result<String, Failure> {
        let host: Ipv4Addr = vm::HOST.parse()?;
        Ok(url_at((host, self.address.port()).into()))
    }

    /// Kills it and suspends it by turns until the soak ends.
    pub(super) fn disturb(
        &self,
        world: &World,
        activity: &ThreadActivity,
        total: Duration,
        seed: u64,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let between = (total / 12).clamp(Duration::from_secs(3), Duration::from_secs(100));
        let longest = (between / 4).clamp(AWAY_MIN, AWAY_MAX);
        // Its own: what takes long here is not a request of a disk.
        let own = Tally::default();
        for turn in 0.. {
            world.sleep(between.mul_f64(0.5 + random.f64()));
            if world.stopped() {
                return;
            }
            let away = AWAY_MIN + longest.saturating_sub(AWAY_MIN).mul_f64(random.f64());
            let is_kill = turn % 2 == 0;
            let what = || "MinIO away and back".to_owned();
            let done = activity.track(&own, what, || match is_kill {
                true => self.kill_for(world, away),
                false => self.suspend_for(world, away),
            });
            println!(
                "MinIO {} for {:.1} s, answers again after {:.1} s",
                if is_kill { "killed" } else { "suspended" },
                away.as_secs_f64(),
                world.began.elapsed().as_secs_f64()
            );
            match done {
                Ok(()) if is_kill => Tally::add(&world.tally.store_kills, 1),
                Ok(()) => Tally::add(&world.tally.store_suspensions, 1),
                Err(error) => world.fail(format!("MinIO: {error}")),
            }
        }
    }

    /// What all threads of MinIO do; it ends with that. For the report of a soak that hangs.
    pub(super) fn end_with_stacks(&self) -> String {
        match self.minio.try_lock() {
            Ok(mut minio) => minio
                .end_with_stacks()
                .unwrap_or_else(|error| error.to_string()),
            Err(_) => "it is away just now".to_owned(),
        }
    }

    fn kill_for(&self, world: &World, away: Duration) -> std::io::Result<()> {
        let mut minio = lock(&self.minio);
        minio.kill();
        world.sleep(away);
        minio.restart()
    }

    fn suspend_for(&self, world: &World, away: Duration) -> std::io::Result<()> {
        let minio = lock(&self.minio);
        minio.suspend()?;
        world.sleep(away);
        minio.resume()
    }
}
