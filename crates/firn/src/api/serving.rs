//! Accepts the API's connections and serves them, with time-outs for what never comes to its end.
//!
//! A client that opens a connection and sends half a request must not hold it for ever: a header has
//! a time to be complete in, and so has a body. An answer may take any time, for a sync takes as
//! long as its upload.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::failure::{Failure, FailureCode};

/// How long a request's header, and then its body, may take to arrive. Also how long a connection
/// may be idle between two requests.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest body of a request: far larger than any that the API describes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// How much of a body that is too large is received all the same: a client that is still sending when its
/// connection is closed sees that, and not the answer.
const BODY_BYTES_DRAINED: usize = 16 << 20;

/// Largest text of the framework's that is made part of a problem document.
const TEXT_BYTES_MAX: usize = 4096;

/// Pause after a failed accept, as when no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `closed` ends; then requests in progress are completed.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    mut closed: oneshot::Receiver<()>,
) {
    let connections = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    builder.header_read_timeout(
        Some(RECEIVE_TIMEOUT).filter(|_| !canary::active!("half_a_request_for_ever")),
    );
    loop {
        let accepted = tokio::select! {
            // Also when the sender is dropped.
            _ = &mut closed => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        drop(tokio::spawn(async move {
            // A client that breaks off is its own business.
            let _ = connection.await;
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
pub(super) async fn only_problems(request: Request, next: Next) -> Response {
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
