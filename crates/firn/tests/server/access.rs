//! Who may use the API: over a Unix socket by the kernel's word, over TCP by a token; and what is said
//! of whoever changed something.

use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use ureq::http::{Method, Request, Response};

use crate::common::{Server, World, eventually, message};

/// A request with these headers.
fn send(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> Response<ureq::Body> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .new_agent();
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", server.api));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    match body {
        None => agent.run(request.body(()).unwrap()).unwrap(),
        Some(body) => {
            let request = request.header("content-type", "application/json");
            agent.run(request.body(body.to_string()).unwrap()).unwrap()
        }
    }
}

fn bearer(world: &World, role: &str) -> String {
    format!("Bearer {}", world.token(role).unwrap())
}

/// Status and code of what a request with the token of `role` got.
fn as_role(
    world: &World,
    server: &Server,
    role: &str,
    (method, path): (Method, &str),
    body: Option<Value>,
) -> (u16, String) {
    let token = bearer(world, role);
    let headers = [("authorization", token.as_str())];
    let mut answer = send(server, method, path, &headers, body);
    let text = answer.body_mut().read_to_string().unwrap();
    let code = serde_json::from_str::<Value>(&text).ok();
    let code = code.and_then(|problem| Some(problem["code"].as_str()?.to_owned()));
    (answer.status().as_u16(), code.unwrap_or_default())
}

/// A command of somebody else of this machine. He is in no group but `gid`.
fn as_stranger(world: &World, gid: u32, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command
        .current_dir(world.dir.path())
        .env_remove("FIRN_API")
        .args(args);
    command.uid(65534).gid(gid).output().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_api_is_a_socket_for_its_owner_alone_that_commands_find_by_themselves() {
    let world = World::new();
    let here = [
        "--api",
        "unix:./firn-data/api.sock",
        "--volume",
        "demo=8MiB",
    ];
    let server = world.serve("cache", &here);
    let listed = world.firn(&["volume", "list"]);
    assert!(listed.status.success(), "{}", message(&listed));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("demo"));
    let socket = world.path("firn-data/api.sock");
    assert_eq!(socket.symlink_metadata().unwrap().mode() & 0o777, 0o600);
    assert!(!world.path("firn-data/tokens").exists());
    // Another server cannot take its place, and one that is killed does not keep it.
    let refused = world.expect_refusal("other", &here);
    assert!(
        refused.contains("another server listens there"),
        "{refused}"
    );
    server.kill();
    let server = world.serve("cache", &here);
    assert!(world.firn(&["sync", "demo"]).status.success());
    assert!(server.stop().success());
    let gone = world.firn(&["volume", "list"]);
    let said = message(&gone);
    assert_eq!(gone.status.code(), Some(1), "{said}");
    assert!(
        said.contains("firn serve") && said.contains("--api"),
        "{said}"
    );
}

#[test]
fn others_of_this_machine_are_refused_unless_the_group_was_let_in() {
    if !is_root() {
        println!("skipped: only root can ask as somebody else");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_firn"));
    if !as_stranger(&world, 0, &["--version"]).status.success() {
        println!("skipped: others may not run {}", binary.display());
        return;
    }
    let here = [
        "--api",
        "unix:./firn-data/api.sock",
        "--volume",
        "demo=8MiB",
    ];
    let server = world.serve("cache", &here);
    let refused = message(&as_stranger(&world, 0, &["volume", "list"]));
    assert!(refused.contains("--api-group"), "{refused}");
    assert!(server.stop().success());
    let server = world.serve("cache", &[&here[..], &["--api-group", "read"]].concat());
    let listed = as_stranger(&world, 0, &["volume", "list"]);
    assert!(listed.status.success(), "{}", message(&listed));
    let refused = message(&as_stranger(&world, 0, &["volume", "delete", "demo"]));
    assert!(refused.contains("needs the role admin"), "{refused}");
    let outside = message(&as_stranger(&world, 65534, &["volume", "list"]));
    assert!(outside.contains("ermission denied"), "{outside}");
    drop(server);
}

#[test]
fn over_tcp_only_a_token_is_let_in_and_each_reaches_what_its_role_may() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let get = Method::GET;
    // Health says whether, and nothing else; all the rest is closed.
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/v1/openapi.json", 200),
        ("/v1/volumes", 401),
        ("/v1/volumes/demo", 401),
        ("/v1/rescue", 401),
        ("/v1/events", 401),
        ("/v1/session", 401),
        ("/metrics", 401),
        ("/v1/nothing", 401),
    ] {
        for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
            let answer = send(&server, get.clone(), path, headers, None);
            assert_eq!(answer.status().as_u16(), status, "{path}");
            if status == 401 {
                let wanted = answer.headers()["www-authenticate"].to_str().unwrap();
                assert!(wanted.starts_with("Bearer"), "{wanted}");
            }
        }
    }
    let create = || Some(json!({"name": "made", "size_bytes": 8 << 20}));
    let force = || Some(json!({"force": true}));
    let take_over = || Some(json!({"take_over": true, "transport": "nbd"}));
    let nbd = || Some(json!({"transport": "nbd"}));
    let path = |what: &str| format!("/v1/volumes/demo{what}");
    for (role, looks, attaches, changes) in [
        ("read", 200, 403, 403),
        ("attach", 200, 200, 403),
        ("admin", 200, 200, 0),
    ] {
        let ask = |method, path: &str, body| as_role(&world, &server, role, (method, path), body);
        for look in ["/v1/volumes", "/metrics", "/v1/events", "/v1/session"] {
            assert_eq!(ask(Method::GET, look, None).0, looks, "{role} {look}");
        }
        for (what, body) in [("/attach", nbd()), ("/sync", None)] {
            let (status, _) = ask(Method::POST, &path(what), body);
            assert_eq!(status, attaches, "{role} {what}");
        }
        if changes == 0 {
            continue;
        }
        for (method, path, body) in [
            (Method::POST, "/v1/volumes".to_owned(), create()),
            (
                Method::POST,
                path("/resize"),
                Some(json!({"size_bytes": 16 << 20})),
            ),
            (Method::POST, path("/attach"), take_over()),
            (Method::POST, path("/detach"), force()),
            (Method::DELETE, path(""), None),
            (Method::POST, "/v1/rescue/x/drop".to_owned(), None),
        ] {
            let got = ask(method, &path, body);
            assert_eq!(got, (changes, "not-allowed".to_owned()), "{role} {path}");
        }
    }
    let admin = as_role(
        &world,
        &server,
        "admin",
        (Method::POST, "/v1/volumes"),
        create(),
    );
    assert_eq!(admin.0, 201);
}

#[test]
fn commands_over_tcp_use_the_token_of_this_directory_or_the_one_that_is_named() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let read = world.path("firn-data/tokens/read");
    assert_eq!(read.metadata().unwrap().mode() & 0o777, 0o600);
    world.expect_success(&server, &["volume", "resize", "demo", "16MiB"]);
    let named = ["--token-file", read.to_str().unwrap()];
    world.expect_success(&server, &[&named[..], &["volume", "list"]].concat());
    let refused = world.expect_failure(&server, &[&named[..], &["sync", "demo"]].concat());
    assert!(refused.contains("needs the role attach"), "{refused}");
    // In a directory without it there is none to show.
    let elsewhere = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_firn"))
        .current_dir(elsewhere.path())
        .env_remove("FIRN_TOKEN_FILE")
        .args(["--api", &server.api, "volume", "list"])
        .output()
        .unwrap();
    assert!(
        message(&output).contains("--token-file"),
        "{}",
        message(&output)
    );
    drop(server);
    // A token that others could read is none.
    fs::set_permissions(&read, Permissions::from_mode(0o644)).unwrap();
    // With a limit: a server that takes it would come up and stay.
    let output = Command::new("timeout")
        .args(["20", env!("CARGO_BIN_EXE_firn"), "serve"])
        .args(["--api", "127.0.0.1:0", "--nbd", "unix:sock"])
        .args(["--cache", "cache", "--store", "store"])
        .args(["--ring-dir", world.rings().to_str().unwrap()])
        .current_dir(world.dir.path())
        .output()
        .unwrap();
    let refused = message(&output);
    assert_eq!(
        output.status.code(),
        Some(1),
        "the token was used: {refused}"
    );
    assert!(refused.contains("may be read by others"), "{refused}");
}

#[test]
fn insecure_is_said_loudly_and_asks_nobody() {
    let world = World::new();
    let server = world.serve("cache", &["--insecure", "api", "--volume", "demo=8MiB"]);
    assert!(!world.path("firn-data/tokens").exists());
    let answer = send(&server, Method::GET, "/v1/volumes", &[], None);
    assert_eq!(answer.status().as_u16(), 200);
    let said = world.server_log();
    assert!(said.contains("--insecure api"), "{said}");
}

#[test]
fn a_browser_exchanges_its_token_for_a_cookie_and_no_other_page_may_use_it() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let open = |token: &str| {
        let body = Some(json!({"token": token}));
        send(&server, Method::POST, "/v1/session", &[], body)
    };
    assert_eq!(open("wrong").status().as_u16(), 401);
    let opened = open(&world.token("attach").unwrap());
    assert_eq!(opened.status().as_u16(), 200);
    let set = opened.headers()["set-cookie"].to_str().unwrap().to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(part), "{set}");
    }
    let cookie = set.split(';').next().unwrap();
    let sync = |origin: &str| {
        let headers = [("cookie", cookie), ("origin", origin)];
        let answer = send(
            &server,
            Method::POST,
            "/v1/volumes/demo/sync",
            &headers,
            None,
        );
        answer.status().as_u16()
    };
    let mut who = send(
        &server,
        Method::GET,
        "/v1/session",
        &[("cookie", cookie)],
        None,
    );
    let who: Value = serde_json::from_str(&who.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(who["role"], "attach");
    assert_eq!(sync(&server.api), 200);
    // Another port of this host is the same site for a cookie.
    for origin in [
        "http://127.0.0.1:1",
        "http://localhost",
        "null",
        "https://evil.example",
    ] {
        assert_eq!(sync(origin), 403, "{origin}");
    }
    let over = send(
        &server,
        Method::DELETE,
        "/v1/session",
        &[("cookie", cookie)],
        None,
    );
    assert_eq!(over.status().as_u16(), 204);
    assert_eq!(sync(&server.api), 401);
}

#[test]
fn each_change_is_logged_with_who_asked_for_it_whatever_the_log_leaves_out() {
    let world = World::new();
    let server = world.serve_as("cache", &["--volume", "demo=8MiB"], |command| {
        command.env("FIRN_LOG", "off");
    });
    let read = bearer(&world, "read");
    let headers = [("authorization", read.as_str()), ("x-request-id", "case-1")];
    let answer = send(&server, Method::DELETE, "/v1/volumes/demo", &headers, None);
    assert_eq!(answer.headers()["x-request-id"], "case-1");
    let forged = [("x-request-id", "a b"), ("authorization", read.as_str())];
    let answer = send(&server, Method::GET, "/v1/volumes", &forged, None);
    let id = answer.headers()["x-request-id"].to_str().unwrap();
    assert_eq!(id.len(), 16, "{id}");
    world.expect_success(&server, &["sync", "demo"]);
    world.expect_success(&server, &["volume", "create", "made", "--size", "8MiB"]);
    // A thread of its own writes the lines.
    let said = || world.server_log();
    eventually("the last change is in the log", || {
        said().contains("(made, 8388608 bytes)")
    });
    let said = said();
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("audit: "))
        .collect();
    assert_eq!(lines.len(), 3, "looking is no change: {said}");
    for (line, words) in [
        (
            lines[0],
            [
                "DELETE /v1/volumes/demo",
                "token read from 127.0.0.1",
                "case-1",
                "status=403",
            ],
        ),
        (
            lines[1],
            [
                "POST /v1/volumes/demo/sync",
                "token admin from",
                "request=",
                "status=200",
            ],
        ),
    ] {
        for word in words {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
    assert!(
        lines[2].contains("POST /v1/volumes (made, 8388608 bytes)"),
        "{said}"
    );
    assert!(!said.contains(&world.token("admin").unwrap()), "{said}");
    let events: Value = serde_json::from_str(&server.get("/v1/events").1).unwrap();
    assert_eq!(events["events"][1]["what"], "POST /v1/volumes/demo/sync");
    assert_eq!(events["events"][2]["request_id"], "case-1");
}

#[test]
fn who_guesses_tokens_is_slowed_down_and_the_operator_is_not() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let guess = || {
        let headers = [("authorization", "Bearer guess")];
        send(
            &server,
            Method::POST,
            "/v1/volumes/demo/sync",
            &headers,
            None,
        )
    };
    let refused = (0..400)
        .map(|_| guess())
        .find(|answer| answer.status().as_u16() == 429);
    let refused = refused.expect("it may guess for ever");
    let wait = refused.headers()["retry-after"].to_str().unwrap();
    assert!(wait.parse::<u64>().unwrap() >= 1);
    world.expect_success(&server, &["volume", "list"]);
    // Nor who has no cookie yet, nor a probe of health.
    let log_in = |token: &str| {
        let body = serde_json::json!({ "token": token });
        let answer = send(&server, Method::POST, "/v1/session", &[], Some(body));
        answer.status().as_u16()
    };
    assert!((0..400).any(|_| log_in("guess") == 429), "it may guess");
    assert_eq!(log_in(&server.token), 200);
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn a_client_that_takes_no_answer_is_given_up() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let descriptors = || {
        let all = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        all.count()
    };
    let before = descriptors();
    let mut stream = TcpStream::connect(server.api.strip_prefix("http://").unwrap()).unwrap();
    // The answers are far more than all buffers on the way take.
    let request = format!(
        "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
        server.token
    );
    stream.write_all(request.repeat(1400).as_bytes()).unwrap();
    eventually("the connection", || descriptors() > before);
    eventually("its end", || descriptors() <= before);
    assert_eq!(server.get("/healthz").0, 200);
}
