//! Long computing as a request: what the engine hands to its driver instead of doing it on the job thread.
//!
//! A [`Computation`] owns all that it reads and hands its result to the procedure that asked, so it may run on
//! any thread and at any time. It must never take an engine lock for longer than a look-up, and must never
//! wait. A panic inside ends that computation alone: it is reported with the name of what was computed.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComputeKind {
    /// Verifying and decompressing a chunk or an index page that a client's read needs.
    Decode,
    /// Encoding a checkpoint: FLUSHes wait for it.
    Checkpoint,
    /// Merging layers or deltas.
    Merge,
    /// Compressing and encoding packs.
    Pack,
    /// Laying deltas over index pages, and encoding those.
    Fold,
    /// Giving back the memory of a large structure.
    Release,
}

impl ComputeKind {
    /// Every kind.
    pub const ALL: [ComputeKind; 6] = [
        ComputeKind::Decode,
        ComputeKind::Checkpoint,
        ComputeKind::Merge,
        ComputeKind::Pack,
        ComputeKind::Fold,
        ComputeKind::Release,
    ];

    /// A stable word for metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            ComputeKind::Decode => "decode",
            ComputeKind::Checkpoint => "checkpoint",
            ComputeKind::Merge => "merge",
            ComputeKind::Pack => "pack",
            ComputeKind::Fold => "fold",
            ComputeKind::Release => "release",
        }
    }

    /// A client's request waits for it: it goes before all that nobody waits for.
    pub fn is_awaited(self) -> bool {
        matches!(self, ComputeKind::Decode | ComputeKind::Checkpoint)
    }
}

/// Why a computation has no result. The text names what was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeError(pub String);

impl ComputeError {
    /// It was dropped before it ran.
    pub fn dropped(kind: ComputeKind) -> ComputeError {
        let name = kind.name();
        ComputeError(format!("{name}: it was given up before it ran"))
    }
}

/// Something to be computed once.
pub struct Computation {
    kind: ComputeKind,
    bytes: u64,
    run: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computation")
            .field("kind", &self.kind)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Computation {
    /// `bytes` is about how much it reads: the simulator's measure of how long it takes.
    pub(crate) fn new(kind: ComputeKind, bytes: u64, run: impl FnOnce() + Send + 'static) -> Self {
        Computation {
            kind,
            bytes,
            run: Box::new(run),
        }
    }

    /// What is computed.
    pub fn kind(&self) -> ComputeKind {
        self.kind
    }

    /// About how many bytes it reads.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs it on this thread, to its end.
    ///
    /// # Errors
    /// If it panicked.
    pub fn run(self) -> Result<(), ComputeError> {
        let Computation { kind, run, .. } = self;
        // It owns what it works on, so nothing half changed is left behind. A panic under one of the
        // engine's locks is another matter, which that lock reports by itself.
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
            let (name, why) = (kind.name(), panic_message(&*panic));
            ComputeError(format!("{name}: a bug ended it: {why}"))
        })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_computation_alone_and_is_named() {
        let broken = Computation::new(ComputeKind::Merge, 0, || panic!("no such layer"));
        let error = broken.run().expect_err("it panicked");
        assert_eq!(error.0, "merge: a bug ended it: no such layer");
        assert_eq!(Computation::new(ComputeKind::Pack, 0, || {}).run(), Ok(()));
    }
}
