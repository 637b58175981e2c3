//! The flags of `firn import`, `firn export` and `firn clone`. Only parses, as all of `args`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::points::{snapshot_name, volume_or_snapshot_name};
use super::volume::{volume_name, volume_size};
use crate::units::{Size, TimeSpan};

/// What an image file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageFormat {
    /// The volume's bytes, one after the other.
    Raw,
    /// QEMU's format, by qemu-img.
    Qcow2,
    /// What a snapshot has, all of it or since another one, with the identity of both and checksums.
    Increment,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The image, or - for standard input. A block device is an image, too.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the volume. It is made, unless --overwrite says that it is there.
    #[arg(value_name = "VOLUME", value_parser = volume_name, required_unless_present = "onto", conflicts_with = "onto")]
    pub(crate) volume: Option<String>,
    /// Lay an increment over this volume, which must be exactly at the point where the increment begins: a snapshot of it is
    /// that point or a copy of it (the one that is named, if one is), and nothing was written since. Then it is at the
    /// point to which the increment leads, and has a snapshot of that name.
    #[arg(
        long,
        value_name = "VOLUME[@SNAPSHOT]",
        value_parser = volume_or_snapshot_name,
        conflicts_with_all = ["size", "overwrite"]
    )]
    pub(crate) onto: Option<String>,
    /// Size of the volume. What is behind the image reads as zeroes. [default: that of the image]
    #[arg(long, value_name = "SIZE", value_parser = volume_size, conflicts_with = "overwrite")]
    pub(crate) size: Option<Size>,
    /// Replace everything that this volume holds.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Go on with an import of this file that was cut short, where it was. What was imported is read again from the file, and a file
    /// that has changed is refused. Begins one if there is none, and leaves what has arrived if it fails.
    #[arg(long, conflicts_with = "onto")]
    pub(crate) resume: bool,
    /// How often it is noted how far an import is, for tests.
    #[arg(long, value_name = "TIME", hide = true)]
    pub(crate) mark_interval: Option<TimeSpan>,
    /// What the image is made of. [default: an increment if it is a file that begins so, else raw, and an image that begins as
    /// qcow2 does is refused]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ImageFormat>,
}

impl ImportArgs {
    /// The volume that an image is brought to: the command line names it, or one for --onto.
    pub(crate) fn volume_name(&self) -> &str {
        let name = self.volume.as_ref().or(self.onto.as_ref());
        name.map_or("", String::as_str)
    }
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The volume as it is now, or a snapshot of it.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) volume: String,
    /// The file to make, or - for standard output.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace the file if it is there, or write onto a block device.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// What to make. [default: raw, or an increment with --since]
    #[arg(long, value_enum, default_value_t = ImageFormat::Raw, hide_default_value = true)]
    pub(crate) format: ImageFormat,
    /// Only what differs from this snapshot: of the same volume, or of one with which it shares history. It makes an
    /// increment, for `firn import --onto`.
    #[arg(long, value_name = "[VOLUME]@SNAPSHOT", value_parser = since_name)]
    pub(crate) since: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The volume to copy.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) volume: String,
    /// The store of the copy, as `firn serve --store` takes it: a directory, s3://BUCKET/PREFIX, gs:// or az://, with
    /// options behind a question mark. Credentials come from the environment of this command.
    #[arg(long, value_name = "STORE")]
    pub(crate) to: String,
    /// Name of the copy. [default: the volume's]
    #[arg(long, value_name = "NEW", value_parser = volume_name)]
    pub(crate) name: Option<String>,
    /// Directory on a local disk in which there is room for what is on its way, some 320 MiB, in a directory of its own. A
    /// command that goes on finds it there. [default: ./firn-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Accept a store without conditional PUT. You promise that nobody else uses it meanwhile.
    #[arg(long)]
    pub(crate) single_writer: bool,
}

/// The snapshot since which something is asked for; without a volume it is of the same one.
fn since_name(text: &str) -> Result<String, String> {
    match text.strip_prefix('@') {
        // Any volume's name will do: it is filled in later.
        Some(_) => snapshot_name(&format!("v{text}")).map(|_| text.to_owned()),
        None => snapshot_name(text),
    }
}
