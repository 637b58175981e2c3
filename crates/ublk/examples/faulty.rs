//! Serves files, or memory, with injected faults: late, short and failed requests, panics.
//!
//!     cargo run --release -p ublk --example faulty -- --help
//!
//! `--X-every N` hits every N-th read or write of a queue. Without a FILE it serves memory that is
//! lost at the end. The other options are in `common`, `--direct` and `--stripe` as in `file`.

mod common;

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use reactor::{Completion, Op, Port, Token};
use ublk::BackendHandler;
use ublk::queue::{Handler, QueueCx};
use ublk::{Disk, Request};

use common::disk::{FileDisk, Layout, StripedDisk};
use common::{Arguments, DiskService};

const USAGE: &str = "\
Serves files, or memory that is lost at the end, with injected faults.

  faulty [OPTIONS] [FILE...]
  faulty --size 64M --delay-us 2000 --fail-every 100

  --size SIZE           of the disk in memory [256M]
  --direct, --stripe    as in the example `file`
  --delay-us N          every request waits this long
  --fail-every N        every N-th read or write of a queue fails with EIO
  --short-every N       half of it is done: a read is asked for again where it is
                        copied, everything else fails
  --panic-every N       its handler panics
  --drop-every N        its handler drops it";

/// What a queue does to its requests. Each number means "every n-th read or write"; zero never.
#[derive(Clone, Copy, Debug)]
struct Faults {
    delay: Duration,
    fail_every: u64,
    short_every: u64,
    panic_every: u64,
    drop_every: u64,
}

struct FaultyDisk {
    disk: StripedDisk,
    faults: Faults,
}

/// Injects faults before a handler that serves the queue.
struct FaultyHandler {
    inner: BackendHandler<FileDisk>,
    faults: Faults,
    /// Requests with bytes so far.
    seen: u64,
    /// By tag.
    delayed: HashMap<u16, Request>,
}

/// Set in the tokens of delays, and in none of the inner handler.
const DELAY: u64 = 1 << 62;

impl FaultyHandler {
    fn is_due(&self, every: u64) -> bool {
        every > 0 && self.seen.is_multiple_of(every)
    }

    fn serve<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        if request.bytes() > 0 {
            self.seen += 1;
            if self.is_due(self.faults.fail_every) {
                return queue.fail(request, libc::EIO);
            }
            if self.is_due(self.faults.drop_every) {
                return drop(request);
            }
            assert!(!self.is_due(self.faults.panic_every), "as was asked for");
            if self.is_due(self.faults.short_every) {
                request.limit(request.bytes() / 2);
            }
        }
        self.inner.on_request(queue, request);
    }
}

impl Handler for FaultyHandler {
    fn on_attached<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        self.inner.on_attached(queue);
    }

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        let after = self.faults.delay;
        if after.is_zero() {
            return self.serve(queue, request);
        }
        let tag = request.tag();
        self.delayed.insert(tag, request);
        queue.submit(Token(DELAY | u64::from(tag)), Op::Timeout { after });
    }

    fn on_completion<P: Port>(
        &mut self,
        queue: &mut QueueCx<'_, P>,
        token: Token,
        completion: Completion,
    ) {
        if token.0 & DELAY == 0 {
            return self.inner.on_completion(queue, token, completion);
        }
        if let Some(request) = self.delayed.remove(&(token.0 as u16)) {
            self.serve(queue, request);
        }
    }

    fn on_wake<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, key: u64) {
        self.inner.on_wake(queue, key);
    }

    fn on_stop<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        self.inner.on_stop(queue);
    }
}

impl DiskService for FaultyDisk {
    type Handler = FaultyHandler;

    fn disk(&self) -> Disk {
        self.disk.disk()
    }

    fn handler(&self, queue: u16, depth: u16) -> FaultyHandler {
        FaultyHandler {
            inner: self.disk.handler(queue, depth),
            faults: self.faults,
            seen: 0,
            delayed: HashMap::new(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let own = [
        "--size",
        "--stripe",
        "--delay-us",
        "--fail-every",
        "--short-every",
        "--panic-every",
        "--drop-every",
    ];
    let arguments = Arguments::parse(USAGE, &own, &["--direct"])?;
    let faults = Faults {
        delay: Duration::from_micros(arguments.number("--delay-us")?),
        fail_every: arguments.number("--fail-every")?,
        short_every: arguments.number("--short-every")?,
        panic_every: arguments.number("--panic-every")?,
        drop_every: arguments.number("--drop-every")?,
    };
    let disks = if arguments.rest.is_empty() {
        let bytes = match arguments.number("--size")? {
            0 => 256 << 20,
            bytes => bytes,
        };
        vec![StripedDisk::memory(bytes)?]
    } else {
        StripedDisk::open_all(&Layout::from_arguments(&arguments)?)?
    };
    let served: Vec<FaultyDisk> = disks
        .into_iter()
        .map(|disk| FaultyDisk { disk, faults })
        .collect();
    common::run(&arguments.options, &served)
}
