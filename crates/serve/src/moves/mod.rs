//! The two ways of moving a plan's bytes. Neither knows requests, stages or backends: each says
//! which file operations to begin, and takes their completions.

pub(crate) mod buffered;
pub(crate) mod fixed;

/// File operations in flight per request; a plan of many pieces must not fill the ring.
const OPS_IN_FLIGHT_MAX: u32 = 64;
