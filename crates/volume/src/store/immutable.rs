//! Writes packs and index objects: create-only, and read back unless the store answered that it created the
//! object.
//!
//! Two processes that use the same names are copies of one host. The second must not overwrite an object that a
//! record of the first may name: it stops (docs/store-protocol.md, rule `pack-is-read-back`).

use std::sync::Arc;

use bytes::Bytes;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::stop::Stop;
use crate::request::tail::Tail;
use crate::store::host_log::log_procedures::stop_host;
use crate::store::objects::store_error;
use crate::sync::atomic::Ordering;

/// Reads of an object before the host stops for its bytes, because a read may be damaged on its way.
const READS_MAX: u32 = 5;

/// Writes an immutable object of one volume. After an error of the store the caller may repeat it with the same
/// bytes.
pub(super) async fn put(
    engine: &Arc<Engine>,
    tail: &Tail,
    key: &str,
    data: &Bytes,
) -> Result<(), OpenError> {
    let sent = &tail.upload.uploaded_bytes;
    sent.fetch_add(data.len() as u64, Ordering::Relaxed);
    write(engine, key, data).await
}

/// Writes an immutable object that several volumes share.
pub(super) async fn write(engine: &Arc<Engine>, key: &str, data: &Bytes) -> Result<(), OpenError> {
    let op = StoreOp::Put {
        key: key.to_owned(),
        data: data.clone(),
    };
    match engine.port.store(op).await {
        Ok(_) => return Ok(()),
        Err(StoreError::PreconditionFailed) if canary::active!("packs_are_not_read_back") => {
            return Ok(());
        }
        Err(StoreError::PreconditionFailed | StoreError::Unknown(_)) => {}
        Err(error) => return Err(store_error("write", key, &error)),
    }
    for _ in 0..READS_MAX {
        let op = StoreOp::Get {
            key: key.to_owned(),
        };
        match engine.port.store(op).await {
            Ok(StoreReply::Object { data: found, .. }) if found == data[..] => return Ok(()),
            Ok(_) => engine.port.sleep(engine.options.retry_ns / 10).await,
            Err(error) => return Err(store_error("read", key, &error)),
        }
    }
    let what = format!("{key} was written by another process");
    Err(stop_host(engine, &Stop::Cloned(what)))
}
