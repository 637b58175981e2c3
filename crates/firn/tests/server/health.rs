//! A server says how it is: in `/readyz`, in what it shows of a volume, in its metrics and in its
//! log, at once and once; and why it does not start.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::watchdog::Watchdog;
use crate::common::{Server, World, eventually, message};

fn get(server: &Server, path: &str) -> (u16, String) {
    server.get(path)
}

#[test]
fn a_store_that_takes_no_writes_is_said_within_seconds_and_so_is_its_return() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "200ms"]);
    assert_eq!(get(&server, "/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(world.show(&server, "demo")["health"]["status"], "ok");
    world.swap_store_and_file();
    let mut client = server.connect("demo");
    let began = Instant::now();
    client.write(0, &[1; 4096]).unwrap();
    eventually("the word of it", || {
        get(&server, "/readyz").1.contains("degraded: store: ")
    });
    // Before the repetitions of a request are given up, which is after half a minute.
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(get(&server, "/readyz").0, 200, "writes are served");
    assert_eq!(world.show(&server, "demo")["health"]["status"], "degraded");
    let metrics = get(&server, "/metrics").1;
    assert!(
        metrics.contains("firn_health{what=\"store\"} 1\n"),
        "{metrics}"
    );
    eventually("the line in the log", || {
        world.server_log().contains("degraded what=\"store\"")
    });
    world.swap_store_and_file();
    eventually("the return", || get(&server, "/readyz").1 == "ready\n");
    eventually("its line in the log", || {
        world.server_log().contains("ok again what=\"store\"")
    });
    let lines = world.server_log();
    assert_eq!(
        lines.matches("degraded what=\"store\"").count(),
        1,
        "one line: {lines}"
    );
}

/// The one directory in the ring directory, that of the server's host.
fn rings_of_host(world: &World) -> PathBuf {
    let mut entries = fs::read_dir(world.rings()).unwrap();
    let dir = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none());
    dir
}

/// Removes a directory at one moment for whoever looks at its files meanwhile; what was in it.
fn remove_at_once(dir: &Path) -> Vec<PathBuf> {
    let files = files_below(dir);
    let gone = dir.with_extension("gone");
    fs::rename(dir, &gone).unwrap();
    fs::remove_dir_all(gone).unwrap();
    files
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    };
    paths.flat_map(below).collect()
}

#[test]
fn rings_whose_names_are_gone_are_put_back_and_a_killed_server_loses_nothing() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write(0, &[2; 4096]).unwrap();
    let are_back = |files: &[PathBuf], times: usize| {
        world.server_log().matches("are put back").count() >= times
            && files.iter().all(|file| file.exists())
            && get(&server, "/readyz") == (200, "ready\n".to_owned())
    };
    // As systemd does when an ordinary user logs out.
    let files = remove_at_once(&rings_of_host(&world));
    eventually("the return of the rings", || are_back(&files, 1));
    // So is the directory itself.
    let times = world.server_log().matches("are put back").count();
    let files = remove_at_once(world.rings());
    eventually("their second return", || are_back(&files, times + 1));
    for block in 1..64 {
        client.write(block * 4096, &[3; 4096]).unwrap();
    }
    server.kill();
    let server = world.serve("cache", &[]);
    let found = server.connect("demo").read(0, 64 * 4096).unwrap();
    assert!(found == [vec![2; 4096], vec![3; 63 * 4096]].concat());
    assert!(
        !world.server_log().contains("is gone"),
        "{}",
        world.server_log()
    );
}

#[test]
fn rings_that_cannot_be_put_back_are_said_and_a_restart_in_good_order_loses_nothing() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--rpo", "1h"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    fs::remove_dir_all(world.rings()).unwrap();
    fs::write(world.rings(), "not a directory").unwrap();
    eventually("the word of it", || {
        let (status, text) = get(&server, "/readyz");
        status == 200 && text.contains("degraded: index rings: ")
    });
    let shown = world.expect_success(&server, &["volume", "show", "demo"]);
    assert!(
        shown.contains("health        degraded: index rings"),
        "{shown}"
    );
    assert!(shown.contains("--ring-dir"), "{shown}");
    server.connect("demo").write(4096, &[2; 4096]).unwrap();
    assert!(server.stop().success());
    fs::remove_file(world.rings()).unwrap();
    fs::create_dir(world.rings()).unwrap();
    let server = world.serve("cache", &[]);
    assert_eq!(get(&server, "/readyz").1, "ready\n");
    let found = server.connect("demo").read(0, 8192).unwrap();
    assert_eq!(found, [vec![1; 4096], vec![2; 4096]].concat());
}

#[test]
fn a_server_that_still_has_the_directory_is_the_reason_and_not_its_address() {
    let world = World::new();
    // Of a loopback address that nothing else here uses, so that nobody takes the port meanwhile.
    let free = std::net::TcpListener::bind("127.0.77.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let fixed = ["--api", &address];
    let first = world.serve("cache", &fixed);
    let refused = world.expect_refusal("cache", &fixed);
    let reason = format!("in use by the server with process id {}", first.pid());
    assert!(refused.contains(&reason), "{refused}");
    assert!(!refused.contains("cannot listen"), "{refused}");
    // One that ends in time is waited for.
    first.ask_to_stop();
    let second = world.serve("cache", &fixed);
    assert_eq!(second.api, format!("http://{address}"));
}

#[test]
fn half_a_request_is_given_up_after_a_while_and_the_api_goes_on() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let host = server.api.strip_prefix("http://").unwrap();
    let halves = [
        "GET /healthz HTTP/1.1\r\nHost: local".to_owned(),
        format!(
            "POST /v1/volumes HTTP/1.1\r\nHost: {host}\r\ncontent-type: application/json\r\n\
             content-length: 100\r\n\r\n{{"
        ),
    ];
    for half in halves {
        let mut stream = TcpStream::connect(host).unwrap();
        stream
            .set_read_timeout(Some(crate::common::deadline()))
            .unwrap();
        stream.write_all(half.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // Ends when the server closes the connection, or fails at the deadline.
        stream
            .read_to_end(&mut answer)
            .unwrap_or_else(|error| panic!("it is held open: {error}"));
        assert_eq!(get(&server, "/healthz").0, 200);
    }
}

#[test]
fn nothing_that_draws_is_written_where_nobody_looks() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let output = world.run(&server, &["sync", "demo"]);
    let text = [output.stdout, output.stderr].concat();
    let lines = [String::from_utf8(text).unwrap(), world.server_log()].concat();
    assert!(
        !lines.contains('\u{1b}') && !lines.contains('\r'),
        "{lines:?}"
    );
}

#[test]
fn a_list_is_answered_soon_while_the_store_is_away_and_says_what_it_lacks() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    fs::rename(world.path("store"), world.path("away")).unwrap();
    let began = Instant::now();
    let list = ["volume", "list"];
    let output = world.run(&server, &list);
    let (listed, told) = (
        String::from_utf8(output.stdout.clone()).unwrap(),
        message(&output),
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "the list took {:?}: {told}",
        began.elapsed()
    );
    assert!(listed.contains("demo"), "{listed}");
    assert!(
        told.contains("open here") && told.contains("store"),
        "{told}"
    );
    fs::rename(world.path("away"), world.path("store")).unwrap();
    eventually("the whole list", || {
        message(&world.run(&server, &list)).is_empty()
    });
}

#[test]
fn an_address_that_is_taken_is_said_before_anything_is_made() {
    let world = World::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let refused = world.expect_refusal("cache", &["--nbd", &address]);
    assert!(
        refused.contains("cannot listen for NBD") && refused.contains(&address),
        "{refused}"
    );
    let made = ["cache/log", "store/volumes"].map(|name| world.path(name).exists());
    assert_eq!(made, [false, false], "something was made: {refused}");
}

/// Fills a pipe, so that who writes to it waits.
fn fill(pipe: &mut fs::File) {
    while pipe.write(&[b'.'; 4096]).is_ok() {}
    while pipe.write(b".").is_ok() {}
}

#[test]
fn a_server_whose_standard_error_takes_nothing_goes_on_and_says_it_all_later() {
    let world = World::new();
    // Where the server waits, what it said cannot be read either.
    let _watchdog = Watchdog::new(
        "standard error that takes nothing",
        2 * crate::common::DEADLINE,
    );
    let path = world.path("cache.stderr");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let mut options = fs::File::options();
    options.read(true).write(true);
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut pipe = options.custom_flags(nonblocking).open(&path).unwrap();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    fill(&mut pipe);
    for nth in 0..20 {
        world.expect_success(
            &server,
            &["volume", "create", &format!("v{nth}"), "--size", "8MiB"],
        );
    }
    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut part = [0; 4096];
        // Until the last line, which the end of the server waits for.
        while !String::from_utf8_lossy(&text).contains("v19") {
            match pipe.read(&mut part) {
                Ok(bytes) => text.extend_from_slice(&part[..bytes]),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        let _ = say.send(text);
        // So that the end of the server is not held up.
        loop {
            if pipe.read(&mut part).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    let text = said.recv_timeout(crate::common::DEADLINE).unwrap();
    let text = String::from_utf8_lossy(&text);
    for nth in 0..20 {
        assert!(text.contains(&format!("v{nth}")), "{nth}: {text}");
    }
    assert!(server.stop().success());
}
