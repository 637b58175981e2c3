//! What holds of a tail, its ring and its layers between any two steps. Read only.

use super::tail::Inner;
use crate::units::{Lsn, Span};

impl Inner {
    /// LSNs are dense: each is in a frame or in the ring, where there is room for what is
    /// promised. `framed` is how far the durable frames reach.
    pub(crate) fn invariants(&self, framed: Lsn) -> Result<(), String> {
        let newest = self.newest;
        if framed > newest {
            return Err(format!("framed up to {}, newest {}", framed.0, newest.0));
        }
        if !self.fits_ring(framed) {
            return Err(format!(
                "{} reserved slots behind LSN {} do not fit the ring after frame {}",
                self.reserved, newest.0, framed.0
            ));
        }
        if let Some(ring) = &self.ring {
            let mut unframed = framed.0 + 1..=newest.0;
            if let Some(lsn) = unframed.find(|lsn| ring.read(Lsn(*lsn)).is_none()) {
                return Err(format!("LSN {lsn} is in no frame and not in the ring"));
            }
        }
        self.layers.invariants(newest)
    }

    /// What a commit of `span` leaves: its extent whole, and no more slots promised than there
    /// are. For debug builds, at each commit.
    pub(crate) fn is_whole_after_commit(&self, span: Span, framed: Lsn) -> bool {
        self.layers.top.holds_whole(span) && self.fits_ring(framed)
    }

    fn fits_ring(&self, framed: Lsn) -> bool {
        let promised = self.newest.0 + self.reserved;
        let ring = self.ring.as_ref();
        ring.is_none_or(|ring| promised <= framed.0 + ring.entries())
    }
}
