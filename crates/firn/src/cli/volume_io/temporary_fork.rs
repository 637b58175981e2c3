//! A fork for the time of a command: the volume at one moment, which its own clients neither see nor disturb.
//!
//! It goes when the command ends; kill -9 leaves it, and its name says what it was for.

use super::super::client::Client;
use super::super::{fork, output, trash};
use super::undo::Undo;
use super::{attach, detach};
use crate::failure::Result;
use crate::model::{Attachment, SnapshotWait, TransportChoice, Volume};

/// Bytes of a volume's name that the fork's begins with: so that all of it is a name.
const NAME_BYTES_MAX: usize = 40;

/// A fork for `purpose`, which goes with `undo`, and where it is reached.
pub(in crate::cli) fn make_fork(
    client: &Client,
    parent: &str,
    purpose: &str,
    transport: TransportChoice,
    undo: &Undo,
) -> Result<(Volume, Attachment)> {
    let wait = SnapshotWait::default();
    let fork = fork::make(client, parent, &fork_name(parent, purpose), wait)?.volume;
    {
        let (client, path) = (client.clone(), trash::for_good(&fork.name));
        undo.add(move || {
            if let Err(failure) = client.delete(&path) {
                output::warn(&format!(
                    "the fork that was made for this stays, delete it: {failure}"
                ));
            }
        });
    }
    let attachment = attach(client, &fork.name, transport)?;
    let (client, name) = (client.clone(), fork.name.clone());
    // It is nobody's but the command's, so that nothing is lost.
    undo.add(move || drop(detach(&client, &name, true)));
    Ok((fork, attachment))
}

/// A name that nobody else has, and that says what it is.
fn fork_name(volume: &str, purpose: &str) -> String {
    let parent = volume.split('@').next().unwrap_or_default();
    let parent = &parent[..parent.len().min(NAME_BYTES_MAX)];
    format!("{parent}-{purpose}-{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forks_name_is_a_name_whatever_the_volumes_is() {
        for volume in ["demo", "demo@one", &"x".repeat(64)] {
            let name = fork_name(volume, "export");
            assert_eq!(volume::check_name(&name), Ok(()), "{name}");
            assert!(name.contains("-export-"));
        }
    }
}
