//! Snapshots of the original that are attached for the time in which they are read: as long as they are, neither a user
//! nor a schedule deletes them on that server.
//!
//! One that somebody else had attached stays so. What kill -9 of the command leaves attached is in a file, so that the
//! next one knows it for its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::attach;
use crate::cli::client::Client;
use crate::cli::volume_io::{Undo, detach};
use crate::failure::{FailureCode, Result};
use crate::model::Snapshot;

/// What the command has attached.
pub(super) struct Holds {
    client: Client,
    /// What an earlier command left attached: the snapshots were listed so.
    left: BTreeSet<String>,
    own: Arc<Own>,
}

/// Names, and the file that has them, too.
struct Own {
    names: Mutex<BTreeSet<String>>,
    file: PathBuf,
}

/// One of them.
pub(super) struct Held {
    pub(super) snapshot: Snapshot,
    pub(super) uris: Vec<String>,
    client: Client,
    own: Option<Arc<Own>>,
}

impl Own {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without the file a snapshot may stay attached after kill -9, which is no reason to fail.
    fn record(&self, names: &BTreeSet<String>) {
        let lines: Vec<&str> = names.iter().map(String::as_str).collect();
        let partial = self.file.with_extension("partial");
        let _ =
            fs::write(&partial, lines.join("\n")).and_then(|()| fs::rename(&partial, &self.file));
    }

    fn detach(&self, client: &Client, name: &str) {
        // It is the command's alone, and so are its clients.
        match detach(client, name, true) {
            Err(failure) if failure.code != FailureCode::NotAttached => {
                eprintln!("firn: {name} stays attached (firn detach {name}): {failure}");
            }
            _ => {}
        }
        let mut names = self.names();
        names.remove(name);
        self.record(&names);
    }
}

impl Holds {
    /// `file` is where the names are that an earlier command left.
    pub(super) fn new(client: &Client, file: &Path) -> Holds {
        let left = fs::read_to_string(file).unwrap_or_default();
        let left: BTreeSet<String> = left.lines().map(str::to_owned).collect();
        Holds {
            client: client.clone(),
            left: left.clone(),
            own: Arc::new(Own {
                names: Mutex::new(left),
                file: file.to_owned(),
            }),
        }
    }

    /// If the command does not come to its end, nothing stays attached.
    pub(super) fn end_with(&self, undo: &Undo) {
        let (client, own) = (self.client.clone(), Arc::clone(&self.own));
        undo.add(move || detach_all(&client, &own));
    }

    pub(super) fn end(&self) {
        detach_all(&self.client, &self.own);
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Attaches a snapshot, unless somebody has it attached.
    pub(super) fn hold(&self, snapshot: &Snapshot) -> Result<Held> {
        let name = &snapshot.name;
        let is_others = snapshot.attached.is_some() && !self.left.contains(name);
        let mut names = self.own.names();
        if !is_others && names.insert(name.clone()) {
            self.own.record(&names);
        }
        drop(names);
        let mut held = Held {
            snapshot: snapshot.clone(),
            uris: Vec::new(),
            client: self.client.clone(),
            own: (!is_others).then(|| Arc::clone(&self.own)),
        };
        held.uris = attach(&self.client, name)?;
        Ok(held)
    }
}

impl Held {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            own.detach(&self.client, &self.snapshot.name);
        }
    }
}

fn detach_all(client: &Client, own: &Own) {
    let names: Vec<String> = own.names().iter().cloned().collect();
    for name in names {
        own.detach(client, &name);
    }
}
