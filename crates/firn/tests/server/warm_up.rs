//! The warm-up of `firn move`: the other server has what this one had at hand, and whatever goes wrong with it the volume moves
//! all the same, with what was written to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::common::{Server, World, message};

const BLOCK: usize = 4096;
const BLOCKS: usize = 512;

/// What cannot be compressed, and says of which block and round it is.
fn content(block: usize, round: u64) -> Vec<u8> {
    let mut state = (block as u64) << 32 | round;
    let mut words = Vec::with_capacity(BLOCK);
    while words.len() < BLOCK {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        words.extend((state ^ (state >> 29)).to_le_bytes());
    }
    words
}

fn write_all(server: &Server, round: u64) {
    let mut client = server.connect("demo");
    for block in 0..BLOCKS {
        client
            .write((block * BLOCK) as u64, &content(block, round))
            .unwrap();
    }
}

fn check_all(server: &Server, round: u64) {
    let mut client = server.connect("demo");
    for block in 0..BLOCKS {
        let found = client.read((block * BLOCK) as u64, BLOCK).unwrap();
        assert!(found == content(block, round), "block {block}");
    }
}

/// Bytes that a server has read from the store.
fn store_bytes(server: &Server) -> u64 {
    let (_, page) = server.get("/metrics");
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with("firn_store_read_bytes"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .new_agent();
    let request = agent
        .post(format!("{}{path}", server.api))
        .header("authorization", format!("Bearer {}", server.token))
        .header("content-type", "application/json");
    let mut answer = request.send(body.to_string().as_bytes()).unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&text).unwrap())
}

fn move_to(world: &World, from: &Server, api: &str, more: &[&str]) -> Value {
    let mut args = vec!["move", "demo", "--to", api, "--force", "--json"];
    args.extend(more);
    serde_json::from_str(&world.expect_success(from, &args)).unwrap()
}

#[test]
fn a_server_that_gets_a_volume_has_at_hand_what_the_other_one_had() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    write_all(&one, 1);
    let moved = move_to(&world, &one, &two.api, &[]);
    let bytes = (BLOCK * BLOCKS) as u64;
    assert_eq!(moved["warm_up"]["done_bytes"], bytes, "{moved}");
    assert_eq!(moved["warm_up"]["ended"], Value::Null);
    let before = store_bytes(&two);
    check_all(&two, 1);
    assert!(store_bytes(&two) - before < bytes / 8, "it is at hand");
    // The way back is without one.
    let moved = move_to(&world, &two, &one.api, &["--no-warm-up"]);
    assert_eq!(moved["warm_up"], Value::Null);
    let before = store_bytes(&one);
    check_all(&one, 1);
    assert!(store_bytes(&one) - before >= bytes, "all is fetched");
}

#[test]
fn what_was_prepared_and_is_wrong_or_old_changes_nothing_that_is_read() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    write_all(&one, 1);
    world.expect_success(&one, &["sync", "demo"]);
    let prepare = "/v1/volumes/demo/prepare";
    let ranges = json!({"ranges": [
        {"offset": 0, "bytes": 1 << 20},
        {"offset": 3, "bytes": 5},
        {"offset": 1 << 22, "bytes": 1 << 22},
        {"offset": 1 << 20, "bytes": i64::MAX},
        {"offset": i64::MAX, "bytes": i64::MAX},
        {"offset": 0, "bytes": 0},
    ]});
    let (status, prepared) = post(&two, prepare, &ranges);
    assert_eq!(
        (status, &prepared["ranges"]),
        (200, &json!(6)),
        "{prepared}"
    );
    // All of it is old now, the index too.
    write_all(&one, 2);
    move_to(&world, &one, &two.api, &["--no-warm-up"]);
    check_all(&two, 2);
    write_all(&two, 3);
    let (status, refused) = post(&two, prepare, &ranges);
    assert_eq!((status, &refused["code"]), (409, &json!("volume-in-use")));
    let (status, _) = post(&one, prepare, &json!({}));
    assert_eq!(status, 200);
    move_to(&world, &two, &one.api, &[]);
    check_all(&one, 3);
    // Nobody has a volume for having prepared it.
    let (status, unknown) = post(&one, "/v1/volumes/none/prepare", &json!({}));
    assert_eq!((status, &unknown["code"]), (404, &json!("no-such-volume")));
    assert_eq!(world.show(&two, "demo")["state"], "held");
    let (status, _) = two.get("/v1/volumes/demo/hints");
    assert_eq!(status, 409, "it is not open there");
}

#[test]
fn hints_come_in_parts_that_together_are_the_whole_list() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=64MiB"]);
    let mut client = one.connect("demo");
    let places: Vec<u64> = (0..40).map(|nth| nth * (3 << 19)).collect();
    for place in &places {
        client.write(*place, &[7; BLOCK]).unwrap();
    }
    let (mut found, mut from, mut parts) = (Vec::new(), Some(0), 0);
    while let Some(at) = from {
        let (status, part) = one.get(&format!("/v1/volumes/demo/hints?from={at}&limit=5"));
        assert_eq!(status, 200, "{part}");
        let part: Value = serde_json::from_str(&part).unwrap();
        let ranges = part["ranges"].as_array().unwrap().clone();
        assert!(ranges.iter().all(|range| range["is_hot"] == true));
        found.extend(ranges.iter().map(|range| range["offset"].as_u64().unwrap()));
        from = part["next"].as_u64();
        parts += 1;
    }
    assert_eq!(found, places);
    assert!(parts > 4, "{parts}");
    let beyond = one.get(&format!("/v1/volumes/demo/hints?from={}", u64::MAX));
    assert_eq!(beyond, (200, r#"{"ranges":[]}"#.to_owned()));
}

/// An address at which a server seems to be one from before there was a warm-up.
fn as_an_older_one(server: &Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let real = server.api.strip_prefix("http://").unwrap().to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, real) = (client.unwrap(), real.clone());
            std::thread::spawn(move || {
                let mut head = vec![0; 4096];
                let Ok(length @ 1..) = client.read(&mut head) else {
                    return;
                };
                let path = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = path.split(' ').nth(1).unwrap_or_default();
                if path.ends_with("/prepare") || path.contains("/hints") {
                    let body = r#"{"type":"about:blank","title":"","status":404,"code":"no-such-path","detail":"no"}"#;
                    let answer = format!(
                        "HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\n\
                         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = client.write_all(answer.as_bytes());
                    return;
                }
                let mut server = TcpStream::connect(real).unwrap();
                server.write_all(&head[..length]).unwrap();
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut up, &mut server));
                let _ = std::io::copy(&mut down, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn a_volume_moves_to_and_from_a_server_that_knows_no_warm_up() {
    let world = World::new();
    let one = world.serve("one", &["--volume", "demo=8MiB"]);
    let two = world.serve("two", &[]);
    write_all(&one, 1);
    let older = as_an_older_one(&two).to_string();
    let moved = move_to(&world, &one, &older, &[]);
    let said = moved["warm_up"]["ended"].as_str().unwrap();
    assert!(said.contains("older"), "{said}");
    check_all(&two, 1);
    let api = format!("http://{older}");
    let args = ["--api", &api, "move", "demo", "--to", &one.api, "--force"];
    let moved = world.firn(&args);
    assert!(moved.status.success(), "{}", message(&moved));
    assert!(message(&moved).contains("older"), "{}", message(&moved));
    check_all(&one, 1);
}
