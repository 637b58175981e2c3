//! A MinIO server of the test's own, and clients of it.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::time::{Duration, Instant};

use s3_testbed::{Minio, MinioConfig};
use store::{Kind, SharedStore, Store};

/// Starts a server with an empty bucket `firn`; `None`, and says so, where there is none to start.
pub fn start_minio() -> Option<Minio> {
    start_minio_with(|_| false)
}

/// The same with what `prepare` puts into the directory of certificates; it says whether to speak TLS.
pub fn start_minio_with(prepare: impl FnOnce(&Path) -> bool) -> Option<Minio> {
    let config = MinioConfig::from_environment()?;
    Some(Minio::start_with(config, prepare).unwrap())
}

/// Waits until a server answers `store`.
pub async fn wait_until_it_answers(store: &dyn Store) {
    let end = Instant::now() + Duration::from_secs(60);
    while store.get("none").await.unwrap_err().kind() != Kind::NotFound {
        assert!(Instant::now() < end, "MinIO does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn open(minio: &Minio) -> SharedStore {
    store::open_url(&minio.url()).unwrap()
}
