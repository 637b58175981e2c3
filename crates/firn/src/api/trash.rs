//! The trash over HTTP: `/v1/trash…`, and what a deletion of a volume moves there.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::Deserialize;

use super::audit::AuditNote;
use super::completion::run_to_completion;
use super::json_body::JsonBodyOrDefault;
use super::list_query::ListQuery;
use crate::control_plane::ControlPlane;
use crate::failure::Result;
use crate::model::{RestoreTrashed, TrashList, Volume};

type Shared = State<Arc<ControlPlane>>;

pub(super) fn routes() -> Router<Arc<ControlPlane>> {
    Router::new()
        .route("/v1/trash", get(list))
        .route("/v1/trash/{id}", axum::routing::delete(empty))
        .route("/v1/trash/{id}/restore", post(restore))
}

/// How a volume is deleted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    /// For good.
    #[serde(default)]
    now: bool,
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode> {
    note.set(if query.now {
        "for good"
    } else {
        "to the trash"
    });
    run_to_completion(async move { control.delete(&name, query.now).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(
    State(control): Shared,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<TrashList>> {
    control.trash(query.place()?).await.map(axum::Json)
}

async fn restore(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(id): Path<String>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<RestoreTrashed>,
) -> Result<axum::Json<Volume>> {
    if let Some(name) = &request.name {
        note.set(&format!("as {name}"));
    }
    let restored = async move { control.restore_from_trash(&id, request).await };
    run_to_completion(restored).await.map(axum::Json)
}

async fn empty(State(control): Shared, Path(id): Path<String>) -> Result<StatusCode> {
    run_to_completion(async move { control.empty_trash(&id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
