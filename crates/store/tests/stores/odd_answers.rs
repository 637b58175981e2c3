//! What is made of a server's answers that are not what the client library expects.
//!
//! A server of a few lines gives them; it lives in the test's own runtime and ends with it.

use std::net::SocketAddr;

use store::{Kind, Store, probe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Gives each request the answer that `answer` has for its first line.
async fn serve(answer: fn(&str) -> String) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_one(stream, answer));
        }
    });
    address
}

async fn answer_one(mut stream: TcpStream, answer: fn(&str) -> String) {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let value = line.strip_prefix("content-length:")?;
            value.trim().parse::<usize>().ok()
        });
        if body.len() >= length.unwrap_or(0) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&request);
    let answer = answer(text.lines().next().unwrap_or_default());
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n{body}")
}

const MODIFIED: &str = "Last-Modified: Wed, 25 Nov 2026 13:02:32 GMT\r\nETag: \"1\"\r\n";

/// An object of ten bytes, as Azurite answers for a range that begins at its end.
fn no_bytes_at_the_end(request: &str) -> String {
    if request.starts_with("HEAD ") {
        let headers = format!("{MODIFIED}Content-Length: 10\r\n");
        return answer("200 OK", &headers, "");
    }
    let headers = format!("{MODIFIED}Content-Length: 0\r\nContent-Range: bytes 10-9/10\r\n");
    answer("206 Partial Content", &headers, "")
}

#[tokio::test]
async fn no_bytes_from_the_objects_end_on_are_a_range_outside_of_it() {
    let address = serve(no_bytes_at_the_end).await;
    let url = format!("s3://firn/test?endpoint=http://{address}&anonymous=true");
    let store = store::open_url(&url).unwrap();
    let beyond = store.get_range("k", 10, 1).await.unwrap_err();
    assert_eq!(beyond.kind(), Kind::OutOfRange, "{beyond}");
    // Inside of the object the same answer is a broken one.
    let broken = store.get_range("k", 9, 1).await.unwrap_err();
    assert_eq!(broken.kind(), Kind::Unavailable, "{broken}");
}

/// As Azure answers a batch with one delete in it, of an object that is not there.
fn nothing_to_delete(_: &str) -> String {
    let body = "--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
        HTTP/1.1 404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound\r\n\
        \r\n\r\n--b--\r\n";
    let headers = format!(
        "Content-Type: multipart/mixed; boundary=b\r\nContent-Length: {}\r\n",
        body.len()
    );
    answer("202 Accepted", &headers, body)
}

#[tokio::test]
async fn a_delete_of_what_is_not_there_succeeds_where_deletes_travel_in_batches() {
    let address = serve(nothing_to_delete).await;
    let endpoint = format!("http://{address}/devstoreaccount1");
    let url = format!("az://firn/test?endpoint={endpoint}&account=devstoreaccount1&anonymous=true");
    let store = store::open_url(&url).unwrap();
    store.delete("k").await.unwrap();
}

/// As fake-gcs-server answers Google's XML interface: nothing is there, and nothing can be written.
fn no_uploads(request: &str) -> String {
    if request.starts_with("PUT ") {
        let body = r#"{"error":{"code":400,"message":"invalid uploadType"}}"#;
        let headers = format!("Content-Length: {}\r\n", body.len());
        return answer("400 Bad Request", &headers, body);
    }
    if request.contains("list-type=2") {
        let body = "<ListBucketResult></ListBucketResult>";
        let headers = format!("Content-Length: {}\r\n", body.len());
        return answer("200 OK", &headers, body);
    }
    answer("404 Not Found", "Content-Length: 0\r\n", "")
}

#[tokio::test]
async fn the_probe_repeats_what_a_server_says_that_refuses_every_anonymous_write() {
    let address = serve(no_uploads).await;
    let url = format!("gs://firn-test/demo?endpoint=http://{address}&anonymous=true");
    let error = probe(&store::open_url(&url).unwrap(), false)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let text = error.to_string();
    for part in ["cannot create probe/", "400 invalid uploadType", "scheme"] {
        assert!(text.contains(part), "{text}");
    }
}
