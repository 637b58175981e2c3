//! The command line: every command and flag, with its help.
//!
//! Only parses; what a command does is in its own module. A value that cannot be right is refused
//! while parsing, so that it is a usage error (exit status 2) and nothing has been touched.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::access::Role;
use crate::failure::Failure;
use crate::model::{AttachRequest, DataMode, TransportChoice};
use crate::store_faults::StoreFaultPlan;
use crate::units::{Size, TimeSpan};

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
    /// Address of the server's HTTP API: unix:PATH or IP:PORT. `serve` listens here (it may be given
    /// several times), all other commands connect here. Over TCP the server wants a token.
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
    /// Attach a volume: as a disk of this machine, or over NBD.
    #[command(
        after_help = "The device or the URI alone is printed on standard output:\n  \
        mkfs.ext4 \"$(firn attach demo --transport ublk)\"\n  \
        nbdinfo \"$(firn attach demo --transport nbd)\"\n\n\
        A disk stays until `firn detach`. After a kill, an upgrade or a reboot, the next server \
        brings it back under the same name; until then its requests wait. `firn doctor` says \
        what auto chooses here, and why.\n\n\
        After the loss of the host that had it, or of its cache directory:\n  \
        firn attach demo --take-over       gives up what that host had not uploaded, and says so\n\n\
        At boot, before the server is up, and with a file system made if it was never written:\n  \
        firn attach demo --wait --timeout 2min --mkfs ext4 --mount /srv/demo"
    )]
    Attach(AttachArgs),
    /// Detach a volume: remove its disk, close its NBD connections, upload what the store lacks,
    /// and release it, so that another host may open it.
    Detach(DetachArgs),
    /// Upload everything that was written to a volume so far, and wait until it is in the object
    /// store.
    #[command(after_help = "In a script that must not hang:\n  \
        firn sync demo --timeout 5min || echo 'not everything is stored yet'")]
    Sync {
        #[command(flatten)]
        which: VolumeName,
        #[command(flatten)]
        patience: Patience,
    },
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
    /// Check what this machine and this store offer, and say what firn will use.
    Doctor(DoctorArgs),
    /// Show live what is done with each volume: rates, latencies, and what the store lacks.
    Top(TopArgs),
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

/// Flags of `serve`. Each can also stand in the configuration file, under its own name; a flag
/// wins over the file.
#[derive(Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(after_help = "Examples:\n  \
    firn serve --volume demo=10GiB\n      \
    everything below ./firn-data; creates the volume if it is missing\n  \
    firn serve --store /srv/firn --cache /var/lib/firn --log-size 32GiB --cache-size 200GiB\n  \
    firn serve --store 's3://bucket/firn?endpoint=https://minio:9000' --volume demo=10GiB\n  \
    firn serve --nbd 127.0.0.1:10809 --nbd unix:/run/firn/nbd.sock\n  \
    firn serve --api unix:/run/firn/api.sock --api 127.0.0.1:7070\n      \
    the API also over TCP, for those who have a token of ./firn-data/tokens\n  \
    firn serve --config /etc/firn.toml\n      \
    the same names as the flags: store = \"...\", log-size = \"32GiB\", volume = [\"demo=10GiB\"]")]
pub(crate) struct ServeArgs {
    /// Read settings from this TOML file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// Object store that holds the volumes: a directory, s3://BUCKET/PREFIX, gs:// or az://. Options
    /// follow a question mark, as in s3://b/p?endpoint=http://minio:9000&region=eu-1; credentials
    /// come from the environment, a profile or the instance, never from the URL.
    /// [default: ./firn-data/store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Directory on a local disk for the write-back log and the read cache.
    /// [default: ./firn-data/cache]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,

    /// Where the API listens; the flag is every command's.
    #[arg(skip)]
    pub(crate) api: Vec<String>,

    /// Directory of the tokens that the API wants over TCP, one file for each role: read, attach and
    /// admin. Those that are missing are made when the server listens on TCP.
    /// [default: ./firn-data/tokens]
    #[arg(long, value_name = "DIR")]
    pub(crate) api_tokens: Option<PathBuf>,

    /// Let the server's group use the API's Unix sockets, too, with this role. Without it they are for
    /// the server's user and root alone.
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) api_group: Option<Role>,

    /// Answer to this host name, too: that of a proxy before an API on the loopback address, which names
    /// it in the header `Host`. Any other name is refused, so that no web page can lead its own name
    /// here. Without a port; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) api_host: Vec<String>,

    /// Ask for no authentication: `api` over TCP, `nbd` beyond the loopback address. Whoever reaches
    /// the address can do everything that it offers.
    #[arg(long, value_enum, value_name = "LISTENER")]
    pub(crate) insecure: Vec<OpenListener>,

    /// Listen for NBD clients here: HOST:PORT or unix:PATH. May be given several times.
    /// Beyond the loopback address it takes --nbd-access, or --insecure nbd.
    /// [default: 127.0.0.1:10809 and unix:./firn-data/nbd.sock]
    #[arg(long, value_name = "ADDR|unix:PATH")]
    pub(crate) nbd: Vec<String>,

    /// Offer TLS to NBD clients, with server-cert.pem and server-key.pem of this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) nbd_tls: Option<PathBuf>,

    /// Refuse NBD clients that do not use TLS.
    #[arg(long)]
    #[serde(default)]
    pub(crate) nbd_tls_required: bool,

    /// Let NBD clients use what this file lists for them, and nothing else: on each line a DNS name of
    /// the client's certificate and volumes, or * for all. Certificates must be signed by ca-cert.pem of
    /// the directory of --nbd-tls; a client without one is refused.
    #[arg(long, value_name = "FILE")]
    pub(crate) nbd_access: Option<PathBuf>,

    /// Serve this volume, of at least this size: it is created if it is missing, and grown if it is
    /// smaller. One that cannot be opened yet is retried while the others are served; see
    /// `firn volume list`. May be given several times.
    #[arg(long, value_name = "NAME=SIZE")]
    pub(crate) volume: Vec<NewVolume>,

    /// Recovery point objective: writes older than this are uploaded. Younger ones are lost if the
    /// host is lost, but not if only the process dies. [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) rpo: Option<TimeSpan>,

    /// Size of the write-back log. It bounds how much can be written while the store is
    /// unreachable, and how long recovery takes. Its space is taken at once, and its size fixed, when
    /// the cache directory is created. [default: a 16th of what is free there, 64MiB to 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<Size>,

    /// Size of one segment of the log, for tests: small ones are sealed and reused often. Fixed when
    /// the cache directory is created. [default: chosen by the log's size]
    #[arg(long, value_name = "SIZE", hide = true)]
    pub(crate) segment_size: Option<Size>,

    /// Size of the read cache, which takes space as it fills. Fixed when the cache directory is created.
    /// [default: a quarter of what is free there, 16MiB to 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<Size>,

    /// Directory in memory (tmpfs) for the index rings, by which completed writes survive the death
    /// of the process. [default: where this cache directory's rings are, else /run/firn if that can be
    /// used, else /dev/shm, from which systemd removes an ordinary user's files at logout]
    #[arg(long, value_name = "DIR")]
    pub(crate) ring_dir: Option<PathBuf>,

    /// How the log is read and written. [default: auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) log_io: Option<LogIo>,

    /// Log requests of clients that take this long, with the step that took the time; `firn_request_*`
    /// of /metrics has all of them. [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub(crate) slow_request: Option<TimeSpan>,

    /// Accept a store without conditional PUT. You promise that no second server ever uses it.
    #[arg(long)]
    pub(crate) single_writer: bool,

    /// Inject store faults, for soak tests; see `store_faults.rs`. Never from a file.
    #[arg(long, hide = true, value_name = "PLAN")]
    #[serde(skip)]
    pub(crate) planned_store_faults: Option<StoreFaultPlan>,
}

/// A listener that asks nobody who he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OpenListener {
    /// The API over TCP.
    Api,
    /// NBD beyond the loopback address.
    Nbd,
}

/// How the log file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogIo {
    /// Direct where the file system offers it, else buffered.
    Auto,
    /// Without the page cache (O_DIRECT); an error where that is not possible.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// A volume to create: `NAME=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct NewVolume {
    pub(crate) name: String,
    pub(crate) size: Size,
}

impl std::str::FromStr for NewVolume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not NAME=SIZE; write for example demo=10GiB"))?;
        if name.is_empty() {
            return Err(format!(
                "{text:?} has no name; write for example demo=10GiB"
            ));
        }
        let size: Size = size.parse()?;
        volume::check_name(name).map_err(|error| error.to_string())?;
        volume::check_size(size.0).map_err(|error| error.to_string())?;
        Ok(NewVolume {
            name: name.to_owned(),
            size,
        })
    }
}

impl From<NewVolume> for String {
    fn from(volume: NewVolume) -> String {
        format!("{}={}", volume.name, volume.size)
    }
}

impl TryFrom<String> for NewVolume {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume. It takes no space until it is written to.
    Create {
        /// Letters, digits, `-`, `_` and `.`; starts with a letter or digit.
        name: String,
        /// Size as clients see it.
        #[arg(long, value_name = "SIZE")]
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
    /// List all volumes of the store.
    List,
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
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Its new size.
        size: Size,
    },
    /// Delete a volume and everything in it.
    Delete(VolumeName),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RescueCommand {
    /// List the tails that are not served, and the log space that they hold.
    List,
    /// Show one of them.
    Show(TailName),
    /// Make a new volume of one that another host's take-over left here: the store's state that it continues,
    /// and its writes over that. The tail stays until it is dropped.
    Fork {
        #[command(flatten)]
        which: TailName,
        /// Name of the new volume.
        #[arg(value_name = "NEW")]
        name: String,
        /// Over zeroes: if the store does not have the state any more that the tail continues.
        #[arg(long)]
        without_base: bool,
    },
    /// Drop one for good, with every write in it that the store lacks, and free its log space.
    Drop {
        #[command(flatten)]
        which: TailName,
        /// Also one whose volume still waits for it: its writes are acknowledged ones.
        #[arg(long)]
        force: bool,
    },
    /// Bring everything that the log of a stopped server holds to the store, and give its volumes
    /// back. With --to, --log-size or --cache-size, make the files of the next server: its disks
    /// stay, and their requests wait for it.
    Log(Box<RescueLogArgs>),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Of a poisoned log, what its frames cover is brought to the store: all that a \
    FLUSH acknowledged. Volumes whose newest writes are lost are named. Nothing is replaced unless \
    everything is in the store; run it again as often as needed.\n\n\
    A disk that has become read-only: copy the cache directory elsewhere (cp -a), then name the \
    copy with --cache."
)]
pub(crate) struct RescueLogArgs {
    /// Read settings from this TOML file of `serve`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Object store that holds the volumes. [default: ./firn-data/store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Cache directory of the stopped server. [default: ./firn-data/cache]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Directory in memory of its index rings. [default: where they are]
    #[arg(long, value_name = "DIR")]
    pub(crate) ring_dir: Option<PathBuf>,
    /// Accept a store without conditional PUT. You promise that no second server ever uses it.
    #[arg(long)]
    pub(crate) single_writer: bool,
    /// Go on without what the log holds of this volume and what can never be brought to the store, such
    /// as a tail that `firn rescue list` names. It stays in the old directory if --to is given, else
    /// it is lost. May be given several times.
    #[arg(long, value_name = "VOLUME")]
    pub(crate) without: Vec<String>,
    /// Cache directory of the next server, on another disk: it is made, and gets the list of what is
    /// attached. [default: the files are made anew in the same directory, if a size is given]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Size of the new log. [default: that of the old one]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<Size>,
    /// Size of the new read cache. [default: that of the old one]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<Size>,
}

#[derive(Debug, Args)]
pub(crate) struct TailName {
    /// Id of the tail, or the name of its volume if that has one only.
    #[arg(value_name = "TAIL")]
    pub(crate) tail: String,
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("a volume's block size is 512 or 4096".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct VolumeName {
    /// Name of the volume.
    #[arg(value_name = "VOLUME")]
    pub(crate) name: String,
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

/// A file system that `attach` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// By mkfs.ext4.
    Ext4,
    /// By mkfs.xfs.
    Xfs,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Name of the volume.
    #[arg(value_name = "VOLUME")]
    pub(crate) name: String,
    /// How to reach it. All other options apply to a ublk disk only.
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    transport: TransportChoice,
    /// How the bytes of its requests are moved. A mode that this kernel lacks is an error.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DataMode::Auto)]
    data_mode: DataMode,
    /// Hardware queues. [default: one per reactor thread, at most 4]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// Requests that one queue may have outstanding. [default: 128]
    #[arg(long, value_name = "N")]
    depth: Option<u16>,
    /// Refuse writes through this disk.
    #[arg(long)]
    read_only: bool,
    /// Do not scan its partitions when it starts (Linux 7.0).
    #[arg(long)]
    no_part_scan: bool,
    /// How long a request may wait for log space or for the store before it fails, or `wait` for no
    /// limit. [default: wait; 20s before Linux 6.15, whose driver needs an answer in time]
    #[arg(long, value_name = "TIME|wait", value_parser = park_timeout)]
    park_timeout: Option<f64>,
    /// Open the volume although its last server has not released it. What that server had not
    /// uploaded is lost; how much the store knows of it is printed on standard error. That server,
    /// should it still run, can write the volume no more. Its own tail is kept there: `firn rescue`.
    #[arg(long)]
    take_over: bool,
    /// Mount the disk here, too; the directory is made if it is missing. Nothing is done if it is mounted
    /// there already.
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Make this file system first, if the volume was never written. One that was is mounted as it is,
    /// whatever is on it.
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        requires = "mount",
        conflicts_with = "read_only"
    )]
    pub(crate) mkfs: Option<FileSystem>,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// In seconds, zero for no limit.
fn park_timeout(text: &str) -> Result<f64, String> {
    if text == "wait" {
        return Ok(0.0);
    }
    match text.parse::<TimeSpan>()?.0.as_secs_f64() {
        0.0 => Err(
            "a time-out of zero fails every request that waits; write `wait` to wait \
             without limit"
                .to_owned(),
        ),
        seconds => Ok(seconds),
    }
}

impl AttachArgs {
    /// Whether the disk takes no writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The request for the server, if its options make sense.
    pub(crate) fn request(&self) -> crate::failure::Result<AttachRequest> {
        let transport = match (self.transport, &self.mount) {
            (TransportChoice::Nbd, Some(_)) => {
                return Err(Failure::invalid(
                    "--mount needs a disk of this machine; leave --transport nbd out",
                ));
            }
            // The reason why there is no disk is worth more than a URI that cannot be mounted.
            (TransportChoice::Auto, Some(_)) => TransportChoice::Ublk,
            (asked, _) => asked,
        };
        let request = AttachRequest {
            transport,
            data_mode: Some(self.data_mode).filter(|mode| *mode != DataMode::Auto),
            queues: self.queues,
            depth: self.depth,
            read_only: self.read_only,
            no_part_scan: self.no_part_scan,
            park_timeout_seconds: self.park_timeout,
            take_over: self.take_over,
        };
        request.validate()?;
        Ok(request)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// Name of the volume.
    #[arg(value_name = "VOLUME")]
    pub(crate) name: String,
    /// Detach even if it is mounted or has clients: their requests fail.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Percentiles are of the time between two pictures; each is exact to within a quarter. \
    A script that wants numbers asks for --json, or reads /metrics."
)]
pub(crate) struct TopArgs {
    /// Time from one picture to the next.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) interval: TimeSpan,
    /// End after this many pictures.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    firn config > firn.toml              the defaults, each explained and commented out\n  \
    firn config --config firn.toml       what a server with this file would use\n  \
    firn config check firn.toml          whether a server would take this file"
)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file without starting anything.
    Check {
        /// The file.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// Cache directory of the server: names and sizes of its files are told.
    #[arg(long, value_name = "DIR", default_value = "./firn-data/cache")]
    pub(crate) cache: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Object store to check. [default: ./firn-data/store if it exists]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Cache directory to check. [default: ./firn-data/cache if it exists, else here]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Directory for index rings to check. [default: the one that `serve` chooses]
    #[arg(long, value_name = "DIR")]
    pub(crate) ring_dir: Option<PathBuf>,
    /// How long to measure the store's latency and throughput; 0s measures nothing. Without --store
    /// nothing is measured.
    #[arg(long, value_name = "TIME", default_value = "4s")]
    pub(crate) measure: TimeSpan,
    /// Recovery point of the server, for the estimate of the bill.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) rpo: TimeSpan,
    /// Volumes that are written all the time, for the estimate.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) busy_volumes: u32,
    /// Bytes that all volumes write a day, compressed, for the estimate.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub(crate) written_a_day: Size,
    /// Bytes in the store, for the estimate.
    #[arg(long, value_name = "SIZE", default_value = "100GiB")]
    pub(crate) stored: Size,
    /// Price of a thousand PUTs. The defaults are those published for S3 Standard in us-east-1, in
    /// US dollars.
    #[arg(long, value_name = "PRICE", default_value_t = 0.005)]
    pub(crate) price_puts: f64,
    /// Price of a GiB stored for a month.
    #[arg(long, value_name = "PRICE", default_value_t = 0.023)]
    pub(crate) price_gib: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_volume_is_written_as_name_and_size() {
        let volume: NewVolume = "demo=10GiB".parse().unwrap();
        assert_eq!(
            volume,
            NewVolume {
                name: "demo".into(),
                size: Size(10 << 30)
            }
        );
        for text in [
            "demo", "=10GiB", "demo=", "demo=10", "demo=ten", "a/b=1GiB", "demo=1B",
        ] {
            assert!(text.parse::<NewVolume>().is_err(), "{text}");
        }
    }
}
