//! What survives a process in these tests: files, objects and rings, and the faults that a test asks for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use blkmq::io::FileId;
use volume::{CompactOptions, Continuation};

use super::rings::HeapRings;

/// What survives the process: files, objects, rings.
#[derive(Default)]
pub(crate) struct Environment {
    pub(crate) files: BTreeMap<FileId, Vec<u8>>,
    pub(crate) objects: BTreeMap<String, (Vec<u8>, u64)>,
    pub(crate) rings: Arc<HeapRings>,
    pub(crate) boot: u8,
    pub(crate) versions: u64,
    /// Store requests so far, by kind.
    pub(crate) store_requests: BTreeMap<&'static str, usize>,
    /// Bytes of files read so far.
    pub(crate) bytes_read: u64,
    /// How long the store takes for each request, in virtual milliseconds.
    pub(crate) store_ms: u64,
    /// It takes one after the other.
    pub(crate) store_serial: bool,
    /// Bytes that the store takes in a second, all PUTs together; 0: without limit.
    pub(crate) store_bytes_per_s: u64,
    /// So many PUTs of packs are left without an answer.
    pub(crate) hanging_puts: usize,
    /// So many PUTs of packs fail.
    pub(crate) failing_puts: usize,
    /// So many reads of a host's records and low mark are damaged on their way.
    pub(crate) damaged_gets: usize,
    /// So many creates of records fail.
    pub(crate) failing_creates: usize,
    /// Store requests so far, by kind and by the first part of their key.
    pub(crate) requests: BTreeMap<(&'static str, String), usize>,
    /// Bytes of objects written, by the first part of their key.
    pub(crate) bytes_put: BTreeMap<String, u64>,
    /// Of packs the store keeps the head alone.
    pub(crate) discards_packs: bool,
    /// Names of objects for which there was a PUT, also one that failed.
    pub(crate) put_keys: Vec<String>,
    /// A bug ends the encoding of checkpoints.
    pub(crate) broken_checkpoints: bool,
    /// A bug ends so many folds.
    pub(crate) broken_folds: usize,
    /// Requests for these objects fail.
    pub(crate) failing_keys: Vec<String>,
    /// The store refuses all removals.
    pub(crate) refuses_deletes: bool,
    /// The store does not answer.
    pub(crate) outage: bool,
    /// The next update takes effect, but the store is gone before it can say so.
    pub(crate) outage_after_update: bool,
    /// The same for the next record.
    pub(crate) outage_after_record: bool,
    /// After so many requests one takes effect, and nobody hears of it; or the store is gone from then on.
    pub(crate) fault_after: Option<(usize, Fault)>,
    /// Where files were written by requests of the engine.
    pub(crate) written: Vec<(FileId, u64)>,
    /// After so many syncs that succeed,
    pub(crate) good_syncs: usize,
    /// so many fail.
    pub(crate) failing_syncs: usize,
    /// Where the disk below the log takes no writes of the engine.
    pub(crate) bad: Vec<Range<u64>>,
    /// Where the log cannot be read.
    pub(crate) unreadable: Vec<Range<u64>>,
    /// Where the file of the read cache cannot be read.
    pub(crate) unreadable_cache: Vec<Range<u64>>,
    /// Hosts compact like this, whatever their options say.
    pub(crate) compact: Option<CompactOptions>,
    /// A start is told, once it has read the log, that it may not begin.
    pub(crate) refuses_start: bool,
    /// The next start continues the host that was stopped.
    pub(crate) continues: Option<Continuation>,
    /// Objects that are made when they are asked for: by key, offset and length.
    pub(crate) generated: Option<Generator>,
}

/// What happens to a request, and to those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer is lost.
    LostAnswer,
    /// The store does not answer any more; this request does not take effect.
    Outage,
    /// The store does not answer any more; this request does take effect.
    OutageBehind,
}

/// A part of an object that does not stand anywhere.
pub(crate) type Generator = Box<dyn Fn(&str, u64, u64) -> Option<Vec<u8>> + Send>;

impl Environment {
    /// The same files, objects and rings, in places of their own.
    pub(crate) fn copy(&self) -> Environment {
        Environment {
            files: self.files.clone(),
            objects: self.objects.clone(),
            rings: Arc::new(self.rings.copy()),
            boot: self.boot,
            versions: self.versions,
            compact: self.compact.clone(),
            ..Environment::default()
        }
    }
}
