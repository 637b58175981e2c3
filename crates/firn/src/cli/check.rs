//! `firn check`: reads a store by itself, without a server, and says what is damaged and what that costs.
//!
//! Never writes: it opens a directory store that is there, and makes none.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::json;
use store::{SharedStore, Store};
use volume::check::{
    CheckCounts, CheckError, CheckPort, CheckReport, Damage, DamageKind, check as check_store,
};
use volume::driver::{ComputeError, StoreError, Version};
use volume::object::{ROOT_PREFIX, volume_of_root_key};

use super::args::CheckArgs;
use super::{output, similar_name};
use crate::failure::{Failure, FailureCode, Result};
use crate::store_access::is_initialized;
use crate::store_answers::{into_engine_version, into_store_error};
use crate::units::ApproximateSize;

const DEFAULT_STORE: &str = "./firn-data/store";

/// Checks, prints what was found, and fails if something is damaged.
pub(crate) fn check(json: bool, args: &CheckArgs) -> Result<()> {
    let url = args.store.as_deref().unwrap_or(DEFAULT_STORE);
    // Opening would make a store of an empty directory, which may be the place of a missing mount.
    if !is_initialized(url) {
        return Err(Failure::new(
            FailureCode::StoreUnavailable,
            format!(
                "there is no store at {url}; if it is to be mounted there, mount it, or name another with --store"
            ),
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Failure::io("start the runtime for", Path::new(url), &source))?;
    let port = StorePort {
        store: store::with_policies(store::open_url(url)?),
        pace: args.rate.map(|rate| Pace::new(rate.0)),
        bar: output::spinner(),
    };
    let found = runtime.block_on(async {
        match check_store(&port, &args.names, args.deep).await {
            Err(error) => Err(explain(&port, error).await),
            Ok(found) => Ok(found),
        }
    });
    port.bar.finish_and_clear();
    let found = found?;
    match json {
        true => output::json(&into_json(&found))?,
        false => print(&found, args.deep)?,
    }
    match found.damage.is_empty() {
        true => Ok(()),
        false => Err(failed(&found)),
    }
}

fn failed(found: &CheckReport) -> Failure {
    let mut objects: Vec<&str> = found.damage.iter().map(|it| it.object.as_str()).collect();
    objects.sort_unstable();
    objects.dedup();
    let more = if found.has_more { "more than " } else { "" };
    Failure::new(
        FailureCode::Damaged,
        format!("{more}{} objects are damaged", objects.len()),
    )
}

fn print(found: &CheckReport, is_deep: bool) -> Result<()> {
    let rows: Vec<Vec<String>> = found.damage.iter().map(row).collect();
    if !rows.is_empty() {
        output::table(
            &["VOLUME", "OBJECT", "DAMAGE", "COSTS AT MOST", "WHY"],
            &rows,
        )?;
    }
    let counts = &found.counts;
    let looked = format!(
        "{} volumes and {} snapshots: {} index blocks and {} packs",
        counts.volumes, counts.snapshots, counts.index_blocks, counts.packs
    );
    let how = match is_deep {
        true => format!(
            "are there, and {} chunks hold what was written ({} read)",
            counts.chunks,
            ApproximateSize(counts.bytes_read)
        ),
        false => "are there; --deep reads what is in the packs, too".to_owned(),
    };
    match rows.is_empty() {
        true => output::line(&format!("{looked} {how}")),
        false => output::line(&format!("{looked} were looked for")),
    }
}

fn row(damage: &Damage) -> Vec<String> {
    let costs = match damage.bytes {
        0 => "all of it".to_owned(),
        bytes => format!("{} from byte {}", ApproximateSize(bytes), damage.offset),
    };
    vec![
        damage.volume.clone(),
        damage.object.clone(),
        kind(damage.kind).to_owned(),
        costs,
        damage.why.clone(),
    ]
}

/// A stable word for scripts.
fn kind(kind: DamageKind) -> &'static str {
    match kind {
        DamageKind::Missing => "missing",
        DamageKind::TooShort => "too-short",
        DamageKind::Corrupt => "corrupt",
        DamageKind::Newer => "newer",
        DamageKind::LostBefore => "lost-before",
    }
}

fn into_json(found: &CheckReport) -> serde_json::Value {
    let damage = found.damage.iter().map(|damage| {
        json!({
            "volume": damage.volume,
            "object": damage.object,
            "kind": kind(damage.kind),
            "why": damage.why,
            "offset": damage.offset,
            "bytes": damage.bytes,
        })
    });
    json!({
        "volumes": found.counts.volumes,
        "snapshots": found.counts.snapshots,
        "index_blocks": found.counts.index_blocks,
        "packs": found.counts.packs,
        "chunks": found.counts.chunks,
        "bytes_read": found.counts.bytes_read,
        "damage": damage.collect::<Vec<_>>(),
        "has_more": found.has_more,
    })
}

/// Why a check came to no end, with the name that may have been meant.
async fn explain(port: &StorePort, error: CheckError) -> Failure {
    let text = error.to_string();
    let code = match &error {
        CheckError::NoSuchVolume(name) if name.contains('@') => FailureCode::NoSuchSnapshot,
        CheckError::NoSuchVolume(name) => {
            let keys = port.list(ROOT_PREFIX).await.unwrap_or_default();
            let names = keys.iter().filter_map(|key| volume_of_root_key(key));
            let names: Vec<String> = names.map(str::to_owned).collect();
            let text = match similar_name::most_similar(name, &names) {
                Some(similar) => format!("{text}; did you mean {similar}?"),
                None => text,
            };
            return Failure::new(FailureCode::NoSuchVolume, text);
        }
        CheckError::BadName(..) => FailureCode::Invalid,
        CheckError::NoAnswer(..) | CheckError::Moving(_) => FailureCode::StoreFailed,
        CheckError::Bug(_) => FailureCode::Internal,
    };
    Failure::new(code, text)
}

/// The store, as the check asks for it.
struct StorePort {
    store: SharedStore,
    pace: Option<Pace>,
    bar: ProgressBar,
}

impl CheckPort for StorePort {
    async fn get(&self, key: &str) -> std::result::Result<(Vec<u8>, Version), StoreError> {
        let found = self.store.get(key).await;
        let (data, version) = found.map_err(|error| into_store_error(&error))?;
        Ok((data.into(), into_engine_version(version)))
    }

    async fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
    ) -> std::result::Result<Vec<u8>, StoreError> {
        if let Some(pace) = &self.pace {
            pace.wait(len).await;
        }
        let found = self.store.get_range(key, offset, len).await;
        Ok(found.map_err(|error| into_store_error(&error))?.into())
    }

    async fn list(&self, prefix: &str) -> std::result::Result<Vec<String>, StoreError> {
        let found = self.store.list(prefix).await;
        let found = found.map_err(|error| into_store_error(&error))?;
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::result::Result<T, ComputeError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| ComputeError(error.to_string()))
    }

    fn on_progress(&self, counts: &CheckCounts) {
        self.bar.set_message(format!(
            "{} volumes, {} snapshots, {} packs, {} read",
            counts.volumes,
            counts.snapshots,
            counts.packs,
            ApproximateSize(counts.bytes_read)
        ));
    }
}

/// Spreads reads over time.
struct Pace {
    bytes_per_second: u64,
    /// When what was asked for so far will have been read.
    free_at: Mutex<Instant>,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Pace {
        Pace {
            bytes_per_second: bytes_per_second.max(1),
            free_at: Mutex::new(Instant::now()),
        }
    }

    async fn wait(&self, bytes: u64) {
        let begin = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*free_at).max(Instant::now());
            let takes = bytes as f64 / self.bytes_per_second as f64;
            *free_at = begin + Duration::from_secs_f64(takes);
            begin
        };
        tokio::time::sleep_until(begin.into()).await;
    }
}
