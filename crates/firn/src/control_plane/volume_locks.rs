//! One change at a time per volume, and none waits for another volume's.
//!
//! Closing a volume can take as long as its store is away; attaching another must not wait for
//! that. A name has a lock only while somebody holds or awaits it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The locks in use, by volume name.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<String, Lock>>);

impl Turns {
    /// Waits for this volume's turn. Dropping the guard ends it.
    pub(crate) async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
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
        let turns = Turns::default();
        let a = turns.take("a").await;
        let b = turns.take("b").await;
        let again = tokio::time::timeout(Duration::from_millis(50), turns.take("a")).await;
        assert!(again.is_err(), "the turn is taken");
        drop(a);
        let a = tokio::time::timeout(Duration::from_secs(30), turns.take("a"))
            .await
            .unwrap();
        drop((a, b));
        turns.take("c").await;
        let left: Vec<String> = turns.0.lock().unwrap().keys().cloned().collect();
        assert_eq!(left, ["c"], "no lock outlives its use for long");
    }
}
