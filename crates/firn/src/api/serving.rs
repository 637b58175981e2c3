//! Accepts the API's connections and serves them, with time-outs for what never comes to its end.
//!
//! A client that opens a connection and sends half a request must not hold it for ever: a header has
//! a time to be complete in, and so has a body. An answer may take any time, for a sync takes as
//! long as its upload; but once it is there, it must be taken. Connections of a listener are bounded,
//! so that those of one cannot keep the clients of another out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

use super::caller::Peer;
use crate::failure::{Failure, FailureCode};

/// How long a request's header, and then its body, may take to arrive. Also how long a connection
/// may be idle between two requests.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer may wait for its client to take more of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How many connections a listener has open at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// Largest body of a request: far larger than any that the API describes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// How much of a body that is too large is received all the same: a client that is still sending when its
/// connection is closed sees that, and not the answer.
const BODY_BYTES_DRAINED: usize = 16 << 20;

/// Largest text of the framework's that is made part of a problem document.
const TEXT_BYTES_MAX: usize = 4096;

/// Pause after a failed accept, as when no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                let here = stream.local_addr()?;
                Ok((Box::new(stream), Peer::Tcp { from, here }))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let credentials = stream.peer_cred()?;
                let peer = Peer::Unix {
                    uid: credentials.uid(),
                    pid: credentials.pid(),
                };
                Ok((Box::new(stream), peer))
            }
        }
    }
}

/// Serves until `closed` ends; then requests in progress are completed.
pub(crate) async fn serve(
    listener: Arc<Listener>,
    router: Router,
    mut closed: watch::Receiver<()>,
) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    builder.header_read_timeout(
        Some(RECEIVE_TIMEOUT).filter(|_| !canary::active!("half_a_request_for_ever")),
    );
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            // Only when the sender is dropped: it sends nothing.
            _ = closed.changed() => break,
            next = next => next,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accepting a connection of the API failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let mut stream = Box::pin(TimeoutStream::new(Box::into_pin(stream)));
        stream.as_mut().set_write_timeout_pinned(
            Some(SEND_TIMEOUT).filter(|_| !canary::active!("answers_wait_for_ever")),
        );
        let service = TowerToHyperService::new(router.clone().layer(Extension(peer)));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        drop(tokio::spawn(async move {
            // A client that breaks off is its own business.
            let _ = connection.await;
            drop(place);
        }));
    }
    drop(listener);
    connections.shutdown().await;
}

/// Receives the body before the request is looked at: within a time, and up to a size.
pub(super) async fn receive_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let failure = match tokio::time::timeout(RECEIVE_TIMEOUT, collect(body)).await {
        Ok(Ok(Some(bytes))) => {
            return next.run(Request::from_parts(parts, bytes.into())).await;
        }
        Ok(Ok(None)) => Failure::new(
            FailureCode::TooLarge,
            format!(
                "the body has more than {BODY_BYTES_MAX} bytes; no request of this API needs that"
            ),
        ),
        Ok(Err(error)) => Failure::invalid(format!("the body cannot be received: {error}")),
        Err(_) => Failure::new(
            FailureCode::TooSlow,
            format!(
                "the body was not complete within {} s",
                RECEIVE_TIMEOUT.as_secs()
            ),
        ),
    };
    failure.into_response()
}

/// A body; none if it is larger than [`BODY_BYTES_MAX`].
async fn collect(mut body: Body) -> Result<Option<Vec<u8>>, axum::Error> {
    let (mut bytes, mut received) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let data = frame?.into_data().unwrap_or_default();
        received += data.len();
        if received <= BODY_BYTES_MAX {
            bytes.extend_from_slice(&data);
        } else if received > BODY_BYTES_DRAINED {
            break;
        }
    }
    Ok((received <= BODY_BYTES_MAX).then_some(bytes))
}

/// Makes a problem document of every failure that the framework answers by itself.
pub(super) async fn to_problem_document(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let kind = response.headers().get(axum::http::header::CONTENT_TYPE);
    let is_failure = status.is_client_error() || status.is_server_error();
    if !is_failure || kind.is_some_and(|kind| kind == "application/problem+json") {
        return response;
    }
    let text = to_bytes(response.into_body(), TEXT_BYTES_MAX).await;
    let text = String::from_utf8_lossy(&text.unwrap_or_else(|_| Bytes::new())).into_owned();
    let failure = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Failure::new(FailureCode::TooLarge, text),
        status if status.is_client_error() => Failure::invalid(format!("{text} ({status})")),
        status => Failure::internal(format!("{text} ({status})")),
    };
    failure.into_response()
}
