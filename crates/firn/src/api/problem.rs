//! Failures as problem documents (RFC 9457): status, title and remedy come from the code's row.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::failure::Failure;
use crate::model::Problem;

impl From<&Failure> for Problem {
    fn from(failure: &Failure) -> Self {
        let code = failure.code;
        Problem {
            kind: format!("urn:firn:problem:{}", code.name()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: failure.detail.clone(),
            code: code.name().to_owned(),
            remedy: code.remedy().to_owned(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status())
            .expect("the table's statuses are valid, by a test");
        let body = serde_json::to_vec(&Problem::from(&self))
            .expect("a problem document of strings and a number always serializes");
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, kind, body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer realm=\"firn\"");
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        // For the request's span.
        response.extensions_mut().insert(self.code);
        response
    }
}
