//! `/v1/session`: who the caller is, and a browser's exchange of a token for a cookie.

use std::sync::Arc;

use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use zeroize::Zeroizing;

use super::audit::AuditNote;
use super::caller::{Caller, Peer, Proof};
use super::gate::Gate;
use super::json_body::JsonBody;
use super::sessions::{self, Sessions};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{OpenSession, SessionInfo};

pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    get(show).post(open).delete(close)
}

async fn show(caller: Option<Extension<Caller>>) -> Result<axum::Json<SessionInfo>> {
    let Some(Extension(caller)) = caller else {
        return Err(Failure::new(
            FailureCode::NotAuthenticated,
            "over TCP this API wants a token, or the cookie that POST /v1/session gives for one",
        ));
    };
    Ok(axum::Json(info(&caller)))
}

fn info(caller: &Caller) -> SessionInfo {
    SessionInfo {
        role: caller.role,
        who: caller.to_string(),
    }
}

async fn open(
    Extension(gate): Extension<Arc<Gate>>,
    Extension(peer): Extension<Peer>,
    Extension(note): Extension<AuditNote>,
    JsonBody(request): JsonBody<OpenSession>,
) -> Result<Response> {
    let token = Zeroizing::new(request.token);
    let tokens = gate.rules.tokens.as_ref();
    let Some(tokens) = tokens.filter(|_| matches!(peer, Peer::Tcp { .. })) else {
        return Err(Failure::invalid(
            "callers need no session over this listener: they are known, or not asked",
        ));
    };
    let Some(role) = tokens.role_of(token.trim().as_bytes()) else {
        return Err(Failure::new(
            FailureCode::NotAuthenticated,
            "the token is none of this server's; see its --api-tokens directory",
        ));
    };
    note.set(&format!("role {}", role.as_str()));
    let cookie = gate.rules.sessions.open(role)?;
    let caller = Caller {
        role,
        proof: Proof::Session,
        peer,
    };
    let cookie = [(header::SET_COOKIE, Sessions::set_cookie(&cookie))];
    Ok((cookie, axum::Json(info(&caller))).into_response())
}

async fn close(Extension(gate): Extension<Arc<Gate>>, headers: HeaderMap) -> Response {
    if let Some(value) = sessions::cookie(&headers) {
        gate.rules.sessions.close(value);
    }
    let cookie = [(header::SET_COOKIE, Sessions::clear_cookie())];
    (StatusCode::NO_CONTENT, cookie).into_response()
}
