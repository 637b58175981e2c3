//! Who may use which volume over NBD: certificates or keys of the server, and the list of clients.
//!
//! Reads its files once, at the start, and answers from memory after that: look-ups come on reactor
//! threads. A client that is not listed must learn no more than that there is no such export.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nbd::codec::ExportEntry;
use nbd::server::{ClientIdentity, Export, ExportState, Exports, TlsConfig, TlsOptions};
use volume::Volume;

use crate::failure::{Failure, Result};
use crate::frontends::nbd_keys;
use crate::frontends::open_volumes::OpenVolumes;
use crate::frontends::opening_volumes::OpeningVolumes;

/// What the operator says about TLS over NBD.
#[derive(Clone, Debug)]
pub(crate) struct NbdTls {
    pub(crate) proof: NbdProof,
    /// Clients without TLS are refused.
    pub(crate) required: bool,
    /// The access list.
    pub(crate) access: Option<PathBuf>,
}

/// By what a server and its clients prove who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NbdProof {
    /// Directory of `server-cert.pem`, `server-key.pem` and, with an access list, `ca-cert.pem`: the
    /// names that QEMU, nbdkit and libnbd use.
    Certificates(PathBuf),
    /// The file of keys, one for each client.
    Keys(PathBuf),
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Failure::io("read", path, &source))
}

impl NbdTls {
    /// Loads the certificates or keys, and the access list.
    pub(crate) fn load(&self) -> Result<(TlsOptions, Option<AccessList>)> {
        let access = self.access.as_deref().map(AccessList::load).transpose()?;
        let config = match &self.proof {
            NbdProof::Certificates(dir) => certificates(dir, access.is_some())?,
            NbdProof::Keys(file) => TlsConfig::new(Arc::new(nbd_keys::load(file)?)),
        };
        let options = TlsOptions {
            config,
            required: self.required || access.is_some(),
        };
        Ok((options, access))
    }

    /// Whether nobody gets in who does not prove who he is.
    pub(crate) fn knows_everybody(&self) -> bool {
        self.access.is_some() || (self.required && matches!(self.proof, NbdProof::Keys(_)))
    }
}

/// Of this directory. Where clients are told apart they have to show certificates, too.
fn certificates(dir: &Path, verifies_clients: bool) -> Result<TlsConfig> {
    let file = |name: &str| read(&dir.join(name));
    let (chain, key) = (file("server-cert.pem")?, file("server-key.pem")?);
    let authority = match verifies_clients {
        true => Some(file("ca-cert.pem")?),
        false => None,
    };
    TlsConfig::from_pem(&chain, &key, authority.as_deref()).map_err(|error| {
        let dir = dir.display();
        Failure::invalid(format!(
            "the certificates in {dir} are of no use for NBD: {error}"
        ))
    })
}

/// Which client may use which volumes, by the DNS names of its certificate or by the name of its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessList(BTreeMap<String, Vec<String>>);

impl AccessList {
    fn load(path: &Path) -> Result<AccessList> {
        let text = String::from_utf8(read(path)?).map_err(|_| {
            Failure::invalid(format!("the access list {} is not text", path.display()))
        })?;
        AccessList::parse(&text)
            .map_err(|why| Failure::invalid(format!("access list {}: {why}", path.display())))
    }

    /// A line is a client's name and the volumes that it may use, `*` for all; `#` begins a comment.
    fn parse(text: &str) -> std::result::Result<AccessList, String> {
        let mut list = AccessList::default();
        for (number, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            let mut words = content.split_whitespace().map(str::to_owned);
            let Some(client) = words.next() else {
                continue;
            };
            let volumes: Vec<String> = words.collect();
            if volumes.is_empty() {
                let number = number + 1;
                return Err(format!(
                    "line {number}: name the volumes that {client} may use, or * for all"
                ));
            }
            list.0.entry(client).or_default().extend(volumes);
        }
        Ok(list)
    }

    fn permits(&self, client: &ClientIdentity, volume: &str) -> bool {
        let own = client.names.iter().filter_map(|name| self.0.get(name));
        own.flatten().any(|named| named == "*" || named == volume)
    }
}

/// The open volumes, and those that are being opened, as far as a client may use them.
#[derive(Debug)]
pub(crate) struct PermittedVolumes {
    pub(crate) volumes: Arc<OpenVolumes>,
    pub(crate) opening: Arc<OpeningVolumes>,
    /// Without one every client may use every volume.
    pub(crate) access: Option<AccessList>,
}

impl PermittedVolumes {
    fn permits(&self, client: &ClientIdentity, volume: &str) -> bool {
        let access = self.access.as_ref();
        access.is_none_or(|access| access.permits(client, volume))
    }

    /// Those that a client may ask for.
    fn names(&self, client: &ClientIdentity) -> BTreeSet<String> {
        // In this order: one that is open now is found in one of the two.
        let mut names = self.opening.names();
        names.extend(self.volumes.names());
        names.retain(|name| self.permits(client, name));
        names
    }

    fn state(&self, name: &str, client: &ClientIdentity) -> ExportState<Arc<Export<Volume>>> {
        if !self.permits(client, name) {
            return ExportState::Absent;
        }
        // In this order, as above. One that is open may still be grown to the size that it is to have.
        if self.opening.contains(name) {
            return ExportState::Opening(name.to_owned());
        }
        let found = self.volumes.get(name);
        found.map_or(ExportState::Absent, |open| {
            ExportState::Open(Arc::clone(&open.export))
        })
    }
}

impl Exports<Volume> for PermittedVolumes {
    /// The empty name finds the only volume there is for the client, if it is exactly one, so that it
    /// need not know the name.
    fn find(&self, name: &str, client: &ClientIdentity) -> ExportState<Arc<Export<Volume>>> {
        if !name.is_empty() {
            return self.state(name, client);
        }
        let mut names = self.names(client).into_iter();
        match (names.next(), names.next()) {
            (Some(only), None) => self.state(&only, client),
            _ => ExportState::Absent,
        }
    }

    fn list(&self, client: &ClientIdentity) -> Vec<ExportEntry> {
        let entry = |name: String| {
            let open = self.volumes.get(&name);
            let description = open.map(|open| open.export.description.clone());
            ExportEntry {
                name,
                description: description.unwrap_or_else(|| "firn volume, being opened".to_owned()),
            }
        };
        self.names(client).into_iter().map(entry).collect()
    }

    fn on_parked(&self, name: &str) {
        self.opening.ask(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_use_what_is_listed_for_one_of_its_names_and_nothing_else() {
        let text = "# who\nalice db logs # two\nbackup *\nalice extra\n\n";
        let list = AccessList::parse(text).unwrap();
        let may = |names: &[&str], volume: &str| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            list.permits(&ClientIdentity { names }, volume)
        };
        assert!(may(&["alice"], "db") && may(&["alice"], "extra") && may(&["x", "backup"], "any"));
        assert!(!may(&["alice"], "any") && !may(&["bob"], "db") && !may(&[], "db"));
        assert!(!may(&["alice"], "*"));
        assert!(AccessList::parse("alice\n").unwrap_err().contains("line 1"));
    }

    /// What a client of this name finds, and what is listed to it.
    fn found(volumes: &PermittedVolumes, client: &str, name: &str) -> (String, usize) {
        let names = vec![client.to_owned()];
        let client = ClientIdentity { names };
        let state = match volumes.find(name, &client) {
            ExportState::Open(_) => "open".to_owned(),
            ExportState::Opening(own) => own,
            ExportState::Absent => "absent".to_owned(),
        };
        (state, volumes.list(&client).len())
    }

    #[test]
    fn a_volume_that_is_being_opened_is_there_for_those_who_may_use_it_alone() {
        let volumes = PermittedVolumes {
            volumes: Arc::default(),
            opening: Arc::default(),
            access: Some(AccessList::parse("alice db\nbackup *\n").unwrap()),
        };
        for name in ["db", "logs"] {
            volumes.opening.add(name);
        }
        for (client, name, state, listed) in [
            ("alice", "db", "db", 1),
            // The only one for her, and one of two for the other.
            ("alice", "", "db", 1),
            ("alice", "logs", "absent", 1),
            ("backup", "logs", "logs", 2),
            ("backup", "", "absent", 2),
            ("backup", "none", "absent", 2),
            ("bob", "db", "absent", 0),
        ] {
            let expected = (state.to_owned(), listed);
            assert_eq!(found(&volumes, client, name), expected, "{client} {name}");
        }
        volumes.on_parked("logs");
        volumes.on_parked("none");
        let asked = || volumes.opening.take_asked(|_| true);
        assert_eq!((asked().as_deref(), asked()), (Some("logs"), None));
        assert!(volumes.opening.remove("db") && !volumes.opening.remove("db"));
        assert_eq!(found(&volumes, "alice", "db"), ("absent".to_owned(), 0));
    }
}
