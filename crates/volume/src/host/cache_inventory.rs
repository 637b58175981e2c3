//! The read cache's content goes from a host that is stopped to the one in whose favour it is.
//!
//! [`Host::list_cache`] freezes the cache file before it says what is there, and the file stays so until the process ends, or
//! [`Host::release_cache`] says that it goes on. The next host begins with a file that takes nothing
//! ([`Continuation::cache_follows`](crate::Continuation)), and [`Host::restore_cache`] gives it what was listed.

use super::Host;
use crate::cache::InventoryError;

impl Host {
    /// Has the cache file keep what it holds from now on, and says what that is; nothing while the host is still recovered. Takes time
    /// for each chunk: not for a thread that must not wait. What is fetched meanwhile is in memory alone.
    #[must_use]
    pub fn list_cache(&self) -> Option<Vec<u8>> {
        let engine = self.engine.get()?;
        engine.cache.freeze_disk();
        Some(engine.cache.inventory())
    }

    /// Whether the cache file still holds what it was said to hold. To be asked when the host is stopped.
    #[must_use]
    pub fn has_cache_as_listed(&self) -> bool {
        let engine = self.engine.get();
        engine.is_some_and(|e| e.cache.is_disk_unchanged())
    }

    /// The cache file is used as before: this host goes on, or what was in the file is not known.
    pub fn release_cache(&self) {
        if let Some(engine) = self.engine.get() {
            engine.cache.thaw_disk();
        }
    }

    /// Goes on with the content that a stopped host has listed, and uses the file. Returns the number of chunks. Takes time for each.
    ///
    /// # Errors
    ///
    /// If the list does not fit the file; the cache then begins empty.
    pub fn restore_cache(&self, listed: &[u8]) -> Result<usize, InventoryError> {
        match self.engine.get() {
            Some(engine) => engine.cache.restore(listed),
            None => Err(InventoryError::InUse),
        }
    }
}
