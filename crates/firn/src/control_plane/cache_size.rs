//! The size of the read cache, changed while it is used.
//!
//! Owns the order of the steps: a file becomes longer before the engine uses what it got, and is cut when nothing is
//! left there. So whenever the process dies, the file is as long as all that was read or written in it, and the next
//! server, to whom its content means nothing, finds it with the old size or with the new one.

use std::time::{Duration, Instant};

use volume::{CacheShrink, Host};

use super::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::units::Size;

/// How long what is to go may be read or written: longer than a disk's own time-out. Only the I/O of the file itself
/// holds it: a read that has to wait for the store gives up its plan first, and content gets its place when it has come.
const HELD_TIMEOUT: Duration = Duration::from_secs(60);

/// From one look at what is held to the next.
const HELD_DELAY: Duration = Duration::from_millis(5);

/// Steps without a pause, and the pause. The lock that a step takes is every reader's, and it is not fair: whoever takes it
/// again and again keeps those waiting that wait for it. A large cache has hundreds of thousands of steps.
const STEPS_MAX: u32 = 4;
const STEP_DELAY: Duration = Duration::from_micros(100);

impl ControlPlane {
    /// Gives the read cache another size. It keeps what it holds, as far as that fits.
    pub(super) async fn resize_cache(&self, from: Size, to: Size) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let (host, file) = (self.host.clone(), self.cache_file.clone());
        let resized = tokio::task::spawn_blocking(move || {
            if to > from {
                file.lengthen(from, to)?;
                return tell(&host, from, to).inspect_err(|_| drop(file.cut(from)));
            }
            tell(&host, from, to)?;
            let cut = shrink(&host).and_then(|()| file.cut(to));
            cut.inspect_err(|_| {
                // The file has its old size still.
                let _ = host.set_cache_bytes(from.0);
            })
        });
        resized
            .await
            .map_err(|error| Failure::internal(format!("resizing the read cache: {error}")))??;
        tracing::info!(%from, %to, "the read cache has another size");
        Ok(())
    }
}

fn tell(host: &Host, from: Size, to: Size) -> Result<()> {
    if host.set_cache_bytes(to.0) {
        return Ok(());
    }
    Err(Failure::new(
        FailureCode::NotReady,
        format!(
            "the size of the read cache cannot change now: the log is still recovered, or the cache was made too small \
             for that, with {from}; try again when the server is ready, or start it with --cache-size {to}"
        ),
    ))
}

/// Waits until nothing is left behind the new end of the file.
fn shrink(host: &Host) -> Result<()> {
    let (mut held_since, mut steps) = (None, 0);
    loop {
        match host.shrink_cache() {
            CacheShrink::Done => return Ok(()),
            CacheShrink::Continue => {
                held_since = None;
                steps += 1;
                if steps == STEPS_MAX {
                    steps = 0;
                    std::thread::sleep(STEP_DELAY);
                }
            }
            CacheShrink::Held => {
                let since: Instant = *held_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= HELD_TIMEOUT {
                    return Err(Failure::new(
                        FailureCode::NotReady,
                        "the read cache keeps its size: a read or a write of its file, where it is to end, has not \
                         ended for a minute; look in the kernel log for a disk of the cache directory that is slow or \
                         does not answer, and set cache-size again",
                    ));
                }
                std::thread::sleep(HELD_DELAY);
            }
        }
    }
}
