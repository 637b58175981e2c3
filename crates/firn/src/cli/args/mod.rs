//! The command line: every command and flag, with its help; one file for what belongs together.
//!
//! Only parses; what a command does is in its own module. A value that cannot be right is refused
//! while parsing, so that it is a usage error (exit status 2) and nothing has been touched.

mod attach;
mod bench;
mod check;
mod diff;
mod gc;
mod inspect;
mod list;
mod points;
mod rescue;
mod schedule;
mod serve;
mod transfer;
mod trash;
mod upgrade;
mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use attach::{AttachArgs, DetachArgs, FileSystem, MoveArgs};
pub(crate) use bench::{BenchArgs, Pattern};
pub(crate) use check::CheckArgs;
pub(crate) use diff::DiffArgs;
pub(crate) use gc::GcArgs;
pub(crate) use inspect::{ConfigArgs, ConfigCommand, DoctorArgs, SupportArgs, TopArgs};
pub(crate) use list::ListArgs;
pub(crate) use points::{ForkArgs, SnapshotCommand};
pub(crate) use rescue::{RescueCommand, RescueLogArgs};
pub(crate) use schedule::SnapshotSchedule;
pub(crate) use serve::{LogIo, NewVolume, OpenListener, Sandbox, ServeArgs};
pub(crate) use transfer::{CloneArgs, ExportArgs, ImageFormat, ImportArgs};
pub(crate) use trash::TrashCommand;
pub(crate) use upgrade::UpgradeArgs;
pub(crate) use volume::{DeleteArgs, Patience, VolumeCommand, VolumeName};

/// Fast local disks whose truth lives in an object store.
#[derive(Debug, Parser)]
#[command(
    name = "firn",
    version,
    propagate_version = true,
    after_help = "Start here:\n  \
        firn serve --volume demo=10GiB     a server with an embedded store and one volume\n  \
        firn attach demo                   prints its disk, or a URI for nbdinfo, qemu, nbd-client\n  \
        firn sync demo                     uploads everything written so far to the store\n\n\
        Exit status: 0 done, 1 failed, 2 the command line makes no sense."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) api: ApiArgs,

    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the server's HTTP API is, and who asks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ApiArgs {
    /// Address of the server's HTTP API: unix:PATH or IP:PORT. `serve` listens here, and not at
    /// the default socket unless that is given, too (it may be given several times); all other
    /// commands connect here. Over TCP the server wants a token.
    /// [default: unix:./firn-data/api.sock; the commands look at unix:/run/firn/api.sock, too]
    #[arg(long, global = true, env = "FIRN_API", value_name = "unix:PATH|ADDR")]
    pub(crate) api: Vec<String>,

    /// File with the token for an API that is reached over TCP.
    /// [default: ./firn-data/tokens/admin, for a server on the loopback address]
    #[arg(long, global = true, env = "FIRN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server until SIGTERM or SIGINT stops it.
    Serve(Box<ServeArgs>),
    /// Create, list, show, resize or delete volumes.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Attach a volume, or a snapshot of one to be read: as a disk of this machine, or over NBD.
    #[command(
        after_help = "The device or the URI alone is printed on standard output:\n  \
        mkfs.ext4 \"$(firn attach demo --transport ublk)\"\n  \
        nbdinfo \"$(firn attach demo --transport nbd)\"\n\n\
        A disk stays until `firn detach`. After a kill, an upgrade or a reboot, the next server \
        brings it back under the same name; until then its requests wait. `firn doctor` says \
        what auto chooses here, and why.\n\n\
        After the loss of the host that had it, or of its cache directory:\n  \
        firn attach demo --take-over       gives up what that host had not uploaded, and says so\n\n\
        To look into a snapshot, without a fork and on any number of hosts; it takes no writes:\n  \
        mount -o ro,noload \"$(firn attach demo@before --transport ublk)\" /mnt     an ext4 that was in use\n  \
        qemu-img map \"$(firn attach demo@before --transport nbd)\"\n\n\
        At boot, before the server is up, and with a file system made if it was never written:\n  \
        firn attach demo --wait --timeout 2m --mkfs ext4 --mount /srv/demo"
    )]
    Attach(AttachArgs),
    /// Detach a volume: remove its disk, close its NBD connections, upload what the store lacks,
    /// and release it, so that another host may open it.
    Detach(DetachArgs),
    /// Move a volume to another server of the same store.
    #[command(
        after_help = "What was written is uploaded first, while clients go on; then the volume is detached here and \
        attached there, as it was attached here. The device or the URI there is printed on standard output, and for \
        how long no server had the volume on standard error. If it cannot be attached there, it is attached here \
        again. NBD clients connect anew, at the other address:\n  \
        firn move demo --to 10.0.0.2:7000 --to-token-file there.token --force"
    )]
    Move(MoveArgs),
    /// Upload everything that was written to a volume so far, and wait until it is in the object
    /// store.
    #[command(after_help = "In a script that must not hang:\n  \
        firn sync demo --timeout 5m || echo 'not everything is stored yet'")]
    Sync {
        #[command(flatten)]
        which: VolumeName,
        #[command(flatten)]
        patience: Patience,
    },
    /// Take, list, restore or delete snapshots: a volume as it was at one moment.
    #[command(
        subcommand,
        after_help = "Before something that may go wrong:\n  \
        firn snapshot create demo@before --label why=upgrade\n  \
        firn snapshot list demo\n  \
        firn fork demo@before looked-at    makes a volume of it\n  \
        firn snapshot restore demo@before  sets demo back; what it held is kept as a snapshot\n  \
        firn snapshot delete demo@before"
    )]
    Snapshot(SnapshotCommand),
    /// Make a volume that begins as another one, or a snapshot of it, is now. Both go their own ways from there,
    /// and share what neither has changed.
    #[command(after_help = "Examples:\n  \
        firn fork demo branch              demo as it is now, while it is in use\n  \
        firn fork demo@before branch       demo as it was\n  \
        firn fork demo@before ci-1 ci-2    two of them; each name is printed when its volume is there\n  \
        firn fork --wait store demo b      for another host: it can open what the store has\n  \
        firn attach branch")]
    Fork(ForkArgs),
    /// List the bytes in which two volumes or snapshots differ, from their indexes alone: no content is read.
    #[command(after_help = "Examples:\n  \
        firn diff demo@monday demo@tuesday       what was written on a day\n  \
        firn diff demo@tuesday demo              and since; what is not uploaded yet is not listed: firn sync demo\n  \
        firn diff demo branch --json             a fork against its parent\n\n\
        They must share history: one is a snapshot or fork of the other, or both are of a third. Others share no \
        stored bytes, so the index cannot tell what is equal: they are refused; export both and use cmp.\n\n\
        Every byte that differs is listed, within the size of the second. Bytes that were written again are listed \
        also where they are equal. KIND is zero where the second reads as zeroes and takes no space, else data.")]
    Diff(DiffArgs),
    /// Make a volume of an image: a file, a disk, or standard input. Returns when the store has it.
    #[command(after_help = "Examples:\n  \
        firn import disk.img demo                       the volume demo, as large as the image\n  \
        firn import disk.qcow2 demo --format qcow2      by qemu-img\n  \
        zstd -dc disk.img.zst | firn import - demo --size 20GiB\n  \
        firn import disk.img demo --overwrite           replaces all that demo holds\n  \
        firn import monday.inc copy                     of `firn export demo@monday --format increment`\n  \
        firn import tuesday.inc --onto copy             of `firn export demo@tuesday --since @monday`\n\n\
        Holes and zeroes of the image take no space. A volume that the command made is deleted again if it fails.\n\n\
        An import of a file that was killed, or whose server was, goes on where it was:\n  \
        firn import disk.img demo --resume              with --overwrite, too, if it was begun so\n\n\
        What was imported is read again from the file: one that has changed there is refused. With --resume from the beginning \
        an import that fails keeps what has arrived, for the next one. Every ten seconds the volume gets a snapshot that says how far it \
        is, unfinished-import-a or -b; none is left at the end. Pipes, qcow2 and increments begin anew.\n\n\
        An increment takes a snapshot, too: after the last line copy is what demo@tuesday is, and so is copy@tuesday, which the next \
        increment is laid over. A file is verified as a whole before anything is touched; what comes through a pipe is \
        verified block by block, and if it turns out to be damaged or cut short, the volume is set back to the snapshot \
        that it was at. After kill -9 the volume is between the two: set it back with `firn snapshot restore`.")]
    Import(ImportArgs),
    /// Make an image of a volume or a snapshot: a file, or standard output. It is the volume at one moment, also
    /// while it is written to.
    #[command(after_help = "Examples:\n  \
        firn export demo disk.img                       a sparse file\n  \
        firn export demo@before disk.qcow2 --format qcow2\n  \
        firn export demo - | zstd > disk.img.zst\n  \
        firn export demo@monday monday.inc --format increment     all of it, to begin a chain\n  \
        firn export demo@tuesday tuesday.inc --since @monday      what was written on a day\n  \
        firn export demo@tuesday - --since @monday | ssh there firn import - --onto copy\n\n\
        It reads a fork, demo-export-NUMBER, and deletes it at the end. After kill -9 the fork is there yet: delete it \
        with `firn volume delete`.")]
    Export(ExportArgs),
    /// Copy a volume with its snapshots to another store, or under another name. Returns when that store has all of it,
    /// verified.
    #[command(after_help = "Examples:\n  \
        firn clone demo --to 's3://other-bucket/firn?region=eu-2'\n  \
        firn clone demo --to /mnt/backup/store --name demo-copy\n\n\
        Each snapshot becomes the same one there: name, labels, time and bytes, and the label copy-of with the identity of the \
        original. The first goes as a whole, each other as what changed since the one before. The last is taken of what the volume \
        holds now, clone-NUMBER; it stays in both, so that later changes can follow with `firn export --since` and `firn import \
        --onto`. The copy is a volume of its own, with another identity, and nobody has it open.\n\n\
        What was written is read again from the other store and compared. A command that was cut short, by kill -9, too, \
        is run again as it was: it goes on after the last snapshot that the copy has whole, and says which. Until then the copy has a \
        snapshot named unfinished-clone; delete both to give it up. Of a schedule's snapshots the label schedule becomes \
        copied-schedule, so that no schedule there removes them, and those of a group copied-group, for its other members are not there.")]
    Clone(CloneArgs),
    /// Deleted volumes, which can be had back for a while.
    #[command(
        subcommand,
        after_help = "After a volume was deleted by mistake:\n  \
        firn trash list\n  \
        firn trash restore demo            with its snapshots, under its name, as long as no other has that\n  \
        firn trash restore demo --as old   or under another one\n  \
        firn trash empty demo              lets it go now; what only it reached is freed by the next passes of gc\n\n\
        A volume is kept for a day, or as long as `firn serve --trash-keep` says, and goes then with the next pass of \
        the garbage collector of any server. While it is in the trash its name is free, and those of its snapshots \
        are not."
    )]
    Trash(TrashCommand),
    /// What this host's log still holds of volumes that it does not serve.
    #[command(
        subcommand,
        after_help = "After another host has taken a volume over, the writes that this host had not \
        uploaded stay in its log. They continue nothing that is in the store, so they are never \
        served again by themselves, and they hold log space until they are dropped:\n  \
        firn rescue list\n  \
        firn rescue show demo\n  \
        firn rescue fork demo saved        makes the volume saved of it\n  \
        firn rescue drop demo              for good\n\n\
        A log on a disk that fails, a poisoned log, or a log of another size, with the server stopped:\n  \
        firn rescue log --to /new/cache    brings everything to the store, and moves\n  \
        firn rescue log --log-size 8GiB    brings everything to the store, and makes the log anew"
    )]
    Rescue(RescueCommand),
    /// Remove from the store what no volume, snapshot or fork reaches. A server does so by itself
    /// every six hours, unless `firn serve --gc` says otherwise.
    #[command(
        after_help = "What one pass finds is removed by a later one, once that has found the same by itself; so \
        two passes in a row free what is garbage now:\n  \
        firn gc --dry-run    says what there is, and changes nothing\n  \
        firn gc && firn gc   finds it, and removes it"
    )]
    Gc(GcArgs),
    /// Check that the store has, whole, what volumes and snapshots need. It needs no server, changes
    /// nothing unless it is told to, and may run while volumes are in use.
    #[command(after_help = "Examples:\n  \
        firn check                              all volumes and snapshots: that everything is there\n  \
        firn check demo --deep                  that every byte of demo and its snapshots is, too\n  \
        firn check demo@before --store s3://bucket/prefix --deep --rate 50MiB\n\n\
        After the root or the index of a volume was lost, and its packs were not:\n  \
        firn check --rebuild demo --dry-run     says what it would be, and what nobody knows any more\n  \
        firn check --rebuild demo               makes it anew; `firn attach demo` opens it\n  \
        firn check --repair                     the same for all that is lost and that no host had open\n\n\
        A rebuilt volume is what it was when it was last stored. Its packs say nothing of zeroes (discards) whose packs \
        were removed as garbage, nor of snapshots: what cannot be known is printed. As long as a root is missing no \
        server removes garbage.\n\n\
        What a server has not uploaded yet is not the store's: run `firn sync VOLUME` first. Exit status: \
        0 all is whole, 1 something is damaged (each object is named, with what it costs), or the check \
        came to no end.")]
    Check(CheckArgs),
    /// Check what this machine and this store offer, and say what firn will use.
    Doctor(DoctorArgs),
    /// Show live what is done with each volume: rates, latencies, and what the store lacks.
    Top(TopArgs),
    /// Measure what a volume's disk gives: operations and bytes a second, and latencies. The volume itself is only
    /// read: a fork of it is measured, and deleted afterwards.
    #[command(after_help = "Examples:\n  \
        firn bench demo                                      all patterns, some 40 seconds\n  \
        firn bench demo --pattern rand-read --depth 64 --time 30s\n  \
        firn bench demo --pattern rand-read,seq-read --as-is --range 10GiB\n\n\
        Without --as-is the range is filled before reads are measured, so that they come from the log or the cache of \
        this host. What is written does not compress, takes log space until it is uploaded or the fork is deleted, and \
        takes turns with the volumes in use. kill -9 of the command leaves the fork, VOLUME-bench-NUMBER.")]
    Bench(BenchArgs),
    /// Put another firn in the place of the running one: newer, older, or the same. NBD clients stay connected.
    #[command(after_help = "Examples:\n  \
        firn upgrade                             after the program at the server's path was replaced\n  \
        firn upgrade --program ./firn-next\n\n\
        The process keeps its id. A program that cannot take over leaves the old one serving, and the command says why.")]
    Upgrade(UpgradeArgs),
    /// Print the settings that `serve` would use, as a file for --config, and where each is from.
    Config(Box<ConfigArgs>),
    /// Print what a report of a bug needs, as JSON: machine, findings, and the server's state. It holds
    /// no secrets; names of volumes and paths are in it.
    Support(SupportArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  \
        firn completions bash > ~/.local/share/bash-completion/completions/firn\n  \
        firn completions fish > ~/.config/fish/completions/firn.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a manual page for each command into a directory.
    Man {
        /// The directory; it is made if it is missing.
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
