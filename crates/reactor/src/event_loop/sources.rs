//! The sources of a reactor's thread, and what becomes of their memory at its end: memory that an armed
//! command names is not freed before the thread has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::core::Source;
use crate::exit::ArmedMemory;
use crate::ids::SourceId;

/// The sources by slot.
#[derive(Default)]
pub(super) struct Sources(pub(super) Vec<Option<(SourceId, Box<dyn Source>)>>);

impl Sources {
    /// Collects the memory that armed commands name.
    pub(super) fn release_armed_memory(&mut self) -> ArmedMemory {
        let mut memory = ArmedMemory::default();
        for entry in &mut self.0 {
            let Some((id, source)) = entry else { continue };
            match catch_unwind(AssertUnwindSafe(|| source.release_armed_memory())) {
                Ok(left) => memory.0.extend(left),
                Err(_) => {
                    tracing::error!(
                        ?id,
                        "a source panicked while it handed over the memory of its armed \
                         commands; the source is leaked until the process ends"
                    );
                    Box::leak(Box::new(entry.take()));
                }
            }
        }
        memory
    }
}

impl Drop for Sources {
    /// Where the thread unwinds, armed commands may still touch their sources' memory.
    fn drop(&mut self) {
        if std::thread::panicking() {
            Box::leak(Box::new(std::mem::take(&mut self.0)));
        }
    }
}
