//! How clients reach an open volume: NBD connections and ublk disks.
//!
//! A frontend owns listeners, devices and their files; it never decides which volume is open.

pub(crate) mod disks;
pub(crate) mod nbd;
pub(crate) mod nbd_access;
pub(crate) mod nbd_keys;
pub(crate) mod open_volumes;
pub(crate) mod opening_volumes;
