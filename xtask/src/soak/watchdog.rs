//! Reports an operation that does not end, and ends the soak without shutting it down.
//!
//! It must not wait for what it reports on: it asks the server last, under a deadline.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::host::tail;
use super::operator::Operator;
use super::server::thread_stacks;
use crate::Failure;

/// A request may wait for one outage of the store and one restart, but no longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Exit status of a soak that hung.
const HUNG: i32 = 3;

/// Has the kernel complain of a task that hangs no sooner than this watchdog does, which knows what the
/// task waits for. Not every kernel looks for such tasks.
pub(super) fn replace_the_kernels() -> Result<(), Failure> {
    let path = "/proc/sys/kernel/hung_task_timeout_secs";
    match fs::write(path, LIMIT.as_secs().to_string()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot write {path}: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Watches until `over` is set.
pub(super) fn watch(operator: &Operator, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(500));
        let late = operator.world.find_stalled(LIMIT);
        if !late.is_empty() {
            report(operator, &late);
            std::process::exit(HUNG);
        }
    }
}

fn report(operator: &Operator, late: &[String]) {
    println!("WATCHDOG: these do not end:\n  {}", late.join("\n  "));
    for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = disk.file_name().to_string_lossy().into_owned();
        if name.starts_with("ublkb") {
            let inflight = fs::read_to_string(disk.path().join("inflight")).unwrap_or_default();
            println!("{name} in flight (reads, writes): {}", inflight.trim());
        }
    }
    println!("the soak's threads:\n{}", thread_stacks(std::process::id()));
    for place in operator.places {
        let number = place.host.number;
        if let Ok(running) = place.server.try_lock()
            && let Some(server) = &*running
        {
            let stacks = thread_stacks(server.pid());
            println!("the threads of host {number}'s server:\n{stacks}");
        }
        let said = tail(&place.host.log_path(), 60);
        println!("the end of its log:\n{said}");
    }
    if let Some(store) = &operator.setup.store {
        println!("MinIO:\n{}", store.end_with_stacks());
    }
    for device in operator.devices {
        for place in operator.places {
            match place.host.show(&device.name) {
                Ok(shown) => println!("{shown}"),
                Err(error) => println!("{error}"),
            }
        }
    }
}
