//! `firn doctor`: what this machine and this store offer, what `auto` will choose, and why.
//!
//! Changes nothing, except that it writes and removes a scratch object in a store that exists. Each
//! finding says what was checked, what was found and what that means; a problem has a remedy.

mod store_measurement;

use std::path::{Path, PathBuf};
use std::time::Duration;

use reactor::{BackendChoice, BackendKind, Config, Reactor};
use serde::Serialize;

use self::store_measurement::{Estimate, StoreMeasurement};
use super::args::DoctorArgs;
use super::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::probe::{self, UblkSupport};
use crate::local_files;
use crate::units::Size;

/// How a finding affects the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Good,
    /// Works, but not as well as it could.
    Fair,
    /// `firn serve` refuses to start.
    Bad,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Finding {
            what,
            verdict,
            found: found.into(),
        }
    }
}

/// Prints the findings. Fails if one of them is bad.
pub(crate) fn doctor(json: bool, args: &DoctorArgs) -> Result<()> {
    let mut findings = local_findings(args.cache.clone(), args.ring_dir.clone());
    findings.extend(store(args));
    let control = probe::open_control();
    findings.push(ublk(&control));
    findings.push(transport(&control));
    print(json, &findings)?;
    let bad = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Bad)
        .count();
    if bad == 0 {
        return Ok(());
    }
    Err(Failure::new(
        FailureCode::Doctor,
        format!("{bad} of {} findings are bad", findings.len()),
    ))
}

/// What is found of this machine alone, as JSON.
pub(super) fn findings_without_store(cache: &Path) -> serde_json::Value {
    let mut findings = local_findings(Some(cache.to_owned()), None);
    let control = probe::open_control();
    findings.push(ublk(&control));
    findings.push(transport(&control));
    serde_json::json!(findings)
}

fn local_findings(cache: Option<PathBuf>, ring_dir: Option<PathBuf>) -> Vec<Finding> {
    let cache = existing_dir(cache, "./firn-data/cache");
    let ring_dir = ring_dir.unwrap_or_else(|| local_files::ring_dir::choose(&cache));
    let mut findings = vec![
        kernel(),
        io_uring(),
        log_io(&cache),
        rings(&ring_dir),
        memory(),
    ];
    findings.extend(memory_of_server(&cache));
    findings.extend(orphaned_rings(&ring_dir));
    findings
}

fn print(json: bool, findings: &[Finding]) -> Result<()> {
    if json {
        return output::json(&serde_json::json!({ "findings": findings }));
    }
    let rows: Vec<Vec<String>> = findings
        .iter()
        .map(|finding| {
            let verdict = match finding.verdict {
                Verdict::Good => "good",
                Verdict::Fair => "fair",
                Verdict::Bad => "BAD",
            };
            vec![
                finding.what.to_owned(),
                verdict.to_owned(),
                finding.found.clone(),
            ]
        })
        .collect();
    output::table(&["WHAT", "", "FOUND"], &rows)
}

/// The directory to check: the one named, the default if it exists, else the current one.
fn existing_dir(named: Option<PathBuf>, default: &str) -> PathBuf {
    named.unwrap_or_else(|| {
        let default = PathBuf::from(default);
        if default.is_dir() {
            default
        } else {
            PathBuf::from(".")
        }
    })
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    Finding::new("kernel", Verdict::Good, format!("Linux {release}"))
}

fn io_uring() -> Finding {
    let only = BackendChoice::Only(BackendKind::IoUring);
    let config = Config {
        name: "doctor".to_owned(),
        backend: only,
        ..Config::default()
    };
    match Reactor::start(config) {
        Ok(_reactor) => Finding::new("io_uring", Verdict::Good, "available: NBD uses it"),
        Err(error) => Finding::new(
            "io_uring",
            Verdict::Fair,
            format!(
                "refused ({error}): NBD falls back to epoll and a thread pool. See \
                 /proc/sys/kernel/io_uring_disabled and the container's seccomp profile"
            ),
        ),
    }
}

fn log_io(dir: &Path) -> Finding {
    match local_files::direct_io_alignment_in(dir) {
        Ok(align) => Finding::new(
            "log I/O",
            Verdict::Good,
            format!(
                "auto chooses direct: {} takes multiples of {}",
                dir.display(),
                align.offset
            ),
        ),
        Err(why) => Finding::new(
            "log I/O",
            Verdict::Fair,
            format!("auto chooses buffered: {why}"),
        ),
    }
}

fn rings(dir: &Path) -> Finding {
    if let Some(why) = local_files::ring_dir::why_it_may_go(dir) {
        return Finding::new("index rings", Verdict::Fair, why);
    }
    match rustix::fs::statfs(dir) {
        Ok(stat) if stat.f_type == TMPFS_MAGIC => Finding::new(
            "index rings",
            Verdict::Good,
            format!(
                "{} is memory: completed writes survive the death of the server",
                dir.display()
            ),
        ),
        Ok(_) => Finding::new(
            "index rings",
            Verdict::Fair,
            format!(
                "{} is not memory (tmpfs): each write may wait for that disk; choose a tmpfs \
                 with --ring-dir",
                dir.display()
            ),
        ),
        Err(error) => Finding::new(
            "index rings",
            Verdict::Bad,
            format!(
                "{}: {error}; choose a directory in memory with --ring-dir",
                dir.display()
            ),
        ),
    }
}

/// Whether a server may do what keeps it from waiting for memory that lies on its own disks.
fn memory() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let flusher = rustix::process::configure_io_flusher_behavior(true);
    // This process only asked whether it may.
    let _ = rustix::process::configure_io_flusher_behavior(false);
    let mut missing = Vec::new();
    if let Some(bytes) = limit.filter(|bytes| *bytes < LOCKED_BYTES_WANTED)
        && !rustix::process::geteuid().is_root()
    {
        missing.push(format!(
            "only {} may be locked in memory; raise it with `ulimit -l` or LimitMEMLOCK=infinity",
            Size(bytes)
        ));
    }
    if flusher.is_err() {
        missing.push("PR_SET_IO_FLUSHER is refused; it needs CAP_SYS_RESOURCE".to_owned());
    }
    if missing.is_empty() {
        return Finding::new(
            "memory",
            Verdict::Good,
            "the server's memory can be locked, and its threads never wait for memory to be written \
             to a disk",
        );
    }
    Finding::new(
        "memory",
        Verdict::Fair,
        format!(
            "{}: a file system or swap on a disk of this host may hang the server when memory is short",
            missing.join("; ")
        ),
    )
}

/// What the server that runs on this cache directory has in memory, and how much of it is locked.
/// What it fetched from the store is in a file in memory, which nothing locks: reads of it are never
/// waited for by a write.
fn memory_of_server(cache: &Path) -> Option<Finding> {
    let pid = local_files::CacheDir::holder_pid(cache)?;
    let path = format!("/proc/{pid}/smaps_rollup");
    let found = std::fs::read_to_string(&path);
    let (verdict, text) = match found {
        Ok(text) => {
            let bytes = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
                kib.unwrap_or(0) << 10
            };
            let (resident, locked, swapped) = (bytes("Rss:"), bytes("Locked:"), bytes("Swap:"));
            let verdict = match locked > 0 && swapped == 0 {
                true => Verdict::Good,
                false => Verdict::Fair,
            };
            let text = format!(
                "{} in memory, {} of it not locked; {} in swap",
                Size(resident),
                Size(resident.saturating_sub(locked)),
                Size(swapped)
            );
            (verdict, text)
        }
        Err(error) => (Verdict::Fair, format!("{path} cannot be read: {error}")),
    };
    let found = format!("process {pid}: {text}");
    Some(Finding::new("server's memory", verdict, found))
}

/// What a server has in memory besides what it serves from, roughly.
const LOCKED_BYTES_WANTED: u64 = 1 << 30;

/// From linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Rings without a cache directory of which each is named.
const ORPHANS_NAMED: usize = 3;

/// Rings whose cache directory is not there: some are named, and the others counted, so that they do not hide
/// what else was found.
fn orphaned_rings(ring_dir: &Path) -> Vec<Finding> {
    describe_orphans(local_files::find_orphans(ring_dir), ring_dir)
}

fn describe_orphans(orphans: Vec<local_files::OrphanedRings>, ring_dir: &Path) -> Vec<Finding> {
    let finding = |found| Finding::new("index rings", Verdict::Fair, found);
    let others = orphans.len().saturating_sub(ORPHANS_NAMED);
    let named = orphans.iter().take(ORPHANS_NAMED).map(|orphan| {
        finding(format!(
            "{} belong to the cache directory {}, which is not there; if it is gone for good, \
             remove them",
            orphan.rings.display(),
            orphan.cache_dir.display()
        ))
    });
    let mut all: Vec<Finding> = named.collect();
    if others > 0 {
        all.push(finding(format!(
            "{others} more in {} have no cache directory; each says in its file cache-dir which it \
             was",
            ring_dir.display()
        )));
    }
    all
}

fn store(args: &DoctorArgs) -> Vec<Finding> {
    const DEFAULT: &str = "./firn-data/store";
    let url = match args.store.as_deref() {
        Some(url) => url,
        None if Path::new(DEFAULT).is_dir() => DEFAULT,
        None => {
            return vec![Finding::new(
                "store",
                Verdict::Fair,
                format!("not checked: {DEFAULT} does not exist yet; name one with --store"),
            )];
        }
    };
    // Opening would create a directory store. The doctor makes none: where a mount is missing,
    // the empty directory below it would pass for the store from then on.
    let path = url.strip_prefix("file://").unwrap_or(url);
    if !crate::store_access::is_initialized(url) {
        let found = format!(
            "{path} is no store yet: is it mounted? `firn serve` makes one there for a new cache \
             directory"
        );
        return vec![Finding::new("store", Verdict::Fair, found)];
    }
    // Measuring writes: only to a store that was named.
    let time = args
        .store
        .as_ref()
        .map_or(Duration::ZERO, |_| args.measure.0);
    match check_store(url, time) {
        Ok(checked) => describe_store(&checked, args),
        Err(failure) => vec![Finding::new("store", Verdict::Bad, failure.detail)],
    }
}

/// What is known of a store that was reached.
struct CheckedStore {
    name: String,
    report: store::ProbeReport,
    hazard: Option<String>,
    measured: Option<Result<StoreMeasurement>>,
}

fn check_store(url: &str, time: Duration) -> Result<CheckedStore> {
    let store = store::with_policies(store::open_url(url)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Failure::io("start the runtime for", Path::new(url), &source))?;
    runtime.block_on(async {
        let report = store::probe(&store, true).await?;
        let measured = if time.is_zero() {
            None
        } else {
            let measured = store_measurement::measure(&store, time).await;
            Some(measured.map_err(Failure::from))
        };
        Ok(CheckedStore {
            name: store::Store::name(&store),
            report,
            hazard: store::Store::describe_hazard(&store),
            measured,
        })
    })
}

fn describe_store(checked: &CheckedStore, args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = vec![describe_conditions(checked)];
    match &checked.measured {
        Some(Ok(measured)) => findings.push(describe_speed(measured)),
        Some(Err(failure)) => {
            findings.push(Finding::new(
                "store speed",
                Verdict::Bad,
                failure.detail.clone(),
            ));
        }
        None => {}
    }
    if args.store.is_some() {
        findings.push(describe_bill(store_measurement::estimate(args), args));
    }
    findings
}

fn describe_conditions(checked: &CheckedStore) -> Finding {
    let CheckedStore { name, report, .. } = checked;
    if report.can_fence() {
        let how = match report.bare_tags {
            true => " (If-Match without the quotes of an ETag)",
            false => "",
        };
        let found = format!("{name}: conditional PUT works{how}, so a second server is kept out");
        return Finding::new("store", Verdict::Good, found);
    }
    if let Some(hazard) = &checked.hazard {
        let found = format!(
            "{name}: {hazard}, so a second server could not be kept out; `serve` takes it only \
             with --single-writer"
        );
        return Finding::new("store", Verdict::Bad, found);
    }
    Finding::new(
        "store",
        Verdict::Bad,
        format!(
            "{name}: no conditional PUT ({}), so a second server could not be kept out; `serve` \
             takes it only with --single-writer",
            failed_conditions(report).join(", ")
        ),
    )
}

fn failed_conditions(report: &store::ProbeReport) -> Vec<&'static str> {
    use store::Condition::{NobodyWins, OneWins, SeveralWin};
    let create = match report.create {
        OneWins => None,
        SeveralWin => Some("create-if-absent lets two writers win"),
        NobodyWins => Some("create-if-absent refuses every writer, though nothing is there"),
    };
    let update = match report.update {
        OneWins => None,
        SeveralWin => Some("update-if-unchanged lets a stale writer win"),
        NobodyWins => {
            Some("update-if-unchanged refuses every writer, those of the right version too")
        }
    };
    let missing = "update-if-unchanged brings back what was deleted";
    let missing = (!report.update_of_missing).then_some(missing);
    [create, update, missing].into_iter().flatten().collect()
}

/// A store that answers later than this makes every cold read feel slow.
const SLOW_GET_MS: f64 = 200.0;

fn describe_speed(measured: &StoreMeasurement) -> Finding {
    let StoreMeasurement {
        put,
        get,
        put_mib_per_second,
        get_mib_per_second,
    } = measured;
    let verdict = if get.median_ms > SLOW_GET_MS {
        Verdict::Fair
    } else {
        Verdict::Good
    };
    Finding::new(
        "store speed",
        verdict,
        format!(
            "4 KiB: PUT {:.1} ms (p99 {:.1}), GET {:.1} ms (p99 {:.1}); 8 at once: PUT \
             {put_mib_per_second:.0} MiB/s, GET {get_mib_per_second:.0} MiB/s",
            put.median_ms, put.p99_ms, get.median_ms, get.p99_ms
        ),
    )
}

fn describe_bill(estimate: Estimate, args: &DoctorArgs) -> Finding {
    Finding::new(
        "store bill",
        Verdict::Good,
        format!(
            "an estimate: at most {:.2} a month, {:.2} of it for {:.0} PUTs and {:.2} for {} stored; with \
             --busy-volumes {}, --written-a-day {}, --rpo {}; cold reads and traffic not included \
             (--price-puts {}, --price-gib {})",
            estimate.total(),
            estimate.requests_cost,
            estimate.puts,
            estimate.bytes_cost,
            args.stored,
            args.busy_volumes,
            args.written_a_day,
            args.rpo,
            args.price_puts,
            args.price_gib
        ),
    )
}

fn ublk(control: &UblkSupport) -> Finding {
    match control {
        Ok(control) => Finding::new(
            "ublk",
            Verdict::Good,
            format!(
                "/dev/ublk-control can be used; features: {}",
                control.features()
            ),
        ),
        Err(why) => Finding::new("ublk", Verdict::Fair, why.detail.clone()),
    }
}

/// Which transport and data mode `firn attach` chooses, and why.
fn transport(control: &UblkSupport) -> Finding {
    let control = match control {
        Ok(control) => control,
        Err(_) => {
            let found = "auto chooses nbd: ublk cannot be used";
            return Finding::new("transport", Verdict::Good, found);
        }
    };
    match probe::auto_mode(control) {
        Ok((mode, better)) => {
            let mut found = format!("auto chooses ublk, data mode {}", mode.as_str());
            for missing in better {
                found.push_str(&format!("; without {missing}"));
            }
            Finding::new("transport", Verdict::Good, found)
        }
        Err(failure) => Finding::new("transport", Verdict::Bad, failure.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rings_without_a_cache_directory_are_some_names_and_a_count() {
        let orphans = |count: usize| {
            let one = |n| local_files::OrphanedRings {
                rings: format!("/rings/{n}").into(),
                cache_dir: format!("/cache/{n}").into(),
            };
            describe_orphans((0..count).map(one).collect(), Path::new("/rings"))
        };
        assert_eq!(orphans(0).len(), 0);
        assert_eq!(orphans(ORPHANS_NAMED).len(), ORPHANS_NAMED);
        let many = orphans(ORPHANS_NAMED + 40);
        assert_eq!(many.len(), ORPHANS_NAMED + 1);
        let last = &many[ORPHANS_NAMED].found;
        assert!(last.starts_with("40 more in /rings"), "{last}");
    }

    #[test]
    fn a_store_that_refuses_every_replacement_is_not_said_to_let_a_stale_writer_win() {
        use store::Condition::{NobodyWins, OneWins, SeveralWin};
        let describe = |update| {
            let report = store::ProbeReport {
                create: OneWins,
                update,
                update_of_missing: true,
                fresh_versions: true,
                bare_tags: false,
                keeps_hosts_apart: true,
            };
            describe_conditions(&CheckedStore {
                name: "s3://disks".to_owned(),
                report,
                hazard: None,
                measured: None,
            })
        };
        let refused = describe(NobodyWins);
        assert_eq!(refused.verdict, Verdict::Bad);
        assert!(
            refused.found.contains("refuses every writer"),
            "{refused:?}"
        );
        assert!(!refused.found.contains("stale"), "{refused:?}");
        assert!(
            describe(SeveralWin)
                .found
                .contains("lets a stale writer win")
        );
        assert_eq!(describe(OneWins).verdict, Verdict::Good);
    }
}
