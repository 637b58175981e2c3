//! A store's answers as the engine knows them.
//!
//! Which errors may be tried again is decided where they are made; here each gets the engine's name for it.

use store::{Kind, Version};
use volume::driver::StoreError;

/// The name of an object's version.
pub(crate) fn into_engine_version(version: Version) -> volume::driver::Version {
    volume::driver::Version(version.0)
}

/// A store's error as the engine knows it.
pub(crate) fn into_store_error(error: &store::Error) -> StoreError {
    match error.kind() {
        Kind::NotFound => StoreError::NotFound,
        Kind::PreconditionFailed => StoreError::PreconditionFailed,
        Kind::OutOfRange => StoreError::OutOfRange,
        Kind::Unknown => StoreError::Unknown(error.chain()),
        // A bucket that is gone may come back, with everything in it.
        Kind::Unavailable | Kind::NoBucket => StoreError::Unavailable(error.chain()),
        _ => StoreError::Denied(error.chain()),
    }
}
