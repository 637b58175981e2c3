//! The HTTP client of the commands.
//!
//! Turns every way in which a request can fail into one [`Failure`] that says what to do: a problem
//! document keeps its code and detail, and a server that does not answer is named by its address.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Method, Request, Response};
use ureq::{Agent, Body};

use crate::failure::{Failure, FailureCode, Result};
use crate::model::Problem;

/// How long connecting may take. An answer may take any time: a sync lasts as long as its upload.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer that is read: far larger than any listing.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    base: String,
}

/// The path of a volume. Percent-encoding keeps any name within one segment.
pub(crate) fn volume_path(name: &str) -> String {
    let mut path = String::from("/v1/volumes/");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    path
}

impl Client {
    pub(crate) fn new(api: &str) -> Result<Self> {
        let base = api.trim_end_matches('/');
        let base = match base.split_once("://") {
            None => format!("http://{base}"),
            Some(("http", _)) => base.to_owned(),
            Some((scheme, _)) => {
                return Err(Failure::invalid(format!(
                    "--api {api:?}: {scheme} is not supported; write HOST:PORT or http://HOST:PORT"
                )));
            }
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // The API is local: a proxy for the internet must not be used.
            .proxy(None)
            .build()
            .new_agent();
        Ok(Client { agent, base })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.send(Method::GET, path, None)?)
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_vec(body).expect("the API's own types always serialize");
        parse(&self.send(Method::POST, path, Some(body))?)
    }

    /// A request whose answer has no body.
    pub(crate) fn post_no_content(&self, path: &str, body: &impl Serialize) -> Result<()> {
        let body = serde_json::to_vec(body).expect("the API's own types always serialize");
        self.send(Method::POST, path, Some(body)).map(drop)
    }

    pub(crate) fn delete(&self, path: &str) -> Result<()> {
        self.send(Method::DELETE, path, None).map(drop)
    }

    fn send(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let request = Request::builder().method(method).uri(&url);
        let sent = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(body)
                .map_err(ureq::Error::from)
                .and_then(|request| self.agent.run(request)),
            None => request
                .body(())
                .map_err(ureq::Error::from)
                .and_then(|request| self.agent.run(request)),
        };
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        let bytes = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(bytes)
        } else {
            Err(problem_failure(&response, &bytes, &url))
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::new(
            FailureCode::ServerUnreachable,
            format!(
                "no answer from a firn server at {}: {error}; start one with `firn serve`, or \
                 name another with --api or FIRN_API",
                self.base
            ),
        )
    }
}

fn problem_failure(response: &Response<Body>, bytes: &[u8], url: &str) -> Failure {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => Failure::new(FailureCode::from_name(&problem.code), problem.detail),
        Err(_) => Failure::new(
            FailureCode::NotFirn,
            format!(
                "{url} answered {} without a firn problem document; is that a firn server?",
                response.status()
            ),
        ),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|source| {
        Failure::new(
            FailureCode::NotFirn,
            format!(
                "the server's answer is not what this firn expects: {source}; are both of \
                     the same version?"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment_of_the_path() {
        assert_eq!(volume_path("demo-1_x"), "/v1/volumes/demo-1_x");
        assert_eq!(volume_path("../a?b#c"), "/v1/volumes/%2E%2E%2Fa%3Fb%23c");
        assert_eq!(volume_path("é"), "/v1/volumes/%C3%A9");
    }

    #[test]
    fn a_server_that_is_not_there_is_named_with_the_remedy() {
        let client = Client::new("127.0.0.1:1").unwrap();
        let error = client.get::<Problem>("/v1/volumes").unwrap_err();
        assert!(error.detail.contains("http://127.0.0.1:1"), "{error}");
        assert!(error.detail.contains("firn serve"), "{error}");
        assert!(Client::new("https://127.0.0.1:1").is_err());
    }
}
