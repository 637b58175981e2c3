//! What a server does to give its place to another program, from the check of that program to its execution, and what the other one goes
//! on with beside the opening of volumes.
//!
//! The order is that of docs/handoff.md. What passes is `handover`'s; here is when.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use volume::Host;

use super::api_listeners::ApiListeners;
use super::handover::{self, IncomingCache, Outgoing, Passage, RetainedFiles};
use super::{process, sandbox};
use crate::config::Settings;
use crate::control_plane::ControlPlane;
use crate::control_plane::upgrades::UpgradePlan;
use crate::engine::Engine;
use crate::failure::{Failure, FailureCode, Result};

/// How long a hand-over waits until all is durable, before it keeps clients waiting.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Checks the new program, and brings clients to rest. After a failure everything is as before, except that
/// the API has to be served anew.
pub(super) async fn prepare_upgrade(
    settings: &Settings,
    (control, held): (&Arc<ControlPlane>, RetainedFiles<'_>),
    plan: UpgradePlan,
    (close, servers): (
        tokio::sync::watch::Sender<()>,
        &mut tokio::task::JoinSet<()>,
    ),
) -> Result<Outgoing> {
    let UpgradePlan {
        number,
        program,
        timeout,
    } = plan;
    let own = settings.clone();
    let checked = tokio::task::spawn_blocking(move || {
        let program = program.map_or_else(handover::own_program, Ok)?;
        let is_restricted = sandbox::is_in_force();
        let checked = handover::check_program(&program, &own, is_restricted, timeout);
        checked.map_err(|failure| match sandbox::describe_refusal(&program) {
            Some(why) => Failure::new(failure.code, format!("{}; {why}", failure.detail)),
            None => failure,
        })
    });
    let checked = checked
        .await
        .map_err(|error| Failure::internal(format!("checking the program: {error}")))??;
    handover::step("checked")?;
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let mut passage = Passage::prepare(number, timeout_ms, checked)?;
    control.upgrades.on_handing_over();
    // Changes that are under way come to their end.
    drop(close);
    let at_rest = async {
        while servers.join_next().await.is_some() {}
        control.finish_changes().await;
    };
    if tokio::time::timeout(timeout, at_rest).await.is_err() {
        return Err(Failure::new(
            FailureCode::UpgradeRefused,
            "requests of the API are under way; wait for them, or give more with --timeout",
        ));
    }
    // What is durable now need not be made so while clients wait. A log that refuses it is not worse off in the next
    // program.
    let committed = control.host.commit_for_successor();
    let _ = tokio::time::timeout(COMMIT_TIMEOUT, committed).await;
    let host = control.host.clone();
    if let Ok(Some(list)) = tokio::task::spawn_blocking(move || host.list_cache()).await {
        passage.keep_cache_list(&list, held.cache);
    }
    handover::begin_pause();
    let nbd = control.give_clients_away(timeout).await?;
    tracing::info!(
        connections = nbd.connections.len(),
        closed = nbd.closed,
        "handing over"
    );
    match passage.complete((settings, control.settings_to_pass()), held, nbd) {
        Ok(outgoing) => Ok(outgoing),
        Err((failure, nbd)) => {
            control.take_clients_back(nbd).await;
            Err(failure)
        }
    }
}

/// Ends what this program does, and executes the next one. Returns if it was told to stop meanwhile, or if no program can be executed.
pub(super) fn hand_over(
    runtime: &Runtime,
    (engine, control, api): (&mut Engine, &ControlPlane, &ApiListeners),
    outgoing: Outgoing,
    mut stop: process::StopSignal,
) -> Result<()> {
    // The few commits since clients were asked to rest. With all of them in the log, the new program goes on
    // with it as it is.
    let _ = runtime
        .block_on(async { tokio::time::timeout(COMMIT_TIMEOUT, engine.host.commit_last()).await });
    engine.stop(control.disks.take_live());
    handover::step("stopped")?;
    // The signal would be gone with this program.
    if stop.has_come() {
        tracing::warn!("told to stop in an upgrade; what is not in the store stays in the log");
        return Ok(());
    }
    if !engine.host.has_cache_as_listed() {
        outgoing.forget_cache_list();
    }
    let held = RetainedFiles {
        api: &api.sockets_for_handover(),
        lock: engine.files().lock(),
        nbd: &control.nbd,
        cache: &engine.files().cache,
    };
    Err(outgoing.execute(held, engine.host.journal_mark()))
}

/// Goes on with what the program before had in the read cache, beside the opening of volumes: it takes time for each chunk. Reads ask the store
/// until that is done.
pub(super) fn restore_cache(runtime: &Runtime, host: &Host, cache: IncomingCache) {
    let host = host.clone();
    runtime.spawn_blocking(move || {
        let read = cache.read().map_err(|error| error.to_string());
        let restored = read.and_then(|list| match list.is_empty() {
            true => Err("it changed while the program before ended".to_owned()),
            false => host.restore_cache(&list).map_err(|error| error.to_string()),
        });
        match restored {
            Ok(chunks) => tracing::info!(chunks, "the read cache goes on with what it held"),
            Err(why) => {
                host.release_cache();
                tracing::warn!(why, "the read cache begins empty");
            }
        }
    });
}
