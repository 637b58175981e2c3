//! Owns one machine of a world: its disk, its rings, and the server process that comes and goes.
//!
//! It is plain data beside the process: what happens to a machine, and when, is the world's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::io::{IoOwner, Memory};
use crate::disk::{IoId, SimDisk};
use crate::node::Node;
use crate::rings::RingDir;

/// A machine.
pub(super) struct Machine {
    pub(super) disk: SimDisk,
    pub(super) rings: Arc<RingDir>,
    /// The ring directory that the server does not use at present.
    pub(super) other_rings: Arc<RingDir>,
    /// Which boot; no two machines share one.
    pub(super) boot_id: u64,
    /// The server, if it runs.
    pub(super) node: Option<Node>,
    /// Which process runs here, or will next: unique in the world.
    pub(super) process: u64,
    pub(super) jobs_due: bool,
    /// Until when the thread computes that does what nobody waits for.
    pub(super) background_until: u64,
    /// Until when a checkpoint is encoded.
    pub(super) checkpoint_until: u64,
    /// How long checkpoints took to encode, the one at hand included: what a FLUSH may have to wait for.
    pub(super) checkpoint_ns: u64,
    pub(super) tick_at: Option<u64>,
    /// Its server has recovered its log.
    pub(super) is_up: bool,
    /// Its cache directory was copied from another's.
    pub(super) is_clone: bool,
    /// Another machine has had the same cache directory: one of the two finds that out and stops.
    pub(super) shares_log: bool,
    /// Its log has had a volume: it was opened here.
    pub(super) has_opened: bool,
    /// A sync of its log failed once.
    pub(super) is_poisoned: bool,
    /// Nothing happens here before.
    pub(super) paused_until: u64,
    /// How far its clocks are ahead of the world's.
    pub(super) clock_ns: u64,
    /// Its server takes over whatever it opens.
    pub(super) take_over: bool,
    pub(super) failed_boots: u32,
    pub(super) owners: BTreeMap<IoId, IoOwner>,
    pub(super) memory: Memory,
    /// What its last process told the next one, if that was to take its place.
    pub(super) continues: Option<volume::Continuation>,
    /// The same of its cache.
    pub(super) cache: Option<Vec<u8>>,
    /// The rings vanished in the same boot, and nothing excuses a loss but that.
    pub(super) ring_gone: bool,
    /// The machine itself went down since the last recovery was judged.
    pub(super) went_down: bool,
    /// Volumes of which the server said that their rings were lost.
    pub(super) rings_reported: BTreeSet<String>,
}

impl Machine {
    /// A new machine; its first process will be `process`.
    pub(super) fn new(disk: SimDisk, boot_id: u64, process: u64) -> Machine {
        Machine {
            disk,
            rings: Arc::new(RingDir::default()),
            other_rings: Arc::new(RingDir::default()),
            boot_id,
            node: None,
            process,
            jobs_due: false,
            background_until: 0,
            checkpoint_until: 0,
            checkpoint_ns: 0,
            tick_at: None,
            is_up: false,
            is_clone: false,
            shares_log: false,
            has_opened: false,
            is_poisoned: false,
            paused_until: 0,
            clock_ns: 0,
            take_over: false,
            failed_boots: 0,
            owners: BTreeMap::new(),
            memory: Memory::default(),
            continues: None,
            cache: None,
            ring_gone: false,
            went_down: false,
            rings_reported: BTreeSet::new(),
        }
    }

    /// Whether its log may not know its newest sessions.
    pub(super) fn may_forget(&self) -> bool {
        self.is_poisoned || self.disk.has_corrupted()
    }

    /// The same machine without its process.
    pub(super) fn copy(&self) -> Machine {
        Machine {
            disk: self.disk.clone(),
            rings: Arc::new(self.rings.copy()),
            other_rings: Arc::new(self.other_rings.copy()),
            node: None,
            // The copy has no process that could say it.
            continues: self
                .node
                .as_ref()
                .map_or(self.continues, |node| Some(node.continuation())),
            cache: None,
            owners: BTreeMap::new(),
            memory: self.memory.lost_with_process(),
            rings_reported: self.rings_reported.clone(),
            ..*self
        }
    }

    /// How long checkpoints were encoded before `now`.
    pub(super) fn encoded_ns(&self, now: u64) -> u64 {
        let ahead = self.checkpoint_until.saturating_sub(now);
        self.checkpoint_ns.saturating_sub(ahead)
    }

    /// The process is gone; the next one is `process`. What it had in flight is decided when that
    /// one starts.
    pub(super) fn end_process(&mut self, process: u64) {
        self.process = process;
        self.node = None;
        self.is_up = false;
        self.paused_until = 0;
        self.jobs_due = false;
        self.background_until = 0;
        self.checkpoint_until = 0;
        self.tick_at = None;
        self.forget_io();
    }

    /// Everything that the dead process waited for.
    pub(super) fn forget_io(&mut self) {
        self.owners.clear();
        self.memory = self.memory.lost_with_process();
    }
}
