//! Serves files, or memory, badly: late, in parts, with errors, with a handler that panics.
//!
//!     cargo run --release -p ublk --example delay -- --help
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

use common::disk::{FileDisk, Layout, Striped};
use common::{Parsed, Served};

const USAGE: &str = "\
Serves files, or memory that is lost at the end, badly.

  delay [OPTIONS] [FILE...]
  delay --size 64M --delay-us 2000 --fail-every 100

  --size SIZE           of the disk in memory [256M]
  --direct, --stripe    as in the example `file`
  --delay-us N          every request waits this long
  --fail-every N        every N-th read or write of a queue fails with EIO
  --short-every N       it is answered by half
  --panic-every N       its handler panics
  --drop-every N        its handler forgets it";

/// What is done to requests. Each number means "every n-th time"; zero never.
#[derive(Clone, Copy, Debug)]
struct Mischief {
    delay: Duration,
    fail_every: u64,
    short_every: u64,
    panic_every: u64,
    drop_every: u64,
}

struct Late {
    on: Striped,
    mischief: Mischief,
}

/// The handler of one queue: mischief before a handler that does its work.
struct Mischievous {
    inner: BackendHandler<FileDisk>,
    mischief: Mischief,
    /// Requests with bytes so far.
    seen: u64,
    /// By tag.
    delayed: HashMap<u16, Request>,
}

/// In every token of a delay; the inner handler's have it not.
const DELAY: u64 = 1 << 62;

impl Mischievous {
    fn hits(&self, every: u64) -> bool {
        every > 0 && self.seen.is_multiple_of(every)
    }

    fn serve<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        if request.bytes() > 0 {
            self.seen += 1;
            if self.hits(self.mischief.fail_every) {
                return queue.fail(request, libc::EIO);
            }
            if self.hits(self.mischief.drop_every) {
                return drop(request);
            }
            assert!(!self.hits(self.mischief.panic_every), "as was asked for");
            if self.hits(self.mischief.short_every) {
                request.limit(request.bytes() / 2);
            }
        }
        self.inner.on_request(queue, request);
    }
}

impl Handler for Mischievous {
    fn on_attached<P: Port>(&mut self, queue: &mut QueueCx<'_, P>) {
        self.inner.on_attached(queue);
    }

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        let after = self.mischief.delay;
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

impl Served for Late {
    type Handler = Mischievous;

    fn disk(&self) -> Disk {
        self.on.disk()
    }

    fn handler(&self, queue: u16, depth: u16) -> Mischievous {
        Mischievous {
            inner: self.on.handler(queue, depth),
            mischief: self.mischief,
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
    let parsed = Parsed::read(USAGE, &own, &["--direct"])?;
    let mischief = Mischief {
        delay: Duration::from_micros(parsed.number("--delay-us")?),
        fail_every: parsed.number("--fail-every")?,
        short_every: parsed.number("--short-every")?,
        panic_every: parsed.number("--panic-every")?,
        drop_every: parsed.number("--drop-every")?,
    };
    let on = if parsed.rest.is_empty() {
        let bytes = match parsed.number("--size")? {
            0 => 256 << 20,
            bytes => bytes,
        };
        vec![Striped::memory(bytes)?]
    } else {
        Striped::of(&Layout::of(&parsed)?)?
    };
    let served: Vec<Late> = on.into_iter().map(|on| Late { on, mischief }).collect();
    common::run(&parsed.options, &served)
}
