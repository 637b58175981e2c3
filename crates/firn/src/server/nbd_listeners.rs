//! NBD's listeners of a plain start: bound when the cache directory is this server's, before the log is recovered, and
//! served before any volume is open.
//!
//! Who connects in between waits in their queues. A start that fails before they are served leaves none behind.

use nbd::server::{HandedListener, Listen};

use crate::failure::Result;
use crate::frontends::nbd::NbdFrontend;

/// Addresses in the order of the settings, each with its socket if that could be had.
#[derive(Debug, Default)]
pub(super) struct NbdListeners(Vec<(Listen, Option<HandedListener>)>);

impl NbdListeners {
    /// Binds what can be had at once. What a server that was just killed still has is asked for again later. Where this
    /// program `takes_over` another's place the sockets come from that, and there are none here.
    pub(super) fn bind(addresses: &[Listen], takes_over: bool) -> Result<Self> {
        let mut listeners = NbdListeners::default();
        for address in addresses.iter().filter(|_| !takes_over) {
            let bound = NbdFrontend::bind_unless_in_use(address)?;
            listeners.0.push((address.clone(), bound));
        }
        Ok(listeners)
    }

    /// Accepts clients at all of them.
    pub(super) fn serve(mut self, nbd: &NbdFrontend) -> Result<()> {
        for (address, bound) in &mut self.0 {
            let listener = match bound.take() {
                Some(listener) => listener,
                None => NbdFrontend::bind_in_time(address)?,
            };
            nbd.serve(address, listener)?;
        }
        Ok(())
    }
}

impl Drop for NbdListeners {
    fn drop(&mut self) {
        let unserved = self.0.drain(..).filter_map(|(_, bound)| bound);
        unserved.for_each(NbdFrontend::close_listener);
    }
}
