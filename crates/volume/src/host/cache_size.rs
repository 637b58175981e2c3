//! The size of the read cache's file, which may change while the host runs.
//!
//! Says what the engine keeps to; the file itself is the driver's: it is longer before it may be used, and cut only
//! when nothing is behind its new end. Must never wait.

use super::Host;
use crate::cache::CacheShrink;

impl Host {
    /// The cache file has so many bytes from now on. Where they are fewer than before, [`Host::shrink_cache`] has what
    /// lies behind them leave. `false` if it stays as it is: the host is still recovered, or has a file of less than
    /// a region of 64 KiB.
    #[must_use]
    pub fn set_cache_bytes(&self, bytes: u64) -> bool {
        let engine = self.engine.get().filter(|e| e.cache.may_resize());
        engine.map(|e| e.cache.set_disk_bytes(bytes)).is_some()
    }

    /// Takes one step to a smaller size: some chunks leave. To be called until it is done.
    #[must_use]
    pub fn shrink_cache(&self) -> CacheShrink {
        let engine = self.engine.get();
        engine.map_or(CacheShrink::Done, |e| e.cache.shrink())
    }
}
