//! Bodies of requests: JSON, and nothing that a web page could send without being asked.
//!
//! An extractor for a handler's last argument; what it refuses is a problem document like every failure.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use crate::failure::{Failure, FailureCode};

/// The body of a request that must have one.
pub(super) struct JsonBody<T>(pub(super) T);

/// The body of a request that may have one: an empty body means the defaults.
pub(super) struct JsonBodyOrDefault<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let parsed = receive(request, state).await?.parse();
        parsed.map(JsonBody).map_err(IntoResponse::into_response)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for JsonBodyOrDefault<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let received = receive(request, state).await?;
        if received.body.is_empty() {
            return Ok(JsonBodyOrDefault(T::default()));
        }
        let parsed = received.parse();
        parsed
            .map(JsonBodyOrDefault)
            .map_err(IntoResponse::into_response)
    }
}

struct ReceivedBody {
    body: Bytes,
    is_json: bool,
}

async fn receive<S: Send + Sync>(request: Request, state: &S) -> Result<ReceivedBody, Response> {
    let is_json = is_json(request.headers());
    let body = Bytes::from_request(request, state).await;
    let body = body.map_err(IntoResponse::into_response)?;
    Ok(ReceivedBody { body, is_json })
}

/// The content type must be JSON: a web page can make a browser send a form to a local server, but
/// not a body of this type without a preflight request.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind == Some("application/json")
}

impl ReceivedBody {
    fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        if !self.is_json {
            let refused = Failure::new(
                FailureCode::NotJson,
                "the body must be JSON; send it with content-type: application/json",
            );
            return Err(refused);
        }
        serde_json::from_slice(&self.body).map_err(|source| {
            Failure::invalid(format!("the body does not fit this path: {source}"))
        })
    }
}
