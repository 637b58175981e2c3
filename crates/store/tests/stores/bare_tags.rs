//! ETags without their quotes: sent to a server that wants them so, and to no other.
//!
//! Goal: the probe decides. Method: a server of a few lines speaks as much of S3 as the probe needs, and compares
//! `If-Match` as real ones were found to: with the quotes, without them, or not at all where they are missing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use store::{Condition, Kind, SharedStore, Store, probe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How a server understands `If-Match`.
#[derive(Clone, Copy, PartialEq)]
enum Comparison {
    /// What stands between an ETag's quotes with all of the header: Ceph radosgw 16, DigitalOcean Spaces.
    Bare,
    /// As the former, and a header without quotes is no condition.
    BareIsNone,
    /// As the former, and a header without quotes is a bad request.
    BareIsBad,
    /// With or without quotes, as AWS.
    Either,
}

struct Server {
    comparison: Comparison,
    /// Content and number of the version.
    objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    /// Each `If-Match` that came.
    seen: Mutex<Vec<String>>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

async fn serve(comparison: Comparison) -> (Arc<Server>, SharedStore) {
    let server = Arc::new(Server {
        comparison,
        objects: Mutex::default(),
        seen: Mutex::default(),
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let shared = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(exchange(stream, Arc::clone(&shared)));
        }
    });
    let url = format!("s3://firn/test?endpoint=http://{address}&anonymous=true");
    let store = store::with_policies(store::open_url(&url).unwrap());
    (server, store)
}

/// One request and its answer; the client opens another connection for the next.
async fn exchange(mut stream: TcpStream, server: Arc<Server>) {
    let mut bytes = Vec::new();
    loop {
        if let Some(request) = parse(&bytes) {
            let answer = server.answer(&request);
            let _ = stream.write_all(answer.as_bytes()).await;
            return;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// A request, once all of it is there.
fn parse(bytes: &[u8]) -> Option<Request> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let (first, rest) = head.split_once("\r\n").unwrap();
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers: BTreeMap<String, String> = rest
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(0, |n| n.parse().unwrap());
    let body = bytes.get(end + 4..end + 4 + length)?.to_vec();
    Some(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body,
    })
}

fn answer(status: &str, tag: u64, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nETag: \"{tag:08x}\"\r\n\
         Last-Modified: Wed, 25 Nov 2026 13:02:32 GMT\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Server {
    fn answer(&self, request: &Request) -> String {
        let mut objects = self.objects.lock().unwrap();
        match request.method.as_str() {
            "GET" if request.query.contains("list-type=2") => {
                let entry = |key: &String| {
                    let key = key.trim_start_matches("/firn/");
                    format!(
                        "<Contents><Key>{key}</Key><Size>1</Size>\
                         <LastModified>2026-11-25T13:02:32.000Z</LastModified></Contents>"
                    )
                };
                let listed: String = objects.keys().map(entry).collect();
                answer(
                    "200 OK",
                    0,
                    &format!("<ListBucketResult>{listed}</ListBucketResult>"),
                )
            }
            "GET" => match objects.get(&request.path) {
                Some((content, tag)) => {
                    answer("200 OK", *tag, std::str::from_utf8(content).unwrap())
                }
                None => answer("404 Not Found", 0, ""),
            },
            "DELETE" => {
                objects.remove(&request.path);
                answer("204 No Content", 0, "")
            }
            _ => {
                let now = objects.get(&request.path).map(|(_, tag)| *tag);
                if let Some(refusal) = self.refuse(request, now) {
                    return refusal.to_owned();
                }
                let tag = now.unwrap_or(0) + 1;
                objects.insert(request.path.clone(), (request.body.clone(), tag));
                answer("200 OK", tag, "")
            }
        }
    }

    /// The refusal of a write whose condition does not hold, for an object that has this version now.
    fn refuse(&self, request: &Request, now: Option<u64>) -> Option<String> {
        let refusal = answer("412 Precondition Failed", 0, "");
        if request.headers.contains_key("if-none-match") {
            return now.map(|_| refusal);
        }
        let wanted = request.headers.get("if-match")?;
        self.seen.lock().unwrap().push(wanted.clone());
        let inner = wanted.trim_matches('"');
        let is_bare = inner == wanted;
        let holds = now.is_some_and(|tag| format!("{tag:08x}") == inner);
        match self.comparison {
            Comparison::Bare => (!is_bare || !holds).then_some(refusal),
            Comparison::BareIsNone => (!is_bare).then_some(refusal),
            Comparison::BareIsBad if is_bare => Some(answer("400 Bad Request", 0, "")),
            Comparison::BareIsBad => Some(refusal),
            Comparison::Either => (!holds).then_some(refusal),
        }
    }
}

/// Replaces an object by a stale version and by the right one.
async fn replace(store: &dyn Store) -> [store::Result<()>; 2] {
    let first = store.put("root", "1".into()).await.unwrap();
    let second = store.put("root", "2".into()).await.unwrap();
    let stale = store.update("root", "3".into(), &first).await.map(drop);
    [
        stale,
        store.update("root", "4".into(), &second).await.map(drop),
    ]
}

#[tokio::test]
async fn a_server_that_compares_etags_without_their_quotes_is_sent_them_so() {
    let (_, store) = serve(Comparison::Bare).await;
    let report = probe(&store, false).await.unwrap();
    assert!(report.can_fence() && report.bare_tags, "{report:?}");
    assert_eq!(store.list("probe/").await.unwrap(), [], "cleaned up");
    let [stale, right] = replace(&store).await;
    assert_eq!(stale.unwrap_err().kind(), Kind::PreconditionFailed);
    right.unwrap();
}

#[tokio::test]
async fn a_server_that_takes_a_bare_etag_for_no_condition_is_refused_and_sent_none() {
    let (server, store) = serve(Comparison::BareIsNone).await;
    let refused = probe(&store, false).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("of the right version"), "{text}");
    let report = probe(&store, true).await.unwrap();
    assert!(!report.can_fence() && !report.bare_tags, "{report:?}");
    assert_eq!(report.update, Condition::NobodyWins);
    server.seen.lock().unwrap().clear();
    for refused in replace(&store).await {
        assert_eq!(refused.unwrap_err().kind(), Kind::PreconditionFailed);
    }
    let seen = server.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|tag| tag.starts_with('"')), "{seen:?}");
}

#[tokio::test]
async fn a_server_that_understands_no_bare_etag_is_refused_for_what_it_does_with_the_right_form() {
    let (_, store) = serve(Comparison::BareIsBad).await;
    let refused = probe(&store, false).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
    assert!(!probe(&store, true).await.unwrap().bare_tags);
}

#[tokio::test]
async fn a_server_that_takes_the_right_form_is_sent_no_other() {
    let (server, store) = serve(Comparison::Either).await;
    let report = probe(&store, false).await.unwrap();
    assert!(report.can_fence() && !report.bare_tags, "{report:?}");
    let [_, right] = replace(&store).await;
    right.unwrap();
    let seen = server.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|tag| tag.starts_with('"')), "{seen:?}");
}

#[test]
fn bare_etags_that_were_not_proven_are_seen_where_that_bug_is_planted() {
    if !canary::PLANTED {
        println!("skipped: built without the feature `planted`");
        return;
    }
    canary::each_is_seen(&[(
        "bare_tags_unproven",
        a_server_that_takes_a_bare_etag_for_no_condition_is_refused_and_sent_none,
    )]);
}
