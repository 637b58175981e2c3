//! `firn volume`, and what every command about a volume takes: its name, and how long to wait.

use clap::{Args, Subcommand};

use super::list::ListArgs;
use crate::units::{Size, TimeSpan};

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume. It takes no space until it is written to.
    Create {
        /// Letters, digits, `-`, `_` and `.`; starts with a letter or digit.
        #[arg(value_parser = volume_name)]
        name: String,
        /// Size as clients see it.
        #[arg(long, value_name = "SIZE", value_parser = volume_size)]
        size: Size,
        /// Smallest unit that clients can address: 512 or 4096.
        #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = block_size)]
        block_size: u32,
        /// Succeed if a volume of this name, size and block size is there.
        #[arg(long)]
        if_missing: bool,
        #[command(flatten)]
        patience: Patience,
    },
    /// List the volumes of the store by name, as they come. `--json` prints one document, whose list is complete when
    /// the document is.
    List(ListArgs),
    /// Show one volume with its watermarks: how far its writes have got.
    Show {
        #[command(flatten)]
        which: VolumeName,
        /// Show it again and again.
        #[arg(long)]
        watch: bool,
        /// Time from one picture to the next.
        #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch")]
        interval: TimeSpan,
        /// End after this many pictures.
        #[arg(long, value_name = "N", requires = "watch")]
        count: Option<u64>,
    },
    /// Grow a volume, and its disk with it. A volume never shrinks.
    Resize {
        /// Name of the volume.
        #[arg(value_name = "VOLUME", value_parser = volume_name)]
        name: String,
        /// Its new size.
        #[arg(value_parser = volume_size)]
        size: Size,
    },
    /// Give a volume another name. Its identity, its data and its snapshots stay.
    #[command(after_help = "To rename a disk that is in use:\n  \
        umount /mnt && firn detach demo\n  \
        firn volume rename demo archive    its snapshots are archive@... from then on\n  \
        firn attach archive --mount /mnt\n\n\
        Nobody may have the volume open, on this server or any other, nor a snapshot of it on this one. A name that is taken is refused \
        before anything is changed. If the command is cut short, give it again: it goes on where it was, as does the next \
        pass of any server's garbage collector; until then neither name can be used.\n\n\
        Whoever asks by the old name hears the new one, until another volume takes it. What names a volume is to \
        be told by hand: --volume and --snapshot-schedule of servers, --nbd-access, clients' addresses, scripts.")]
    Rename {
        /// Name of the volume.
        #[arg(value_name = "VOLUME", value_parser = volume_name)]
        name: String,
        /// Its new name. Letters, digits, `-`, `_` and `.`; starts with a letter or digit.
        #[arg(value_name = "NEW", value_parser = volume_name)]
        new_name: String,
    },
    /// Move a volume with its snapshots to the trash, from where `firn trash restore` brings it back for a day, or as long as
    /// the server is told. Its name is free at once.
    Delete(DeleteArgs),
    /// Say that a volume is gone for good whose root somebody removed from the store, as `firn gc`, `/readyz` and the
    /// server's log report it. What only it reached is garbage from then on. While its root can be put back, put it
    /// back instead.
    Forget {
        /// Id of the volume, as the collector names it: without a root it has no name.
        #[arg(value_name = "VOLUME-ID")]
        id: String,
        /// It is gone for good: nobody will put its root back.
        #[arg(long, required = true)]
        gone: bool,
    },
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("a volume's block size is 512 or 4096".to_owned()),
    }
}

/// A name that a volume may have: any other makes no sense to ask a server for.
pub(super) fn volume_name(text: &str) -> Result<String, String> {
    volume::check_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn volume_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    volume::check_size(size.0).map_err(|error| error.to_string())?;
    Ok(size)
}

#[derive(Debug, Args)]
pub(crate) struct VolumeName {
    /// Name of the volume.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Name of the volume.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) name: String,
    /// With --now: its name once more, to be sure.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) again: Option<String>,
    /// Delete it for good, and everything in it. Its snapshots must be deleted before.
    #[arg(long)]
    pub(crate) now: bool,
    /// With --now: the name need not be said twice.
    #[arg(long, requires = "now")]
    pub(crate) yes: bool,
}

/// How long a command waits, and for what.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Patience {
    /// Wait until the server is there, the store answers, and no other host has the volume, instead of
    /// failing at once.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Give up after this time, with exit status 1. What the server was asked for it goes on with.
    /// [default: wait for the answer as long as it takes]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<TimeSpan>,
}
