//! Bringing a server up, telling how to use it, and taking it down in good order.
//!
//! The order up: what can be refused without touching anything comes first (addresses, the
//! store's probe), then the lock on the cache directory, then the files, the engine, the volumes,
//! and last the doors through which clients come. The order down is the reverse, and between
//! closing the doors and letting the volumes go everything is brought to the store. Disks are the
//! exception: they come back before the server says that it is ready, and when it ends they wait
//! for the next one.

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use nbd::server::Listen;
use rustix::process::Resource;
use store::{Retry, RetryPolicy, SharedStore, SingleWriter};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use volume::RecoveryReport;

use crate::api;
use crate::cli::output;
use crate::config::Settings;
use crate::control_plane::Control;
use crate::control_plane::reopen::Reopening;
use crate::engine::Engine;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd as doors;
use crate::local_files::{CacheDir, Progress};
use crate::store_faults::Running;
use crate::units::Size;

/// Threads for the API and the store; what takes time there is waiting.
const RUNTIME_THREADS: usize = 2;

/// Open files that are enough for 4,096 disks with thousands of connections, and far below what a
/// kernel usually refuses (`fs.nr_open`).
const FILES: u64 = 1 << 16;

/// Runs a server until it is told to stop.
pub(crate) fn serve(settings: Settings) -> Result<()> {
    flush_io_for_others();
    open_many_files();
    let runtime = runtime()?;
    let api = listen(&settings)?;
    let (store, planned) = runtime.block_on(open_store(&settings))?;
    let files = CacheDir::open(&settings, &mut FillBar::default())?;
    let mut engine = runtime.block_on(Engine::start(&settings, store, files, runtime.handle()))?;
    report(&engine.report);
    let control = Arc::new(Control::new(&engine, planned)?);
    let served = runtime.block_on(run(&settings, &engine, &control, api));
    let down = runtime.block_on(control.close_all());
    engine.stop(control.disks.leave());
    // What still runs on the runtime now is waited for by nobody.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served.and(down)
}

/// A file system on one of our volumes, mounted on this machine, frees memory by writing to us.
/// So none of our threads may wait for memory to be freed that way; those that start later
/// inherit this. Needs a privilege: without it only such mounts are at risk.
fn flush_io_for_others() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "PR_SET_IO_FLUSHER is refused");
    }
}

/// Each disk and each connection has a descriptor, and what a process usually gets is enough for a
/// thousand, or for four thousand at most. The limit is raised as far as this process may, with the
/// privilege beyond what it was given; before the reactors start, which make their tables of files
/// to measure.
fn open_many_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let may = |maximum| rustix::process::Rlimit {
        current: maximum,
        maximum,
    };
    let wanted = limit.maximum.map(|maximum| maximum.max(FILES));
    let raised = rustix::process::setrlimit(Resource::Nofile, may(wanted))
        .or_else(|_| rustix::process::setrlimit(Resource::Nofile, may(limit.maximum)));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit on open files stays");
    }
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_name("firn-runtime")
        .enable_all()
        .build()
        .map_err(|source| Failure::internal(format!("cannot start threads: {source}")))
}

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
    let listener = TcpListener::bind(settings.api).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !settings.api.ip().is_loopback() {
        tracing::warn!(
            address = %settings.api,
            "the API has no authentication: whoever reaches this address controls the server"
        );
    }
    Ok(listener)
}

/// The store, and the faults that are planned for it. The probe is spared: what it finds out is
/// whether the store can be trusted at all.
async fn open_store(settings: &Settings) -> Result<(SharedStore, Option<Running>)> {
    let bare = store::open_url(&settings.store)?;
    let retried = |store| Arc::new(Retry::new(store, RetryPolicy::default())) as SharedStore;
    let report = store::probe(&retried(Arc::clone(&bare)), settings.single_writer).await?;
    let planned = settings
        .planned_faults
        .map(|plan| plan.over(Arc::clone(&bare)));
    let store = retried(planned.as_ref().map_or(bare, Running::store));
    if report.fences() {
        return Ok((store, planned));
    }
    tracing::warn!(store = %store::Store::name(&store), "no conditional PUT: a second server would overwrite");
    Ok((Arc::new(SingleWriter::new(store)), planned))
}

/// Says what recovery found that somebody should know.
fn report(report: &RecoveryReport) {
    if !report.formatted {
        tracing::info!(
            frames = report.frames,
            ring_entries = report.ring_entries,
            volumes = report.tails.len(),
            "the log was recovered"
        );
    }
    for volume in &report.rings_lost {
        tracing::error!(
            %volume,
            "its index ring is gone although the machine was not restarted: writes after the \
             last flush are lost. Do not empty --ring-dir while a server may be restarted"
        );
    }
    for (volume, newest, rescue) in &report.tails {
        if *rescue {
            tracing::warn!(
                %volume, newest = newest.0,
                "another host took this volume over; what this host had not uploaded is kept"
            );
        }
    }
    if report.poisoned {
        tracing::error!("a sync of this log failed once: volumes can be read, not written");
    }
}

async fn run(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<Control>,
    api: TcpListener,
) -> Result<()> {
    let initial = control.open_initial(&settings.volumes, &engine.report);
    let mut late = initial.await?;
    if settings.take_over {
        // It was said of the owners of that moment, and not of who may have a volume later.
        late.clear();
    }
    let late = Reopening::start(control, late);
    let served = doors_open(settings, engine, control, api).await;
    late.end().await;
    served
}

/// Lets clients in, until the server is to end.
async fn doors_open(
    settings: &Settings,
    engine: &Engine,
    control: &Arc<Control>,
    api: TcpListener,
) -> Result<()> {
    control.listen(&settings.nbd)?;
    let mut stop = Stop::new()?;
    let listener = tokio::net::TcpListener::from_std(api)
        .map_err(|source| Failure::internal(format!("cannot serve the API: {source}")))?;
    let address = listener.local_addr().unwrap_or(settings.api);
    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn({
        let router = api::router(Arc::clone(control), address);
        async move {
            axum::serve(listener, router)
                .with_graceful_shutdown(async {
                    // Ends with the sender too.
                    let _ = closed.await;
                })
                .await
        }
    });
    announce(settings, address, engine, control)?;
    stop.wanted().await;
    eprintln!("firn: stopping; bringing what is left to the store (again to leave at once)");
    tokio::spawn(async move {
        stop.wanted().await;
        eprintln!("firn: left at once; what is not in the store stays in the log");
        std::process::exit(1);
    });
    drop(close);
    // A client that keeps its connection open does not keep the server.
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    Ok(())
}

/// Says how to use the server, now that it can be used.
fn announce(
    settings: &Settings,
    api: SocketAddr,
    engine: &Engine,
    control: &Control,
) -> Result<()> {
    let files = engine.files();
    let log_io = if files.log.align.is_some() {
        "direct"
    } else {
        "buffered"
    };
    let places: Vec<String> = control.places().iter().map(doors::shown).collect();
    let mut lines = vec![
        "firn is ready.".to_owned(),
        format!("  store  {}", settings.store),
        format!(
            "  cache  {} (log {}, {log_io} I/O: {})",
            files.path.display(),
            Size(files.log.bytes),
            files.log.reason
        ),
        format!("  API    http://{api}"),
        format!("  NBD    {} ({})", places.join(", "), engine.backend()),
    ];
    for volume in control.open_volumes() {
        lines.push(format!("\nvolume {} ({})", volume.name, Size(volume.bytes)));
        if let Some(device) = &volume.device {
            lines.push(format!("  disk {device}"));
        }
        let Some(uri) = volume.uris.first() else {
            continue;
        };
        lines.push(format!("  nbdinfo '{uri}'"));
        lines.push(format!(
            "  qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"
        ));
        if let Some(Listen::Tcp(address)) = control.places().first() {
            lines.push(format!(
                "  nbd-client {} {} /dev/nbd0 -name {}",
                address.ip(),
                address.port(),
                volume.name
            ));
        }
        lines.push(format!("  firn sync {}", volume.name));
    }
    if control.open_volumes().is_empty() {
        lines.push("\nno volume yet: firn volume create demo --size 10GiB".to_owned());
    }
    output::line(&lines.join("\n"))
}

/// The wish that the server ends.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self> {
        let failed = |source: std::io::Error| {
            Failure::internal(format!("cannot wait for signals: {source}"))
        };
        Ok(Stop {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    async fn wanted(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Shows the filling of a new log, where somebody is looking.
#[derive(Default)]
struct FillBar(Option<ProgressBar>);

impl Progress for FillBar {
    fn filled(&mut self, done: u64, total: u64) {
        if self.0.is_none() {
            if !std::io::stderr().is_terminal() {
                eprintln!("firn: making the log ({})", Size(total));
            }
            let bar = ProgressBar::new(total);
            bar.set_style(
                ProgressStyle::with_template("making the log [{bar:30}] {bytes}/{total_bytes}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            self.0 = Some(bar);
        }
        if let Some(bar) = &self.0 {
            bar.set_position(done);
            if done == total {
                bar.finish_and_clear();
            }
        }
    }
}
