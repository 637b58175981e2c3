//! What the committer asks of the engine: where it is, what is open, and whom it tells. It must never be asked for more than memory
//! work, for the machine calls it inline.

use std::sync::Arc;

use crate::jobs::Jobs;
use crate::log::layout::Layout;
use crate::request::tail::Tail;
use crate::units::HostId;

/// What the committer needs of the engine around it.
pub(crate) trait CommitEnvironment {
    fn jobs(&self) -> &Jobs;
    fn host(&self) -> HostId;
    fn layout(&self) -> &Layout;
    fn tails(&self) -> Vec<Arc<Tail>>;
    /// From now on writes are refused, and memory says so to the next process.
    fn set_poisoned(&self);
    /// From now on writes are refused, until the next start.
    fn refuse_writes(&self);
    /// Ring slots are free again, and dying segments may be free: parked writes plan again.
    fn on_round_ended(&self);
    /// Starts the job that ends in `Committer::on_checkpoint_written` or
    /// `Committer::on_checkpoint_failed`.
    fn start_checkpoint(self: &Arc<Self>);
    /// Starts the job that writes the poison mark into the superblock.
    fn start_poison_mark(self: &Arc<Self>);
}
