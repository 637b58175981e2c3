//! What holds of the extent maps between any two steps.
//!
//! Read only. For the simulator, which looks after every step, and for debug builds, which look
//! at each commit; never on the path of a request in a release build.

use super::layers::{Layers, content_bytes};
use super::{ExtentMap, SectorRun};
use crate::units::{Lsn, Span};

impl<V: SectorRun> ExtentMap<V> {
    /// Extents are not empty and do not overlap.
    pub(crate) fn invariants(&self) -> Result<(), String> {
        let mut end = 0;
        for (span, _) in self.iter() {
            if span.start < end || span.is_empty() {
                return Err(format!("extent {span:?} begins before {end} or is empty"));
            }
            end = span.end;
        }
        self.extents.invariants()
    }

    /// `span` is one extent, and neither neighbour reaches into it.
    pub(crate) fn holds_whole(&self, span: Span) -> bool {
        let Some(at) = self.extents.last_before(span.end) else {
            return false;
        };
        let before = self.extents.last_before(span.start);
        let next = self.extents.next(at);
        let found = self.extents.get(at);
        before.is_none_or(|at| self.extents.get(at).end <= span.start)
            && next.is_none_or(|at| self.extents.get(at).start >= span.end)
            && (found.start, found.end) == (span.start, span.end)
    }
}

impl Layers {
    /// Every map is whole, and LSNs ascend from layer to layer up to `newest`.
    pub(crate) fn invariants(&self, newest: Lsn) -> Result<(), String> {
        self.clean.invariants()?;
        let mut below = Lsn::ZERO;
        let frozen = self.frozen.iter().map(|layer| (&*layer.map, layer.last));
        for (map, last) in frozen.chain([(&self.top, newest)]) {
            map.invariants()?;
            for (span, dirty) in map.iter() {
                if dirty.lsn <= below || dirty.lsn > last {
                    let lsn = dirty.lsn.0;
                    return Err(format!(
                        "LSN {lsn} at {span:?} in the layer of {}..={}",
                        below.0 + 1,
                        last.0
                    ));
                }
            }
            below = last;
        }
        let counted = content_bytes(&self.top);
        if self.top_bytes() != counted {
            return Err(format!(
                "the top layer counts {} bytes of content and holds {counted}",
                self.top_bytes()
            ));
        }
        Ok(())
    }
}
