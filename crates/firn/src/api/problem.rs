//! Failures as problem documents (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::failure::Failure;
use crate::model::Problem;

impl From<&Failure> for Problem {
    fn from(failure: &Failure) -> Self {
        let status = StatusCode::from_u16(failure.status).ok();
        Problem {
            kind: format!("urn:firn:problem:{}", failure.code),
            title: status
                .and_then(|status| status.canonical_reason())
                .unwrap_or("Error")
                .to_owned(),
            status: failure.status,
            detail: failure.text.clone(),
            code: failure.code.clone(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&Problem::from(&self))
            .expect("a problem document of strings and a number always serializes");
        (
            status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            body,
        )
            .into_response()
    }
}
