//! What a sender feels, with the out-queue's own lock and without it.
//!
//! Both variants are in this one program and chosen at run time. *one*: a mutex that a sender takes
//! to queue, and that the worker holds while it reads, checks, fills and writes its socket. *split*:
//! senders take the out-queue's lock alone. The rounds are interleaved, and *split* runs twice in
//! each, against itself: the difference of the two is what this machine makes of no difference.
//!
//! Senders are paced by a schedule (open loop). A send that is due while the one before it still
//! waits is counted from when it was due. Run it with `cargo xtask bench messenger`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "benchmarks measure with sockets, threads and clocks"
)]

mod load;
mod report;

use std::time::Duration;

use load::{LOADS, Variant, run};
use report::Report;

fn main() {
    let quick = std::env::args().any(|a| a == "--quick");
    let figures = std::env::args().any(|a| a == "--figures");
    let rounds = if quick { 3 } else { 7 };
    let time = Duration::from_millis(if quick { 500 } else { 1500 });
    let mut report = Report::new(figures);
    for load in &LOADS {
        // One run to warm caches, connections and the clock; not counted.
        run(load, Variant::Split, time / 4);
        for round in 0..rounds {
            // Each round in another order, so that no variant always comes first.
            let mut order = [Variant::One, Variant::Split, Variant::SplitAgain];
            order.rotate_left(round % 3);
            for variant in order {
                report.add(load, variant, run(load, variant, time));
            }
        }
        report.print(load);
    }
}
