//! `firn check`: reads a store by itself, without a server, and says what is damaged and what that costs.
//!
//! Never writes, unless it is told to rebuild something.

mod rebuild;
mod store_port;

use std::collections::BTreeSet;

use serde_json::json;
use volume::check::{CheckError, CheckPort, CheckReport, Damage, DamageKind, check as check_store};
use volume::hostlog::names::INDEX_PREFIX;
use volume::object::{ROOT_PREFIX, root_key, volume_of_root_key};
use volume::rebuild::find_rootless;

use self::rebuild::Repair;
use self::store_port::{StorePort, runtime};
use super::args::CheckArgs;
use super::{output, similar_name};
use crate::failure::{Failure, FailureCode, Result};
use crate::units::ApproximateSize;

const DEFAULT_STORE: &str = "./firn-data/store";

/// Checks, prints what was found, and fails if something is damaged.
pub(crate) fn check(json: bool, args: &CheckArgs) -> Result<()> {
    let url = args.store.as_deref().unwrap_or(DEFAULT_STORE);
    if args.rebuild {
        return rebuild::rebuild(json, url, args);
    }
    let mut port = StorePort::open(url, args.rate.map(|rate| rate.0))?;
    let runtime = runtime(url)?;
    if args.repair {
        runtime.block_on(port.prove(args.single_writer))?;
    }
    let once = || {
        runtime.block_on(async {
            match check_store(&port, &args.names, args.deep).await {
                Err(error) => Err(explain(&port, error).await),
                Ok(found) => Ok(found),
            }
        })
    };
    let mut found = once();
    let mut repaired = Vec::new();
    if args.repair
        && let Ok(damaged) = &found
        && !rebuildable(damaged).is_empty()
    {
        for name in rebuildable(damaged) {
            repaired.push(runtime.block_on(rebuild::repair(&port, name)));
        }
        found = once();
    }
    port.end_progress();
    let found = found?;
    match json {
        true => output::json(&into_json(&found, &repaired))?,
        false => {
            for repair in &repaired {
                output::line(&repair.text())?;
            }
            print(&found, args.deep)?;
        }
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
    }?;
    for name in rebuildable(found) {
        output::line(&format!(
            "{name}: `firn check --rebuild {name}` makes its index anew from its packs"
        ))?;
    }
    Ok(())
}

/// The volumes and snapshots whose damage is in what a rebuild makes anew.
fn rebuildable(found: &CheckReport) -> BTreeSet<&str> {
    let damage = found.damage.iter().filter(|damage| {
        let is_lost = !matches!(damage.kind, DamageKind::Newer);
        let is_root = damage.object == root_key(&damage.volume) && !damage.volume.contains('@');
        is_lost && (is_root || damage.object.starts_with(INDEX_PREFIX))
    });
    damage.map(|damage| damage.volume.as_str()).collect()
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

fn into_json(found: &CheckReport, repaired: &[Repair]) -> serde_json::Value {
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
        "rebuildable": rebuildable(found),
        "repaired": repaired.iter().map(Repair::json).collect::<Vec<_>>(),
    })
}

/// Why a check came to no end, with the name that may have been meant.
async fn explain(port: &StorePort, error: CheckError) -> Failure {
    let text = error.to_string();
    let code = match &error {
        CheckError::NoSuchVolume(name) | CheckError::Renamed(name, _) if name.contains('@') => {
            FailureCode::NoSuchSnapshot
        }
        CheckError::Renamed(..) => FailureCode::NoSuchVolume,
        CheckError::NoSuchVolume(name) => {
            let lost = find_rootless(port).await.unwrap_or_default();
            if let Some(lost) = lost.iter().find(|lost| lost.name == *name) {
                return Failure::new(
                    FailureCode::RootMissing,
                    format!(
                        "the root of {name} is not in the store, and {} packs of it are: `firn check --rebuild {name}` \
                         makes its index anew from them",
                        lost.packs
                    ),
                );
            }
            let keys = port.list(ROOT_PREFIX).await.unwrap_or_default();
            let names = keys.iter().filter_map(|(key, _)| volume_of_root_key(key));
            let names: Vec<String> = names.map(str::to_owned).collect();
            let text = match similar_name::most_similar(name, &names) {
                Some(similar) => format!("{text}; did you mean {similar}?"),
                None => text,
            };
            return Failure::new(FailureCode::NoSuchVolume, text);
        }
        CheckError::BadName(..) => FailureCode::Invalid,
        CheckError::NoAnswer(..) | CheckError::Moving(_) | CheckError::NamesMoving => {
            FailureCode::StoreFailed
        }
        CheckError::Bug(_) => FailureCode::Internal,
    };
    Failure::new(code, text)
}
