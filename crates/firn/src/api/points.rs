//! Points in time over HTTP: `/v1/volumes/{name}/snapshots…`, groups of them (`/v1/snapshots`), `/v1/volumes/{name}/fork` and what differs between two.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;

use super::audit::AuditNote;
use super::completion::run_to_completion;
use super::json_body::JsonBody;
use super::list_query::ListQuery;
use crate::control_plane::ControlPlane;
use crate::failure::Result;
use crate::model::{CreateSnapshot, CreateSnapshotGroup, Diff, ForkVolume, Restored, SnapshotList};

type Shared = State<Arc<ControlPlane>>;

pub(super) fn routes() -> Router<Arc<ControlPlane>> {
    Router::new()
        .route("/v1/volumes/{name}/snapshots", get(list).post(create))
        .route("/v1/snapshots", post(create_group))
        .route(
            "/v1/volumes/{name}/snapshots/{snapshot}",
            axum::routing::delete(delete),
        )
        .route(
            "/v1/volumes/{name}/snapshots/{snapshot}/restore",
            post(restore),
        )
        .route("/v1/volumes/{name}/fork", post(fork))
        .route("/v1/volumes/{name}/diff", get(diff))
}

async fn list(
    State(control): Shared,
    Path(name): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SnapshotList>> {
    let listed = control.snapshots(&name, query.place()?).await;
    listed.map(axum::Json)
}

async fn create(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<CreateSnapshot>,
) -> Result<Response> {
    note.set(&request.name);
    let created = async move { control.create_snapshot(&name, request).await };
    let created = run_to_completion(created).await?;
    Ok((StatusCode::CREATED, axum::Json(created)).into_response())
}

async fn create_group(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    JsonBody(request): JsonBody<CreateSnapshotGroup>,
) -> Result<Response> {
    note.set(&request.names.join(" "));
    let created = async move { control.create_snapshot_group(request).await };
    let created = run_to_completion(created).await?;
    Ok((StatusCode::CREATED, axum::Json(created)).into_response())
}

async fn delete(
    State(control): Shared,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<StatusCode> {
    let deleted = async move { control.delete_snapshot(&name, &snapshot).await };
    run_to_completion(deleted).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore(
    State(control): Shared,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<axum::Json<Restored>> {
    let restored = async move { control.restore_volume(&name, &snapshot).await };
    run_to_completion(restored).await.map(axum::Json)
}

async fn fork(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<ForkVolume>,
) -> Result<Response> {
    note.set(&format!("to {}", request.name));
    let forked = async move { control.fork_volume(&name, request).await };
    let forked = run_to_completion(forked).await?;
    Ok((StatusCode::CREATED, axum::Json(forked)).into_response())
}

/// What of a diff is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiffQuery {
    from: String,
    after: Option<String>,
    limit: Option<usize>,
}

async fn diff(
    State(control): Shared,
    Path(name): Path<String>,
    Query(query): Query<DiffQuery>,
) -> Result<axum::Json<Diff>> {
    let DiffQuery { from, after, limit } = query;
    let found = control.diff(&from, &name, after.as_deref(), limit).await;
    found.map(axum::Json)
}
