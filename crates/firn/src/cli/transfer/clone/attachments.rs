//! Snapshots of the original that are attached for the time in which they are read: as long as they are, neither a user
//! nor a schedule deletes them on that server.
//!
//! Each is attached with a number of the command's own. One that somebody else had attached, or attaches meanwhile, stays so:
//! the server knows by the number. What kill -9 of the command leaves attached is in a file with its number, so that the next
//! command detaches it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cli::client::Client;
use crate::cli::volume_io::{Undo, attach_own, detach_own};
use crate::failure::Result;
use crate::model::Snapshot;

/// What the command has attached.
pub(super) struct Attachments {
    client: Client,
    own: Arc<Tickets>,
}

/// Names with their numbers, and the file that has them, too.
struct Tickets {
    tickets: Mutex<BTreeMap<String, u64>>,
    file: PathBuf,
}

/// One of them.
pub(super) struct AttachedSnapshot {
    pub(super) snapshot: Snapshot,
    pub(super) uris: Vec<String>,
    client: Client,
    own: Arc<Tickets>,
}

impl Tickets {
    fn tickets(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without the file a snapshot may stay attached after kill -9, which is no reason to fail.
    fn record(&self, tickets: &BTreeMap<String, u64>) {
        let lines = tickets
            .iter()
            .map(|(name, ticket)| format!("{name} {ticket}\n"));
        let partial = self.file.with_extension("partial");
        let _ = fs::write(&partial, lines.collect::<String>())
            .and_then(|()| fs::rename(&partial, &self.file));
    }

    fn detach(&self, client: &Client, name: &str) {
        let Some(ticket) = self.tickets().get(name).copied() else {
            return;
        };
        if let Err(failure) = detach_own(client, name, ticket) {
            eprintln!("firn: {name} stays attached (firn detach {name}): {failure}");
        }
        let mut tickets = self.tickets();
        tickets.remove(name);
        self.record(&tickets);
    }
}

/// What an earlier command left.
fn read_left(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let left = text.lines().filter_map(|line| {
        let (name, ticket) = line.split_once(' ')?;
        Some((name.to_owned(), ticket.parse().ok()?))
    });
    left.collect()
}

impl Attachments {
    /// `file` is where the names are that an earlier command left attached: they are detached.
    pub(super) fn new(client: &Client, file: &Path) -> Attachments {
        let holds = Attachments {
            client: client.clone(),
            own: Arc::new(Tickets {
                tickets: Mutex::new(read_left(file)),
                file: file.to_owned(),
            }),
        };
        holds.end();
        holds
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
    pub(super) fn hold(&self, snapshot: &Snapshot) -> Result<AttachedSnapshot> {
        let name = &snapshot.name;
        // Numbers that JSON has exactly.
        let ticket = fastrand::u64(1..1 << 53);
        {
            let mut tickets = self.own.tickets();
            tickets.insert(name.clone(), ticket);
            self.own.record(&tickets);
        }
        let mut held = AttachedSnapshot {
            snapshot: snapshot.clone(),
            uris: Vec::new(),
            client: self.client.clone(),
            own: Arc::clone(&self.own),
        };
        held.uris = attach_own(&self.client, name, ticket)?.uris;
        Ok(held)
    }
}

impl AttachedSnapshot {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for AttachedSnapshot {
    fn drop(&mut self) {
        self.own.detach(&self.client, &self.snapshot.name);
    }
}

fn detach_all(client: &Client, own: &Tickets) {
    let names: Vec<String> = own.tickets().keys().cloned().collect();
    for name in names {
        own.detach(client, &name);
    }
}
