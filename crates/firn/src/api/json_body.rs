//! Bodies of requests: JSON, and nothing that a web page could send without being asked.

use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;

use crate::failure::{Failure, FailureCode, Result};

/// An empty body means the defaults.
pub(super) fn parse_or_default<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T> {
    if body.is_empty() {
        return Ok(T::default());
    }
    parse(headers, body)
}

/// The content type must be JSON: a web page can make a browser send a form to a local server, but
/// not a body of this type without a preflight request.
pub(super) fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T> {
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
