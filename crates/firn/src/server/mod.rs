//! Starts the server in order, and stops it in reverse.
//!
//! What can fail without touching anything starts first (addresses, the store's probe, unless the store
//! is away and there is a log); then the lock on the cache directory, the local files, the engine, the volumes, the restored disks, and
//! last the NBD listeners. When the server stops, it closes the listeners, uploads every volume and
//! gives up its ownership. Volumes that are attached as disks keep theirs: the disks wait for the
//! next server, which recovers them before it announces that it is ready.

mod messages;
mod process;
mod rescue_log;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::SharedStore;
use tokio::runtime::Runtime;

use crate::abort_on_panic::abort_on_panic_under_locks;
use crate::api;
use crate::config::Settings;
use crate::control_plane::ControlPlane;
use crate::control_plane::opening::ReopenTask;
use crate::engine::Engine;
use crate::failure::{Failure, FailureCode, Result};
use crate::local_files::CacheDir;
use crate::store_access::{StoreAccess, StoreSettings};

pub(crate) use rescue_log::{LogRescue, LogRescueReport};

/// Threads for the API and the store, which mostly wait.
const RUNTIME_THREADS: usize = 2;

/// How long a server that is still ending may keep the API's address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs a server until it is told to stop.
pub(crate) fn serve(settings: Settings) -> Result<()> {
    abort_on_panic_under_locks();
    process::prepare();
    let runtime = runtime()?;
    let api = listen(&settings)?;
    let store = StoreAccess::new(StoreSettings {
        url: settings.store.clone(),
        single_writer: settings.single_writer,
        faults: settings.store_faults,
        may_create: !CacheDir::has_log(&settings.cache),
    });
    runtime.block_on(store.start())?;
    let files = CacheDir::open(&settings, &mut messages::LogFillBar::default())?;
    let shared = Arc::clone(&store) as SharedStore;
    let mut engine = runtime.block_on(Engine::start(&settings, shared, files, runtime.handle()))?;
    messages::log_recovery(&engine.report);
    let control = Arc::new(ControlPlane::new(&engine, Some(store))?);
    let served = runtime.block_on(run(&settings, &engine, &control, api));
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
        .enable_all()
        .build()
        .map_err(|source| Failure::internal(format!("cannot start threads: {source}")))
}

/// Listens for the API. A server that is still ending has the address and the cache directory: it is
/// waited for, and if it does not end, it is the reason.
fn listen(settings: &Settings) -> Result<TcpListener> {
    let failed = |source: std::io::Error| {
        Failure::new(
            FailureCode::AddressInUse,
            format!(
                "cannot listen for the API on {}: {source}; is another firn running? Choose \
                 another address with --api",
                settings.api
            ),
        )
    };
    let started = Instant::now();
    let listener = loop {
        let source = match TcpListener::bind(settings.api) {
            Ok(listener) => break listener,
            Err(source) => source,
        };
        let holder = CacheDir::holder(&settings.cache);
        let taken = source.kind() == std::io::ErrorKind::AddrInUse;
        let Some(holder) = holder.filter(|_| taken && !canary::active!("blame_the_address")) else {
            return Err(failed(source));
        };
        if started.elapsed() >= ADDRESS_TIMEOUT {
            return Err(Failure::new(
                FailureCode::CacheInUse,
                format!(
                    "cache directory {} is in use by {holder}; stop it, or give this one a directory \
                     of its own with --cache (and another --api than {})",
                    settings.cache.display(),
                    settings.api
                ),
            ));
        }
        // The kernel tells nobody when an address becomes free; this loop runs at start only.
        std::thread::sleep(Duration::from_millis(50));
    };
    listener.set_nonblocking(true).map_err(failed)?;
    if !settings.api.ip().is_loopback() {
        tracing::warn!(
            address = %settings.api,
            "the API has no authentication: whoever reaches this address controls the server"
        );
    }
    Ok(listener)
}

async fn run(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<ControlPlane>,
    api: TcpListener,
) -> Result<()> {
    let initial = control.open_initial_volumes(&settings.volumes, &engine.report);
    let waiting = initial.await?;
    let reopen = ReopenTask::start(control, waiting);
    let health = tokio::spawn({
        let control = Arc::clone(control);
        async move { control.watch_health().await }
    });
    let served = serve_clients(settings, engine, control, api).await;
    health.abort();
    reopen.stop().await;
    served
}

/// Serves the API and NBD clients until a signal stops the server.
async fn serve_clients(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<ControlPlane>,
    api: TcpListener,
) -> Result<()> {
    control.listen(&settings.nbd)?;
    let mut stop = process::StopSignal::new()?;
    let listener = tokio::net::TcpListener::from_std(api)
        .map_err(|source| Failure::internal(format!("cannot serve the API: {source}")))?;
    let address = listener.local_addr().unwrap_or(settings.api);
    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn({
        let router = api::router(Arc::clone(control), address);
        api::serving::serve(listener, router, closed)
    });
    messages::announce(settings, address, engine, control)?;
    stop.recv().await;
    eprintln!("firn: stopping; bringing what is left to the store (again to leave at once)");
    tokio::spawn(async move {
        stop.recv().await;
        eprintln!("firn: left at once; what is not in the store stays in the log");
        std::process::exit(1);
    });
    drop(close);
    // A client that keeps its connection open does not keep the server from stopping.
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    Ok(())
}
