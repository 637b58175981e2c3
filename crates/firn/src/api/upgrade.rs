//! `/v1/upgrade`: begins an upgrade, and says how it goes.
//!
//! Which program the server becomes is for its own user to say, over the Unix socket: a token for the network
//! must never choose what this machine executes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::audit::AuditNote;
use super::caller::{Caller, Proof};
use super::json_body::JsonBodyOrDefault;
use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{UpgradeRequest, UpgradeState};

pub(super) fn routes() -> Router<Arc<ControlPlane>> {
    Router::new().route("/v1/upgrade", get(state).post(begin))
}

async fn state(State(control): State<Arc<ControlPlane>>) -> axum::Json<UpgradeState> {
    axum::Json(control.upgrades.state())
}

async fn begin(
    State(control): State<Arc<ControlPlane>>,
    Extension(note): Extension<AuditNote>,
    Extension(caller): Extension<Caller>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<UpgradeRequest>,
) -> Result<Response> {
    if let Some(program) = &request.program {
        note.set(&format!("to {}", program.display()));
        if caller.proof != Proof::Credentials {
            return Err(Failure::new(
                FailureCode::NotAllowed,
                "another program is named over the server's Unix socket alone",
            ));
        }
    }
    let state = control.upgrades.request(request)?;
    Ok((StatusCode::ACCEPTED, axum::Json(state)).into_response())
}
