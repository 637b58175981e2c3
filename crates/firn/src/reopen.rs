//! Volumes that should be open and that the store did not give when the server came up.
//!
//! Their clients wait, so nobody but the server may be needed to bring them back: it tries until the
//! store answers, the volume turns out to be somebody else's, or the server ends. What has begun to
//! become a disk is finished before the server goes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::control::Control;
use crate::failure::Failure;

/// The first pause between tries, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Whether to try again helps: the store failed, and it may not fail the next time.
pub(crate) fn may_pass(failure: &Failure) -> bool {
    failure.code == "store-failed"
}

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
                Some(Err(failure)) if may_pass(&failure) => {
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
