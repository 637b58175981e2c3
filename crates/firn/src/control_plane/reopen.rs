//! Reopens the volumes that the store did not give when the server started.
//!
//! Their clients wait, so the server must reopen them by itself: it retries until the store answers,
//! the volume turns out to belong to another host, or the server stops. A disk that is being
//! restored is finished before the server stops.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::control_plane::ControlPlane;

/// The first delay between attempts, and the longest.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(15);

impl ControlPlane {
    /// Retries to open each of these volumes until it is open, or `stop` changes.
    pub(crate) async fn reopen_volumes(&self, names: Vec<String>, stop: watch::Receiver<bool>) {
        join_all(
            names
                .iter()
                .map(|name| self.reopen_volume(name, stop.clone())),
        )
        .await;
    }

    async fn reopen_volume(&self, name: &str, mut stop: watch::Receiver<bool>) {
        let mut delay = RETRY_DELAY;
        loop {
            let opened = tokio::select! {
                // Also when the sender is dropped.
                _ = stop.changed() => return,
                opened = async {
                    tokio::time::sleep(delay).await;
                    let lock = self.volume_locks.lock(name).await;
                    // Meanwhile a client may have attached the volume, so that it is open; or
                    // detached it, so that another host may own it.
                    let attached = self.disks.attached.all().contains_key(name);
                    let open = match self.volumes.get(name) {
                        None if attached => Some(self.open(name).await),
                        _ => None,
                    };
                    (lock, open)
                } => opened,
            };
            let (_lock, open) = opened;
            match open {
                None => return,
                Some(Ok(open)) => {
                    tracing::info!(volume = name, "the volume is reopened, after the others");
                    if let Err(failure) = self.disks.restore(&open).await {
                        tracing::error!(volume = name, %failure, "its disk is not restored");
                    }
                    return;
                }
                Some(Err(failure)) if failure.code.is_transient() => {
                    tracing::warn!(volume = name, %failure, "the volume still cannot be opened; retrying");
                    delay = (delay * 2).min(RETRY_DELAY_MAX);
                }
                Some(Err(failure)) => {
                    tracing::error!(volume = name, %failure, "the volume is not reopened");
                    return;
                }
            }
        }
    }
}

/// The task that reopens volumes; it ends before volumes are closed.
#[derive(Debug)]
pub(crate) struct ReopenTask {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl ReopenTask {
    pub(crate) fn start(control: &Arc<ControlPlane>, names: Vec<String>) -> ReopenTask {
        let (stop, stopped) = watch::channel(false);
        let control = Arc::clone(control);
        ReopenTask {
            stop,
            task: tokio::spawn(async move { control.reopen_volumes(names, stopped).await }),
        }
    }

    /// Stops the task, after it has finished a disk that it is restoring.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that reopens volumes panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nbd::server::Listen;
    use object_store::memory::InMemory;
    use store::{ObjectStoreAdapter, SharedStore};
    use tokio::runtime::Runtime;
    use volume::VolumeSpec;

    use super::*;
    use crate::cli::args::{LogIo, ServeArgs};
    use crate::config::Settings;
    use crate::engine::Engine;
    use crate::failure::FailureCode;
    use crate::frontends::disks::attached_file::DiskRecord;
    use crate::frontends::disks::options::DiskOptions;
    use crate::local_files::{CacheDir, Progress};
    use crate::model::{AttachRequest, TransportChoice};
    use crate::units::Size;

    const DEADLINE: Duration = Duration::from_secs(60);

    struct Quiet;

    impl Progress for Quiet {
        fn on_filled(&mut self, _done_bytes: u64, _total_bytes: u64) {}
    }

    /// A server without an API, and a volume "demo" that it is to open later.
    fn start(runtime: &Runtime, dir: &Path) -> (Engine, Arc<ControlPlane>) {
        std::fs::create_dir(dir.join("rings")).unwrap();
        let flags = ServeArgs {
            cache: Some(dir.join("cache")),
            ring_dir: Some(dir.join("rings")),
            log_size: Some(Size(64 << 20)),
            cache_size: Some(Size(1 << 20)),
            log_io: Some(LogIo::Buffered),
            ..ServeArgs::default()
        };
        let settings = Settings::new("127.0.0.1:0", flags).unwrap();
        let files = CacheDir::open(&settings, &mut Quiet).unwrap();
        let memory = ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory");
        let store: SharedStore = Arc::new(memory);
        let started = Engine::start(&settings, store, files, runtime.handle());
        let engine = runtime.block_on(started).unwrap();
        let control = Arc::new(ControlPlane::new(&engine, None).unwrap());
        control.listen(&[Listen::Unix(dir.join("nbd"))]).unwrap();
        let spec = VolumeSpec {
            name: "demo".into(),
            bytes: 8 << 20,
            block: 512,
        };
        runtime.block_on(engine.host.create_volume(spec)).unwrap();
        control.disks.attached.add("demo").unwrap();
        (engine, control)
    }

    /// Lets the task come to its end while `meanwhile` happens; whether the volume is open then.
    fn open_after(meanwhile: impl AsyncFnOnce(&ControlPlane)) -> bool {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut engine, control) = start(&runtime, dir.path());
        let is_open = runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let later = Arc::clone(&control);
            let task =
                tokio::spawn(
                    async move { later.reopen_volumes(vec!["demo".into()], stopped).await },
                );
            meanwhile(&control).await;
            tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
            drop(stop);
            let is_open = control.volumes.get("demo").is_some();
            control.close_all().await.unwrap();
            is_open
        });
        engine.stop(None);
        is_open
    }

    #[test]
    fn a_volume_that_is_wanted_is_opened_late() {
        assert!(open_after(async |_| {}));
    }

    #[test]
    fn a_volume_that_is_detached_before_it_could_be_opened_is_not_opened_late() {
        let is_open = open_after(async |control| control.detach("demo", false).await.unwrap());
        assert!(!is_open);
    }

    #[test]
    fn a_disk_that_waits_for_its_volume_is_taken_away_only_by_force() {
        open_after(async |control| {
            let waiting = DiskRecord {
                id: 7,
                volume_id: "none".into(),
                options: DiskOptions::from_request(&AttachRequest::default(), 1),
                leaving: false,
            };
            let attached = &control.disks.attached;
            attached.set_disk("demo", Some(waiting)).unwrap();
            let refused = control.detach("demo", false).await.unwrap_err();
            assert_eq!(refused.code, FailureCode::NotOpenYet);
            assert!(attached.all().contains_key("demo"), "nothing has changed");
        });
    }

    /// However long attaching and detaching take, it is closed in the end.
    #[test]
    fn a_volume_that_was_attached_and_let_go_of_within_a_pause_is_not_opened_late() {
        let is_open = open_after(async |control| {
            let request = AttachRequest {
                transport: TransportChoice::Nbd,
                ..AttachRequest::default()
            };
            control.attach("demo", request).await.unwrap();
            control.detach("demo", false).await.unwrap();
        });
        assert!(!is_open);
    }
}
