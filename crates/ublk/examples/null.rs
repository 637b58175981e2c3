//! Answers every request without touching its bytes: what the way to a server costs.
//!
//!     cargo run --release -p ublk --example null -- --help
//!
//! `--deferred` answers on another thread than the ring's. `--memcpy` copies what is written into a
//! buffer of the server's own, as a server must whose memory the driver cannot fill. The other
//! options are in `common`.

mod common;

use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc::{Sender, channel};

use blkmq::io::Op;
use reactor::{Buf, BufferPurpose, Completion, Port, Token};
use ublk::queue::{Handler, QueueCx};
use ublk::spec::Segments;
use ublk::{Data, Disk, Request};

use common::{Arguments, DiskService};

const USAGE: &str = "\
Serves disks that answer at once, without touching any bytes.

  null [OPTIONS]
  null --devices 16 --queues 2 --mode zero-copy

  --devices N           how many disks [1]
  --size SIZE           of each disk [250G]
  --deferred            answer on another thread than the ring's
  --memcpy              copy what is written into a buffer of the server's own
  --segments N          memory ranges of one request at most [no limit]
  --segment-bytes SIZE  largest memory range [64K where --segments is given]
  --dma-alignment N     alignment of requests' memory [the driver's]";

struct NullDisk {
    bytes: u64,
    dma_alignment: Option<u32>,
    segments: Option<Segments>,
    deferred: Option<Sender<Request>>,
    memcpy: bool,
}

/// The handler of one queue.
struct NullHandler {
    /// Nothing is copied, and nobody else answers.
    plain: bool,
    deferred: Option<Sender<Request>>,
    /// Reads that wait for a buffer, by tag.
    waiting: HashMap<u64, Request>,
    /// Buffers of our own that writes are copied into, by tag; none where they are not.
    own: Vec<Option<Buf>>,
}

impl NullHandler {
    /// Copies what is written into a buffer of our own.
    fn copy_write(&mut self, request: &Request) {
        let written = matches!(request.op(), Op::Write { .. });
        let (Data::Buffer(data), Some(own)) =
            (request.data(), self.own.get_mut(usize::from(request.tag())))
        else {
            return;
        };
        if written && own.as_ref().is_none_or(|own| own.len() < data.len()) {
            *own = Buf::allocate(data.len());
        }
        if written && let Some(own) = own {
            own[..data.len()].copy_from_slice(data);
            // Or the compiler sees that nobody reads it.
            std::hint::black_box(&own[..]);
        }
    }

    /// Answers one that has all it needs.
    #[inline(always)]
    fn answer<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        if self.plain {
            queue.complete(request);
        } else {
            self.answer_by_options(queue, request);
        }
    }

    #[inline(never)]
    fn answer_by_options<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        self.copy_write(&request);
        match &self.deferred {
            // The receiver lives as long as the process.
            Some(deferred) => drop(deferred.send(request)),
            None => queue.complete(request),
        }
    }
}

impl Handler for NullHandler {
    #[inline(always)]
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, mut request: Request) {
        let wants_buffer =
            matches!(request.op(), Op::Read { .. }) && matches!(request.data(), Data::None);
        if wants_buffer {
            let token = u64::from(request.tag());
            match queue.request_buffer(Token(token), request.bytes() as usize, BufferPurpose::Fresh)
            {
                Some(buf) => request.set_buffer(buf),
                None => {
                    self.waiting.insert(token, request);
                    return;
                }
            }
        }
        self.answer(queue, request);
    }

    fn on_completion<P: Port>(
        &mut self,
        queue: &mut QueueCx<'_, P>,
        token: Token,
        completion: Completion,
    ) {
        let waited = self.waiting.remove(&token.0);
        if let (Some(mut request), Completion::Buffer(buf)) = (waited, completion) {
            request.set_buffer(buf);
            self.answer(queue, request);
        }
    }
}

impl DiskService for NullDisk {
    type Handler = NullHandler;

    fn disk(&self) -> Disk {
        Disk {
            dma_alignment: self.dma_alignment,
            segments: self.segments,
            ..Disk::new(self.bytes)
        }
    }

    fn handler(&self, _queue: u16, depth: u16) -> NullHandler {
        let buffers = if self.memcpy { depth } else { 0 };
        NullHandler {
            plain: self.deferred.is_none() && !self.memcpy,
            own: (0..buffers).map(|_| None).collect(),
            deferred: self.deferred.clone(),
            waiting: HashMap::new(),
        }
    }
}

/// The limits on the memory of a request that were asked for.
fn segments(arguments: &Arguments) -> Result<Option<Segments>, Box<dyn Error>> {
    let max = u16::try_from(arguments.number("--segments")?)?;
    let bytes_max = match arguments.number("--segment-bytes")? {
        0 => 64 << 10,
        bytes => u32::try_from(bytes)?,
    };
    Ok((max > 0).then_some(Segments {
        max,
        bytes_max,
        boundary: 1 << 32,
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let own = [
        "--devices",
        "--size",
        "--segments",
        "--segment-bytes",
        "--dma-alignment",
    ];
    let arguments = Arguments::parse(USAGE, &own, &["--deferred", "--memcpy"])?;
    let bytes = match arguments.number("--size")? {
        0 => 250 << 30,
        bytes => bytes,
    };
    let deferred = arguments.has("--deferred").then(|| {
        let (deferred, requests) = channel::<Request>();
        std::thread::spawn(move || requests.into_iter().for_each(Request::complete));
        deferred
    });
    let segments = segments(&arguments)?;
    let dma_alignment = match arguments.number("--dma-alignment")? {
        0 => None,
        bytes => Some(u32::try_from(bytes)?),
    };
    let count = arguments.number("--devices")?.max(1);
    let served: Vec<NullDisk> = (0..count)
        .map(|_| NullDisk {
            bytes,
            dma_alignment,
            segments,
            deferred: deferred.clone(),
            memcpy: arguments.has("--memcpy"),
        })
        .collect();
    common::run(&arguments.options, &served)
}
