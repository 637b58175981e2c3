//! One lock per volume: changes of one volume are serialized, those of two volumes are not.
//!
//! Closing a volume can take as long as its store is unreachable; attaching another must not wait
//! for that. A name has a lock only while a task holds it or waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The locks in use, by volume name.
#[derive(Debug, Default)]
pub(crate) struct VolumeLocks(Mutex<BTreeMap<String, Lock>>);

impl VolumeLocks {
    /// Locks one volume for a change, until the guard is dropped.
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A guard and a waiter each hold a reference of their own.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(name.to_owned()).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn one_name_waits_for_itself_and_not_for_others() {
        let locks = VolumeLocks::default();
        let a = locks.lock("a").await;
        let b = locks.lock("b").await;
        let again = tokio::time::timeout(Duration::from_millis(50), locks.lock("a")).await;
        assert!(again.is_err(), "the volume is locked");
        drop(a);
        let a = tokio::time::timeout(Duration::from_secs(30), locks.lock("a"))
            .await
            .unwrap();
        drop((a, b));
        locks.lock("c").await;
        let left: Vec<String> = locks.0.lock().unwrap().keys().cloned().collect();
        assert_eq!(left, ["c"], "no lock outlives its use for long");
    }
}
