//! The HTTP API: documents, codes, and its own description.

use serde_json::{Value, json};
use ureq::http::{Method, Request};

use crate::common::{Server, World};

/// Status, content type and body of an answer.
struct Answer {
    status: u16,
    kind: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

fn send(server: &Server, method: &str, path: &str, body: Option<(&str, &str)>) -> Answer {
    let bearer = format!("Bearer {}", server.token);
    send_as(
        &server.api,
        &[("authorization", &bearer)],
        method,
        path,
        body,
    )
}

fn send_as(
    api: &str,
    headers: &[(&str, &str)],
    method: &str,
    path: &str,
    body: Option<(&str, &str)>,
) -> Answer {
    try_send_as(api, headers, method, path, body).unwrap()
}

fn try_send_as(
    api: &str,
    headers: &[(&str, &str)],
    method: &str,
    path: &str,
    body: Option<(&str, &str)>,
) -> Result<Answer, ureq::Error> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .new_agent();
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(format!("{api}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut bytes = Vec::new();
    if let Some((kind, text)) = body {
        request = request.header("content-type", kind);
        bytes = text.as_bytes().to_vec();
    }
    let mut response = if bytes.is_empty() {
        agent.run(request.body(()).unwrap())?
    } else {
        agent.run(request.body(bytes).unwrap())?
    };
    let kind = response.headers().get("content-type");
    Ok(Answer {
        status: response.status().as_u16(),
        kind: kind
            .map(|kind| kind.to_str().unwrap().to_owned())
            .unwrap_or_default(),
        text: response.body_mut().read_to_string()?,
    })
}

const JSON: &str = "application/json";

#[test]
#[expect(clippy::too_many_lines, reason = "a table, not steps")]
fn every_failure_is_a_problem_document_with_a_stable_code() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let _client = server.connect("demo");
    let create = |text| Some((JSON, text));
    let long = " ".repeat(3 << 20);
    for (method, path, body, status, code) in [
        ("GET", "/v1/volumes/none", None, 404, "no-such-volume"),
        ("GET", "/v1/nothing", None, 404, "no-such-path"),
        ("POST", "/", None, 405, "no-such-method"),
        ("PATCH", "/v1/volumes", None, 405, "no-such-method"),
        ("DELETE", "/v1/volumes/demo", None, 409, "volume-in-use"),
        ("POST", "/v1/volumes/none/sync", None, 404, "no-such-volume"),
        (
            "POST",
            "/v1/volumes/%2e%2e%2fx/attach",
            None,
            400,
            "invalid",
        ),
        ("POST", "/v1/volumes", create("{"), 400, "invalid"),
        ("POST", "/v1/volumes", create("{}"), 400, "invalid"),
        (
            "POST",
            "/v1/volumes",
            create(r#"{"name":"a","size_bytes":-1}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes",
            create(r#"{"name":"a","size_bytes":1}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes",
            create(r#"{"name":"a","size_bytes":4096,"sise":1}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes",
            create(r#"{"name":"demo","size_bytes":4096}"#),
            409,
            "volume-exists",
        ),
        (
            "POST",
            "/v1/volumes/demo/attach",
            create(r#"{"transport":"iscsi"}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes/demo/attach",
            create(r#"{"transport":"nbd","read_only":true}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes/demo/attach",
            create(r#"{"depth":4097}"#),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/volumes/demo/detach",
            None,
            409,
            "volume-in-use",
        ),
        (
            "POST",
            "/v1/volumes/none/detach",
            None,
            404,
            "no-such-volume",
        ),
        ("GET", "/v1/volumes/%ff", None, 400, "invalid"),
        ("POST", "/v1/volumes", create(&long), 413, "too-large"),
        (
            "POST",
            "/v1/volumes",
            Some(("text/plain", r#"{"name":"a","size_bytes":4096}"#)),
            415,
            "not-json",
        ),
    ] {
        let answer = send(&server, method, path, body);
        let what = format!("{method} {path} {body:?}: {}", answer.text);
        assert_eq!(answer.status, status, "{what}");
        assert_eq!(answer.kind, "application/problem+json", "{what}");
        let problem = answer.json();
        assert_eq!(problem["code"], code, "{what}");
        assert_eq!(problem["status"], status, "{what}");
        assert_eq!(
            problem["type"],
            format!("urn:firn:problem:{code}"),
            "{what}"
        );
        for text in ["detail", "title", "remedy"] {
            assert!(!problem[text].as_str().unwrap().is_empty(), "{what}");
        }
    }
    assert_eq!(
        send(&server, "GET", "/v1/volumes/a", None).status,
        404,
        "nothing was created"
    );
}

#[test]
fn a_web_page_that_leads_its_own_name_here_is_refused() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let bearer = format!("Bearer {}", server.token);
    let ask = |host: &str| {
        let headers = [("authorization", bearer.as_str()), ("host", host)];
        send_as(&server.api, &headers, "GET", "/v1/volumes", None).status
    };
    assert_eq!(ask("evil.example:7070"), 403);
    assert_eq!(ask("localhost:7070"), 200);
}

#[test]
fn a_volume_lives_from_create_to_delete_over_http() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let body = json!({"name": "v.1", "size_bytes": 8 << 20, "block_size": 4096}).to_string();
    let made = send(&server, "POST", "/v1/volumes", Some((JSON, &body)));
    assert_eq!(
        (made.status, made.json()["state"].as_str()),
        (201, Some("closed"))
    );
    let nbd = Some((JSON, r#"{"transport":"nbd"}"#));
    let attached = send(&server, "POST", "/v1/volumes/v.1/attach", nbd).json();
    assert_eq!(attached["transport"], "nbd");
    assert!(
        attached["uri"]
            .as_str()
            .unwrap()
            .starts_with("nbd+unix:///v.1?socket=")
    );
    server.connect("v.1").write(0, &[1; 4096]).unwrap();
    let synced = send(&server, "POST", "/v1/volumes/v.1/sync", None).json();
    assert_eq!(synced["watermarks"]["stored"]["lsn"], 1);
    let list = send(&server, "GET", "/v1/volumes", None).json();
    assert_eq!(list["volumes"][0]["name"], "v.1");
    crate::common::eventually("the deletion", || {
        send(&server, "DELETE", "/v1/volumes/v.1", None).status == 204
    });
    assert_eq!(
        send(&server, "GET", "/v1/volumes", None).json(),
        json!({"volumes": []})
    );
}

#[test]
fn health_readiness_and_metrics_answer() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    assert_eq!(send(&server, "GET", "/healthz", None).text, "ok\n");
    assert_eq!(send(&server, "GET", "/readyz", None).text, "ready\n");
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    let metrics = send(&server, "GET", "/metrics", None);
    assert!(
        metrics
            .kind
            .starts_with("application/openmetrics-text; version=1.0.0"),
        "{}",
        metrics.kind
    );
    assert!(
        metrics
            .text
            .contains("firn_volume_lsn{volume=\"demo\",rung=\"acknowledged\"} 1\n")
    );
    // Each sample belongs to the family announced above it, and has a number.
    let mut family = String::new();
    for line in metrics.text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let suffix = name.split('{').next().unwrap().strip_prefix(&family);
            let known = ["", "_total", "_sum", "_count", "_bucket"];
            assert!(
                suffix.is_some_and(|suffix| known.contains(&suffix)),
                "{line}"
            );
            value.parse::<f64>().unwrap();
        }
    }
}

/// Does `value` fit `schema`? Knows what the document uses: types, required, enums, references.
fn fits(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').unwrap();
        return fits(document, document.pointer(pointer).unwrap(), value, at);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(
            allowed.contains(value),
            "{at}: {value} is not among {allowed:?}"
        );
    }
    match schema["type"].as_str().unwrap() {
        "string" => assert!(value.is_string(), "{at}: {value}"),
        "integer" => assert!(value.is_u64(), "{at}: {value}"),
        "number" => assert!(value.is_number(), "{at}: {value}"),
        "boolean" => assert!(value.is_boolean(), "{at}: {value}"),
        "array" => {
            for item in value.as_array().unwrap() {
                fits(document, &schema["items"], item, at);
            }
        }
        "object" if schema["additionalProperties"].is_object() => {
            for (name, value) in value.as_object().unwrap() {
                let at = format!("{at}.{name}");
                fits(document, &schema["additionalProperties"], value, &at);
            }
        }
        "object" => {
            let properties = schema["properties"].as_object().unwrap();
            for name in schema["required"].as_array().unwrap() {
                assert!(
                    value.get(name.as_str().unwrap()).is_some(),
                    "{at}: no {name}: {value}"
                );
            }
            for (name, value) in value.as_object().unwrap() {
                let schema = properties.get(name);
                let schema = schema.unwrap_or_else(|| panic!("{at}: {name} is not described"));
                fits(document, schema, value, &format!("{at}.{name}"));
            }
        }
        other => panic!("{at}: unknown type {other}"),
    }
}

#[test]
fn the_api_is_what_its_own_description_says() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--volume", "wal=8MiB"]);
    let document = send(&server, "GET", "/v1/openapi.json", None).json();
    let session = json!({"token": server.token}).to_string();
    let mut seen = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let real = path.replace("{name}", "demo").replace("{id}", "none");
        let real = real.replace("{snapshot}", "none");
        for method in ["get", "post", "put", "delete", "patch"] {
            let answer = |body| send(&server, &method.to_uppercase(), &real, body);
            let Some(operation) = operations.get(method) else {
                let refused = answer(None).status;
                assert_eq!(refused, 405, "{method} {path} is served but not described");
                continue;
            };
            let body = match operation["requestBody"]["required"].as_bool() {
                Some(true) if path.ends_with("/resize") => {
                    Some((JSON, r#"{"size_bytes":12582912}"#))
                }
                Some(true) if path == "/v1/snapshots" => {
                    Some((JSON, r#"{"names":["demo@both","wal@both"]}"#))
                }
                Some(true) if path.ends_with("/snapshots") => Some((JSON, r#"{"name":"one"}"#)),
                Some(true) if path.ends_with("/fork") || path.ends_with("/rename") => {
                    Some((JSON, r#"{"name":"made"}"#))
                }
                Some(true) if path.ends_with("/forget") => {
                    Some((JSON, r#"{"volume_id":"000102030405060708090a0b0c0d0e0f"}"#))
                }
                Some(true) if path == "/v1/session" => Some((JSON, session.as_str())),
                Some(true) if path == "/v1/settings" => Some((JSON, r#"{"rpo":"20s"}"#)),
                Some(true) => Some((JSON, r#"{"name":"made","size_bytes":8388608}"#)),
                _ => None,
            };
            if method == "delete" {
                continue; // In the life of a volume, above: here it would end the others.
            }
            if (method, path.as_str()) == ("post", "/v1/upgrade") {
                continue; // Below: here it would end the connections of the others.
            }
            let answer = answer(body);
            let described = &operation["responses"][answer.status.to_string()];
            assert!(
                described.is_object(),
                "{method} {path}: {} {}",
                answer.status,
                answer.text
            );
            if let Some(schema) = described.pointer("/content/application~1json/schema") {
                fits(
                    &document,
                    schema,
                    &answer.json(),
                    &format!("{method} {path}"),
                );
            }
            seen += 1;
        }
    }
    assert_eq!(
        seen, 37,
        "every operation but the deletions and the upgrade was tried"
    );
    let problem = send(&server, "GET", "/v1/volumes/none", None).json();
    fits(
        &document,
        &document["components"]["schemas"]["Problem"],
        &problem,
        "problem",
    );
}

#[test]
fn an_upgrade_that_is_asked_for_without_a_body_is_begun_and_says_how_it_ends() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let document = send(&server, "GET", "/v1/openapi.json", None).json();
    let schema = &document["components"]["schemas"]["UpgradeState"];
    let before = send(&server, "GET", "/v1/upgrade", None).json();
    fits(&document, schema, &before, "before");
    assert_eq!(
        (&before["number"], &before["stage"]),
        (&json!(0), &json!("none"))
    );
    let named = (JSON, r#"{"program":"/bin/true"}"#);
    let refused = send(&server, "POST", "/v1/upgrade", Some(named));
    assert_eq!(refused.status, 403, "over TCP: {}", refused.text);
    let begun = send(&server, "POST", "/v1/upgrade", None);
    assert_eq!(begun.status, 202, "{}", begun.text);
    fits(&document, schema, &begun.json(), "begun");
    let bearer = format!("Bearer {}", server.token);
    let headers = [("authorization", bearer.as_str())];
    crate::common::eventually("the upgrade ends well", || {
        // Its connections end with the old program.
        let state = try_send_as(&server.api, &headers, "GET", "/v1/upgrade", None);
        let Ok(state) = state.map(|answer| answer.json()) else {
            return false;
        };
        fits(&document, schema, &state, "ended");
        assert_ne!(state["stage"], "failed", "{state}");
        (&state["number"], &state["stage"]) == (&json!(1), &json!("done"))
    });
}
