//! Requests at random, made from `openapi.json`: whatever a client sends, it gets an answer that says what is wrong, and
//! the server goes on.
//!
//! One run of some seconds each time; `FIRN_API_FUZZ_SECONDS=3600` draws other requests for so long. A failure names the
//! seed: `FIRN_API_FUZZ_SEED=…` sends the same ones again.

mod request;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::request::{Drawn, Requests};
use crate::common::{Server, World};

/// The seed of the run that each test makes.
const SEED: u64 = 20;

/// Requests of one server; then another begins with nothing.
const REQUESTS: usize = 1500;

/// The longest that an answer may take. An attachment may wait for the end of a check.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server said, if it said anything before it closed the connection.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

#[test]
fn whatever_a_client_sends_it_is_answered_and_the_server_goes_on() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let seconds: Option<u64> = number("FIRN_API_FUZZ_SECONDS");
    let mut seed = number("FIRN_API_FUZZ_SEED").unwrap_or(match seconds {
        Some(_) => fastrand::u64(..),
        None => SEED,
    });
    let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    loop {
        println!("FIRN_API_FUZZ_SEED={seed}");
        run(seed);
        seed = seed.wrapping_add(1);
        if Instant::now() >= deadline {
            return;
        }
    }
}

fn run(seed: u64) {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "kept=8MiB"]);
    server.connect("kept").write(0, &[7; 4096]).unwrap();
    let mut requests = Requests::new(seed);
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for _ in 0..REQUESTS {
        let drawn = requests.draw(&server.token);
        match send(&server, &drawn) {
            Some(answer) => {
                check(&drawn, &answer);
                *statuses.entry(answer.status).or_default() += 1;
            }
            None => assert!(!drawn.is_http, "no answer to {drawn}"),
        }
    }
    println!("answers by status: {statuses:?}");
    assert!(statuses.keys().any(|status| *status < 300), "none is taken");
    assert_eq!(server.get("/healthz").0, 200);
    let said = world.server_log();
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(
        server.connect("kept").read(0, 4096).unwrap(),
        [7; 4096],
        "no request named this volume"
    );
}

/// Sends a request on a connection of its own, and reads until the server closes it.
fn send(server: &Server, drawn: &Drawn) -> Option<Answer> {
    let address = server.api.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
    // A server that has heard enough says so and closes.
    let sent = stream.write_all(&drawn.bytes);
    if drawn.is_cut_short {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{drawn}: {error}"),
    }
    let answer = parse(&received);
    assert!(
        sent.is_ok() || answer.is_some() || !drawn.is_http,
        "{drawn}: {sent:?}"
    );
    answer
}

fn parse(received: &[u8]) -> Option<Answer> {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&received[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        body: received[end + 4..].to_vec(),
    })
}

fn check(drawn: &Drawn, answer: &Answer) {
    let Answer { status, body } = answer;
    let text = String::from_utf8_lossy(body);
    assert!(
        matches!(status, 200..=204 | 303 | 400..=499 | 501..=504 | 507),
        "{drawn}: {status} {text}"
    );
    if *status < 400 || !drawn.is_http {
        return;
    }
    let problem: Value = serde_json::from_slice(body)
        .unwrap_or_else(|error| panic!("{drawn}: {status}, {error}: {text}"));
    let has = |member: &str| {
        problem[member]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    };
    assert!(has("code") && has("detail"), "{drawn}: {status} {text}");
    assert_ne!(problem["code"], "internal", "{drawn}: {text}");
}
