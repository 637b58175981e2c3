//! What goes wrong in a `firn upgrade` below disks, on a real kernel: whichever step it is, and whether the process is killed,
//! stands still, or has a new program that fails, the disk's clients wait, none sees an error, and no write is lost.
//!
//! The whole grid is tested without a kernel, over NBD (`server/upgrade.rs`) and in the simulator. Here each step and each fault
//! is there at least once, in the data modes by turns. For guests, as `guest_volume.rs` says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::common::disk_oracle::{Direct, DiskOracle};
use crate::common::guest::{Guest, Stops};
use crate::common::process::Upgrade;
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline, eventually, message};
use crate::guest_upgrade::{BLOCKS, keep_using};

/// See `server/upgrade.rs`: up to `stopped` the old program, then the new one.
const STEPS: [&str; 8] = [
    "checked",
    "given",
    "stopped",
    "started",
    "locked",
    "recovered",
    "opened",
    "adopted",
];

/// A server with a disk in use, and its clients.
struct Used<'a> {
    guest: &'a Guest,
    disk: &'a Path,
    done: &'a AtomicU64,
    device: u64,
}

impl Used<'_> {
    fn clients_go_on(&self, when: &str) {
        let before = self.done.load(Ordering::SeqCst);
        eventually(when, || self.done.load(Ordering::SeqCst) > before + 8);
        let device = fs::metadata(self.disk).unwrap().rdev();
        assert_eq!(device, self.device, "the same disk: {when}");
    }

    /// How often servers said this.
    fn said(&self, words: &str) -> usize {
        self.guest.world.server_log().matches(words).count()
    }
}

/// Over whose socket a program may be named.
fn serve(guest: &Guest, plan: &str) -> Server {
    let api = format!("unix:{}", guest.world.path("api.sock").display());
    let args = ["--api", &api, "--volume", "demo=8MiB"];
    guest.world.serve_as("cache", &args, |command| {
        command.env("FIRN_HANDOVER_AT", plan);
    })
}

/// Has clients use a disk while its server goes through `fault`, which answers the server that then serves it.
fn with_clients(
    guest: &Guest,
    mode: &str,
    plan: &str,
    fault: impl FnOnce(&Used<'_>, Server) -> Server,
) {
    let server = serve(guest, plan);
    let disk: PathBuf = guest.attach_in(&server, "demo", mode);
    let oracle = DiskOracle::new(BLOCKS);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let server = std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for number in 0..2 {
            let (oracle, stop, done) = (&oracle, &stop, &done);
            let open = Direct::open(&disk);
            scope.spawn(move || keep_using(&open, oracle, (number, 2), stop, done));
        }
        let used = Used {
            guest,
            disk: &disk,
            done: &done,
            device: fs::metadata(&disk).unwrap().rdev(),
        };
        used.clients_go_on("before the fault");
        let server = fault(&used, server);
        used.clients_go_on(plan);
        server
    });
    oracle.read_all(&Direct::open(&disk));
    guest.served_again(&server, "demo", mode);
    guest.end(server, "demo");
    assert_eq!(guest.devices(), Vec::<String>::new());
}

/// Each of them with a data mode, by turns.
fn by_turns<'a, T>(
    guest: &Guest,
    cells: impl IntoIterator<Item = T> + 'a,
) -> Vec<(&'static str, T)> {
    guest.modes().into_iter().cycle().zip(cells).collect()
}

#[test]
fn a_disk_has_every_write_whichever_step_of_an_upgrade_its_server_is_killed_at() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a server that is killed in an upgrade", 8 * deadline());
    for (mode, step) in by_turns(&guest, STEPS) {
        with_clients(&guest, mode, &format!("{step}=pause"), |used, server| {
            let before = used.said("stopped at step");
            let upgrade = Upgrade::start(&used.guest.world, &server, "120s");
            eventually("it pauses at the step", || {
                used.said("stopped at step") > before
            });
            server.kill();
            drop(upgrade);
            used.guest.serve(&[])
        });
    }
}

#[test]
fn a_disk_goes_on_when_the_new_program_fails_panics_or_hangs() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a new program that fails below a disk", 8 * deadline());
    let cells = [
        ("started", "fail", "made to fail"),
        ("locked", "panic", "panicked"),
        ("recovered", "pause", "did not serve within"),
        ("opened", "fail", "made to fail"),
    ];
    for (mode, (step, action, why)) in by_turns(&guest, cells) {
        with_clients(&guest, mode, &format!("{step}={action}"), |used, server| {
            let pid = server.pid();
            let said = used
                .guest
                .world
                .expect_failure(&server, &["upgrade", "--timeout", "20s"]);
            assert!(said.contains(why), "{step}={action}: {said}");
            assert_eq!(server.pid(), pid);
            server
        });
    }
}

#[test]
fn a_disk_goes_on_through_upgrades_in_which_the_process_stands_still_for_a_while() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("a server that stands still in an upgrade", 8 * deadline());
    for (mode, step) in by_turns(&guest, ["given", "stopped", "locked", "opened"]) {
        with_clients(&guest, mode, &format!("{step}=sigstop"), |used, server| {
            let mut upgrade = Upgrade::start(&used.guest.world, &server, "120s");
            eventually("it stands still", || server.state() == 'T');
            // Longer than any step takes.
            std::thread::sleep(Duration::from_secs(2));
            kill_process(server.process(), Signal::CONT).unwrap();
            assert!(upgrade.wait().success(), "{step}");
            server
        });
    }
}

#[test]
fn a_disk_goes_on_through_an_upgrade_without_the_store_and_ones_that_are_refused() {
    let Some(guest) = Guest::new() else { return };
    let _watchdog = Watchdog::new("upgrades that are refused below a disk", 8 * deadline());
    for mode in guest.modes() {
        with_clients(&guest, mode, "none", |used, server| {
            let world = &used.guest.world;
            world.swap_store_and_file();
            let said = world.expect_success(&server, &["upgrade", "--timeout", "120s"]);
            assert!(said.contains("upgraded"), "{said}");
            // Whoever reads what the log has not waits for the store from here on.
            world.swap_store_and_file();
            used.clients_go_on("after an upgrade without the store");

            let said = world.expect_failure(&server, &["upgrade", "--program", "/bin/true"]);
            assert!(said.contains("is it a firn"), "{said}");
            used.clients_go_on("after a program that is no firn");

            let first = Upgrade::start(&used.guest.world, &server, "120s");
            let second = world.run(&server, &["upgrade", "--timeout", "120s"]);
            let said = message(&second);
            assert!(
                second.status.success()
                    || said.contains("under way")
                    || said.contains("cannot reach"),
                "{said}"
            );
            drop(first);
            used.clients_go_on("after two upgrades at once");

            server.limit_files(Some(server.open_files() + 1));
            let said = world.expect_failure(&server, &["upgrade", "--timeout", "120s"]);
            server.limit_files(None);
            assert!(said.contains("Too many open files"), "{said}");
            server
        });
    }
}
