//! The sources that a reactor's thread has, and what becomes of their memory at its end: none that an
//! armed command names goes before the thread has.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::buf::Buf;
use crate::source::{Source, SourceId};

/// The sources by slot.
#[derive(Default)]
pub(super) struct Sources(pub(super) Vec<Option<(SourceId, Box<dyn Source>)>>);

impl Sources {
    /// The memory that armed commands name.
    pub(super) fn leave(&mut self) -> Memory {
        let mut memory = Memory::default();
        for place in &mut self.0 {
            let Some((_, source)) = place else { continue };
            match catch_unwind(AssertUnwindSafe(|| source.release_armed_memory())) {
                Ok(left) => memory.0.extend(left),
                Err(_) => {
                    tracing::error!("a source did not say what its commands name: it is left");
                    Box::leak(Box::new(place.take()));
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

/// Memory that drivers may touch until the ring's thread has ended.
#[derive(Default)]
pub(super) struct Memory(pub(super) Vec<Buf>);

impl Drop for Memory {
    /// Where the thread unwinds, it has not ended.
    fn drop(&mut self) {
        if std::thread::panicking() {
            Box::leak(Box::new(std::mem::take(&mut self.0)));
        }
    }
}
