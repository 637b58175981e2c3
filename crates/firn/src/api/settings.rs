//! The settings that may change while the server runs, over HTTP: `/v1/settings`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::routing::get;

use super::audit::AuditNote;
use super::json_body::JsonBody;
use crate::control_plane::ControlPlane;
use crate::failure::Result;
use crate::model::{ChangeSettings, ChangeableSettings};

type Shared = State<Arc<ControlPlane>>;

pub(super) fn routes() -> Router<Arc<ControlPlane>> {
    Router::new().route("/v1/settings", get(show).patch(change))
}

async fn show(State(control): Shared) -> axum::Json<ChangeableSettings> {
    axum::Json(control.settings())
}

async fn change(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    JsonBody(request): JsonBody<ChangeSettings>,
) -> Result<axum::Json<ChangeableSettings>> {
    note.set(&serde_json::to_string(&request).unwrap_or_default());
    control.change_settings(request).await.map(axum::Json)
}
