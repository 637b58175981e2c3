//! `firn serve`: its flags, which are the settings of the configuration file, too.
//!
//! Only parses, as all of `args`. Defaults that depend on the machine are not chosen here: an absent
//! flag stays absent, so that the file may say it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::schedule::SnapshotSchedule;
use crate::access::Role;
use crate::store_faults::StoreFaultPlan;
use crate::units::{Interval, Size, TimeSpan};

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
    /// Beyond the loopback address it takes --nbd-access, --nbd-tls-psk with --nbd-tls-required, or --insecure nbd.
    /// [default: 127.0.0.1:10809 and unix:./firn-data/nbd.sock]
    #[arg(long, value_name = "ADDR|unix:PATH")]
    pub(crate) nbd: Vec<String>,

    /// Offer TLS to NBD clients, with server-cert.pem and server-key.pem of this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) nbd_tls: Option<PathBuf>,

    /// Offer TLS to NBD clients, with the pre-shared keys of this file, in place of certificates: NAME:HEXKEY on each
    /// line, as `psktool` writes it and nbdkit, libnbd and QEMU read it. None but the owner may be able to read it.
    #[arg(long, value_name = "FILE")]
    pub(crate) nbd_tls_psk: Option<PathBuf>,

    /// Refuse NBD clients that do not use TLS.
    #[arg(long)]
    #[serde(default)]
    pub(crate) nbd_tls_required: bool,

    /// Let NBD clients use what this file lists for them, and nothing else: on each line a DNS name of
    /// the client's certificate, or the name of its key, and volumes, or * for all. Certificates must be signed by
    /// ca-cert.pem of the directory of --nbd-tls; a client without certificate or key is refused.
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

    /// Time between two passes of the garbage collector, or off. Each reads the index of all volumes of the
    /// store; what one pass finds is removed by the next one of any server. The first comes after a sixteenth to an
    /// eighth of it. [default: 6h]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) gc: Option<Interval>,

    /// Time between two looks whether packs of open volumes have much garbage, or random writes scattered a range:
    /// what is alive of them is then written anew, at 16 MiB a second. At every sixth look volumes that nobody has open are
    /// looked at, too, those that this server was the last to write to: one with something to do is opened for that, and
    /// given to whoever wants it. off: packs go only when nothing in them is alive. [default: 10m]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) compact: Option<Interval>,

    /// Time in which what lies on the local disk and in the store, too, is read once and proven by its checksums, at 8 MiB a
    /// second at most; or off. What is damaged is read from the store from then on. [default: 168h]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) scrub: Option<Interval>,

    /// How long a deleted volume is kept in the trash, from where `firn trash restore` brings it back. Once the time is
    /// over it goes with the next pass of the garbage collector of any server. 0s: it is deleted at once. [default: 24h]
    #[arg(long, value_name = "TIME")]
    pub(crate) trash_keep: Option<TimeSpan>,

    /// Take snapshots of a volume by itself while it is open here, one in each TIME in which it was written to, and keep the
    /// newest N of them. * stands for each volume. They are called auto-TIME-UTC and have the label schedule=TIME; no
    /// other snapshot is ever removed, and one of them that is attached stays until it is not. May be given several
    /// times: demo=1h,keep=24 and demo=168h,keep=8 go side by side.
    #[arg(long, value_name = "VOLUME=TIME,keep=N")]
    pub(crate) snapshot_schedule: Vec<SnapshotSchedule>,

    /// Size of the write-back log. It bounds how much can be written while the store is
    /// unreachable, and how long recovery takes. Its space is taken at once, and its size fixed, when
    /// the cache directory is created. [default: a 16th of what is free there, 64MiB to 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<Size>,

    /// Size of one segment of the log, for tests: small ones are sealed and reused often. Fixed when
    /// the cache directory is created. [default: chosen by the log's size]
    #[arg(long, value_name = "SIZE", hide = true)]
    pub(crate) segment_size: Option<Size>,

    /// Size of the read cache, which takes space as it fills. Without it a cache keeps the size that it has; with it one of
    /// another size begins empty. `firn config set cache-size=SIZE` changes it while the server runs.
    /// [default of a new one: a quarter of what is free there, 16MiB to 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<Size>,

    /// Collector of OpenTelemetry spans (OTLP over HTTP), to which requests of the API, snapshots by schedule and upgrades are told:
    /// http://HOST:4318. Headers that it wants are in OTEL_EXPORTER_OTLP_HEADERS. [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT of the environment, else none]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,

    /// Give up, for good, access to all files but those that these settings name and what a program of the system needs: the
    /// kernel refuses the rest (Landlock). A program for `firn upgrade` has to be below /usr or /opt, or in the directory of the
    /// one that runs; settings that name other files take a stop and a start. [default: off; auto in the package]
    #[arg(long, value_name = "MODE")]
    pub(crate) sandbox: Option<Sandbox>,

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

    /// Stop when standard input ends: the server of a command, which ends with it.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) stop_with_stdin: bool,

    /// Say whether this program can take the place of a running server, and end; see `server/handover`.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub(crate) handover_check: bool,
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

/// Whether the server gives up access to files that it does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sandbox {
    /// Where the kernel has Landlock.
    Auto,
    /// It keeps what its user may do.
    Off,
    /// An error where the kernel does not have it.
    Require,
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

#[cfg(test)]
mod tests {
    use super::*;

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
