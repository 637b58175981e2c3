//! The gate before the API: names each request, finds its caller, and lets in what his role reaches.
//!
//! A path that no rule speaks of needs the highest role, so that a new one is never open by mistake.
//! What is open to everybody says nothing of volumes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::audit::{AuditNote, AuditTrail, Change};
use super::caller::{Caller, Peer, SharedRules};
use super::limits::{RequestLimits, Unknown};
use crate::access::Role;
use crate::failure::{Failure, FailureCode, Result};

/// The header that names a request, in the request and in the answer.
const REQUEST_ID: &str = "x-request-id";

/// A name that a client gives is taken over if it is short and of these characters, so that it can
/// stand in a line of the log.
const REQUEST_ID_CHARS_MAX: usize = 64;

/// What stands between the listeners and the handlers.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(super) rules: SharedRules,
    limits: RequestLimits,
    pub(super) audit: AuditTrail,
}

/// The name of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub(super) String);

impl Gate {
    pub(crate) fn new(rules: SharedRules) -> Self {
        Gate {
            rules,
            limits: RequestLimits::new(Instant::now()),
            audit: AuditTrail::default(),
        }
    }
}

/// The role that an operation needs; none if it is open to everybody.
fn required_role(method: &Method, path: &str) -> Option<Role> {
    let looks = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/" | "/healthz" | "/readyz" | "/v1/openapi.json" if looks => None,
        "/v1/session" => None,
        _ if looks => Some(Role::Read),
        "/v1/volumes/{name}/attach"
        | "/v1/volumes/{name}/detach"
        | "/v1/volumes/{name}/prepare"
        | "/v1/volumes/{name}/sync" => Some(Role::Attach),
        _ => Some(Role::Admin),
    }
}

/// Gives a request its name, and its answer the same.
pub(super) async fn name_request(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID);
    let given = given.and_then(|value| value.to_str().ok()).filter(|id| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(is_plain)
    });
    let id = given.map_or_else(|| format!("{:016x}", fastrand::u64(..)), str::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Lets a request in, or refuses it. Whether it was done or refused, a change is recorded.
pub(super) async fn admit(
    State(gate): State<Arc<Gate>>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let found = gate.rules.identify(peer, request.headers());
    // Whether a login fails is known afterwards; one that succeeds never waits for those that do not.
    let logs_in = found.is_err() && is_login(&request);
    let permit = match &found {
        Ok(caller) => gate.limits.take(caller, began),
        Err(_) if logs_in => Ok(()),
        Err(_) => gate.limits.take_unknown(describe_request(&request), began),
    };
    if let Err(wait) = permit
        && !canary::active!("no_limit_of_rate")
    {
        return too_many(wait);
    }
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    let note = AuditNote::default();
    request.extensions_mut().insert(note.clone());
    let change = (!looks).then(|| change_of(&request, peer, found.as_ref().ok(), note));
    let response = match check(&request, peer, found.as_ref(), &gate.rules.hosts) {
        Ok(()) => {
            if let Ok(caller) = found {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(failure) => failure.into_response(),
    };
    if logs_in
        && !response.status().is_success()
        && let Err(wait) = gate.limits.take_unknown(Unknown::Refused, began)
    {
        return too_many(wait);
    }
    if let Some(change) = change {
        gate.audit
            .record(change, response.status().as_u16(), began.elapsed());
    }
    response
}

fn matched_path(request: &Request) -> &str {
    let path = request.extensions().get::<MatchedPath>();
    path.map_or("", MatchedPath::as_str)
}

fn is_login(request: &Request) -> bool {
    *request.method() == Method::POST && matched_path(request) == "/v1/session"
}

/// What a request asks whose caller is not known.
fn describe_request(request: &Request) -> Unknown {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    match matched_path(request) {
        "/healthz" | "/readyz" if looks => Unknown::Health,
        path if looks && required_role(request.method(), path).is_none() => Unknown::Open,
        _ => Unknown::Refused,
    }
}

fn change_of(request: &Request, peer: Peer, caller: Option<&Caller>, note: AuditNote) -> Change {
    let id = request.extensions().get::<RequestId>();
    Change {
        request_id: id.map(|id| id.0.clone()).unwrap_or_default(),
        who: caller.map_or_else(|| format!("nobody known, from {peer}"), Caller::to_string),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        note,
    }
}

fn check(
    request: &Request,
    peer: Peer,
    found: std::result::Result<&Caller, &Failure>,
    hosts: &[String],
) -> Result<()> {
    if let Peer::Tcp { here, .. } = peer {
        check_names(request.method(), request.headers(), here, hosts)?;
    }
    let Some(role) = required_role(request.method(), matched_path(request)) else {
        return Ok(());
    };
    let what = format!("{} {}", request.method(), request.uri().path());
    found.map_err(Clone::clone)?.require(role, &what)
}

/// Refuses what a web page of somebody else makes a browser send. A page whose own name resolves to the
/// loopback address (DNS rebinding) sends requests that carry that name; one that sends a change to
/// this server has its own origin in it, whatever cookies go with it.
fn check_names(
    method: &Method,
    headers: &HeaderMap,
    here: SocketAddr,
    hosts: &[String],
) -> Result<()> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    // A listener on [::] sees 127.0.0.1 as ::ffff:127.0.0.1.
    let is_loopback = here.ip().to_canonical().is_loopback();
    let is_known = |host: &str| is_local_name(host) || is_one_of(host, hosts);
    if is_loopback && host.is_some_and(|host| !is_known(host)) {
        return Err(Failure::new(
            FailureCode::WrongHost,
            format!(
                "the request names the host {:?}; a server on the loopback address answers only to \
                 an IP address, localhost, and what --api-host names",
                host.unwrap_or_default()
            ),
        ));
    }
    let looks = matches!(*method, Method::GET | Method::HEAD);
    let Some(origin) = text(header::ORIGIN).filter(|_| !looks) else {
        return Ok(());
    };
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    if authority.is_some() && authority == host || canary::active!("any_page_may_change") {
        return Ok(());
    }
    Err(Failure::new(
        FailureCode::WrongHost,
        format!("a page of {origin:?} may not change anything here"),
    ))
}

/// Whether a name, with or without a port, is one of the proxies'.
fn is_one_of(host: &str, hosts: &[String]) -> bool {
    let bare = host.rsplit_once(':').map_or(host, |(name, _)| name);
    hosts.iter().any(|one| one.eq_ignore_ascii_case(bare))
}

fn is_local_name(host: &str) -> bool {
    let bare = |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok();
    host.parse::<SocketAddr>().is_ok()
        || bare(host.trim_start_matches('[').trim_end_matches(']'))
        || host.rsplit_once(':').is_some_and(|(name, _)| bare(name))
}

fn too_many(wait: Duration) -> Response {
    let seconds = wait.as_secs() + 1;
    let failure = Failure::new(
        FailureCode::TooManyRequests,
        format!("more requests came than the server takes; try again in {seconds} s"),
    );
    let mut response = failure.into_response();
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_local_names() {
        for host in [
            "localhost",
            "localhost:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "[::1]",
            "::1",
        ] {
            assert!(is_local_name(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7070",
            "127.0.0.1.evil.example",
            ":7070",
        ] {
            assert!(!is_local_name(host), "{host}");
        }
    }

    #[test]
    fn each_operation_needs_the_role_that_its_description_names() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("openapi.json")).unwrap();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let Ok(verb) = method.to_uppercase().parse::<Method>() else {
                    continue;
                };
                let Some(described) = operation.get("x-firn-role") else {
                    assert!(method == "parameters", "{method} {path} names no role");
                    continue;
                };
                let needed = required_role(&verb, path).map_or("none", Role::as_str);
                assert_eq!(described, needed, "{method} {path}");
            }
        }
        // What nobody described is closed.
        let unknown = required_role(&Method::POST, "/v1/volumes/{name}/burn");
        assert_eq!(unknown, Some(Role::Admin));
        assert_eq!(required_role(&Method::GET, ""), Some(Role::Read));
    }

    #[test]
    fn the_loopback_address_answers_to_no_other_name_however_it_is_written() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "evil.example:7070".parse().unwrap());
        for (here, is_refused) in [
            ("127.0.0.1:7070", true),
            ("[::1]:7070", true),
            ("[::ffff:127.0.0.1]:7070", true),
            ("192.0.2.1:7070", false),
            ("[::ffff:192.0.2.1]:7070", false),
        ] {
            let checked = check_names(&Method::GET, &headers, here.parse().unwrap(), &[]);
            assert_eq!(checked.is_err(), is_refused, "{here}");
        }
    }

    #[test]
    fn a_proxy_that_was_named_is_answered_and_its_pages_may_change_things() {
        let here: SocketAddr = "127.0.0.1:7070".parse().unwrap();
        let hosts = ["firn.example".to_owned()];
        let check = |host: &str, origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            headers.insert(header::ORIGIN, origin.parse().unwrap());
            check_names(&Method::POST, &headers, here, &hosts)
        };
        assert!(check("firn.example", "https://firn.example").is_ok());
        assert!(check("FIRN.example:8443", "https://FIRN.example:8443").is_ok());
        assert!(check("firn.example", "https://evil.example").is_err());
        for host in ["evil.example", "firn.example.evil", "x.firn.example", ":"] {
            assert!(check(host, "https://firn.example").is_err(), "{host}");
        }
    }

    #[test]
    fn a_change_from_another_origin_is_refused_and_a_look_is_not() {
        let here: SocketAddr = "127.0.0.1:7070".parse().unwrap();
        let headers = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "localhost:7070".parse().unwrap());
            headers.insert(header::ORIGIN, origin.parse().unwrap());
            headers
        };
        let check = |method, origin| check_names(&method, &headers(origin), here, &[]);
        assert!(check(Method::POST, "http://localhost:7070").is_ok());
        for origin in ["http://localhost:3000", "null", "https://evil.example", ""] {
            assert!(check(Method::POST, origin).is_err(), "{origin}");
            assert!(check(Method::DELETE, origin).is_err(), "{origin}");
            assert!(check(Method::GET, origin).is_ok(), "{origin}");
        }
    }
}
