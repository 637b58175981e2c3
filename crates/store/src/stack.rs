//! How decorators stack on a store that serves volumes.
//!
//! From the outside in: admission (so that waiting for a turn uses up no time-out), retries (which
//! report every attempt to the governor), second requests for slow reads, the store.

use std::sync::Arc;

use crate::{
    GovernedStore, Governor, GovernorPolicy, HedgePolicy, HedgedStore, RetryPolicy, RetryStore,
    SharedStore,
};

/// The store with everything between it and an engine, at the default policies.
pub fn with_policies(store: SharedStore) -> SharedStore {
    let governor = Governor::new(GovernorPolicy::default());
    let hedged = HedgedStore::new(store, HedgePolicy::default());
    let retried =
        RetryStore::new(hedged, RetryPolicy::default()).reporting_to(Arc::clone(&governor));
    Arc::new(GovernedStore::new(retried, governor))
}
