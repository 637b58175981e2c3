//! What the server serves: exports, and where they are looked up by name.

use std::fmt;
use std::sync::Arc;

use blkmq::Device;
use blkmq::io::Backend;
use serve::BackendFile;
use serve::latency::Latencies;

use crate::codec::{Directory, ExportEntry, ExportInfo};

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
    fn info(&self) -> ExportInfo {
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
    /// The export of this name. The empty name asks for the default one, if there is one.
    fn find(&self, name: &str) -> Option<Arc<Export<B>>>;

    /// The exports that are listed to clients.
    fn list(&self) -> Vec<ExportEntry>;
}

/// The codec's view of the exports.
pub(super) struct Lookup<'a, B: Backend>(pub(super) &'a dyn Exports<B>);

impl<B: Backend> Directory for Lookup<'_, B> {
    type Export = Arc<Export<B>>;

    fn find(&self, name: &str) -> Option<(Arc<Export<B>>, ExportInfo)> {
        let export = self.0.find(name)?;
        let info = export.info();
        Some((export, info))
    }

    fn list(&self) -> Vec<ExportEntry> {
        self.0.list()
    }
}
