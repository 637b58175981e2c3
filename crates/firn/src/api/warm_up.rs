//! Warming up over HTTP: `/v1/volumes/{name}/hints` of the server that has a volume, `/v1/volumes/{name}/prepare` of the one
//! that is to have it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use serde::Deserialize;

use super::json_body::JsonBodyOrDefault;
use crate::control_plane::ControlPlane;
use crate::failure::Result;
use crate::model::{HintList, PrepareRequest, Prepared};

type Shared = State<Arc<ControlPlane>>;

pub(super) fn routes() -> Router<Arc<ControlPlane>> {
    Router::new()
        .route("/v1/volumes/{name}/hints", get(hints))
        .route("/v1/volumes/{name}/prepare", post(prepare))
}

/// Which part of the list is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HintsQuery {
    from: Option<u64>,
    limit: Option<usize>,
}

async fn hints(
    State(control): Shared,
    Path(name): Path<String>,
    Query(query): Query<HintsQuery>,
) -> Result<axum::Json<HintList>> {
    let found = control.hints(&name, query.from, query.limit).await;
    found.map(axum::Json)
}

/// Whoever asks may go away: then nobody wants to know how far it came.
async fn prepare(
    State(control): Shared,
    Path(name): Path<String>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<PrepareRequest>,
) -> Result<axum::Json<Prepared>> {
    control.prepare(&name, request).await.map(axum::Json)
}
