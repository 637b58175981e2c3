//! `firn snapshot` and `firn fork`: points in time.

use clap::{Args, Subcommand};

use super::list::ListArgs;
use super::volume::volume_name;
use crate::model::SnapshotWait;

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a volume as it is now, while it is written to. Returns when the log of the server's host has
    /// it: it is as durable as a FLUSH then, and goes to the store by itself. Of a volume that is not open there, and
    /// with --wait store, when the store has it.
    ///
    /// Several volumes are taken at one moment, all or none: what one of them has of a client's writes, the others have, too. The
    /// server must have all of them open. Each has the label group with the names of all; the group is whole in a store that has all.
    Create {
        /// The volume, and a name for the snapshot; several for a group.
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_name, required = true)]
        names: Vec<String>,
        /// Mark it; may be given several times.
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
        /// What has the snapshot when this returns.
        #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
        wait: SnapshotWait,
    },
    /// List the snapshots of a volume by name, as they come. `--json` prints one document, whose list is complete when
    /// the document is.
    List {
        /// Name of the volume.
        #[arg(value_name = "VOLUME", value_parser = volume_name)]
        volume: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Set a volume back to a snapshot of it: same name, same identity. Its disk must be detached and its clients
    /// disconnected; what it holds now is kept as another snapshot, whose name is printed. Its size stays as it is, for a volume
    /// never shrinks: behind the snapshot's end it reads as zeroes.
    Restore {
        /// The volume and its snapshot.
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_name)]
        name: String,
    },
    /// Delete a snapshot. Forks of it stay as they are.
    Delete {
        /// The volume and its snapshot.
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_name)]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The volume as it is now, or a snapshot of it. Of a volume that another host has open, the new one begins with
    /// what the store has of it: that lacks the newest writes, and the command says so.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) parent: String,
    /// Name of the new volume; of several, eight are made at once.
    #[arg(value_name = "NEW", value_parser = volume_name, required = true)]
    pub(crate) names: Vec<String>,
    /// What has the fork when this returns: the log of the server's host, which can open it from then on, or the store, and
    /// then every host can. Of a snapshot, and of a volume that is not open there, it is always the store.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) wait: SnapshotWait,
}

pub(super) fn snapshot_name(text: &str) -> Result<String, String> {
    let checked = volume::check_snapshot_name(text);
    checked.map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn volume_or_snapshot_name(text: &str) -> Result<String, String> {
    match text.contains('@') {
        true => snapshot_name(text),
        false => volume_name(text),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE".to_owned()),
    }
}
