//! The HTTP API: `/v1/volumes…`, `/v1/rescue…`, health, metrics, and its own description.
//!
//! Owns paths, success statuses and documents; what a request does is [`ControlPlane`]'s. Every
//! failure is a problem document with a stable code, also those that the framework would answer by
//! itself (no such path, a body that is not JSON).

mod metrics_page;
mod problem;
pub(crate) mod serving;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    AttachRequest, Attachment, CreateVolume, DetachRequest, DropRequest, RescueTail, RescueTails,
    ResizeRequest, Volume, VolumeList,
};

/// The API's description, written by hand; a test holds it against the routes.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

type Shared = State<Arc<ControlPlane>>;

/// An answer as JSON, or the failure as a problem document.
type Answer<T> = Result<axum::Json<T>>;

/// The API of a server that listens at `address`.
pub(crate) fn router(control: Arc<ControlPlane>, address: SocketAddr) -> Router {
    let router = Router::new()
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).delete(delete))
        .route("/v1/volumes/{name}/sync", post(sync))
        .route("/v1/volumes/{name}/resize", post(resize))
        .route("/v1/volumes/{name}/attach", post(attach))
        .route("/v1/volumes/{name}/detach", post(detach))
        .route("/v1/rescue", get(rescue_tails))
        .route("/v1/rescue/{id}", get(rescue_tail))
        .route("/v1/rescue/{id}/drop", post(drop_tail))
        .route("/v1/openapi.json", get(openapi))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(control)
        .layer(middleware::from_fn(serving::receive_body))
        .layer(middleware::from_fn(serving::only_problems));
    if address.ip().is_loopback() {
        router.layer(middleware::from_fn(local_names_only))
    } else {
        router
    }
}

/// Refuses requests that name another host (DNS rebinding). A web page whose own name resolves to
/// the loopback address would count as the same origin; its requests carry that name.
async fn local_names_only(request: Request, next: Next) -> Response {
    let named = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if named.is_none_or(is_local_name) {
        return next.run(request).await;
    }
    let text = format!(
        "the request names the host {:?}; a server on the loopback address answers only to an \
         IP address or localhost",
        named.unwrap_or_default()
    );
    Failure::new(FailureCode::WrongHost, text).into_response()
}

fn is_local_name(host: &str) -> bool {
    let bare = |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok();
    host.parse::<SocketAddr>().is_ok()
        || bare(host.trim_start_matches('[').trim_end_matches(']'))
        || host.rsplit_once(':').is_some_and(|(name, _)| bare(name))
}

async fn list(State(control): Shared) -> Answer<VolumeList> {
    Ok(axum::Json(control.list().await))
}

async fn create(State(control): Shared, headers: HeaderMap, body: Bytes) -> Result<Response> {
    let request: CreateVolume = parse(&headers, &body)?;
    let created = control.create(request).await?;
    Ok((StatusCode::CREATED, axum::Json(created)).into_response())
}

async fn show(State(control): Shared, Path(name): Path<String>) -> Answer<Volume> {
    control.show(&name).await.map(axum::Json)
}

async fn delete(State(control): Shared, Path(name): Path<String>) -> Result<StatusCode> {
    run_to_completion(async move { control.delete(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn sync(State(control): Shared, Path(name): Path<String>) -> Answer<Volume> {
    control.sync(&name).await.map(axum::Json)
}

async fn resize(
    State(control): Shared,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Volume> {
    let request: ResizeRequest = parse(&headers, &body)?;
    let resized = async move { control.resize(&name, request.size_bytes).await };
    run_to_completion(resized).await.map(axum::Json)
}

async fn attach(
    State(control): Shared,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Attachment> {
    let request: AttachRequest = parse_or_default(&headers, &body)?;
    let attached = async move { control.attach(&name, request).await };
    run_to_completion(attached).await.map(axum::Json)
}

async fn detach(
    State(control): Shared,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode> {
    let request: DetachRequest = parse_or_default(&headers, &body)?;
    run_to_completion(async move { control.detach(&name, request.force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rescue_tails(State(control): Shared) -> axum::Json<RescueTails> {
    axum::Json(control.rescue_tails())
}

async fn rescue_tail(State(control): Shared, Path(id): Path<String>) -> Answer<RescueTail> {
    control.rescue_tail(&id).map(axum::Json)
}

async fn drop_tail(
    State(control): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode> {
    let request: DropRequest = parse_or_default(&headers, &body)?;
    run_to_completion(async move { control.drop_tail(&id, request.force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs a change in a task of its own, so that it completes although the client disconnects. A
/// change that stops halfway would leave a volume open but not listed, or closed but listed.
async fn run_to_completion<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(change).await.unwrap_or_else(|source| {
        Err(Failure::internal(format!(
            "the task of the change panicked: {source}; see the server's log"
        )))
    })
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// Liveness: the API answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: volumes can be read and written.
async fn readyz(State(control): Shared) -> Result<String> {
    control.check_ready()
}

async fn metrics(State(control): Shared) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, metrics_page::render(&control)).into_response()
}

async fn no_such_path() -> Failure {
    Failure::new(
        FailureCode::NoSuchPath,
        "there is nothing at this path; see /v1/openapi.json",
    )
}

async fn no_such_method() -> Failure {
    Failure::new(
        FailureCode::NoSuchMethod,
        "this path does not take this method; see /v1/openapi.json",
    )
}

/// An empty body means the defaults.
fn parse_or_default<T: DeserializeOwned + Default>(headers: &HeaderMap, body: &[u8]) -> Result<T> {
    if body.is_empty() {
        return Ok(T::default());
    }
    parse(headers, body)
}

/// The content type must be JSON: a web page can make a browser send a form to a local server, but
/// not a body of this type without a preflight request.
fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if kind != Some("application/json") {
        return Err(Failure::new(
            FailureCode::NotJson,
            "the body must be JSON; send it with content-type: application/json",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|source| Failure::invalid(format!("the body does not fit this path: {source}")))
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
}
