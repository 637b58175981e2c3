//! The settings of `serve`: flags override the configuration file, which overrides the defaults.
//!
//! One struct, filled once; nothing below reads flags, the file or the environment. An unknown name
//! in the file is an error: a misspelt `log-sise` must not silently mean the default.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nbd::server::{Listen, ListenError};

use crate::access::Role;
use crate::api_address::{ApiAddress, SOCKET_DEFAULT, TOKENS_DEFAULT};
use crate::cli::args::{LogIo, NewVolume, OpenListener, Sandbox, ServeArgs, SnapshotSchedule};
use crate::failure::{Failure, Result};
use crate::frontends::nbd_access::{NbdProof, NbdTls};
use crate::local_files::ring_dir;
use crate::spans;
use crate::store_faults::StoreFaultPlan;
use crate::units::{Interval, Size, TimeSpan};

const DATA_DIR: &str = "./firn-data";
/// Sizes of new local files unless they are given, on a disk with room; see [`share_of`].
const LOG_SIZE_DEFAULT: u64 = 1 << 30;
const CACHE_SIZE_DEFAULT: u64 = 4 << 30;
/// Smallest read cache that is chosen.
const CACHE_SIZE_LEAST: u64 = 16 << 20;
/// The smallest one that can be asked for, but for none at all: a region of the engine's.
const CACHE_SIZE_MIN: u64 = 64 << 10;
/// Smallest log: it holds a few of the largest writes and leaves room to reclaim.
const LOG_SIZE_MIN: u64 = 64 << 20;
/// Smallest log if --segment-size makes the segments small.
const LOG_SIZE_MIN_SMALL: u64 = 4 << 20;
/// Smallest segment: its header and one block.
const SEGMENT_SIZE_MIN: u64 = 8 << 10;
/// Smallest number of segments of a log: with fewer, none could be reused while others fill.
const SEGMENTS_MIN: u64 = 16;
/// How often a server collects garbage, unless it is told. The first pass comes after a sixteenth to an eighth of it.
const GC_DEFAULT: Interval = Interval(Some(Duration::from_secs(6 * 3600)));
/// How often open volumes are looked at for something to compact, unless the server is told; closed ones at every sixth look.
const COMPACT_DEFAULT: Interval = Interval(Some(Duration::from_secs(600)));
/// In what time the local disk is scrubbed once, unless the server is told.
const SCRUB_DEFAULT: Interval = Interval(Some(Duration::from_secs(7 * 24 * 3600)));
/// Sizes of local files are multiples of this.
const FILE_UNIT: u64 = 4096;
/// How long a deleted volume is kept in the trash.
const TRASH_KEEP_DEFAULT: Duration = Duration::from_secs(24 * 3600);
const RPO_DEFAULT: Duration = Duration::from_secs(30);
const SLOW_REQUEST_DEFAULT: Duration = Duration::from_secs(1);

/// Where a server listens for its API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiListen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl fmt::Display for ApiListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiListen::Unix(path) => write!(f, "unix:{}", path.display()),
            ApiListen::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

/// The settings of the API: where it is, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct ApiSettings {
    pub(crate) listen: Vec<ApiListen>,
    /// The directory of the tokens that TCP wants.
    pub(crate) tokens: PathBuf,
    /// What the server's group may do over the Unix sockets; none: it cannot reach them.
    pub(crate) group: Option<Role>,
    /// Names of proxies before it, to which it answers.
    pub(crate) hosts: Vec<String>,
    /// TCP wants no token.
    pub(crate) insecure: bool,
}

/// What a control plane is told.
#[derive(Clone, Debug)]
pub(crate) struct ControlSettings {
    /// What is older is uploaded.
    pub(crate) rpo: Duration,
    /// Requests that take as long as this are logged.
    pub(crate) slow_request: Duration,
    /// How often it makes a pass of the garbage collector.
    pub(crate) gc: Interval,
    /// How often open volumes are looked at for something to compact.
    pub(crate) compact: Interval,
    /// In what time the local disk is scrubbed once.
    pub(crate) scrub: Interval,
    /// How long a deleted volume is kept in the trash; zero: not at all.
    pub(crate) trash_keep: Duration,
    /// Snapshots that it takes by itself.
    pub(crate) snapshot_schedules: Vec<SnapshotSchedule>,
    /// Size of the read cache's file.
    pub(crate) cache_size: Size,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) store: String,
    pub(crate) cache: PathBuf,
    pub(crate) api: ApiSettings,
    pub(crate) nbd: Vec<Listen>,
    pub(crate) nbd_tls: Option<NbdTls>,
    pub(crate) volumes: Vec<NewVolume>,
    pub(crate) rpo: Duration,
    /// How often garbage is collected.
    pub(crate) gc: Interval,
    /// How often open volumes are looked at for something to compact.
    pub(crate) compact: Interval,
    /// In what time the local disk is scrubbed once.
    pub(crate) scrub: Interval,
    /// How long a deleted volume is kept in the trash.
    pub(crate) trash_keep: Duration,
    /// Snapshots that it takes by itself.
    pub(crate) snapshot_schedules: Vec<SnapshotSchedule>,
    /// `None`: the size of the existing log, or the default for a new one.
    pub(crate) log_size: Option<Size>,
    /// `None`: that of the existing log, or one that suits the size of a new one.
    pub(crate) segment_size: Option<Size>,
    pub(crate) cache_size: Option<Size>,
    /// What is free where the local files are or will be; `None` if that cannot be told.
    pub(crate) free_bytes: Option<u64>,
    pub(crate) ring_dir: PathBuf,
    pub(crate) log_io: LogIo,
    /// Where spans go, if anywhere.
    pub(crate) otlp_endpoint: Option<String>,
    /// That was asked for here, and not in the environment.
    pub(crate) needs_spans: bool,
    pub(crate) sandbox: Sandbox,
    /// The file with these settings.
    pub(crate) file: Option<PathBuf>,
    /// Requests that take as long as this are logged.
    pub(crate) slow_request: Duration,
    pub(crate) single_writer: bool,
    pub(crate) store_faults: Option<StoreFaultPlan>,
}

/// As other programs find it. It may be meant for those, with another protocol: one that cannot be used keeps no server from
/// its start.
fn otlp_endpoint_of_environment() -> Option<String> {
    let endpoint = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty())?;
    match spans::check_endpoint(&endpoint) {
        Ok(()) => Some(endpoint),
        Err(failure) => {
            tracing::warn!(%failure, "no spans are sent: OTEL_EXPORTER_OTLP_ENDPOINT of the environment cannot be used");
            None
        }
    }
}

fn time_or(given: Option<TimeSpan>, default: Duration) -> Duration {
    given.map_or(default, |time| time.0)
}

/// Whether a server can keep this recovery point.
pub(crate) fn check_rpo(rpo: Duration) -> Result<()> {
    match rpo.is_zero() {
        true => Err(Failure::invalid(
            "--rpo must be more than nothing; write for example 30s",
        )),
        false => Ok(()),
    }
}

/// Whether a read cache can have this size: one of less than a region could never get another.
pub(crate) fn check_cache_size(size: Size) -> Result<()> {
    let is_possible = size.0 == 0 || size.0 >= CACHE_SIZE_MIN;
    match is_possible && size.0.is_multiple_of(FILE_UNIT) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "--cache-size {size} must be 0B for none, or at least {} and a multiple of 4096 bytes",
            Size(CACHE_SIZE_MIN)
        ))),
    }
}

/// Whether a server can keep these schedules side by side.
pub(crate) fn check_schedules(schedules: &[SnapshotSchedule]) -> Result<()> {
    for (at, schedule) in schedules.iter().enumerate() {
        let is_same = |other: &SnapshotSchedule| {
            other.volume == schedule.volume && other.every == schedule.every
        };
        if schedules[..at].iter().any(is_same) {
            return Err(Failure::invalid(format!(
                "--snapshot-schedule {schedule}: there is another one of the same volume and time"
            )));
        }
    }
    Ok(())
}

/// Lists are not merged: that of the flags counts, if there is one.
fn listed<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
    if flags.is_empty() { file } else { flags }
}

impl Settings {
    /// Merges flags with the file they name. `api` is what `--api` gives.
    pub(crate) fn new(api: &[String], flags: ServeArgs) -> Result<Self> {
        let file = match &flags.config {
            Some(path) => read_file(path)?,
            None => ServeArgs::default(),
        };
        let insecure = listed(flags.insecure, file.insecure);
        let cache = flags
            .cache
            .or(file.cache)
            .unwrap_or_else(|| PathBuf::from(format!("{DATA_DIR}/cache")));
        let nbd_tls = nbd_tls(
            flags.nbd_tls.or(file.nbd_tls),
            flags.nbd_tls_psk.or(file.nbd_tls_psk),
            flags.nbd_tls_required || file.nbd_tls_required,
            flags.nbd_access.or(file.nbd_access),
        )?;
        let otlp_endpoint = flags.otlp_endpoint.or(file.otlp_endpoint);
        let settings = Settings {
            store: flags
                .store
                .or(file.store)
                .unwrap_or_else(|| format!("{DATA_DIR}/store")),
            api: ApiSettings {
                listen: api_addresses(listed(api.to_vec(), file.api))?,
                tokens: flags
                    .api_tokens
                    .or(file.api_tokens)
                    .unwrap_or_else(|| PathBuf::from(TOKENS_DEFAULT)),
                group: flags.api_group.or(file.api_group),
                hosts: listed(flags.api_host, file.api_host),
                insecure: insecure.contains(&OpenListener::Api),
            },
            nbd: nbd_addresses(
                listed(flags.nbd, file.nbd),
                nbd_tls.as_ref().is_some_and(NbdTls::knows_everybody)
                    || insecure.contains(&OpenListener::Nbd),
            )?,
            nbd_tls,
            volumes: listed(flags.volume, file.volume),
            snapshot_schedules: listed(flags.snapshot_schedule, file.snapshot_schedule),
            rpo: time_or(flags.rpo.or(file.rpo), RPO_DEFAULT),
            gc: flags.gc.or(file.gc).unwrap_or(GC_DEFAULT),
            compact: flags.compact.or(file.compact).unwrap_or(COMPACT_DEFAULT),
            scrub: flags.scrub.or(file.scrub).unwrap_or(SCRUB_DEFAULT),
            trash_keep: time_or(flags.trash_keep.or(file.trash_keep), TRASH_KEEP_DEFAULT),
            log_size: flags.log_size.or(file.log_size),
            segment_size: flags.segment_size.or(file.segment_size),
            cache_size: flags.cache_size.or(file.cache_size),
            ring_dir: flags
                .ring_dir
                .or(file.ring_dir)
                .unwrap_or_else(|| ring_dir::choose(&cache)),
            free_bytes: free_bytes(&cache),
            cache,
            needs_spans: otlp_endpoint.is_some(),
            otlp_endpoint: otlp_endpoint.or_else(otlp_endpoint_of_environment),
            sandbox: flags.sandbox.or(file.sandbox).unwrap_or(Sandbox::Off),
            file: flags.config,
            log_io: flags.log_io.or(file.log_io).unwrap_or(LogIo::Auto),
            slow_request: time_or(
                flags.slow_request.or(file.slow_request),
                SLOW_REQUEST_DEFAULT,
            ),
            single_writer: flags.single_writer || file.single_writer,
            store_faults: flags.planned_store_faults,
        };
        settings.check()?;
        Ok(settings)
    }

    /// What its control plane is told. The size of the read cache is that of the file if none is configured.
    pub(crate) fn control(&self, cache_bytes: u64) -> ControlSettings {
        ControlSettings {
            rpo: self.rpo,
            slow_request: self.slow_request,
            gc: self.gc,
            compact: self.compact,
            scrub: self.scrub,
            trash_keep: self.trash_keep,
            snapshot_schedules: self.snapshot_schedules.clone(),
            cache_size: self.cache_size.unwrap_or(Size(cache_bytes)),
        }
    }

    /// The settings of a server that is like this one and has other local files.
    pub(crate) fn with_files(&self, cache: PathBuf, log: Size, read_cache: Size) -> Result<Self> {
        let settings = Settings {
            cache,
            log_size: Some(log),
            segment_size: None,
            cache_size: Some(read_cache),
            ..self.clone()
        };
        settings.check()?;
        Ok(settings)
    }

    /// Size of a new log. Its space is taken when it is made, so that no write is ever refused for want
    /// of it: unless told, it is a sixteenth of what is free.
    pub(crate) fn new_log_bytes(&self) -> u64 {
        let chosen = || share_of(self.free_bytes, 16, LOG_SIZE_MIN, LOG_SIZE_DEFAULT);
        self.log_size.map_or_else(chosen, |size| size.0)
    }

    /// Size of a new cache: unless told, a quarter of what is free.
    pub(crate) fn new_cache_bytes(&self) -> u64 {
        let chosen = || share_of(self.free_bytes, 4, CACHE_SIZE_LEAST, CACHE_SIZE_DEFAULT);
        self.cache_size.map_or_else(chosen, |size| size.0)
    }

    fn check(&self) -> Result<()> {
        for (at, volume) in self.volumes.iter().enumerate() {
            if self.volumes[..at]
                .iter()
                .any(|other| other.name == volume.name)
            {
                return Err(Failure::invalid(format!(
                    "volume {} is given twice; name each volume once",
                    volume.name
                )));
            }
        }
        if let Some(endpoint) = &self.otlp_endpoint {
            spans::check_endpoint(endpoint)?;
        }
        check_schedules(&self.snapshot_schedules)?;
        self.check_log()?;
        check_cache_size(Size(self.new_cache_bytes()))?;
        check_rpo(self.rpo)
    }

    fn check_log(&self) -> Result<()> {
        let log = self.new_log_bytes();
        let least = match self.segment_size {
            Some(_) => LOG_SIZE_MIN_SMALL,
            None => LOG_SIZE_MIN,
        };
        if log < least || !log.is_multiple_of(FILE_UNIT) {
            return Err(Failure::invalid(format!(
                "--log-size {} must be at least {} and a multiple of 4096 bytes",
                Size(log),
                Size(least)
            )));
        }
        match self.segment_size {
            Some(Size(segment))
                if segment < SEGMENT_SIZE_MIN
                    || !segment.is_multiple_of(FILE_UNIT)
                    || segment > log / SEGMENTS_MIN =>
            {
                Err(Failure::invalid(format!(
                    "--segment-size {} must be a multiple of 4096 bytes from {} to a {SEGMENTS_MIN}th \
                     of the log, here {}; leave it out to have it chosen",
                    Size(segment),
                    Size(SEGMENT_SIZE_MIN),
                    Size(log / SEGMENTS_MIN)
                )))
            }
            _ => Ok(()),
        }
    }
}

/// A power of two that is at most the given part of what is free, within bounds.
fn share_of(free_bytes: Option<u64>, part: u64, least: u64, most: u64) -> u64 {
    let share = free_bytes.map_or(most, |free| free / part);
    let power = 1 << share.max(1).ilog2();
    u64::clamp(power, least, most)
}

/// What this user may still take on the file system where `dir` is, or will be made.
fn free_bytes(dir: &Path) -> Option<u64> {
    let dir = std::path::absolute(dir).ok()?;
    let found = dir
        .ancestors()
        .find_map(|dir| rustix::fs::statvfs(dir).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// What a configuration file says.
pub(crate) fn read_file(path: &Path) -> Result<ServeArgs> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Failure::io("read the configuration", path, &source))?;
    toml::from_str(&text)
        .map_err(|source| Failure::invalid(format!("configuration {}: {source}", path.display())))
}

/// TLS over NBD; without certificates or keys there is none to be required.
fn nbd_tls(
    dir: Option<PathBuf>,
    keys: Option<PathBuf>,
    required: bool,
    access: Option<PathBuf>,
) -> Result<Option<NbdTls>> {
    let proof = match (dir, keys) {
        (Some(dir), None) => NbdProof::Certificates(dir),
        (None, Some(file)) => NbdProof::Keys(file),
        (Some(_), Some(_)) => {
            return Err(Failure::invalid(
                "--nbd-tls and --nbd-tls-psk exclude each other: a server's NBD clients have certificates or keys; \
                 give one of the two",
            ));
        }
        (None, None) if required || access.is_some() => {
            return Err(Failure::invalid(
                "--nbd-tls-required and --nbd-access need --nbd-tls DIR, the directory of the server's \
                 certificate, or --nbd-tls-psk FILE, the keys of clients",
            ));
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(NbdTls {
        proof,
        required,
        access,
    }))
}

/// Without an access list NBD asks nobody who he is: beyond the loopback address that takes a word of
/// the operator's.
fn nbd_addresses(given: Vec<String>, may_be_remote: bool) -> Result<Vec<Listen>> {
    if given.is_empty() {
        return Ok(vec![
            Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809))),
            Listen::Unix(PathBuf::from(format!("{DATA_DIR}/nbd.sock"))),
        ]);
    }
    let parse = |text: &String| {
        let listen: Listen = text
            .parse()
            .map_err(|error: ListenError| Failure::invalid(format!("--nbd: {error}")))?;
        match listen {
            Listen::Tcp(address) if !address.ip().is_loopback() && !may_be_remote => {
                Err(Failure::invalid(format!(
                    "--nbd {address} would serve every volume to whoever reaches that address, without \
                     authentication; give --nbd-access, or --nbd-tls-psk with --nbd-tls-required, listen on \
                     127.0.0.1 or a Unix socket, or say --insecure nbd"
                )))
            }
            listen => Ok(listen),
        }
    };
    given.iter().map(parse).collect()
}

fn api_addresses(given: Vec<String>) -> Result<Vec<ApiListen>> {
    if given.is_empty() {
        return Ok(vec![ApiListen::Unix(PathBuf::from(SOCKET_DEFAULT))]);
    }
    given
        .iter()
        .map(|text| match text.parse()? {
            ApiAddress::Unix(path) => Ok(ApiListen::Unix(path)),
            ApiAddress::Tcp(authority) => socket_address(&authority).map(ApiListen::Tcp),
        })
        .collect()
}

fn socket_address(text: &str) -> Result<SocketAddr> {
    let named = text
        .strip_prefix("localhost:")
        .map(|port| format!("127.0.0.1:{port}"));
    named.as_deref().unwrap_or(text).parse().map_err(|_| {
        Failure::invalid(format!(
            "--api {text:?} is not an address to listen on; write unix:PATH or IP:PORT, for example \
             127.0.0.1:7070"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: ServeArgs) -> Result<Settings> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("firn.toml");
        std::fs::write(&path, text).unwrap();
        Settings::new(
            &[],
            ServeArgs {
                config: Some(path),
                ..flags
            },
        )
    }

    #[test]
    fn defaults_need_no_configuration() {
        let settings = Settings::new(&[], ServeArgs::default()).unwrap();
        assert_eq!(settings.store, "./firn-data/store");
        assert_eq!(settings.nbd.len(), 2);
        assert_eq!(settings.rpo, Duration::from_secs(30));
    }

    #[test]
    fn a_small_disk_gets_small_files_and_a_large_one_no_more_than_the_default() {
        let sizes = |free_mib: u64| {
            let free = Some(free_mib << 20);
            let log = share_of(free, 16, LOG_SIZE_MIN, LOG_SIZE_DEFAULT);
            let cache = share_of(free, 4, CACHE_SIZE_LEAST, CACHE_SIZE_DEFAULT);
            (log >> 20, cache >> 20)
        };
        assert_eq!(sizes(0), (64, 16));
        assert_eq!(sizes(200), (64, 32));
        assert_eq!(sizes(3000), (128, 512));
        assert_eq!(sizes(16_384), (1024, 4096));
        assert_eq!(sizes(1 << 30), (1024, 4096));
        assert_eq!(share_of(None, 16, LOG_SIZE_MIN, LOG_SIZE_DEFAULT), 1 << 30);
        assert!(free_bytes(Path::new("./not/yet/there")).is_some());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let text = "store = \"/a\"\nlog-size = \"2GiB\"\nvolume = [\"x=1GiB\"]\nrpo = \"5s\"\n";
        let flags = ServeArgs {
            store: Some("/b".into()),
            ..ServeArgs::default()
        };
        let settings = with_file(text, flags).unwrap();
        assert_eq!(settings.store, "/b");
        assert_eq!(settings.new_log_bytes(), 2 << 30);
        assert_eq!(settings.volumes[0].name, "x");
        assert_eq!(settings.rpo, Duration::from_secs(5));
    }

    #[test]
    fn an_unknown_name_in_the_file_is_an_error_that_names_it() {
        let error = with_file("log-sise = \"2GiB\"\n", ServeArgs::default()).unwrap_err();
        assert!(error.detail.contains("log-sise"), "{error}");
        // A loss is declared for one volume at one time, never by a line that stays in a file.
        assert!(with_file("take-over = true\n", ServeArgs::default()).is_err());
    }

    #[test]
    fn clients_of_nbd_have_certificates_or_keys_and_keys_that_are_required_let_nobody_else_in() {
        let tls = |text: &str| {
            let settings = with_file(text, ServeArgs::default())?;
            Ok::<_, Failure>(settings.nbd_tls)
        };
        let keys = "nbd-tls-psk = \"/k\"\n";
        let found = tls(keys).unwrap().unwrap();
        assert_eq!(found.proof, NbdProof::Keys("/k".into()));
        assert!(!found.required && !found.knows_everybody());
        let both = tls(&format!("{keys}nbd-tls = \"/d\"\n")).unwrap_err();
        assert!(both.detail.contains("exclude each other"), "{both}");
        let neither = tls("nbd-tls-required = true\n").unwrap_err();
        assert!(neither.detail.contains("--nbd-tls-psk FILE"), "{neither}");
        let remote = "nbd = [\"0.0.0.0:10809\"]\n";
        assert!(tls(&format!("{remote}{keys}")).is_err());
        assert!(tls(&format!("{remote}{keys}nbd-tls-required = true\n")).is_ok());
        assert!(
            tls(&format!(
                "{remote}nbd-tls = \"/d\"\nnbd-tls-required = true\n"
            ))
            .is_err()
        );
    }

    #[test]
    fn nothing_beyond_loopback_is_open_unless_it_is_called_insecure() {
        let nbd = |address: &str, insecure: Vec<OpenListener>| {
            let flags = ServeArgs {
                nbd: vec![address.into()],
                insecure,
                ..ServeArgs::default()
            };
            Settings::new(&[], flags)
        };
        for address in ["0.0.0.0:10809", "[::]:10809", "192.0.2.1:1"] {
            let failure = nbd(address, vec![OpenListener::Api]).unwrap_err();
            assert!(failure.detail.contains("--insecure nbd"), "{failure}");
            assert!(nbd(address, vec![OpenListener::Nbd]).is_ok());
        }
        assert!(nbd("[::1]:10809", Vec::new()).is_ok());
        // Over TCP the API has its tokens.
        let settings = with_file("api = [\"0.0.0.0:7070\"]", ServeArgs::default()).unwrap();
        assert!(!settings.api.insecure);
        let open = "api = [\"0.0.0.0:7070\"]\ninsecure = [\"api\"]";
        assert!(with_file(open, ServeArgs::default()).unwrap().api.insecure);
        let usual = Settings::new(&[], ServeArgs::default()).unwrap();
        let socket = ApiListen::Unix(SOCKET_DEFAULT.into());
        assert_eq!(usual.api.listen, [socket]);
    }

    #[test]
    fn segments_are_whole_blocks_and_many_in_a_log() {
        let sizes = |log: u64, segment: u64| {
            let flags = ServeArgs {
                log_size: Some(Size(log)),
                segment_size: Some(Size(segment)),
                ..ServeArgs::default()
            };
            Settings::new(&[], flags)
        };
        for (log, segment) in [(4 << 20, 8 << 10), (8 << 20, 64 << 10), (1 << 30, 64 << 20)] {
            assert!(sizes(log, segment).is_ok(), "{log} {segment}");
        }
        for (log, segment) in [
            (8 << 20, 4096),
            (8 << 20, 9000),
            (8 << 20, 1 << 20),
            (8 << 20, 0),
        ] {
            let failure = sizes(log, segment).unwrap_err();
            assert!(failure.detail.contains("--segment-size"), "{failure}");
        }
        let failure = sizes(2 << 20, 8 << 10).unwrap_err();
        assert!(failure.detail.contains("--log-size"), "{failure}");
    }

    #[test]
    fn bad_addresses_and_doubled_volumes_are_refused() {
        let on = |api: &str| Settings::new(&[api.to_owned()], ServeArgs::default());
        for api in ["", "7070", "host:70", "127.0.0.1:99999", "unix:"] {
            assert!(on(api).is_err(), "{api}");
        }
        assert!(on("localhost:7070").is_ok());
        for nbd in ["unix:", "70000", "tcp:1.2.3.4:5"] {
            let flags = ServeArgs {
                nbd: vec![nbd.into()],
                ..ServeArgs::default()
            };
            assert!(Settings::new(&[], flags).is_err(), "{nbd}");
        }
        let twice = vec!["a=1GiB".parse().unwrap(), "a=2GiB".parse().unwrap()];
        let flags = ServeArgs {
            volume: twice,
            ..ServeArgs::default()
        };
        assert!(Settings::new(&[], flags).is_err());
    }
}
