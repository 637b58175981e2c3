//! Clients that connect while a server starts: each is served as soon as its volume is open, whatever becomes of the
//! others, and hears what comes of a volume that is not.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::nbd::Client;
use crate::common::{World, eventually};

const BLOCK: usize = 4096;

/// By then a client is served whose volume is open: long before the end of the time for which it may wait.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// What a client hears of an export that is not there.
const UNKNOWN: &str = "refused with 0x80000006";

/// A server that may not have come up yet; ended when dropped.
struct Starting {
    child: Child,
    socket: PathBuf,
    announced: PathBuf,
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that waits for its volume.
type Waiting = JoinHandle<io::Result<Client>>;

impl Starting {
    fn serve(world: &World, args: &[&str], planned: &str) -> Starting {
        let mut command = world.serve_command("cache", args);
        let announced = world.path("announced");
        command
            .env("FIRN_OPENING", planned)
            .stdout(File::create(&announced).unwrap())
            .stdin(Stdio::null());
        let log = world.path("cache.stderr");
        let log = File::options().create(true).append(true).open(log).unwrap();
        Starting {
            child: command.stderr(log).spawn().unwrap(),
            socket: world.path("cache.sock"),
            announced,
        }
    }

    fn is_ready(&self) -> bool {
        let said = fs::read_to_string(&self.announced).unwrap();
        said.contains("firn is ready")
    }

    /// A client whose volume is served now, perhaps before the server has come up.
    fn connect(&self, volume: &str) -> Client {
        let mut client = None;
        eventually("the client is served", || {
            client = Client::connect(&self.socket, volume).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// A client that connects to a server that listens.
    fn wait_for(&self, volume: &str) -> Waiting {
        let (socket, volume) = (self.socket.clone(), volume.to_owned());
        std::thread::spawn(move || Client::connect(&socket, &volume))
    }

    fn stop(&mut self) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill_process(pid.unwrap(), Signal::TERM).unwrap();
        let mut ended = None;
        eventually("the server ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

/// What a waiting client hears in time.
fn outcome(waiting: Waiting) -> io::Result<Client> {
    let begun = Instant::now();
    while !waiting.is_finished() {
        let late = begun.elapsed() > SERVED_WITHIN;
        assert!(
            !late,
            "a client that waits was not told what came of its volume"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    waiting.join().unwrap()
}

fn refusal(waiting: Waiting) -> String {
    outcome(waiting).map(drop).unwrap_err().to_string()
}

/// Volumes `a` and `b` with a block each, of a server that was killed.
fn with_two_volumes() -> World {
    let world = World::new();
    let volumes = ["--volume", "a=8MiB", "--volume", "b=8MiB", "--rpo", "1h"];
    let server = world.serve("cache", &volumes);
    server.connect("a").write(0, &[1; BLOCK]).unwrap();
    server.connect("b").write(0, &[2; BLOCK]).unwrap();
    server.kill();
    world
}

#[test]
fn a_volume_is_served_as_soon_as_it_is_open_and_clients_of_others_wait_for_theirs() {
    let world = with_two_volumes();
    let open = world.path("open");
    let held = format!("hold=b,{}", open.display());
    let starting = Starting::serve(&world, &[], &held);
    let mut a = starting.connect("a");
    assert_eq!(a.read(0, BLOCK).unwrap(), [1; BLOCK]);
    a.write(4096, &[3; BLOCK]).unwrap();
    a.flush().unwrap();
    let to_b = [starting.wait_for("b"), starting.wait_for("b")];
    let unknown = Client::connect(&starting.socket, "none").map(drop);
    assert_eq!(unknown.unwrap_err().to_string(), UNKNOWN);
    assert!(!starting.is_ready(), "it says so when all are open");
    assert!(to_b.iter().all(|one| !one.is_finished()), "b is not open");
    File::create(&open).unwrap();
    for waiting in to_b {
        let mut client = outcome(waiting).unwrap();
        assert_eq!(client.read(0, BLOCK).unwrap(), [2; BLOCK]);
        assert_eq!(client.size, 8 << 20);
    }
    eventually("the server has come up", || starting.is_ready());
    assert_eq!(a.read(4096, BLOCK).unwrap(), [3; BLOCK]);
}

#[test]
fn a_client_that_waits_finds_the_volume_with_the_size_that_the_start_gives_it() {
    let world = with_two_volumes();
    let open = world.path("open");
    let held = format!("hold=b,{}", open.display());
    let starting = Starting::serve(&world, &["--volume", "b=16MiB"], &held);
    drop(starting.connect("a"));
    let waiting = starting.wait_for("b");
    File::create(&open).unwrap();
    assert_eq!(outcome(waiting).unwrap().size, 16 << 20);
}

#[test]
fn a_client_of_a_volume_that_cannot_be_opened_waits_until_that_is_known_and_no_longer() {
    let world = World::new();
    let other = world.serve("other", &["--volume", "b=8MiB"]);
    let open = world.path("open");
    let held = format!("hold=before:b,{}", open.display());
    let volumes = ["--volume", "a=8MiB", "--volume", "b=8MiB"];
    let starting = Starting::serve(&world, &volumes, &held);
    let mut a = starting.connect("a");
    let waiting = starting.wait_for("b");
    a.write(0, &[1; BLOCK]).unwrap();
    assert!(!waiting.is_finished());
    File::create(&open).unwrap();
    assert_eq!(refusal(waiting), UNKNOWN);
    eventually("the server has come up", || starting.is_ready());
    assert_eq!(a.read(0, BLOCK).unwrap(), [1; BLOCK]);
    // It is retried, as ever.
    assert!(other.stop().success());
    starting.connect("b").write(0, &[2; BLOCK]).unwrap();
}

#[test]
fn clients_hear_of_the_end_of_a_server_that_is_told_to_stop_while_it_starts_and_nothing_is_lost() {
    let world = with_two_volumes();
    for planned in ["hang=b", "hang="] {
        let mut starting = Starting::serve(&world, &[], planned);
        eventually("the server listens", || {
            let unknown = Client::connect(&starting.socket, "none").map(drop);
            unknown.is_err_and(|error| error.to_string() == UNKNOWN)
        });
        if planned == "hang=b" {
            let mut a = starting.connect("a");
            a.write(4096, &[3; BLOCK]).unwrap();
        }
        // The default one may be any of the two, so it is none.
        assert_eq!(refusal(starting.wait_for("")), UNKNOWN);
        let waiting = ["b", "b"].map(|volume| starting.wait_for(volume));
        // Connected behind them, and answered.
        assert_eq!(refusal(starting.wait_for("none")), UNKNOWN);
        let ended = starting.stop();
        assert!(ended.success(), "{ended}");
        // That the server ends, or, if they were late, that nobody is there any more.
        for client in waiting {
            assert_ne!(refusal(client), UNKNOWN);
        }
        assert!(!starting.socket.exists(), "the socket stays behind");
    }
    let server = world.serve("cache", &[]);
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(server.connect("a").read(4096, BLOCK).unwrap(), [3; BLOCK]);
    assert_eq!(server.connect("b").read(0, BLOCK).unwrap(), [2; BLOCK]);
}

/// Else the end of a server to which a client has led would be put down to a volume that was being opened.
#[test]
fn no_client_is_served_while_volumes_are_opened_alone_that_two_starts_ended_with() {
    let world = with_two_volumes();
    for _ in 0..2 {
        let mut crashing = Starting::serve(&world, &[], "abort=before:a");
        assert_eq!(crashing.child.wait().unwrap().signal(), Some(6));
    }
    let mut starting = Starting::serve(&world, &[], "hang=b");
    eventually("a is open, and b hangs", || {
        world.server_log().contains("was made to hang")
    });
    let waiting = starting.wait_for("a");
    for _ in 0..4 {
        let unknown = starting.wait_for("none");
        assert_eq!(refusal(unknown), UNKNOWN);
    }
    assert!(
        !waiting.is_finished(),
        "a client is served before b is open"
    );
    assert!(starting.stop().success());
    assert_ne!(refusal(waiting), UNKNOWN);
    let server = world.serve("cache", &[]);
    assert_eq!(server.connect("a").read(0, BLOCK).unwrap(), [1; BLOCK]);
    assert_eq!(server.connect("b").read(0, BLOCK).unwrap(), [2; BLOCK]);
}
