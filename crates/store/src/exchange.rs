//! What was said over HTTP while one operation ran: whether a request left, and the store's answer.
//!
//! The `object_store` crate folds every failure into a few variants and hides status and error code
//! behind private types; firn needs both to tell "certainly not applied" from "unknown", a missing
//! bucket from a missing object, and a throttled store from a broken one. So every request passes
//! [`ObservedConnector`], which notes the last exchange with the store in a task-local of the
//! operation, and beside it the last one with whoever gives the credentials. It must never note a header or a body
//! of success: only what an error says.

use std::cell::RefCell;
use std::future::Future;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use crate::addresses::{Addresses, Server, Target};

/// Longest part of a store's own message that firn repeats.
const MESSAGE_BYTES_MAX: usize = 200;

tokio::task_local! {
    static EXCHANGE: RefCell<Exchange>;
}

/// The last exchanges of one operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    /// What became of the last request to the store itself, `None` if no request left.
    pub(crate) outcome: Option<ExchangeOutcome>,
    /// The same of the last request to a server of credentials, and that server's name.
    pub(crate) credentials: Option<(String, ExchangeOutcome)>,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeOutcome {
    /// It left, and nothing has come back.
    Sent,
    /// No connection: the request certainly did not reach the store.
    NotConnected(String),
    /// No answer in time.
    TimedOut,
    /// The connection broke after the request had begun to leave; how.
    Broken(String),
    /// The store answered with success; its body may still have been cut.
    Success,
    /// The store answered with an error.
    Refused(Refusal),
}

/// An error that the store itself reported.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// The service's own code, such as `NoSuchKey`; empty if it gave none.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The region that the store named.
    pub(crate) region: Option<String>,
}

impl Refusal {
    /// Status, code and message, for people to read.
    pub(crate) fn as_text(&self) -> String {
        let mut text = self.status.to_string();
        for part in [&self.code, &self.message] {
            if !part.is_empty() {
                text.push(' ');
                text.push_str(part);
            }
        }
        text
    }
}

/// Runs one operation and says what was exchanged meanwhile.
pub(crate) async fn observe<F: Future>(operation: F) -> (F::Output, Exchange) {
    EXCHANGE
        .scope(RefCell::default(), async {
            let output = operation.await;
            (output, EXCHANGE.with(RefCell::take))
        })
        .await
}

impl Server {
    fn note(&self, outcome: ExchangeOutcome) {
        // Outside of `observe` there is nobody to tell.
        let _ = EXCHANGE.try_with(|exchange| {
            let mut exchange = exchange.borrow_mut();
            match self {
                Server::Store => exchange.outcome = Some(outcome),
                Server::Credentials(name) => exchange.credentials = Some((name.clone(), outcome)),
            }
        });
    }
}

/// Makes clients whose exchanges with the store at these addresses are noted.
#[derive(Debug)]
pub(crate) struct ObservedConnector(Addresses);

impl ObservedConnector {
    pub(crate) fn new(addresses: Addresses) -> Self {
        ObservedConnector(addresses)
    }
}

impl HttpConnector for ObservedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(ObservedService {
            inner: ReqwestConnector::default().connect(options)?,
            addresses: self.0.clone(),
        }))
    }
}

#[derive(Debug)]
struct ObservedService {
    inner: HttpClient,
    addresses: Addresses,
}

#[async_trait]
impl HttpService for ObservedService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let target = Target {
            method: request.method().as_str(),
            is_tls: request.uri().scheme_str() == Some("https"),
            host: request.uri().host().unwrap_or_default(),
            port: request.uri().port_u16(),
            path: request.uri().path(),
            query: request.uri().query().unwrap_or_default(),
        };
        let Some(server) = self.addresses.server(&target) else {
            return self.inner.execute(request).await;
        };
        server.note(ExchangeOutcome::Sent);
        match self.inner.execute(request).await {
            Ok(response) if response.status().is_success() => {
                server.note(ExchangeOutcome::Success);
                Ok(response)
            }
            Ok(response) => note_refusal(&server, response).await,
            Err(error) => {
                server.note(outcome_of(&error));
                Err(error)
            }
        }
    }
}

fn outcome_of(error: &HttpError) -> ExchangeOutcome {
    match error.kind() {
        HttpErrorKind::Connect => ExchangeOutcome::NotConnected(chain(error)),
        HttpErrorKind::Timeout => ExchangeOutcome::TimedOut,
        _ => ExchangeOutcome::Broken(chain(error)),
    }
}

/// Reads an error's body, which is small, notes what it says, and hands on the same answer.
async fn note_refusal(server: &Server, response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let body = body.bytes().await.inspect_err(|error| {
        server.note(outcome_of(error));
    })?;
    let header = |name: &str| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let text = String::from_utf8_lossy(&body);
    let code = find_element(&text, "Code")
        .or_else(|| header("x-ms-error-code"))
        .unwrap_or_default();
    server.note(ExchangeOutcome::Refused(Refusal {
        status: parts.status.as_u16(),
        code: plain(&code),
        message: plain(
            &find_element(&text, "Message")
                .or_else(|| find_json_message(&text))
                .unwrap_or_default(),
        ),
        region: header("x-amz-bucket-region")
            .or_else(|| find_element(&text, "Region"))
            .map(|region| plain(&region)),
    }));
    Ok(HttpResponse::from_parts(parts, body.into()))
}

/// The text of the first element of this name in an XML error.
fn find_element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(content.to_owned())
}

/// The first `message` of a JSON error, up to the first quote in it: for people to read, nothing more.
fn find_json_message(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("\"message\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let (content, _) = rest.strip_prefix('"')?.split_once('"')?;
    Some(content.to_owned())
}

/// One printable line of bounded length.
fn plain(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if line.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX)
            .rev()
            .find(|&at| line.is_char_boundary(at));
        line.truncate(end.unwrap_or(0));
    }
    line.trim().to_owned()
}

fn chain(error: &HttpError) -> String {
    let mut text = String::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    plain(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_and_a_message_are_found_in_an_answer_and_made_one_line() {
        let text = "<Error><Code>NoSuchKey</Code><Message>not\nhere</Message></Error>";
        assert_eq!(find_element(text, "Code").as_deref(), Some("NoSuchKey"));
        let message = find_element(text, "Message").unwrap();
        assert_eq!(plain(&message), "not here");
        assert_eq!(find_element("<Code>cut", "Code"), None);
        assert_eq!(plain(&"é".repeat(300)).len(), MESSAGE_BYTES_MAX);
        let json = r#"{"error":{"code":400,"message": "invalid uploadType","errors":[]}}"#;
        let message = find_json_message(json);
        assert_eq!(message.as_deref(), Some("invalid uploadType"));
        assert_eq!(find_json_message(r#"{"message":"cut"#), None);
    }
}
