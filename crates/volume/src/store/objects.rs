//! Single requests to the object store, with their retries and the errors that name object and cause.
//!
//! Knows no format: callers decode the bytes.

use blkmq::error::ErrorKind;

use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::Tail;

/// The text for an object that ends too early.
const TOO_SHORT: &str = "it is shorter than what names it says";

/// Attempts of a request of an open or a create.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// Sends a request, and repeats it while the store is unavailable.
pub(crate) async fn store_with_retry(
    engine: &Engine,
    op: StoreOp,
) -> Result<StoreReply, StoreError> {
    let mut delay = engine.options.retry_ns;
    for _ in 1..ATTEMPTS_MAX {
        match engine.port.store(op.clone()).await {
            Err(StoreError::Unavailable(_)) => {}
            // A read may be repeated after any outcome.
            Err(StoreError::Unknown(_)) if op.is_read() => {}
            other => return other,
        }
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    engine.port.store(op).await
}

/// The error of a failed request, with operation and object. The store's text names the cause.
pub(crate) fn store_error(operation: &str, key: &str, error: &StoreError) -> OpenError {
    let cause = match error {
        StoreError::NotFound => "it is not in the store",
        StoreError::OutOfRange => TOO_SHORT,
        StoreError::PreconditionFailed => "another host changed it",
        StoreError::Unknown(why) | StoreError::Unavailable(why) | StoreError::Denied(why) => why,
    };
    OpenError::Store(format!("{operation} of {key}: {cause}"))
}

/// The result of reading an object of a volume's index.
pub(crate) enum IndexRead {
    Whole(Vec<u8>),
    /// The object is missing, or shorter than its reference says.
    Lost(String),
}

/// Reads exactly this range, with the retries of an open. A short answer is repeated, because the connection may
/// have broken.
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

/// Why a range was not read. An unavailable store is waited for and is no such error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeError {
    /// The object is not in the store.
    Missing,
    /// The object ends too early. What lies before its end can be read.
    TooShort,
    /// The volume is not served any more.
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

/// Reads a range, and waits while the store is unavailable, as long as `tail` is served.
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
            // The connection may have broken.
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
