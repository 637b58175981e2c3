//! Spans of control operations, for an OpenTelemetry collector: requests of the API, snapshots by schedule, upgrades.
//!
//! Nothing on the way of the data knows of them. A span is handed to a queue of bounded length, and a thread of the exporter's own
//! sends what is there; what does not fit is left out. So neither a request nor the server ever waits for a collector.
//! Must never tell a header, a query or a body: paths, names, who asked and how it ended are all that leaves.

mod collector;

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, Uri};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use tokio::runtime::Handle;
use url::Url;

use self::collector::Collector;
use crate::failure::{Failure, FailureCode, Result};

/// The way of the protocol for spans.
const PATH: &str = "/v1/traces";

/// Spans that wait to be sent. A span is some hundred bytes, for what a client chooses of it is cut.
const QUEUE_MAX: usize = 2048;
/// For tests: another number of them. Only builds with debug assertions look at it.
const QUEUE_VARIABLE: &str = "FIRN_SPANS_WAITING";
/// Longest text in a span.
const TEXT_BYTES_MAX: usize = 256;
/// Spans in one request to the collector.
const BATCH_MAX: usize = 512;
/// Until when those that are fewer wait for more.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// How long a server that stops waits for the collector.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Set once, if there is a collector.
static EXPORT: OnceLock<Export> = OnceLock::new();

#[derive(Debug)]
struct Export {
    /// When this program was ready to send.
    began: SystemTime,
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Whether spans can go to this address. One that may hold a secret is not told: it would be in what `firn config` prints, on
/// the command line, and in the log.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<()> {
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    let url = Url::parse(endpoint).ok().filter(is_http);
    // As the exporter reads it.
    let is_target = Uri::try_from(traces_endpoint(endpoint)).is_ok();
    let why = match url {
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            "holds a name or a password; give them in OTEL_EXPORTER_OTLP_HEADERS, in the environment"
                .to_owned()
        }
        Some(url) if url.query().is_some() || url.fragment().is_some() => {
            "has a query or a fragment; leave out what follows ? or #, and give keys in OTEL_EXPORTER_OTLP_HEADERS, in the environment".to_owned()
        }
        Some(_) if is_target => return Ok(()),
        _ => {
            // `user:secret@host` is an address, of the scheme `user`.
            let shown = match endpoint.contains(['@', '?', '#']) {
                true => "(not shown, for it may hold a password)".to_owned(),
                false => format!("{endpoint:?}"),
            };
            format!("{shown} is no address of a collector; write http://HOST:4318 or https://HOST:4318")
        }
    };
    Err(Failure::invalid(format!("--otlp-endpoint {why}")))
}

fn traces_endpoint(endpoint: &str) -> String {
    format!("{}{PATH}", endpoint.trim_end_matches('/'))
}

fn queue_max() -> usize {
    let planned = || std::env::var(QUEUE_VARIABLE).ok()?.parse().ok();
    match cfg!(debug_assertions) {
        true => planned().unwrap_or(QUEUE_MAX),
        false => QUEUE_MAX,
    }
}

/// From now on spans are sent to a collector.
pub(crate) fn start(endpoint: &str, runtime: &Handle) -> Result<()> {
    let failed = |why: String| {
        Failure::new(
            FailureCode::Invalid,
            format!(
                "cannot send spans to {endpoint}: {why}; correct --otlp-endpoint or the variables OTEL_…"
            ),
        )
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector::new(runtime.clone()))
        .with_endpoint(traces_endpoint(endpoint))
        .build();
    let exporter = exporter.map_err(|error| failed(error.to_string()))?;
    let limits = BatchConfigBuilder::default()
        .with_max_queue_size(queue_max())
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(BATCH_DELAY)
        .build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(limits);
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("firn");
    }
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor.build())
        .with_resource(resource.with_attribute(version).build())
        .build();
    let tracer = provider.tracer("firn");
    let _ = EXPORT.set(Export {
        began: SystemTime::now(),
        provider,
        tracer,
    });
    Ok(())
}

/// Sends what waits, for a second at most. Blocks.
pub(crate) fn stop() {
    if let Some(export) = EXPORT.get() {
        let _ = export.provider.shutdown_with_timeout(STOP_TIMEOUT);
    }
}

/// Has what waits sent now, by a thread that nobody waits for: this program may be gone soon.
pub(crate) fn send_soon() {
    if let Some(export) = EXPORT.get() {
        let provider = export.provider.clone();
        let thread = std::thread::Builder::new().spawn(move || drop(provider.force_flush()));
        // What waits is lost with this program then; the upgrade goes on.
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread sends the spans that wait");
        }
    }
}

/// The client's trace, as it names it. Its `tracestate`, of any length, is none of this server's business.
struct Parent<'a>(&'a HeaderMap);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key).filter(|_| key == "traceparent");
        value.and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// What a client sent may be of any length, and many spans may wait.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    // The rest of its memory would wait, too.
    text.shrink_to_fit();
    text
}

/// What is under way. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Operation(opentelemetry_sdk::trace::Span);

impl Operation {
    /// A request of the API, as a part of what its client does, if that says so (`traceparent`).
    pub(crate) fn begin_request(name: String, headers: &HeaderMap) -> Option<Operation> {
        let export = EXPORT.get()?;
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(headers));
        let span = export.tracer.span_builder(cut(name));
        let span = span.with_kind(SpanKind::Server);
        let span = span.start_with_context(&export.tracer, &parent);
        Some(Operation(span))
    }

    /// Something that the server does by itself.
    pub(crate) fn begin(name: &'static str) -> Option<Operation> {
        Operation::begin_at(name, SystemTime::now())
    }

    /// The same, which began with this program.
    pub(crate) fn begin_with_program(name: &'static str) -> Option<Operation> {
        Operation::begin_at(name, EXPORT.get()?.began)
    }

    /// The same, which began before.
    pub(crate) fn begin_at(name: &'static str, began: SystemTime) -> Option<Operation> {
        let export = EXPORT.get()?;
        let span = export.tracer.span_builder(name).with_start_time(began);
        let span = span.start_with_context(&export.tracer, &Context::new());
        Some(Operation(span))
    }

    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::String(text) => Value::from(cut(text.into())),
            other => other,
        };
        self.0.set_attribute(KeyValue::new(name, value));
    }

    /// It failed, for this reason. What its detail says may hold what a client sent, and stays here.
    pub(crate) fn fail(&mut self, code: FailureCode) {
        self.set("error.type", code.name());
        self.0.set_status(Status::error(code.name()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_web_address() {
        assert!(check_endpoint("http://127.0.0.1:4318").is_ok());
        assert!(check_endpoint("https://otel.example/x/").is_ok());
        for wrong in [
            "",
            "127.0.0.1:4318",
            "grpc://a:1",
            "http://",
            "unix:/x",
            "http://a:b@c",
            "http://a/?key=secret",
            "http://a/#secret",
            "user:secret@a:4318",
            "//user:secret@a:4318",
            "a:4318?key=secret",
        ] {
            let refused = check_endpoint(wrong).unwrap_err().to_string();
            assert!(!refused.contains("secret"), "{wrong}: {refused}");
        }
    }
}
