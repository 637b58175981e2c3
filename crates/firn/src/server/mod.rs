//! Starts the server in order, and stops it in reverse.
//!
//! What can fail without touching anything starts first (addresses, the store's probe, unless the store
//! is away and there is a log); then the lock on the cache directory, the local files, NBD's sockets, the record of this start, the engine,
//! NBD's clients, who wait for their volumes, the volumes, the restored disks, and last the API. When the server stops, it closes the listeners, uploads every volume and
//! gives up its ownership. Volumes that are attached as disks keep theirs: the disks wait for the
//! next server, which recovers them before it announces that it is ready.

mod api_listeners;
mod blocking_threads;
mod handover;
mod messages;
mod nbd_listeners;
mod process;
mod rescue_log;
mod sandbox;
mod service_manager;
mod upgrade;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use store::SharedStore;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use volume::{Answer, Continuation, OpenError, Permission};

use self::api_listeners::ApiListeners;
use self::handover::{Outgoing, RetainedFiles};
use self::nbd_listeners::NbdListeners;
use self::process::UnfilledMemory;
use self::service_manager::ServiceManager;
use self::upgrade::{hand_over, prepare_upgrade, restore_cache};
use crate::abort_on_panic::abort_on_panic_under_locks;
use crate::api;
use crate::api::gate::Gate;
use crate::config::Settings;
use crate::control_plane::ControlPlane;
use crate::control_plane::opening::ReopenTask;
use crate::control_plane::start_record::StartRecord;
use crate::engine::{DISK_CALLS_MAX, Engine};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd::{NbdFrontend, flag_value};
use crate::local_files::CacheDir;
use crate::log_lines;
use crate::spans::{self, Operation};
use crate::store_access::{StoreAccess, StoreSettings};
use nbd::server::HandedListener;

pub(crate) use handover::{Incoming, print_check, roll_back};
pub(crate) use rescue_log::{LogRescue, LogRescueReport};

/// Threads for the API and the store, which mostly wait.
const RUNTIME_THREADS: usize = 2;

/// Threads for calls that block: those of the engine's files, and of a directory store some at a time.
const BLOCKING_THREADS: usize = DISK_CALLS_MAX + 16;

/// How long a hand-over waits for a disk that is being restored.
const REOPEN_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a server that is told to stop while it opens volumes takes leave of clients.
const EARLY_LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// They stay as good as for ever: a thread that ends gives its stack back.
const BLOCKING_THREADS_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why a server no longer serves.
enum Ending {
    /// It was told to stop.
    Stopped,
    /// Another program takes its place.
    Handover(Box<Outgoing>, process::StopSignal),
}

/// Runs a server until it is told to stop. `incoming` is what the program before left, if this one takes its place.
pub(crate) fn serve(
    settings: Settings,
    mut incoming: Incoming,
    stops_with_stdin: bool,
) -> Result<()> {
    abort_on_panic_under_locks();
    let memory = process::prepare();
    match incoming.takes_over() {
        false => {
            sandbox::enter(&settings)?;
            if let Some(memory) = memory {
                memory.fill_beside();
            }
        }
        true => {
            sandbox::check_inherited(&settings);
            incoming.unfilled_memory = memory;
        }
    }
    if stops_with_stdin {
        process::stop_with_stdin();
    }
    let _lines = log_lines::write_by_a_thread();
    let manager = Arc::new(ServiceManager::of_environment());
    incoming.keep_alive(&manager);
    let sockets = std::mem::take(&mut incoming.api);
    ApiListeners::bind(&settings, sockets)
        .inspect_err(|failure| roll_back(&failure.to_string()))
        .and_then(|api| {
            let served = serve_at(&settings, &api, incoming, &manager);
            // The listeners are open still.
            served.inspect_err(|failure| roll_back(&failure.to_string()))
        })
}

fn serve_at(
    settings: &Settings,
    api: &ApiListeners,
    mut incoming: Incoming,
    manager: &Arc<ServiceManager>,
) -> Result<()> {
    handover::step("started")?;
    let takes_over = incoming.takes_over();
    let runtime = start_runtime(settings, takes_over)?;
    let gate = Arc::new(Gate::new(Arc::new(api_listeners::access_rules(settings)?)));
    let is_first_start = !CacheDir::has_log(&settings.cache);
    if is_first_start {
        // At a later start the server before may still have them, and is waited for first.
        NbdFrontend::check_addresses(&settings.nbd)?;
    }
    let store = StoreAccess::new(StoreSettings {
        url: settings.store.clone(),
        single_writer: settings.single_writer,
        faults: settings.store_faults,
        may_create: is_first_start,
    });
    let starting = start_store(&runtime, &store, takes_over, is_first_start)?;
    let mut progress = messages::LogFillBar::default();
    let files = CacheDir::open_locked(settings, incoming.lock.take(), &mut progress)?;
    handover::step("locked")?;
    let listeners = NbdListeners::bind(&settings.nbd, takes_over)?;
    let starts = StartRecord::begin(&files.path);
    let shared = Arc::clone(&store) as SharedStore;
    let passed_cache = incoming.cache.take();
    let passed_cache = passed_cache.filter(|cache| cache.is_of(&files.cache));
    let continues = takes_over.then_some(Continuation {
        journal: incoming.journal,
        cache_follows: passed_cache.is_some(),
    });
    let (starting, may_begin) = starting.unzip();
    let engine = Engine::start(
        settings,
        shared,
        files,
        runtime.handle(),
        continues,
        may_begin,
    );
    let engine = runtime.block_on(engine);
    wait_for_store(&runtime, starting)?;
    let mut engine = engine?;
    handover::step("recovered")?;
    if let Some(cache) = passed_cache {
        restore_cache(&runtime, &engine.host, cache);
    }
    messages::log_recovery(&engine.report);
    let control = Arc::new(ControlPlane::new(
        &engine,
        Some(store),
        settings.control(engine.files().cache.bytes),
        settings.nbd_tls.as_ref(),
        starts,
    )?);
    let server = (&engine, &control, api, manager);
    let served = runtime.block_on(run(settings, server, gate, incoming, listeners));
    let served = match served {
        Ok(Ending::Handover(outgoing, stop)) => {
            let _alive = manager.keep_alive(outgoing.timeout());
            return hand_over(&runtime, (&mut engine, &control, api), *outgoing, stop);
        }
        Ok(Ending::Stopped) => Ok(()),
        Err(failure) => {
            roll_back(&failure.to_string());
            Err(failure)
        }
    };
    let closed = runtime.block_on(control.close_all());
    engine.stop(control.disks.take_live());
    spans::stop();
    // Nothing waits for tasks that still run.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served.and(closed)
}

/// A store that is opened and probed, and how that ends.
type StartingStore = (JoinHandle<Result<()>>, Permission);

/// Opens and probes the store: a first start before it makes the log, a later one beside the reading of the log, for which
/// clients may wait; the log is written to once the store has not refused this server. A program that took another's place
/// does so when it serves them.
fn start_store(
    runtime: &Runtime,
    store: &Arc<StoreAccess>,
    takes_over: bool,
    is_first_start: bool,
) -> Result<Option<StartingStore>> {
    if takes_over {
        return Ok(None);
    }
    if is_first_start {
        return runtime.block_on(store.start()).map(|()| None);
    }
    let store = Arc::clone(store);
    let (tell, told) = oneshot::channel();
    let starting = runtime.spawn(async move {
        let started = store.start().await;
        // Nobody listens if the log could not be read.
        let _ = tell.send(started.is_ok());
        started
    });
    let may_begin: Permission = Box::pin(async move { told.await.unwrap_or(false) });
    Ok(Some((starting, may_begin)))
}

/// A store that may not be used ends the start, and says why.
fn wait_for_store(runtime: &Runtime, starting: Option<JoinHandle<Result<()>>>) -> Result<()> {
    starting.map_or(Ok(()), |starting| {
        let started = runtime.block_on(starting);
        started.map_err(|_| Failure::internal("the start of the store panicked"))?
    })
}

/// The runtime of a server, and what lives on it from the start.
fn start_runtime(settings: &Settings, takes_over: bool) -> Result<Runtime> {
    let runtime = runtime()?;
    if let Some(endpoint) = &settings.otlp_endpoint {
        match spans::start(endpoint, runtime.handle()) {
            // In an upgrade the program before would fail the same way.
            Err(failure) if takes_over || !settings.needs_spans => {
                tracing::warn!(%failure, "no spans are sent");
            }
            started => started?,
        }
    }
    Ok(runtime)
}

/// What is done only when the volumes are open: clients would have waited for it. A program that took another's place
/// starts the store here, too, which the program before had.
fn start_later(
    control: &ControlPlane,
    (takes_over, memory): (bool, Option<UnfilledMemory>),
    wait_for_keeper: impl FnOnce() + Send + 'static,
) {
    if let Some(store) = control.store.clone().filter(|_| takes_over) {
        tokio::spawn(async move {
            if let Err(failure) = store.start().await {
                tracing::error!(%failure, "the store cannot be used");
            }
        });
    }
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        wait_for_keeper();
        blocking_threads::start(&runtime, BLOCKING_THREADS);
        if let Some(memory) = memory {
            memory.fill();
        }
    });
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_name("firn-runtime")
        .thread_keep_alive(BLOCKING_THREADS_KEPT)
        .enable_all()
        .build()
        .map_err(|source| Failure::internal(format!("cannot start threads: {source}")))
}

type Running<'a> = (
    &'a Engine,
    &'a Arc<ControlPlane>,
    &'a ApiListeners,
    &'a Arc<ServiceManager>,
);

async fn run(
    settings: &Settings,
    server: Running<'_>,
    gate: Arc<Gate>,
    mut incoming: Incoming,
    listeners: NbdListeners,
) -> Result<Ending> {
    let (engine, control, api, manager) = server;
    let takes_over = incoming.takes_over();
    let mut stop = process::StopSignal::new()?;
    let in_use = incoming.volumes_in_use();
    let plan = control.plan_openings(&settings.volumes, &engine.report, in_use.as_ref());
    // Clients find the volumes that are planned, and wait for them.
    listeners.serve(&control.nbd)?;
    let not_opened = tokio::select! {
        not_opened = control.open_initial_volumes(plan) => not_opened?,
        () = stop.recv() => stop_at_once(control).await,
    };
    handover::step("opened")?;
    let memory = incoming.unfilled_memory.take();
    let wait_for_keeper = incoming.take_keeper();
    control.keep_settings(&incoming.settings).await;
    let passed = std::mem::take(&mut incoming.settings);
    let alive = incoming.take_keep_alive();
    take_over(settings, control, api, incoming)?;
    if takes_over {
        handover::step("clients-served")?;
        control.begin_configured_cache_size(&passed);
        tokio::spawn(end_without_session(control.host.session_recorded()));
    }
    start_later(control, (takes_over, memory), wait_for_keeper);
    let waiting = tokio::select! {
        waiting = control.open_put_off(not_opened) => waiting?,
        // Clients are connected: it is an end in good order.
        () = stop.recv() => {
            stop.put_back();
            Vec::new()
        }
    };
    control.starts.end_start();
    drop(alive);
    let reopen = ReopenTask::start(control, waiting, takes_over);
    let health = tokio::spawn({
        let control = Arc::clone(control);
        let manager = Arc::clone(manager);
        async move { control.watch_health(|| manager.on_alive()).await }
    });
    let slow_requests = tokio::spawn({
        let control = Arc::clone(control);
        async move { messages::report_slow_requests(control.latencies.slow()).await }
    });
    let schedules = tokio::spawn({
        let control = Arc::clone(control);
        async move { control.keep_schedules().await }
    });
    let served = serve_clients(settings, server, gate, stop).await;
    health.abort();
    schedules.abort();
    slow_requests.abort();
    match &served {
        // Clients wait: what a killed server could have begun is left as that would leave it.
        Ok(Ending::Handover(..)) => {
            let _ = tokio::time::timeout(REOPEN_STOP_TIMEOUT, reopen.stop()).await;
        }
        _ => reopen.stop().await,
    }
    served
}

/// Ends the process while it opens volumes, as a signal does before that. Clients who are there by then hear of it; volumes stay
/// as they are.
async fn stop_at_once(control: &ControlPlane) -> ! {
    control.starts.end_start();
    let _ = tokio::time::timeout(EARLY_LEAVE_TIMEOUT, control.nbd.stop()).await;
    log_lines::stop();
    eprintln!(
        "firn: stopped before all volumes were open; what is not in the store stays in the log"
    );
    std::process::exit(0)
}

/// Serves the API and NBD clients until a signal stops the server, or another program takes its place.
async fn serve_clients(
    settings: &Settings,
    (engine, control, api, manager): Running<'_>,
    gate: Arc<Gate>,
    mut stop: process::StopSignal,
) -> Result<Ending> {
    let router = api::router(Arc::clone(control), gate);
    messages::announce(settings, &api.addresses(), engine, control)?;
    manager.on_ready();
    let listeners = api.listeners()?;
    loop {
        let (close, closed) = tokio::sync::watch::channel(());
        let mut servers = tokio::task::JoinSet::new();
        for listener in &listeners {
            servers.spawn(api::serving::serve(
                Arc::clone(listener),
                router.clone(),
                closed.clone(),
            ));
        }
        let plan = tokio::select! {
            () = stop.recv() => None,
            plan = control.upgrades.next() => Some(plan),
        };
        let Some(plan) = plan else {
            stop_api(manager, stop, close, servers, api).await;
            return Ok(Ending::Stopped);
        };
        let held = RetainedFiles {
            api: &api.sockets_for_handover(),
            lock: engine.files().lock(),
            nbd: &control.nbd,
            cache: &engine.files().cache,
        };
        manager.on_handing_over();
        spans::send_soon();
        let began = SystemTime::now();
        match prepare_upgrade(settings, (control, held), plan, (close, &mut servers)).await {
            Ok(_) if stop.has_come() => {
                let (close, _) = tokio::sync::watch::channel(());
                stop_api(manager, stop, close, servers, api).await;
                return Ok(Ending::Stopped);
            }
            Ok(outgoing) => return Ok(Ending::Handover(Box::new(outgoing), stop)),
            Err(failure) => {
                control.host.release_cache();
                manager.on_called_off();
                if let Some(mut upgrade) = Operation::begin_at("upgrade", began) {
                    upgrade.fail(failure.code);
                }
                tracing::error!(%failure, "the server is not upgraded, and goes on");
                control.upgrades.on_failed(failure.to_string());
            }
        }
    }
}

/// Listeners of the program before, with their addresses as the settings had them.
type PassedListeners = Vec<(String, HandedListener)>;

/// Listens where nobody does yet, and goes on with the clients of the program before, who wait until here.
/// From here on there is no way back to it. Whoever connects anew is accepted, too, and waits for a volume that is not open yet.
fn take_over(
    settings: &Settings,
    control: &Arc<ControlPlane>,
    api: &ApiListeners,
    mut incoming: Incoming,
) -> Result<()> {
    // A plain start listens at all of them already.
    let addresses = settings.nbd.iter().filter(|_| incoming.takes_over());
    for address in addresses {
        if !incoming.listens_at(&flag_value(address)) {
            control.listen(std::slice::from_ref(address))?;
        }
    }
    let clients = incoming.commit();
    api.commit();
    control.adopt_connections(clients.connections);
    adopt_listeners(settings, control, clients.listeners);
    handover::step("adopted")?;
    if incoming.number > 0 {
        let returned = incoming.returned.as_deref();
        if let Some(mut upgrade) = Operation::begin_with_program("upgrade") {
            upgrade.set("firn.program", incoming.program.clone());
            if returned.is_some() {
                upgrade.fail(FailureCode::UpgradeRefused);
            }
        }
        control
            .upgrades
            .on_taken_over(incoming.number, &incoming.program, returned);
        handover::end_pause();
    }
    Ok(())
}

/// Ends this program if the log cannot take its session: it could store nothing. The next start serves what a poisoned log has.
async fn end_without_session(recorded: Answer<std::result::Result<(), OpenError>>) {
    if let Err(error) = recorded.await {
        log_lines::stop();
        eprintln!(
            "firn: the log refuses to take over what the program before left: {error}; no acknowledged write is lost: start the \
             server again"
        );
        std::process::exit(1);
    }
}

/// Accepts new clients where the program before listened.
fn adopt_listeners(settings: &Settings, control: &ControlPlane, listeners: PassedListeners) {
    let mut wanted: Vec<String> = settings.nbd.iter().map(flag_value).collect();
    for (at, listener) in listeners {
        match wanted.iter().position(|one| *one == at) {
            Some(found) => {
                wanted.swap_remove(found);
                control.nbd.adopt_listener(at, listener);
            }
            // The settings have changed.
            None => NbdFrontend::close_listener(listener),
        }
    }
}

async fn stop_api(
    manager: &ServiceManager,
    mut stop: process::StopSignal,
    close: tokio::sync::watch::Sender<()>,
    servers: tokio::task::JoinSet<()>,
    api: &ApiListeners,
) {
    manager.on_stopping();
    eprintln!("firn: stopping; bringing what is left to the store (again to leave at once)");
    tokio::spawn(async move {
        stop.recv().await;
        log_lines::stop();
        eprintln!("firn: left at once; what is not in the store stays in the log");
        std::process::exit(1);
    });
    drop(close);
    api.shut_down();
    // A client that keeps its connection open does not keep the server from stopping.
    let _ = tokio::time::timeout(Duration::from_secs(1), servers.join_all()).await;
}
