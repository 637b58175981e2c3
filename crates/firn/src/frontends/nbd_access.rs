//! Who may use which volume over NBD: certificates or keys of the server, and the list of clients.
//!
//! Reads its files once, at the start, and answers from memory after that: look-ups come on reactor
//! threads. A client that is not listed must learn no more than that there is no such export.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nbd::codec::ExportEntry;
use nbd::server::{ClientIdentity, Export, Exports, TlsConfig, TlsOptions};
use volume::Volume;

use crate::failure::{Failure, Result};
use crate::frontends::nbd_keys;
use crate::frontends::open_volumes::{OpenVolume, OpenVolumes};

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

/// The open volumes, as far as a client may use them.
#[derive(Debug)]
pub(crate) struct PermittedVolumes {
    pub(crate) volumes: Arc<OpenVolumes>,
    /// Without one every client may use every volume.
    pub(crate) access: Option<AccessList>,
}

impl PermittedVolumes {
    fn of(&self, client: &ClientIdentity) -> impl Iterator<Item = Arc<OpenVolume>> {
        let all = self.volumes.all().into_iter();
        all.filter(|open| self.permits(client, &open.export.name))
    }

    fn permits(&self, client: &ClientIdentity, volume: &str) -> bool {
        let access = self.access.as_ref();
        access.is_none_or(|access| access.permits(client, volume))
    }
}

impl Exports<Volume> for PermittedVolumes {
    /// The empty name finds the only volume there is for the client, if it is exactly one, so that it
    /// need not know the name.
    fn find(&self, name: &str, client: &ClientIdentity) -> Option<Arc<Export<Volume>>> {
        let found = if name.is_empty() {
            let mut all = self.of(client);
            all.next().filter(|_| all.next().is_none())
        } else {
            let found = self.volumes.get(name);
            found.filter(|open| self.permits(client, &open.export.name))
        };
        found.map(|open| Arc::clone(&open.export))
    }

    fn list(&self, client: &ClientIdentity) -> Vec<ExportEntry> {
        self.of(client)
            .map(|open| ExportEntry {
                name: open.export.name.clone(),
                description: open.export.description.clone(),
            })
            .collect()
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
}
