//! firn's side: volumes of one server as ublk disks, with its log and its store, a directory, on one file system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::{Branching, ORIGIN_MIB};
use crate::Failure;
use crate::bench::forks::api::Api;
use crate::bench::measure::fill;
use crate::bench::ublk::volume::server::{Firn, World};

/// MiB of the log. A third of it may be missing in the store before a server uploads by itself: more than a load writes
/// between two times that all of it is brought there.
const LOG_MIB: u64 = 512;

/// Room for all that the origin has, which a pool has here, too.
const CACHE_SIZE: &str = "512MiB";

const ORIGIN: &str = "origin";

pub(super) struct Disks {
    api: Api,
    origin: PathBuf,
    firn: Firn,
    /// Its files go when it has ended.
    _world: World,
}

impl Disks {
    /// A server whose volume was written from end to end, and every segment of its log: one is zeroed before its first use.
    pub(super) fn serve(program: &Path, dir: &Path) -> Result<Disks, Failure> {
        let world = World::new(program, dir, "forks")?;
        let (log, volume) = (format!("{LOG_MIB}MiB"), format!("{ORIGIN}={ORIGIN_MIB}MiB"));
        let sizes = ["--log-size", &log, "--cache-size", CACHE_SIZE];
        let firn = world.serve(&[&sizes[..], &["--volume", &volume]].concat())?;
        let (address, token) = firn.api();
        let api = Api::at(address, token)?;
        let (_, origin) = api.attach_disk(ORIGIN)?;
        for _ in 0..=LOG_MIB / ORIGIN_MIB {
            fill(&origin)?;
            sync(&api)?;
        }
        Ok(Disks {
            api,
            origin,
            firn,
            _world: world,
        })
    }
}

fn sync(api: &Api) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{ORIGIN}/sync");
    api.post(&path, &json!({})).map(drop)
}

impl Branching for Disks {
    fn name(&self) -> &'static str {
        "firn"
    }

    fn origin(&self) -> &Path {
        &self.origin
    }

    /// Brings all of it to the store.
    fn settle(&mut self) -> Result<(), Failure> {
        sync(&self.api)
    }

    fn snapshot(&mut self, name: &str) -> Result<Duration, Failure> {
        self.api.snapshot(ORIGIN, name, "log")
    }

    fn stored_snapshot(&mut self, name: &str) -> Result<(), Failure> {
        self.api.snapshot(ORIGIN, name, "store").map(drop)
    }

    fn fork(&mut self, snapshot: Option<&str>, name: &str) -> Result<Duration, Failure> {
        match snapshot {
            Some(snapshot) => self
                .api
                .fork(&format!("{ORIGIN}@{snapshot}"), name, "store"),
            None => self.api.fork(ORIGIN, name, "log"),
        }
    }

    fn attach(&mut self, fork: &str) -> Result<(Duration, PathBuf), Failure> {
        self.api.attach_disk(fork)
    }

    fn detach(&mut self, fork: &str) -> Result<(), Failure> {
        let path = format!("/v1/volumes/{fork}/detach");
        self.api.post(&path, &json!({"force": true})).map(drop)
    }

    fn remove_snapshot(&mut self, name: &str) -> Result<(), Failure> {
        let path = format!("/v1/volumes/{ORIGIN}/snapshots/{name}");
        self.api.delete(&path).map(drop)
    }

    fn remove_fork(&mut self, name: &str) -> Result<(), Failure> {
        self.api.delete(&format!("/v1/volumes/{name}")).map(drop)
    }

    fn describe(&self) -> Result<String, Failure> {
        Ok(format!("{}, {}", self.firn.granted(ORIGIN)?, self.firn.log))
    }

    fn end(mut self: Box<Self>) -> Result<(), Failure> {
        self.detach(ORIGIN)?;
        self.firn.stop()
    }
}
