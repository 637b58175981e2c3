//! What an operation costs a running reactor in memory: nothing. Counted, not believed.
//!
//! A source on a real ring keeps reads and writes in flight, each begun by the end of another, as
//! queues of disks do. Every allocation of the whole process is counted between two of them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report"
)]

use std::alloc::System;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use reactor::{
    BackendChoice, BackendKind, Buf, Completion, Config, Cx, FileIndex, Op, Reactor, Source, Token,
    memfd,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const IN_FLIGHT: u64 = 32;
/// Operations before the count begins: what grows once, for the most there ever is, grows here.
const WARM: u64 = 10_000;
const COUNTED: u64 = 20_000;

/// Begins an operation whenever one ends.
struct ContinuousSource {
    file: FileIndex,
    ended: u64,
    region: Option<Region<'static, System>>,
    counted_to: Sender<usize>,
}

impl Source for ContinuousSource {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        for number in 0..IN_FLIGHT {
            let (file, offset) = (self.file, number * 4096);
            let buf = Buf::allocate(4096).unwrap();
            cx.submit(Token(number), Op::Write { file, offset, buf });
        }
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        let (file, offset) = (self.file, token.0 * 4096);
        self.ended += 1;
        if self.ended == WARM {
            self.region = Some(Region::new(ALLOCATOR));
        }
        if self.ended == WARM + COUNTED {
            let change = self.region.take().unwrap().change();
            self.counted_to
                .send(change.allocations + change.reallocations)
                .unwrap();
            return cx.detach();
        }
        match completion {
            Completion::Write(buf, Ok(())) => cx.submit(token, Op::Read { file, offset, buf }),
            Completion::Read(buf, Ok(())) => cx.submit(token, Op::Write { file, offset, buf }),
            // Cancelled, once the count is over.
            _ => return,
        };
    }
}

#[test]
fn an_operation_on_a_ring_allocates_no_memory() {
    let config = Config {
        backend: BackendChoice::Only(BackendKind::IoUring),
        ..Config::default()
    };
    let reactor = match Reactor::start(config) {
        Ok(reactor) => reactor,
        Err(error) => {
            println!("skipped: no ring on this host: {error}");
            return;
        }
    };
    let (counted_to, counted) = channel();
    let file = memfd(c"disk", IN_FLIGHT * 4096).unwrap();
    let attached = reactor.handle().attach(move |cx| ContinuousSource {
        file: cx.register(std::sync::Arc::new(file)),
        ended: 0,
        region: None,
        counted_to,
    });
    attached.unwrap();
    let allocations = counted.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(allocations, 0, "for {COUNTED} operations");
    let report = reactor.stop(Duration::from_secs(5));
    assert_eq!(report.panics, 0);
}
