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

/// What a condition of writes turned out to be worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Exactly one of several at once wins, and whoever comes too late is refused.
    OneWins,
    /// Two writers may win, or one that comes too late.
    SeveralWin,
    /// All of several at once were refused, though one was in the right.
    NobodyWins,
}

impl Condition {
    /// What was found of one round, after what was found before.
    fn and(self, round: Condition) -> Condition {
        match (self, round) {
            (Condition::OneWins, round) => round,
            (found, _) => found,
        }
    }
}

/// What the probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// Whether `create` refuses an existing object, and no other.
    pub create: Condition,
    /// Whether `update` refuses a stale version, and no other.
    pub update: Condition,
    /// `update` refuses an object that never was, or that was deleted.
    pub update_of_missing: bool,
    /// Identical content written again has a new version. Not needed, worth knowing.
    pub fresh_versions: bool,
    /// `update` works if ETags are sent without their quotes, and only then; they are from now on.
    pub bare_tags: bool,
    /// Nothing is known by which two hosts could both win all the same ([`Store::describe_hazard`]).
    pub keeps_hosts_apart: bool,
}

impl ProbeReport {
    /// Whether volumes can be fenced on this store.
    pub fn can_fence(&self) -> bool {
        let hold = [self.create, self.update] == [Condition::OneWins; 2];
        hold && self.update_of_missing && self.keeps_hosts_apart
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
    if let Some(why) = store.describe_hazard() {
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
    Err(Error::new(
        Kind::Unsupported,
        Op::Probe,
        store.name(),
        format!(
            "it {}, so firn could not keep a second server from overwriting a volume; use a store \
             with conditional PUT, or --single-writer if you can promise that only one server ever \
             uses this store",
            describe_shortcoming(&report)
        ),
    ))
}

/// What a store is refused for, after "it".
fn describe_shortcoming(report: &ProbeReport) -> &'static str {
    use Condition::{NobodyWins, OneWins};
    match (report.create, report.update) {
        (OneWins, OneWins) => {
            "cannot refuse to replace an object that is gone (If-Match on a missing key)"
        }
        (OneWins, NobodyWins) => {
            "refused all of several replacements of the right version (If-Match)"
        }
        (OneWins, _) => "cannot replace only a known version (If-Match)",
        (NobodyWins, OneWins) => {
            "refused all of several creates of what does not exist (If-None-Match)"
        }
        (_, OneWins) => "cannot create only what does not exist (If-None-Match)",
        (NobodyWins, NobodyWins) => "refused every conditional write (If-None-Match, If-Match)",
        (_, _) => "cannot create only what does not exist, nor replace only a known version",
    }
}

async fn test_and_clean(store: &dyn Store, scratch: &str) -> Result<ProbeReport> {
    let tested = test_both_forms(store, scratch).await;
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

/// Some servers compare what stands between the quotes of an ETag with all of `If-Match`, quotes included, and so
/// refuse every replacement (Ceph radosgw before its quotes were mended). To them it is sent without, if that passes
/// every test that the right form has to pass: a server that takes a bare ETag for no condition lets several win.
async fn test_both_forms(store: &dyn Store, scratch: &str) -> Result<ProbeReport> {
    // An earlier probe may have been given up half-way.
    store.set_bare_tags(false);
    let quoted = test(store, scratch).await?;
    let refuses_all = (quoted.create, quoted.update) == (Condition::OneWins, Condition::NobodyWins);
    if !refuses_all || !store.set_bare_tags(true) {
        return Ok(quoted);
    }
    let bare = test(store, &format!("{scratch}-bare")).await;
    if let Ok(bare) = &bare
        && (bare.can_fence() || canary::active!("bare_tags_unproven"))
    {
        return Ok(ProbeReport {
            bare_tags: true,
            ..*bare
        });
    }
    store.set_bare_tags(false);
    match bare {
        // It does not take a bare ETag for one: what was found of the right form stands.
        Err(error) if error.kind() == Kind::Invalid => Ok(quoted),
        bare => bare.map(|_| quoted),
    }
}

async fn test(store: &dyn Store, scratch: &str) -> Result<ProbeReport> {
    connect(store, scratch).await?;
    let (mut create, mut update) = (Condition::OneWins, Condition::OneWins);
    for round in 0..ROUNDS {
        let key = format!("{scratch}-{round}");
        create = create.and(race(store, &key, None).await?);
        let (_, version) = store.get(&key).await?;
        create = create.and(check_late(store.create(&key, text("again")).await)?);

        update = update.and(race(store, &key, Some(&version)).await?);
        update = update.and(check_late(
            store.update(&key, text("stale"), &version).await,
        )?);
        if [create, update] != [Condition::OneWins; 2] {
            break;
        }
    }
    Ok(ProbeReport {
        create,
        update,
        update_of_missing: test_missing(store, scratch).await?,
        fresh_versions: test_versions(store, scratch).await?,
        bare_tags: false,
        keeps_hosts_apart: store.describe_hazard().is_none(),
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
async fn race(store: &dyn Store, key: &str, version: Option<&Version>) -> Result<Condition> {
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
        // The key is needed below.
        store.put(key, text("placed")).await?;
        return Ok(Condition::NobodyWins);
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
        [winner] if stands(*winner) => Ok(Condition::OneWins),
        // One whose answer was lost has won, or nobody can be said to have.
        [] if unknown.iter().any(|(n, _)| stands(*n)) => Ok(Condition::OneWins),
        [] => unknown
            .into_iter()
            .next()
            .map_or(Ok(Condition::NobodyWins), |(_, error)| Err(error)),
        _ => Ok(Condition::SeveralWin),
    }
}

/// A writer that comes too late must be refused.
fn check_late(result: Result<Version>) -> Result<Condition> {
    Ok(if is_refused(result)? {
        Condition::OneWins
    } else {
        Condition::SeveralWin
    })
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
