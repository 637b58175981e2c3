//! Which volumes have roots, under whatever names: looked for once for a whole list, when it is first asked.
//!
//! Reads only.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::store::rename::identity::find_all_volumes;
use crate::units::VolumeId;

pub(super) struct RootedVolumes<'a> {
    engine: &'a Arc<Engine>,
    /// By volume whether its root is not deleted; none: nobody has asked yet.
    known: Option<BTreeMap<VolumeId, bool>>,
}

impl RootedVolumes<'_> {
    pub(super) fn new(engine: &Arc<Engine>) -> RootedVolumes<'_> {
        RootedVolumes {
            engine,
            known: None,
        }
    }

    /// Whether a volume's root is not deleted; none: it has no root.
    pub(super) async fn find(&mut self, volume: VolumeId) -> Result<Option<bool>, OpenError> {
        if canary::active!("names_alone_tell_what_is_in_the_trash") {
            return Ok(None);
        }
        let known = match self.known.take() {
            Some(known) => known,
            None => find_all_volumes(self.engine).await?.identities(),
        };
        let found = known.get(&volume).copied();
        self.known = Some(known);
        Ok(found)
    }
}
