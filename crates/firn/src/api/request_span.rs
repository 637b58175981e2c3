//! A span for each request of the API that the gate has let in, but for those that look how the server is.
//!
//! Names the route and the path, who asks, and how it ended; nothing that the request carries.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;

use super::caller::Caller;
use super::gate::RequestId;
use crate::failure::FailureCode;
use crate::spans::Operation;

/// What is asked every few seconds by whoever watches.
const UNTOLD: [&str; 4] = ["/metrics", "/healthz", "/readyz", "/v1/activity"];

pub(super) async fn trace_request(request: Request, next: Next) -> Response {
    let Some(mut operation) = begin(&request) else {
        return next.run(request).await;
    };
    let response = next.run(request).await;
    let status = response.status().as_u16();
    operation.set("http.response.status_code", i64::from(status));
    if let Some(code) = response.extensions().get::<FailureCode>() {
        operation.fail(*code);
    }
    response
}

fn begin(request: &Request) -> Option<Operation> {
    let route = request.extensions().get::<MatchedPath>()?.as_str();
    let caller = request.extensions().get::<Caller>()?;
    if UNTOLD.contains(&route) {
        return None;
    }
    let name = format!("{} {route}", request.method());
    let mut operation = Operation::begin_request(name, request.headers())?;
    operation.set("http.request.method", request.method().to_string());
    operation.set("http.route", route.to_owned());
    operation.set("url.path", request.uri().path().to_owned());
    operation.set("enduser.id", caller.to_string());
    if let Some(id) = request.extensions().get::<RequestId>() {
        operation.set("firn.request_id", id.0.clone());
    }
    Some(operation)
}
