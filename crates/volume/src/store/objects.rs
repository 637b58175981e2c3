//! Single requests to the object store, with their retries and the errors that name object and cause.
//!
//! Knows no format: what the bytes mean is for the callers.

use blkmq::error::ErrorKind;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::Tail;

/// What is wrong with an object that ends too early.
const TOO_SHORT: &str = "it is shorter than what names it says";

/// How often a request of an open or create is tried again before it fails.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// A store request that is tried again while the store is unavailable.
pub(crate) async fn store_with_retry(
    engine: &Engine,
    op: StoreOp,
) -> Result<StoreReply, StoreError> {
    let mut delay = engine.options.retry_ns;
    for _ in 1..ATTEMPTS_MAX {
        match engine.port.store(op.clone()).await {
            Err(StoreError::Unavailable(_)) => {}
            // Reads may be repeated whatever became of them.
            Err(StoreError::Unknown(_))
                if matches!(op, StoreOp::Get { .. } | StoreOp::GetRange { .. }) => {}
            other => return other,
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    engine.port.store(op).await
}

/// A failed request, with its operation and object. The store's own texts name the cause.
pub(crate) fn store_error(operation: &str, key: &str, error: &StoreError) -> OpenError {
    let cause = match error {
        StoreError::NotFound => "it is not in the store",
        StoreError::OutOfRange => TOO_SHORT,
        StoreError::PreconditionFailed => "another host changed it",
        StoreError::Unknown(why) | StoreError::Unavailable(why) | StoreError::Denied(why) => why,
    };
    OpenError::Store(format!("{operation} of {key}: {cause}"))
}

/// An object of a volume's index, and what became of it.
pub(crate) enum IndexRead {
    Whole(Vec<u8>),
    /// It is not there, or not as long as what names it says.
    Lost(String),
}

/// Reads exactly this range, with the retries of an open. An answer that is too short is asked for again: the
/// line may have broken.
pub(crate) async fn read_exactly(
    engine: &Engine,
    key: &str,
    offset: u64,
    len: u64,
) -> Result<IndexRead, OpenError> {
    let op = StoreOp::GetRange {
        key: key.to_owned(),
        offset,
        len,
    };
    let mut delay = engine.options.retry_ns;
    for _ in 0..ATTEMPTS_MAX {
        match store_with_retry(engine, op.clone()).await {
            Ok(StoreReply::Range(data)) if data.len() as u64 == len => {
                return Ok(IndexRead::Whole(data));
            }
            Ok(_) => {}
            Err(StoreError::NotFound) => {
                return Ok(IndexRead::Lost("it is not in the store".into()));
            }
            Err(StoreError::OutOfRange) => break,
            Err(error) => return Err(store_error("read", key, &error)),
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    Ok(IndexRead::Lost(TOO_SHORT.into()))
}

/// Why a range was not read. A store that is unavailable is waited for and is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeError {
    /// The object is not in the store.
    Missing,
    /// It ends too early. What lies before its end can be read.
    TooShort,
    /// The volume is served no more.
    Closed,
}

impl From<RangeError> for ErrorKind {
    fn from(error: RangeError) -> ErrorKind {
        match error {
            RangeError::Missing | RangeError::TooShort => ErrorKind::Corrupt,
            RangeError::Closed => ErrorKind::Closed,
        }
    }
}

/// Reads a range, waiting out a store that is unavailable for as long as `tail` is served.
pub(crate) async fn read_range(
    engine: &Engine,
    tail: &Tail,
    key: String,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, RangeError> {
    let mut delay = engine.options.retry_ns;
    let mut short_answers = 0;
    loop {
        let op = StoreOp::GetRange {
            key: key.clone(),
            offset,
            len,
        };
        match engine.port.store(op).await {
            Ok(StoreReply::Range(data)) if data.len() as u64 == len => return Ok(data),
            // The line may have broken.
            Ok(_) if short_answers + 1 < ATTEMPTS_MAX => {
                short_answers += 1;
                tracing::warn!(key, offset, len, "the store's answer is cut short");
            }
            Err(StoreError::OutOfRange) if canary::active!("short_objects_are_asked_for_again") => {
            }
            Ok(_) | Err(StoreError::OutOfRange) => {
                tracing::error!(
                    key,
                    offset,
                    len,
                    "an object that the volume needs is too short"
                );
                return Err(RangeError::TooShort);
            }
            Err(StoreError::NotFound) => {
                tracing::error!(key, "an object that the volume needs is not in the store");
                return Err(RangeError::Missing);
            }
            Err(error) => {
                tracing::warn!(
                    key,
                    offset,
                    len,
                    ?error,
                    "a read of the store failed and will be tried again"
                );
            }
        }
        if tail.lock().check_serving().is_err() {
            return Err(RangeError::Closed);
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
}
