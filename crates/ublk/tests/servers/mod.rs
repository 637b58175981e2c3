//! What the guest tests that drive example servers share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod client;
pub mod driver;
pub mod figures;
pub mod world;
