//! The self-test that decides whether a store can be trusted with a volume.
//!
//! firn's fencing (S7) stands on two conditions: create-if-absent and compare-and-swap, both
//! decided by the store, one winner each. A store that accepts the headers and ignores them, or
//! that checks first and writes later, would let two hosts write one volume. So firn asks before it
//! serves: on scratch keys of its own, which it removes again, in sequence and with writers on
//! several connections that race each other, and in bounded time. A race that one winner won proves
//! nothing, so it is run several times; one with two winners proves enough.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::{Error, Kind, Op, Result, Store, Version};

/// How many requests race for one key, each on a connection of its own.
const RACERS: usize = 8;

/// How often they race. A check-then-write store let 32 of 32 racers win where it was measured.
const ROUNDS: usize = 3;

/// A store that needs longer for some sixty small requests cannot serve either.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// `create` refuses an existing object, and exactly one of several at once wins.
    pub create: bool,
    /// `update` refuses a stale version, and exactly one of several at once wins.
    pub update: bool,
    /// `update` refuses an object that never was, or that was deleted.
    pub update_of_missing: bool,
    /// Identical content written again has a new version. Not needed, worth knowing.
    pub fresh_versions: bool,
    /// Nothing is known by which two hosts could both win all the same ([`Store::hazard`]).
    pub keeps_hosts_apart: bool,
}

impl ProbeReport {
    /// Whether volumes can be fenced on this store.
    pub fn can_fence(&self) -> bool {
        self.create && self.update && self.update_of_missing && self.keeps_hosts_apart
    }
}

/// Tests `store` on scratch keys, and refuses it with [`Kind::Unsupported`] when its conditional
/// PUT cannot be relied on, unless `single_writer` vouches that no second server exists (then wrap
/// the store in [`crate::SingleWriterStore`]).
///
/// A store that cannot be reached, or that refuses the credentials, is an error either way.
pub async fn probe(store: &dyn Store, single_writer: bool) -> Result<ProbeReport> {
    let scratch = format!("probe/{:032x}", fastrand::u128(..));
    let report = match timeout(PROBE_TIMEOUT, test_and_clean(store, &scratch)).await {
        Ok(tested) => tested?,
        Err(_) => {
            return Err(Error::new(
                Kind::Unavailable,
                Op::Probe,
                store.name(),
                format!(
                    "its conditional writes could not be tested within {PROBE_TIMEOUT:?}; check \
                     the network and the store's load"
                ),
            ));
        }
    };
    if report.can_fence() || single_writer {
        return Ok(report);
    }
    if let Some(why) = store.hazard() {
        return Err(Error::new(
            Kind::Unsupported,
            Op::Probe,
            store.name(),
            format!(
                "{why}, so firn could not keep a second server from overwriting a volume; use a store \
                 with conditional PUT or a directory on a local disk, or --single-writer if you can \
                 promise that only one server ever uses this store"
            ),
        ));
    }
    let missing = match (report.create, report.update) {
        (true, true) => "refuse to replace an object that is gone (If-Match on a missing key)",
        (true, false) => "replace only a known version (If-Match)",
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

async fn test_and_clean(store: &dyn Store, scratch: &str) -> Result<ProbeReport> {
    let tested = test(store, scratch).await;
    // What a failed test left is small, named "probe" and in nobody's way.
    let cleaned = match store.list("probe/").await {
        Ok(left) => {
            let ours = left.iter().filter(|(key, _)| key.starts_with(scratch));
            join_all(ours.map(|(key, _)| store.delete(key)))
                .await
                .into_iter()
                .collect()
        }
        Err(error) => Err(error),
    };
    let report = tested?;
    cleaned.map(|()| report)
}

async fn test(store: &dyn Store, scratch: &str) -> Result<ProbeReport> {
    connect(store, scratch).await?;
    let (mut create, mut update) = (true, true);
    for round in 0..ROUNDS {
        let key = format!("{scratch}-{round}");
        create &= race(store, &key, None).await?;
        let (_, version) = store.get(&key).await?;
        create &= is_refused(store.create(&key, text("again")).await)?;

        update &= race(store, &key, Some(&version)).await?;
        update &= is_refused(store.update(&key, text("stale"), &version).await)?;
        if !create || !update {
            break;
        }
    }
    Ok(ProbeReport {
        create,
        update,
        update_of_missing: test_missing(store, scratch).await?,
        fresh_versions: test_versions(store, scratch).await?,
        keeps_hosts_apart: store.hazard().is_none(),
    })
}

/// Opens as many connections as will race, so that the races do not begin with handshakes.
async fn connect(store: &dyn Store, scratch: &str) -> Result<()> {
    let key = format!("{scratch}-none");
    for found in join_all((0..RACERS).map(|_| store.get(&key))).await {
        match found {
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Does a conditional update refuse a key that was deleted, and one that never was?
async fn test_missing(store: &dyn Store, scratch: &str) -> Result<bool> {
    let (gone, never) = (format!("{scratch}-gone"), format!("{scratch}-never"));
    let version = store.put(&gone, text("to be deleted")).await?;
    store.delete(&gone).await?;
    let mut refused = true;
    for key in [&gone, &never] {
        refused &= match store.update(key, text("ghost"), &version).await {
            Err(error) if error.kind() == Kind::NotFound => true,
            result => is_refused(result)?,
        };
        refused &= match store.get(key).await {
            Err(error) if error.kind() == Kind::NotFound => true,
            Err(error) => return Err(error),
            Ok(_) => false,
        };
    }
    Ok(refused)
}

async fn test_versions(store: &dyn Store, scratch: &str) -> Result<bool> {
    let key = format!("{scratch}-same");
    store.put(&key, text("same")).await?;
    let (_, first) = store.get(&key).await?;
    store.put(&key, text("same")).await?;
    Ok(store.get(&key).await?.1 != first)
}

/// Several conditional writes at once: does exactly one win, and does its content stand?
async fn race(store: &dyn Store, key: &str, version: Option<&Version>) -> Result<bool> {
    // No update may write what the create wrote: a version made from the content alone would come
    // back, and a second winner be in the right.
    let what = if version.is_some() {
        "update"
    } else {
        "create"
    };
    let content_of = |n: usize| text(&format!("{what} {n}"));
    let attempts = (0..RACERS).map(|n| async move {
        let bytes = content_of(n);
        match version {
            Some(version) => store.update(key, bytes, version).await,
            None => store.create(key, bytes).await,
        }
    });
    let (mut winners, mut unknown) = (Vec::new(), Vec::new());
    for (n, result) in join_all(attempts).await.into_iter().enumerate() {
        match result {
            Err(error) if error.kind() == Kind::Unknown => unknown.push((n, error)),
            result => {
                if !is_refused(result)? {
                    winners.push(n);
                }
            }
        }
    }
    if winners.is_empty() && unknown.is_empty() {
        // Everyone was refused: the store lacks the condition, but the key is needed below.
        store.put(key, text("placed")).await?;
        return Ok(false);
    }
    let content = match store.get(key).await {
        Ok((content, _)) => content,
        // Nobody was told that it won, and nobody has: what kept all of them from it is the finding.
        Err(error) if error.kind() == Kind::NotFound && winners.is_empty() => {
            return Err(unknown.into_iter().next().map_or(error, |(_, first)| first));
        }
        Err(error) => return Err(error),
    };
    let stands = |n: usize| content == content_of(n);
    match winners.as_slice() {
        [winner] => Ok(stands(*winner)),
        // One whose answer was lost has won, or nobody can be said to have.
        [] if unknown.iter().any(|(n, _)| stands(*n)) => Ok(true),
        [] => unknown
            .into_iter()
            .next()
            .map_or(Ok(false), |(_, error)| Err(error)),
        _ => Ok(false),
    }
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
