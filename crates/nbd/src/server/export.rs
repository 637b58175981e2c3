//! What the server serves: exports, and where they are looked up by name.

use std::fmt;
use std::sync::Arc;

use blkmq::Device;
use blkmq::io::Backend;
use serve::BackendFile;
use serve::latency::Latencies;

use super::tls::ClientIdentity;
use crate::codec::{Directory, ExportEntry, ExportInfo, ExportState};

/// One block device that clients may connect to, over as many connections as they like.
pub struct Export<B: Backend> {
    /// Its name.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// What it stands on.
    pub backend: Arc<B>,
    /// The device through which its requests are admitted; quiesced and cancelled by its owner.
    pub device: Arc<Device>,
    /// Every file that plans of `backend` may name.
    pub files: Vec<BackendFile>,
    /// Where its connections count how long requests take.
    pub latencies: Arc<Latencies>,
}

impl<B: Backend> Export<B> {
    pub(super) fn info(&self) -> ExportInfo {
        ExportInfo {
            name: self.name.clone(),
            description: self.description.clone(),
            geometry: self.backend.geometry(),
        }
    }
}

impl<B: Backend> fmt::Debug for Export<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where exports are found. Called on reactor threads: answers from memory, never waits.
pub trait Exports<B: Backend>: Send + Sync + 'static {
    /// The export of this name, if this client may use it. The empty name asks for the default one,
    /// if there is one. Where it is being opened, whoever decides what comes of that calls
    /// [`super::Server::wake_parked`] with its own name, after this says something else.
    fn find(&self, name: &str, client: &ClientIdentity) -> ExportState<Arc<Export<B>>>;

    /// The exports that are listed to this client: those that it may ask for.
    fn list(&self, client: &ClientIdentity) -> Vec<ExportEntry>;

    /// A client begins to wait for an export that is being opened.
    fn on_parked(&self, _name: &str) {}
}

/// The codec's view of the exports: what this client may use of them.
pub(super) struct Lookup<'a, B: Backend> {
    pub(super) exports: &'a dyn Exports<B>,
    pub(super) client: &'a ClientIdentity,
}

impl<B: Backend> Directory for Lookup<'_, B> {
    type Export = Arc<Export<B>>;

    fn find(&self, name: &str) -> ExportState<(Arc<Export<B>>, ExportInfo)> {
        let found = self.exports.find(name, self.client);
        found.map(|export| {
            let info = export.info();
            (export, info)
        })
    }

    fn list(&self) -> Vec<ExportEntry> {
        self.exports.list(self.client)
    }
}
