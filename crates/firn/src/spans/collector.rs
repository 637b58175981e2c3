//! The way to the collector: one request at a time, by the server's runtime.
//!
//! Called by the exporter's thread, which has none. Says once that the collector fails, and once that it answers again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Request, Response};
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

/// How long the collector may take: meanwhile spans wait, up to as many as there is room for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Collector {
    runtime: Handle,
    /// Made when it is first used: loading certificates takes time, and clients may wait for the start.
    client: &'static OnceCell<reqwest::Client>,
    fails: AtomicBool,
}

impl Collector {
    pub(super) fn new(runtime: Handle) -> Collector {
        static CLIENT: OnceCell<reqwest::Client> = OnceCell::const_new();
        Collector {
            runtime,
            client: &CLIENT,
            fails: AtomicBool::new(false),
        }
    }

    fn report(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let why = match sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        match (why, self.fails.load(Ordering::Relaxed)) {
            (Some(why), false) => {
                self.fails.store(true, Ordering::Relaxed);
                tracing::warn!(
                    why,
                    "the collector of spans (--otlp-endpoint) does not take them; they are left out until it does"
                );
            }
            (None, true) => {
                self.fails.store(false, Ordering::Relaxed);
                tracing::info!("the collector of spans takes them again");
            }
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client;
        let sent = self.runtime.spawn(async move {
            let client = client.get_or_try_init(async || make_client()).await?;
            tokio::time::timeout(TIMEOUT, send(client, request)).await?
        });
        let sent = sent.await.unwrap_or_else(|error| Err(error.into()));
        self.report(&sent);
        sent
    }
}

fn make_client() -> reqwest::Result<reqwest::Client> {
    // Fails if another part of the process has installed one, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder();
    client.redirect(reqwest::redirect::Policy::none()).build()
}

async fn send(
    client: &reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    // The address may hold a password; an error does not tell it.
    let answer = client.execute(request.try_into()?).await;
    let mut answer = answer.map_err(reqwest::Error::without_url)?;
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return Err("its answer is too long".into());
        }
        body.extend_from_slice(&part);
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    Ok(response)
}
