//! Starts the server in order, and stops it in reverse.
//!
//! What can fail without touching anything starts first (addresses, the store's probe, unless the store
//! is away and there is a log); then the lock on the cache directory, the local files, the engine, the volumes, the restored disks, and
//! last the NBD listeners and the API's. When the server stops, it closes the listeners, uploads every volume and
//! gives up its ownership. Volumes that are attached as disks keep theirs: the disks wait for the
//! next server, which recovers them before it announces that it is ready.

mod api_listeners;
mod blocking_threads;
mod messages;
mod process;
mod rescue_log;
mod service_manager;

use std::sync::Arc;
use std::time::Duration;

use store::SharedStore;
use tokio::runtime::Runtime;

use self::api_listeners::ApiListeners;
use self::service_manager::ServiceManager;
use crate::abort_on_panic::abort_on_panic_under_locks;
use crate::api;
use crate::api::gate::Gate;
use crate::config::Settings;
use crate::control_plane::ControlPlane;
use crate::control_plane::opening::ReopenTask;
use crate::engine::{DISK_CALLS_MAX, Engine};
use crate::failure::{Failure, Result};
use crate::frontends::nbd::NbdFrontend;
use crate::local_files::CacheDir;
use crate::store_access::{StoreAccess, StoreSettings};

pub(crate) use rescue_log::{LogRescue, LogRescueReport};

/// Threads for the API and the store, which mostly wait.
const RUNTIME_THREADS: usize = 2;

/// Threads for calls that block: those of the engine's files, and of a directory store some at a time.
const BLOCKING_THREADS: usize = DISK_CALLS_MAX + 16;

/// They stay as good as for ever: a thread that ends gives its stack back.
const BLOCKING_THREADS_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Runs a server until it is told to stop.
pub(crate) fn serve(settings: Settings) -> Result<()> {
    abort_on_panic_under_locks();
    process::prepare();
    let manager = Arc::new(ServiceManager::of_environment());
    let runtime = runtime()?;
    blocking_threads::start(&runtime, BLOCKING_THREADS);
    let api = ApiListeners::bind(&settings)?;
    let gate = Arc::new(Gate::new(Arc::new(api_listeners::access_rules(&settings)?)));
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
    runtime.block_on(store.start())?;
    let files = CacheDir::open(&settings, &mut messages::LogFillBar::default())?;
    let shared = Arc::clone(&store) as SharedStore;
    let mut engine = runtime.block_on(Engine::start(&settings, shared, files, runtime.handle()))?;
    messages::log_recovery(&engine.report);
    let control = Arc::new(ControlPlane::new(
        &engine,
        Some(store),
        settings.slow_request,
        settings.nbd_tls.as_ref(),
    )?);
    let served = runtime.block_on(run(&settings, &engine, &control, (&api, gate), &manager));
    let closed = runtime.block_on(control.close_all());
    engine.stop(control.disks.take_live());
    // Nothing waits for tasks that still run.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served.and(closed)
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

async fn run(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<ControlPlane>,
    api: (&ApiListeners, Arc<Gate>),
    manager: &Arc<ServiceManager>,
) -> Result<()> {
    let initial = control.open_initial_volumes(&settings.volumes, &engine.report);
    let waiting = initial.await?;
    let reopen = ReopenTask::start(control, waiting);
    let health = tokio::spawn({
        let control = Arc::clone(control);
        let manager = Arc::clone(manager);
        async move { control.watch_health(|| manager.on_alive()).await }
    });
    let slow_requests = tokio::spawn({
        let control = Arc::clone(control);
        async move { messages::report_slow_requests(control.latencies.slow()).await }
    });
    let served = serve_clients(settings, engine, control, api, manager).await;
    health.abort();
    slow_requests.abort();
    reopen.stop().await;
    served
}

/// Serves the API and NBD clients until a signal stops the server.
async fn serve_clients(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<ControlPlane>,
    api: (&ApiListeners, Arc<Gate>),
    manager: &ServiceManager,
) -> Result<()> {
    control.listen(&settings.nbd)?;
    let mut stop = process::StopSignal::new()?;
    let (api, gate) = api;
    let (close, closed) = tokio::sync::watch::channel(());
    let router = api::router(Arc::clone(control), gate);
    let mut servers = tokio::task::JoinSet::new();
    for listener in api.listeners()? {
        servers.spawn(api::serving::serve(
            listener,
            router.clone(),
            closed.clone(),
        ));
    }
    messages::announce(settings, &api.addresses(), engine, control)?;
    manager.on_ready();
    stop.recv().await;
    manager.on_stopping();
    eprintln!("firn: stopping; bringing what is left to the store (again to leave at once)");
    tokio::spawn(async move {
        stop.recv().await;
        eprintln!("firn: left at once; what is not in the store stays in the log");
        std::process::exit(1);
    });
    drop(close);
    api.shut_down();
    // A client that keeps its connection open does not keep the server from stopping.
    let _ = tokio::time::timeout(Duration::from_secs(1), servers.join_all()).await;
    Ok(())
}
