//! 004: "must this queue run?" with a lock and without one.

use serde_json::json;

use super::super::plan::{Limit, Row, Run};
use super::super::section::{Measured, PUBLISHED, Section, cell, factor, number, ratio};
use crate::chart::Chart;

pub(in super::super) const ROW: Row = Row {
    id: "004",
    title: "The run path of blk-mq: barriers for a lock",
    claim: "Sequential reads of a storage controller with 8 interrupt threads under PREEMPT_RT: 640 MB/s, 153 MB/s since a lock was taken to \
            ask whether a queue must run, 640 MB/s again with memory barriers in its place: 4.2 times.",
    source: "Linux, linux-block, 20 December 2025 to 12 May 2026: \"block/blk-mq: fix RT kernel performance regressions\", in its seventh \
             version \"use atomic_t for quiesce_depth to avoid lock contention on RT\" (Ionut Nechita); the lock is of commit 6bda857bcbb8",
    runs: &[
        Run {
            name: "native",
            whole: &["bench", "blkmq", "--quick"],
            quick: Some(&["bench", "blkmq", "--quick"]),
            minutes: [10, 10],
            rounds: [5, 5],
        },
        Run {
            name: "real-time",
            whole: &["bench", "blkmq", "--quick", "--kernel", "real-time"],
            quick: Some(&["bench", "blkmq", "--quick", "--kernel", "real-time"]),
            minutes: [20, 15],
            rounds: [5, 5],
        },
    ],
    limits: &[
        Limit::always(
            "There is no storage controller, there are no interrupt threads, and two processors run 8 threads: a lock is contended by two. What is \
         measured is our queue's check in user space, not the kernel's.",
        ),
        Limit::of(
            "real-time",
            "The real-time kernel is emulated: it changes the scheduling around user space's locks, not the locks, and what surrounds the check is \
         dearer than on a machine, which hides the check.",
        ),
    ],
    write,
};

/// The lanes, and what they are called.
const LANES: [(&str, &str); 2] = [
    ("native", "this machine"),
    ("real-time", "PREEMPT_RT, emulated"),
];

const CHECKS: [&str; 4] = [
    "lock-free, fences",
    "lock-free, membarrier",
    "spin lock",
    "mutex",
];

const THREADS: u64 = 8;

fn write(measured: &Measured, section: &mut Section) {
    section.paragraph(
        "8 threads each complete their requests and ask after every one whether their queue must run. `--quick` of this benchmark is its table of that \
         alone, with as many rounds as the whole has, so that it is what a whole run of this page takes, too.",
    );
    let mut rows = vec![
        published("published, before the lock", "640"),
        published("published, lock in the run path", "153"),
        published("published, barriers", "640"),
    ];
    for (run, lane) in LANES {
        for check in CHECKS {
            let of = |what| find(measured, run, what, check);
            let millions = |what| cell(of(what).0.map(|rate| rate / 1e6), 2);
            let waiting = |what| cell(of(what).1.map(|share| 100.0 * share), 0);
            rows.push(vec![
                format!("ours, {lane}: {check}"),
                String::new(),
                millions("requests/s"),
                waiting("requests/s"),
                millions("checks/s"),
                waiting("checks/s"),
            ]);
        }
    }
    let header = [
        "how it is asked",
        "MB/s",
        "million requests/s",
        "waiting, %",
        "million checks/s alone",
        "waiting, %",
    ];
    section.table(1, &header, &rows);
    against_locks(measured, section);
    section.paragraph(
        "**The rejected half.** The published series first had a second part, which made the sleeping lock of processors that come and go a \
         spinning one; it was dropped, for nothing contends for that lock, and what runs under it may sleep. So it is here: rare \
         transitions keep a sleeping mutex, and `the_slow_path_may_sleep_under_its_mutex_and_could_not_under_a_small_lock` \
         keeps the other form as what fails. That nothing on the fast path takes a lock is \
         `no_request_path_sleeps_or_holds_a_small_lock_across_a_sleep`, and that the barriers suffice \
         `a_request_that_parks_while_the_gate_opens_is_run`, under a model checker, with each barrier taken out in turn \
         (`every_planted_bug_fails_its_model`).",
    );
}

fn published(name: &str, rate: &str) -> Vec<String> {
    let mut row = vec![name.to_owned(), rate.to_owned()];
    row.resize(6, String::new());
    row
}

/// Rate, and the share of time that threads waited for the lock.
fn find(measured: &Measured, run: &str, what: &str, check: &str) -> (Option<f64>, Option<f64>) {
    let named = [
        ("threads", json!(THREADS)),
        ("what", json!(what)),
        ("check", json!(check)),
    ];
    let row = measured.find(run, "must-run", &named);
    (number(row, "per_second"), number(row, "waiting"))
}

fn against_locks(measured: &Measured, section: &mut Section) {
    let mut rows = Vec::new();
    let mut chart = Chart {
        title: "004: lock-free by lock, rates at 8 threads".to_owned(),
        ..Chart::default()
    };
    chart.put("published", PUBLISHED, 640.0 / 153.0);
    for (run, lane) in LANES {
        for free in &CHECKS[..2] {
            let by = |what, lock| {
                let rate = |check| find(measured, run, what, check).0;
                ratio(rate(free), rate(lock))
            };
            let times = [
                by("requests/s", "spin lock"),
                by("requests/s", "mutex"),
                by("checks/s", "spin lock"),
                by("checks/s", "mutex"),
            ];
            let short = free.strip_prefix("lock-free, ").unwrap_or(free);
            let group = format!("{run}, {short}");
            for (series, value) in ["requests by spin lock", "requests by mutex"]
                .iter()
                .zip(times)
            {
                if let Some(value) = value {
                    chart.put(&group, series, value);
                }
            }
            // The published lock slept: it is a spinlock_t, which PREEMPT_RT makes a mutex. And whole reads are published.
            section.verdict(
                run,
                &format!("004: {short} for a mutex, whole requests, {lane}"),
                "4.2x",
                factor(times[1]),
                times[1].map(|times| times / (640.0 / 153.0)),
            );
            let mut row = vec![lane.to_owned(), short.to_owned()];
            row.extend(times.map(factor));
            rows.push(row);
        }
    }
    section.paragraph(
        "So often is the lock-free check as fast as one under a lock (published: 4.2x, of whole reads). The kernel's lock is a `spinlock_t`, which sleeps under \
         PREEMPT_RT: of our locks the mutex is nearer to it, and what is concluded is of whole requests against the mutex.",
    );
    let header = [
        "lane",
        "lock-free by",
        "requests: spin lock",
        "requests: mutex",
        "checks: spin lock",
        "checks: mutex",
    ];
    section.table(2, &header, &rows);
    section.chart("004-run-queue", &["native", "real-time"], chart);
}
