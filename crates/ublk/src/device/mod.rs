//! The life of a device, as types: each state has the methods that make sense in it.
//!
//! ```text
//! add -> AddedDevice --attach--> AttachedDevice --start--> LiveDevice --stop--> StoppedDevice --delete
//!                                                           |  ^
//!                                                           |  +--- open_or_recover: a device that
//!                                                           |       exists, or a new one
//!                                                           +--quiesce--> QuiescedDevice
//! ```
//!
//! Dropping a value never deletes a device and never stops its disk: its queues go on on their
//! reactors, and [`list`] finds what a process leaves behind. The one exception is a device that was
//! added here and never became LIVE: the step that fails deletes it, so that an error leaves nothing
//! behind.
//!
//! A device detaches from a ring that other devices use by being stopped, or quiesced (6.16). Before
//! 6.16 a disk that is to stay can detach only with the whole ring: the driver cancels no single FETCH.
//! Nothing here may run on a ring's thread: starting a device waits for that thread.

mod add;
mod inventory;
mod live;
mod monitor;
mod open;
mod options;
mod served;
mod state;

pub use add::{AddedDevice, AttachedDevice, add};
pub use inventory::{DeviceStatus, list, list_unserved, remove};
pub use live::{DeviceError, LiveDevice, QuiescedDevice, StoppedDevice};
pub use open::{OpenRequest, open_or_recover};
pub use options::{PoolFactory, QueueOptions};
pub use served::Origin;
pub use state::DeviceState;
