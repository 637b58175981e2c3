//! A server that gave up access to what it does not need (`--sandbox`). For guests, as `guest_volume.rs` says: their
//! kernels have Landlock.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::guest::Guest;
use crate::common::nbd::Client;
use crate::common::{Server, message};

const BLOCK: usize = 4096;

/// Starts a restricted server, from a program in a directory of its own.
fn serve(guest: &Guest, program: &Path, args: &[&str]) -> Server {
    let args = [&["--sandbox", "require", "--api", "unix:api.sock"], args].concat();
    guest.world.serve_as("cache", &args, |command| {
        let mut own = Command::new(program);
        own.args(command.get_args());
        own.current_dir(command.get_current_dir().unwrap());
        own.env_remove("FIRN_API").env_remove("FIRN_TOKEN_FILE");
        *command = own;
    })
}

fn check(server: &Server, volume: &str, expected: u8) {
    let mut client: Client = server.connect(volume);
    assert_eq!(client.read(0, BLOCK).unwrap(), [expected; BLOCK]);
}

fn write(disk: &Path, byte: u8) {
    use std::os::unix::fs::FileExt;
    let disk = fs::File::options().write(true).open(disk).unwrap();
    disk.write_all_at(&[byte; BLOCK], 0).unwrap();
    disk.sync_all().unwrap();
}

#[test]
fn a_restricted_server_serves_disks_through_upgrades_and_runs_no_program_from_elsewhere() {
    let Some(guest) = Guest::new() else { return };
    let world = &guest.world;
    let program = world.install("bin");
    let server = serve(&guest, &program, &["--volume", "demo=8MiB"]);
    let disk = guest.attach(&server, "demo", &[]);
    write(&disk, 1);
    world.expect_success(&server, &["snapshot", "create", "demo@one"]);
    world.expect_success(&server, &["fork", "demo@one", "child"]);
    write(&disk, 2);

    // The kernel refuses what the settings do not name.
    let elsewhere = world.install("elsewhere");
    let refused = ["upgrade", "--program", elsewhere.to_str().unwrap()];
    let output = world.run(&server, &refused);
    let said = message(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("ermission denied") && said.contains("--sandbox"),
        "{said}"
    );

    // Once as a package does it, and once more in what that left.
    for byte in [3, 4] {
        world.install("bin");
        let said = world.expect_success(&server, &["upgrade"]);
        assert!(said.contains("upgraded"), "{said}");
        write(&disk, byte);
        let shown = world.run(&server, &refused);
        assert!(
            !shown.status.success(),
            "the next program is restricted, too"
        );
    }
    world.expect_success(&server, &["config", "set", "cache-size=32MiB"]);
    let other = guest.attach(&server, "child", &[]);
    assert_eq!(fs::read(&other).unwrap()[..BLOCK], [1; BLOCK]);
    guest.detach(&server, "child");
    check(&server, "demo", 4);

    // The next one takes the disk over.
    server.kill();
    let server = serve(&guest, &program, &[]);
    write(&disk, 5);
    check(&server, "demo", 5);
    guest.detach(&server, "demo");
    world.expect_success(&server, &["volume", "delete", "child"]);
    assert!(server.stop().success());
    let said = world.server_log();
    assert_eq!(said.matches("out of its reach").count(), 2, "{said}");
}
