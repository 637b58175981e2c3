//! The roots of snapshots, as they stand under the name of a volume.
//!
//! Reads only, and says nothing about whose snapshots they are: an earlier volume of the name may have left some.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::{snapshot_of_root_key, snapshots_of};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::roots::{list_keys, read_roots};

/// All of this name, by name.
pub(in crate::store) async fn snapshot_roots(
    engine: &Engine,
    volume: &str,
) -> Result<Vec<KnownRoot>, OpenError> {
    let keys = list_keys(engine, &snapshots_of(volume)).await?;
    let names = keys.iter().filter_map(|key| snapshot_of_root_key(key));
    let names: Vec<String> = names.collect();
    read_roots(engine, &names).await
}
