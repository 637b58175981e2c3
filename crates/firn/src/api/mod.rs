//! The HTTP API: `/v1/volumes…`, `/v1/rescue…`, sessions, events, health, metrics, and its own
//! description.
//!
//! Owns paths, success statuses and documents; what a request does is [`ControlPlane`]'s, and who may
//! send it the [`gate`]'s. Every failure is a problem document with a stable code, also those that the
//! framework would answer by itself (no such path, a body that is not JSON).

pub(crate) mod audit;
pub(crate) mod caller;
mod completion;
pub(crate) mod gate;
mod json_body;
mod limits;
mod list_query;
mod metrics_page;
mod page;
mod points;
mod problem;
mod request_span;
pub(crate) mod serving;
mod session;
pub(crate) mod sessions;
mod settings;
mod trash;
mod upgrade;
mod warm_up;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use self::audit::AuditNote;
use self::caller::Caller;
use self::completion::run_to_completion;
use self::gate::Gate;
use self::json_body::{JsonBody, JsonBodyOrDefault};
use self::list_query::ListQuery;
use crate::access::Role;
use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::metrics::exposition;
use crate::model::{
    Activity, AttachRequest, Attachment, CreateVolume, DetachRequest, DropRequest, EventList,
    ForgetRequest, ForkRequest, GcPass, GcRequest, GcState, RenameRequest, RescueTail, RescueTails,
    ResizeRequest, Volume, VolumeList,
};

/// The API's description, written by hand; a test holds it against the routes.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

type Shared = State<Arc<ControlPlane>>;

/// An answer as JSON, or the failure as a problem document.
type Answer<T> = Result<axum::Json<T>>;

/// The API behind its gate.
pub(crate) fn router(control: Arc<ControlPlane>, gate: Arc<Gate>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).delete(trash::delete))
        .route("/v1/volumes/{name}/sync", post(sync))
        .route("/v1/volumes/{name}/resize", post(resize))
        .route("/v1/volumes/{name}/rename", post(rename))
        .route("/v1/volumes/{name}/attach", post(attach))
        .route("/v1/volumes/{name}/detach", post(detach))
        .merge(points::routes())
        .merge(trash::routes())
        .merge(upgrade::routes())
        .merge(settings::routes())
        .merge(warm_up::routes())
        .route("/v1/activity", get(activity))
        .route("/v1/gc", get(gc_state).post(collect_garbage))
        .route("/v1/gc/forget", post(forget_volume))
        .route("/v1/rescue", get(rescue_tails))
        .route("/v1/rescue/{id}", get(rescue_tail))
        .route("/v1/rescue/{id}/fork", post(fork_tail))
        .route("/v1/rescue/{id}/drop", post(drop_tail))
        .route("/v1/events", get(events))
        .route("/v1/session", session::routes())
        .route("/v1/openapi.json", get(openapi))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(control)
        .layer(middleware::from_fn(request_span::trace_request))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&gate),
            gate::admit,
        ))
        .layer(Extension(gate))
        .layer(middleware::from_fn(serving::receive_body))
        .layer(middleware::from_fn(serving::to_problem_document))
        .layer(middleware::from_fn(gate::name_request))
}

async fn list(State(control): Shared, Query(query): Query<ListQuery>) -> Answer<VolumeList> {
    control.list(query.place()?).await.map(axum::Json)
}

async fn create(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    JsonBody(request): JsonBody<CreateVolume>,
) -> Result<Response> {
    note.set(&format!("{}, {} bytes", request.name, request.size_bytes));
    let created = control.create(request).await?;
    Ok((StatusCode::CREATED, axum::Json(created)).into_response())
}

async fn show(State(control): Shared, Path(name): Path<String>) -> Answer<Volume> {
    control.show(&name).await.map(axum::Json)
}

async fn sync(State(control): Shared, Path(name): Path<String>) -> Answer<Volume> {
    control.sync(&name).await.map(axum::Json)
}

async fn resize(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<ResizeRequest>,
) -> Answer<Volume> {
    note.set(&format!("to {} bytes", request.size_bytes));
    let resized = async move { control.resize(&name, request.size_bytes).await };
    run_to_completion(resized).await.map(axum::Json)
}

async fn rename(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<RenameRequest>,
) -> Answer<Volume> {
    note.set(&format!("to {}", request.name));
    let renamed = async move { control.rename(&name, request).await };
    run_to_completion(renamed).await.map(axum::Json)
}

async fn attach(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<AttachRequest>,
) -> Answer<Attachment> {
    if request.take_over {
        note.set("take-over");
        caller.require(Role::Admin, "declaring a loss with take_over")?;
    }
    let attached = async move { control.attach(&name, request).await };
    run_to_completion(attached).await.map(axum::Json)
}

async fn detach(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<DetachRequest>,
) -> Result<StatusCode> {
    if request.force {
        note.set("force");
        caller.require(Role::Admin, "detaching what is in use with force")?;
    }
    run_to_completion(async move { control.detach(&name, request).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn activity(State(control): Shared) -> axum::Json<Activity> {
    axum::Json(control.activity())
}

async fn gc_state(State(control): Shared) -> axum::Json<GcState> {
    axum::Json(control.gc_state())
}

async fn collect_garbage(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<GcRequest>,
) -> Answer<GcPass> {
    note.set(if request.dry_run { "dry run" } else { "a pass" });
    let pass = async move { control.collect_garbage(request.dry_run).await };
    run_to_completion(pass).await.map(axum::Json)
}

async fn forget_volume(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    JsonBody(request): JsonBody<ForgetRequest>,
) -> Result<StatusCode> {
    note.set(&format!("volume {}", request.volume_id));
    run_to_completion(async move { control.forget_volume(&request.volume_id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rescue_tails(State(control): Shared) -> axum::Json<RescueTails> {
    axum::Json(control.rescue_tails())
}

async fn rescue_tail(State(control): Shared, Path(id): Path<String>) -> Answer<RescueTail> {
    control.rescue_tail(&id).map(axum::Json)
}

async fn fork_tail(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<ForkRequest>,
) -> Result<Response> {
    note.set(&format!("to {}", request.name));
    let forked = run_to_completion(async move { control.fork_tail(&id, request).await }).await?;
    Ok((StatusCode::CREATED, axum::Json(forked)).into_response())
}

async fn drop_tail(
    State(control): Shared,
    Extension(note): Extension<AuditNote>,
    Path(id): Path<String>,
    JsonBodyOrDefault(request): JsonBodyOrDefault<DropRequest>,
) -> Result<StatusCode> {
    if request.force {
        note.set("force");
    }
    run_to_completion(async move { control.drop_tail(&id, request.force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// Liveness: the API answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: volumes can be read and written. Whoever is not known learns only whether.
async fn readyz(State(control): Shared, caller: Option<Extension<Caller>>) -> Result<String> {
    let ready = control.check_ready();
    if caller.is_some() {
        return ready;
    }
    match ready {
        Ok(_) => Ok("ready\n".to_owned()),
        Err(failure) => Err(Failure::new(failure.code, "not ready; a token shows why")),
    }
}

/// The newest changes that were asked for.
async fn events(Extension(gate): Extension<Arc<Gate>>) -> axum::Json<EventList> {
    axum::Json(gate.audit.events())
}

async fn metrics(State(control): Shared) -> Response {
    let kind = [(header::CONTENT_TYPE, exposition::CONTENT_TYPE)];
    (kind, metrics_page::render(&control)).into_response()
}

async fn no_such_path() -> Failure {
    Failure::new(
        FailureCode::NoSuchPath,
        "there is nothing at this path; see /v1/openapi.json",
    )
}

async fn no_such_method() -> Failure {
    Failure::new(
        FailureCode::NoSuchMethod,
        "this path does not take this method; see /v1/openapi.json",
    )
}
