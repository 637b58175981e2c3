//! What the example servers share: options, and the life of their devices.
//!
//! They print the path of each disk on standard output once it is there, and serve until standard
//! input ends or SIGTERM or SIGINT comes. Everything else is said on standard error: the figures of
//! all queues at the end, and whenever a line comes on standard input.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each example uses a part of this"
)]

pub mod disk;
pub mod options;

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Duration;

use reactor::{BackendChoice, BackendKind, Config, Reactor};
use tokio::signal::unix::{Signal, SignalKind, signal};
use ublk::control::ControlDevice;
use ublk::device::{self, LiveDevice, OpenRequest, Origin, PoolFactory};
use ublk::exit;
use ublk::queue::{Handler, Pool};
use ublk::{DeviceSpec, Disk};
use ublk_fake::BoundedPool;

pub use options::{Arguments, Options};

/// What an example serves on one device.
pub trait DiskService {
    /// Serves one queue.
    type Handler: Handler + Send;

    /// What the disk looks like.
    fn disk(&self) -> Disk;

    /// Makes the handler of a queue.
    fn handler(&self, queue: u16, depth: u16) -> Self::Handler;
}

/// How long one step of a device's life may take.
const STEP: Duration = Duration::from_secs(30);

/// Serves each of these on a device of its own, until told to end.
pub fn run<S: DiskService>(options: &Options, served: &[S]) -> Result<(), Box<dyn Error>> {
    let end = Shutdown::new()?;
    let control = ControlDevice::open()?;
    let reactors = (0..options.reactors)
        .map(|number| {
            Reactor::start(Config {
                name: format!("reactor-{number}"),
                backend: BackendChoice::Only(BackendKind::IoUring),
                completions: options.completions,
                ..Config::default()
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let pool = options.pool.map(BoundedPool::new);
    let (mut devices, mut hows) = (Vec::new(), Vec::new());
    for (at, one) in served.iter().enumerate() {
        match start_device((options, &pool), &control, &reactors, at, one) {
            Ok((live, how)) => {
                devices.push(live);
                hows.push(how);
            }
            Err(error) => {
                abort_start(&control, devices.into_iter().zip(hows), reactors);
                return Err(error);
            }
        }
    }
    {
        let mut out = std::io::stdout().lock();
        for live in &devices {
            writeln!(out, "{}", live.path().display())?;
        }
        out.flush()?;
    }
    let mut times = 0_u64;
    end.wait(|| {
        print_stats(&devices);
        times += 1;
        eprintln!("figures said {times}");
    });
    print_stats(&devices);
    if let Some(pool) = &pool {
        eprintln!("pool: {pool:?}");
    }
    print_reactor_stats(&reactors);
    if options.leave {
        let mut limits = exit::ExitTimeouts::default();
        if options.quiesce_by_ring {
            limits.quiesce = None;
        }
        let report = exit::shut_down(&control, devices, reactors, limits);
        eprintln!("left: {report:?}");
        return Ok(());
    }
    stop_devices(devices)
}

fn start_device<S: DiskService>(
    (options, pool): (&Options, &Option<BoundedPool>),
    control: &ControlDevice,
    reactors: &[Reactor],
    at: usize,
    served: &S,
) -> Result<(LiveDevice, Origin), Box<dyn Error>> {
    // Devices begin on different reactors, so that single queues spread, and that each queue has a
    // reactor of its own where there are so many.
    let (count, first) = (reactors.len(), at * usize::from(options.queues));
    let handles: Vec<_> = (0..count)
        .map(|turn| reactors[(first + turn) % count].handle().clone())
        .collect();
    let id = options.id.map(|first| first + at as u32);
    let spec = DeviceSpec {
        id,
        queues: options.queues,
        depth: options.depth,
        io_bytes_max: options.io_bytes,
        mode: options.mode,
        wants: options.wants,
        ..DeviceSpec::new(served.disk())
    };
    let spec = spec.with_environment()?;
    let given = device::QueueOptions {
        slots_max: options.slots,
        spread: options.spread,
        pool: pool.clone().map(|pool| {
            let of_queue = move |_| Box::new(pool.clone()) as Box<dyn Pool>;
            Box::new(of_queue) as PoolFactory
        }),
    };
    let build = |queue| served.handler(queue, options.depth);
    let (live, how) = match id.filter(|_| options.recover) {
        Some(id) => {
            let (live, how) = device::open_or_recover(
                OpenRequest {
                    control,
                    id,
                    spec: &spec,
                    reactors: &handles,
                    options: &given,
                    within: STEP,
                },
                build,
            )?;
            eprintln!("device {id}: {how:?}");
            (live, how)
        }
        None => {
            let added = device::add(control, &spec, S::Handler::MODES)?;
            (
                added.attach(&handles, &given, build)?.start(STEP)?,
                Origin::Added,
            )
        }
    };
    print_grant(&live);
    Ok((live, how))
}

fn print_grant(live: &LiveDevice) {
    let granted = live.grant();
    eprintln!(
        "device {}: {}, {} queues of {}, flags {:?}",
        live.id(),
        granted.mode,
        granted.queues,
        granted.depth,
        granted.flags
    );
    for missing in &granted.missing {
        eprintln!("device {}: without {missing}", live.id());
    }
}

/// Says what each queue, or each share of one, has done so far. All of it at once: standard error is
/// written through, and a call for every word of a thousand queues would be most of an exit.
fn print_stats(devices: &[LiveDevice]) {
    let mut text = String::new();
    for live in devices {
        let stats = live.stats();
        let shares = stats.len() / usize::from(live.grant().queues);
        for (at, stats) in stats.iter().enumerate() {
            let (queue, share) = (at / shares, at % shares);
            let id = live.id();
            text += &format!("device {id} queue {queue} share {share}: {stats:?}\n");
        }
    }
    eprint!("{text}");
}

/// Says what each reactor has, likewise.
fn print_reactor_stats(reactors: &[Reactor]) {
    let (to, from) = std::sync::mpsc::channel();
    for (at, reactor) in reactors.iter().enumerate() {
        let to = to.clone();
        // A reactor that has ended does not answer, and the receiver may have given up waiting.
        let _ = reactor.handle().post(move |core| {
            let _ = to.send((at, core.stats()));
        });
    }
    drop(to);
    let mut said: Vec<_> = std::iter::from_fn(|| from.recv_timeout(STEP).ok()).collect();
    said.sort_unstable_by_key(|&(at, _)| at);
    let lines = said.iter();
    let lines = lines.map(|(at, stats)| format!("reactor {at}: {stats:?}\n"));
    eprint!("{}", lines.collect::<String>());
}

/// Leaves nothing behind that was not there before, and loses nothing of that: disks that were taken
/// over wait for the next server.
fn abort_start(
    control: &ControlDevice,
    devices: impl Iterator<Item = (LiveDevice, Origin)>,
    reactors: Vec<Reactor>,
) {
    let (there, added): (Vec<_>, Vec<_>) = devices.partition(|(_, how)| *how == Origin::Recovered);
    let of = |devices: Vec<(LiveDevice, Origin)>| devices.into_iter().map(|one| one.0).collect();
    // Told already, and not the reason.
    let _ = stop_devices(of(added));
    let report = exit::shut_down(control, of(there), reactors, exit::ExitTimeouts::default());
    eprintln!("left: {report:?}");
}

/// Stops and deletes all of them; returns the last error.
fn stop_devices(devices: Vec<LiveDevice>) -> Result<(), Box<dyn Error>> {
    let mut verdict = Ok(());
    for live in devices {
        let stopped = live.stop(STEP).map_err(ublk::Error::from);
        if let Err(error) = stopped.and_then(|stopped| stopped.delete(STEP)) {
            eprintln!("{error}");
            verdict = Err(error.into());
        }
    }
    verdict
}

/// Hears of the end from the moment it is made: a signal that comes while devices are brought up
/// must not kill the process, which would leave them behind.
struct Shutdown {
    runtime: tokio::runtime::Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    fn new() -> Result<Shutdown, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (terminate, interrupt) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            )
        };
        Ok(Shutdown {
            runtime,
            terminate,
            interrupt,
        })
    }

    /// Until standard input ends, or SIGTERM or SIGINT comes or has come. `asked` is called for
    /// every line of standard input.
    fn wait(mut self, mut asked: impl FnMut()) {
        let (more, mut lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            // Whoever waited may have heard of a signal first.
            for line in std::io::stdin().lock().lines() {
                if line.is_err() || more.send(()).is_err() {
                    break;
                }
            }
        });
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    line = lines.recv() => match line {
                        Some(()) => asked(),
                        None => break,
                    },
                    _ = self.terminate.recv() => break,
                    _ = self.interrupt.recv() => break,
                }
            }
        });
    }
}
