//! (b) The cost of a request on one thread: admission and completion, park and run, an idle run.

use std::hint::black_box;
use std::time::Instant;

use blkmq::{Admission, ParkReason, Queue};

use crate::must_run::{Check, Checker};
use crate::null::{device, queue};
use crate::{ROUND, ROUNDS, barriers, median};

fn admit_complete(queue: &mut Queue<u64>, number: u64) {
    match queue.admit(number) {
        Admission::Run(request) => {
            request.complete_with(black_box);
        }
        Admission::Parked | Admission::Refused => unreachable!("the gate is open"),
    }
}

fn park_wake_run(queue: &mut Queue<u64>, number: u64) {
    let Admission::Run(request) = queue.admit(number) else {
        unreachable!("the gate is open")
    };
    let waker = request.waker().clone();
    request.park(ParkReason::Fetch);
    waker.wake();
    queue.run(|request| {
        request.complete_with(black_box);
    });
}

type Step = Box<dyn FnMut(u64)>;

/// Every case by its name: something to do over and over.
fn cases() -> Vec<(String, Step)> {
    let mut cases: Vec<(String, Step)> = Vec::new();
    let nothing = |n| {
        black_box(n);
    };
    cases.push((
        "nothing: what the loop itself costs".to_owned(),
        Box::new(nothing),
    ));
    for (form, barrier) in barriers() {
        for count in [1, 8] {
            let device = device(barrier);
            let mut queues: Vec<_> = (0..count).map(|_| queue(&device, 128)).collect();
            cases.push((
                format!("admit and complete, {count} queue(s), {form}"),
                Box::new(move |n| admit_complete(&mut queues[n as usize % count], n)),
            ));
        }
        let mut parking = queue(&device(barrier), 128);
        cases.push((
            format!("admit, park, wake, run, complete, {form}"),
            Box::new(move |n| park_wake_run(&mut parking, n)),
        ));
        let mut idle = queue(&device(barrier), 128);
        cases.push((
            format!("run with nothing to do, {form}"),
            Box::new(move |_| {
                black_box(idle.run(|_| unreachable!("nothing is parked")));
            }),
        ));
    }
    for check in Check::all() {
        let queue = queue(&device(check.barrier()), 128);
        let checker = Checker::new(check, queue.handle());
        cases.push((
            format!("must it run: {}", check.name()),
            Box::new(move |_| {
                // The owner's end lives as long as the handle is used.
                let _ = &queue;
                black_box(checker.must_run());
            }),
        ));
    }
    cases
}

pub(crate) fn repeat(name: &str, count: u64) {
    if name == "list" {
        return cases().iter().for_each(|(name, _)| println!("{name}"));
    }
    let mut cases = cases();
    let (_, step) = cases
        .iter_mut()
        .find(|(case, _)| case == name)
        .expect("a case of the list");
    (0..count).for_each(step);
}

pub(crate) fn table() {
    let mut cases = cases();
    let mut figures = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, step), figures) in cases.iter_mut().zip(&mut figures) {
            let (start, mut count) = (Instant::now(), 0_u64);
            while start.elapsed() < ROUND {
                (count..count + 1000).for_each(&mut *step);
                count += 1000;
            }
            figures.push(start.elapsed().as_nanos() as f64 / count as f64);
        }
    }
    println!("\n(b) one thread, nanoseconds each\n");
    println!("| what | ns |\n|---|---:|");
    for ((name, _), figures) in cases.iter().zip(figures) {
        println!("| {name} | {:.1} |", median(figures));
    }
}
