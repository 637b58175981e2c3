//! The self-test that decides whether a store can be trusted with a volume.
//!
//! firn's fencing (S7) stands on two conditions: create-if-absent and compare-and-swap, both
//! decided by the store, one winner each. A store that accepts the headers and ignores them
//! would let two hosts write one volume, so firn asks before it serves: on a scratch key of its
//! own, which it removes again, in sequence and with several requests at once.

use bytes::Bytes;
use futures_util::future::join_all;

use crate::{Error, Kind, Op, Result, Store, Version};

/// How many requests race for one key.
const RACERS: usize = 4;

/// What the probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// `create` refuses an existing object, and exactly one of several at once wins.
    pub create: bool,
    /// `update` refuses a stale version, and exactly one of several at once wins.
    pub update: bool,
    /// Identical content written again has a new version. Not needed, worth knowing.
    pub fresh_versions: bool,
}

impl ProbeReport {
    /// Whether volumes can be fenced on this store.
    pub fn can_fence(&self) -> bool {
        self.create && self.update
    }
}

/// Tests `store` on a scratch key, and refuses it with [`Kind::Unsupported`] when it lacks
/// conditional PUT, unless `single_writer` vouches that no second server exists (then wrap the
/// store in [`crate::SingleWriterStore`]).
///
/// A store that cannot be reached, or that refuses the credentials, is an error either way.
pub async fn probe(store: &dyn Store, single_writer: bool) -> Result<ProbeReport> {
    let key = format!("probe/{:032x}", fastrand::u128(..));
    let tested = test(store, &key).await;
    let cleaned = store.delete(&key).await;
    let report = tested?;
    cleaned?;
    if report.can_fence() || single_writer {
        return Ok(report);
    }
    let missing = match (report.create, report.update) {
        (true, _) => "replace only a known version (If-Match)",
        (false, true) => "create only what does not exist (If-None-Match)",
        (false, false) => "create only what does not exist, nor replace only a known version",
    };
    Err(Error::new(
        Kind::Unsupported,
        Op::Probe,
        store.name(),
        format!(
            "it cannot {missing}, so firn could not keep a second server from overwriting a \
             volume; use a store with conditional PUT, or --single-writer if you can promise \
             that only one server ever uses this store"
        ),
    ))
}

async fn test(store: &dyn Store, key: &str) -> Result<ProbeReport> {
    let created = race(store, key, None).await?;
    let (content, version) = store.get(key).await?;
    let create_again = is_refused(store.create(key, text("again")).await)?;

    let updated = race(store, key, Some(&version)).await?;
    let (_, newer) = store.get(key).await?;
    let stale = is_refused(store.update(key, text("stale"), &version).await)?;

    let fresh_versions = newer != version && {
        store.put(key, content.clone()).await?;
        let (_, first) = store.get(key).await?;
        store.put(key, content).await?;
        store.get(key).await?.1 != first
    };
    Ok(ProbeReport {
        create: created && create_again,
        update: updated && stale,
        fresh_versions,
    })
}

/// Several conditional writes at once: does exactly one win, and does its content stand?
async fn race(store: &dyn Store, key: &str, version: Option<&Version>) -> Result<bool> {
    let attempts = (0..RACERS).map(|n| async move {
        let bytes = text(&format!("racer {n}"));
        let result = match version {
            Some(version) => store.update(key, bytes, version).await,
            None => store.create(key, bytes).await,
        };
        Ok::<_, Error>((n, !is_refused(result)?))
    });
    let mut winners = Vec::new();
    for outcome in join_all(attempts).await {
        let (n, won) = outcome?;
        if won {
            winners.push(n);
        }
    }
    if winners.is_empty() {
        // Everyone was refused: the store lacks the condition, but the key is needed below.
        store.put(key, text("placed")).await?;
        return Ok(false);
    }
    let (content, _) = store.get(key).await?;
    Ok(winners.len() == 1 && content == text(&format!("racer {}", winners[0])))
}

/// Whether a conditional write was refused, by its condition or because there are none.
fn is_refused(result: Result<Version>) -> Result<bool> {
    match result {
        Ok(_) => Ok(false),
        Err(error) => match error.kind() {
            Kind::PreconditionFailed | Kind::Unsupported => Ok(true),
            _ => Err(error),
        },
    }
}

fn text(content: &str) -> Bytes {
    Bytes::from(format!("firn probe: {content}\n"))
}
