//! `firn import` and `firn export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::points::volume_or_snapshot_name;
use super::volume::{volume_name, volume_size};
use crate::units::Size;

/// What an image file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageFormat {
    /// The volume's bytes, one after the other.
    Raw,
    /// QEMU's format, by qemu-img.
    Qcow2,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The image, or - for standard input. A block device is an image, too.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the volume. It is made, unless --overwrite says that it is there.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) volume: String,
    /// Size of the volume. What is behind the image reads as zeroes. [default: that of the image]
    #[arg(long, value_name = "SIZE", value_parser = volume_size, conflicts_with = "overwrite")]
    pub(crate) size: Option<Size>,
    /// Replace everything that this volume holds.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// What the image is made of. [default: raw, and an image that begins as qcow2 does is refused]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ImageFormat>,
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
    /// What to make.
    #[arg(long, value_enum, default_value_t = ImageFormat::Raw)]
    pub(crate) format: ImageFormat,
}
