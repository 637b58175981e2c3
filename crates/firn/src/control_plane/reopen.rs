//! Volumes that should be open and that the store did not give when the server came up.
//!
//! Their clients wait, so nobody but the server may be needed to bring them back: it tries until the
//! store answers, the volume turns out to be somebody else's, or the server ends. What has begun to
//! become a disk is finished before the server goes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::control_plane::Control;

/// The first pause between tries, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

impl Control {
    /// Opens each of these as soon as the store lets it be opened, until `stop` changes.
    pub(crate) async fn keep_opening(&self, names: Vec<String>, stop: watch::Receiver<bool>) {
        join_all(names.iter().map(|name| self.open_late(name, stop.clone()))).await;
    }

    async fn open_late(&self, name: &str, mut stop: watch::Receiver<bool>) {
        let mut pause = PAUSE;
        loop {
            let opened = tokio::select! {
                // Also if nobody is there any more who could say so.
                _ = stop.changed() => return,
                opened = async {
                    tokio::time::sleep(pause).await;
                    let turn = self.turns.take(name).await;
                    // Somebody may have asked for it meanwhile, and then has it; or has let go of
                    // it since, and then another host may have it.
                    let wanted = self.disks.attached.all().contains_key(name);
                    let open = match self.volumes.get(name) {
                        None if wanted => Some(self.open(name).await),
                        _ => None,
                    };
                    (turn, open)
                } => opened,
            };
            let (_turn, open) = opened;
            match open {
                None => return,
                Some(Ok(open)) => {
                    tracing::info!(volume = name, "opened again, later than the others");
                    if let Err(failure) = self.disks.restore(&open).await {
                        tracing::error!(volume = name, %failure, "its disk is not back");
                    }
                    return;
                }
                Some(Err(failure)) if failure.code.is_transient() => {
                    tracing::warn!(volume = name, %failure, "still not opened; tried again");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Some(Err(failure)) => {
                    tracing::error!(volume = name, %failure, "not opened again");
                    return;
                }
            }
        }
    }
}

/// The task that does so; ended before the volumes are closed.
#[derive(Debug)]
pub(crate) struct Reopening {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Reopening {
    pub(crate) fn start(control: &Arc<Control>, names: Vec<String>) -> Reopening {
        let (stop, stopped) = watch::channel(false);
        let control = Arc::clone(control);
        Reopening {
            stop,
            task: tokio::spawn(async move { control.keep_opening(names, stopped).await }),
        }
    }

    /// Ends it, once a disk that it is making is made.
    pub(crate) async fn end(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that opens volumes later did not end well");
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
    use crate::frontends::disks::attached_file::Remembered;
    use crate::frontends::disks::options::Wanted;
    use crate::local_files::{CacheDir, Progress};
    use crate::model::{AttachRequest, TransportChoice};
    use crate::units::Size;

    const DEADLINE: Duration = Duration::from_secs(60);

    struct Quiet;

    impl Progress for Quiet {
        fn filled(&mut self, _done: u64, _total: u64) {}
    }

    /// A server without an API, and a volume "demo" that it is to open later.
    fn start(runtime: &Runtime, dir: &Path) -> (Engine, Arc<Control>) {
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
        let control = Arc::new(Control::new(&engine, None).unwrap());
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
    fn open_after(meanwhile: impl AsyncFnOnce(&Control)) -> bool {
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
                tokio::spawn(async move { later.keep_opening(vec!["demo".into()], stopped).await });
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
            let waiting = Remembered {
                id: 7,
                volume_id: "none".into(),
                wanted: Wanted::of(&AttachRequest::default(), 1),
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
