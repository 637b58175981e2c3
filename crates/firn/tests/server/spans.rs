//! Spans of control operations, at a small collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::common::{Server, World, eventually};

const SECRET: &str = "of-the-environment";

/// What came.
#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    service: String,
    bodies: Vec<Vec<u8>>,
    headers: String,
}

/// A collector that takes everything.
struct Collector {
    endpoint: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Received>>::default();
        let into = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let into = Arc::clone(&into);
                std::thread::spawn(move || serve(&stream.unwrap(), &into));
            }
        });
        Collector { endpoint, received }
    }

    /// The first span of this name, as soon as it is there.
    fn span(&self, name: &str) -> Span {
        let mut found = None;
        eventually(name, || {
            let received = self.received.lock().unwrap();
            found = received
                .spans
                .iter()
                .find(|span| span.name == name)
                .cloned();
            found.is_some()
        });
        found.unwrap()
    }
}

/// Takes requests until the connection ends.
fn serve(mut stream: &TcpStream, into: &Mutex<Received>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let decoded = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        let mut received = into.lock().unwrap();
        received.headers.push_str(&head);
        received.bodies.push(body);
        for of_resource in decoded.resource_spans {
            let attributes = of_resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|one| one.key == "service.name");
            if let Some(Value::StringValue(name)) = name.unwrap().value.clone().unwrap().value {
                received.service = name;
            }
            for of_scope in of_resource.scope_spans {
                received.spans.extend(of_scope.spans);
            }
        }
        drop(received);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
    }
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|one| one.key == name);
    let value = found
        .and_then(|one| one.value.clone())
        .and_then(|one| one.value);
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{name} of {}: {other:?}", span.name),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn post(server: &Server, path: &str, body: &str) -> u16 {
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build(),
    );
    let answer = agent
        .post(format!("{}{path}", server.api))
        .header("authorization", format!("Bearer {}", server.token))
        .header("content-type", "application/json")
        .header("x-request-id", "request-7")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .header("tracestate", "vendor=of-the-client")
        .send(body)
        .unwrap();
    answer.status().as_u16()
}

#[test]
fn requests_of_the_api_snapshots_by_schedule_and_upgrades_are_told_to_a_collector() {
    let world = World::new();
    let collector = Collector::start();
    let args = [
        "--volume",
        "demo=64MiB",
        "--snapshot-schedule",
        "demo=1s,keep=2",
    ];
    let server = world.serve_as("cache", &args, |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={SECRET}"));
    });
    let created = r#"{"name": "other", "size_bytes": 67108864}"#;
    assert_eq!(post(&server, "/v1/volumes", created), 201);
    let span = collector.span("POST /v1/volumes");
    assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
    assert_eq!(attribute(&span, "firn.request_id"), "request-7");
    assert_eq!(attribute(&span, "http.response.status_code"), "201");
    assert!(attribute(&span, "enduser.id").contains("token admin"));
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);

    assert_eq!(post(&server, "/v1/volumes/none/sync", ""), 404);
    let span = collector.span("POST /v1/volumes/{name}/sync");
    assert_eq!(attribute(&span, "url.path"), "/v1/volumes/none/sync");
    assert_eq!(attribute(&span, "error.type"), "no-such-volume");

    // No more of what a client sends than a span should hold.
    let long = "x".repeat(4000);
    assert_eq!(
        post(&server, &format!("/v1/volumes/{long}/snapshots"), "{}"),
        400
    );
    let span = collector.span("POST /v1/volumes/{name}/snapshots");
    assert_eq!(attribute(&span, "url.path").len(), 256);
    assert_eq!(span.trace_state, "");

    let mut client = server.connect("demo");
    client.write(0, &[1; 4096]).unwrap();
    let span = collector.span("snapshot by schedule");
    assert_eq!(attribute(&span, "firn.volume"), "demo");
    world.expect_success(&server, &["upgrade"]);
    assert!(attribute(&collector.span("upgrade"), "firn.program").contains("firn"));
    drop(client);
    server.get("/metrics");
    server.get("/v1/gc");
    let token = server.token.clone();
    assert!(server.stop().success());

    // What waited was sent as it stopped.
    collector.span("GET /v1/gc");
    let received = collector.received.lock().unwrap();
    assert_eq!(received.service, "firn");
    assert!(received.headers.contains(SECRET));
    let names: Vec<_> = received.spans.iter().map(|span| &span.name[..]).collect();
    assert!(
        !names.iter().any(|name| name.contains("/metrics")),
        "{names:?}"
    );
    for secret in [&token, SECRET] {
        let has_it = |body: &Vec<u8>| {
            let mut parts = body.windows(secret.len());
            parts.any(|part| part == secret.as_bytes())
        };
        assert!(!received.bodies.iter().any(has_it), "a secret was told");
    }
}

#[test]
fn a_collector_that_is_away_or_never_answers_slows_nothing_and_is_said_once() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = [&silent, &away].map(|one| format!("http://{}", one.local_addr().unwrap()));
    drop(away);
    for (at, endpoint) in endpoints.iter().enumerate() {
        let world = World::new();
        let args = ["--volume", "demo=64MiB", "--otlp-endpoint", endpoint];
        let server = world.serve("cache", &args);
        let began = Instant::now();
        for _ in 0..250 {
            server.get("/v1/gc");
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        let warned = || {
            let said = world.server_log();
            said.matches("does not take them").count()
        };
        eventually("a word of it", || warned() > 0);
        for _ in 0..50 {
            server.get("/v1/gc");
        }
        let began = Instant::now();
        assert!(server.stop().success());
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(warned(), 1, "{at}");
    }
}

#[test]
fn an_address_that_is_none_or_holds_a_password_is_refused() {
    let world = World::new();
    for (endpoint, why) in [
        ("127.0.0.1:4318", "http://HOST:4318"),
        (
            "http://user:word@127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ] {
        let mut command = world.serve_command("cache", &["--otlp-endpoint", endpoint]);
        let output = command.output().unwrap();
        let said = crate::common::message(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && !said.contains("word@"), "{said}");
    }
}

#[test]
fn an_address_of_the_environment_that_cannot_be_used_costs_the_spans_and_not_the_server() {
    for endpoint in ["127.0.0.1:4318", "http://user:word@127.0.0.1:4318"] {
        let world = World::new();
        let server = world.serve_as("cache", &["--volume", "demo=64MiB"], |command| {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        });
        world.expect_success(&server, &["upgrade"]);
        server.get("/v1/gc");
        assert!(server.stop().success());
        let said = world.server_log();
        let warned = said.contains("OTEL_EXPORTER_OTLP_ENDPOINT of the environment");
        assert!(warned && !said.contains("word@"), "{said}");
    }
}

#[test]
fn spans_that_there_is_no_room_for_are_left_out_and_no_request_waits_for_room() {
    let world = World::new();
    let collector = Collector::start();
    let args = ["--volume", "demo=64MiB", "--otlp-endpoint"];
    let args = [&args[..], &[&collector.endpoint]].concat();
    let server = world.serve_as("cache", &args, |command| {
        command.env("FIRN_SPANS_WAITING", "32");
    });
    // As long as it is held, the collector does not answer.
    let held = collector.received.lock().unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..300 {
        let began = Instant::now();
        server.get("/v1/gc");
        longest = longest.max(began.elapsed());
    }
    drop(held);
    // Room would have come with the end of a request to the collector, which may take five seconds.
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    assert!(server.stop().success());
    let received = collector.received.lock().unwrap();
    let told = received
        .spans
        .iter()
        .filter(|span| span.name == "GET /v1/gc");
    let told = told.count();
    assert!((1..200).contains(&told), "{told} of 300");
}
