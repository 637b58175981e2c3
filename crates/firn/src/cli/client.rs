//! The HTTP client of the commands.
//!
//! Finds the server by itself where it listens at a usual place, and shows a token where it is
//! reached over TCP. Turns every way in which a request can fail into one [`Failure`] that says what
//! to do: a problem document keeps its code and detail, and a server that does not answer is named by
//! its address. A token goes to no other machine unless it was named for it.

use std::fmt::Write;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use zeroize::Zeroizing;

use super::args::{ApiArgs, Patience};
use crate::access::Role;
use crate::access::tokens;
use crate::api_address::{ApiAddress, SOCKET_DEFAULT, SYSTEM_SOCKET, TOKENS_DEFAULT};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::Problem;

/// How long connecting may take. An answer may take any time: a sync lasts as long as its upload.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer that is read: far larger than any listing.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How often a command that waits asks again.
const WAIT_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub(crate) struct Client {
    address: ApiAddress,
    token: Option<Zeroizing<String>>,
    waiting: Waiting,
}

/// Whether failures that pass are waited for, and until when.
#[derive(Clone, Copy)]
struct Waiting {
    wait: bool,
    deadline: Option<Instant>,
}

impl Waiting {
    fn begin(patience: Patience) -> Self {
        Waiting {
            wait: patience.wait,
            deadline: patience.timeout.map(|time| Instant::now() + time.0),
        }
    }

    /// What is left of the time; `None` without a limit.
    fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Does something until it succeeds, fails for good, or the time is over.
    fn retry<T>(&self, mut once: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let failure = match once() {
                Err(failure) if self.wait && is_transient(failure.code) => failure,
                done => return done,
            };
            match self.time_left() {
                Some(Duration::ZERO) => return Err(late(&failure.detail)),
                left => {
                    std::thread::sleep(left.map_or(WAIT_INTERVAL, |left| left.min(WAIT_INTERVAL)))
                }
            }
        }
    }
}

/// Whether time alone may mend it.
fn is_transient(code: FailureCode) -> bool {
    use FailureCode::{
        NotOpenYet, NotReady, ServerUnreachable, StoreFailed, StoreUnavailable, TooManyRequests,
        VolumeHeld,
    };
    matches!(
        code,
        NotOpenYet
            | NotReady
            | ServerUnreachable
            | StoreFailed
            | StoreUnavailable
            | TooManyRequests
            | VolumeHeld
    )
}

fn late(why: &str) -> Failure {
    Failure::new(
        FailureCode::TimedOut,
        format!("the time of --timeout is over: {why}"),
    )
}

/// The path of a volume. Percent-encoding keeps any name within one segment.
pub(crate) fn volume_path(name: &str) -> String {
    format!("/v1/volumes/{}", encoded(name))
}

/// A text as it may stand in an address.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    encoded
}

impl Client {
    pub(crate) fn new(args: &ApiArgs) -> Result<Self> {
        Self::with_patience(args, Patience::default())
    }

    /// A client that waits as it is told.
    pub(crate) fn with_patience(args: &ApiArgs, patience: Patience) -> Result<Self> {
        let waiting = Waiting::begin(patience);
        waiting.retry(|| Self::find(args, waiting))
    }

    fn find(args: &ApiArgs, waiting: Waiting) -> Result<Self> {
        let address = match args.api.as_slice() {
            [] => find_server()?,
            [one] => one.parse().map_err(Failure::into_usage)?,
            _ => {
                return Err(Failure::invalid(
                    "--api is given several times; a command asks one server",
                ));
            }
        };
        let token = match (&address, &args.token_file) {
            (ApiAddress::Unix(_), _) => None,
            (ApiAddress::Tcp(_), Some(file)) => Some(tokens::read(file)?),
            (ApiAddress::Tcp(authority), None) => default_token(authority)?,
        };
        Ok(Client {
            address,
            token,
            waiting,
        })
    }

    /// Whether the server may be one of another machine.
    pub(crate) fn is_over_tcp(&self) -> bool {
        matches!(self.address, ApiAddress::Tcp(_))
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.send(Method::GET, path, None)?)
    }

    /// An answer as it is.
    pub(crate) fn get_text(&self, path: &str) -> Result<String> {
        let answer = self.send(Method::GET, path, None)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_vec(body).expect("the API's own types always serialize");
        parse(&self.send(Method::POST, path, Some(body))?)
    }

    pub(crate) fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let body = serde_json::to_vec(body).expect("the API's own types always serialize");
        parse(&self.send(Method::PATCH, path, Some(body))?)
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
        self.waiting
            .retry(|| self.send_once(method.clone(), path, body.clone()))
    }

    fn send_once(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let request = self.request(method, path, body)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Failure::internal(format!("cannot send a request: {source}")))?;
        let left = self.waiting.time_left();
        let exchanged = runtime.block_on(async {
            let exchange = self.exchange(request);
            match left {
                Some(left) => tokio::time::timeout(left, exchange).await,
                None => Ok(exchange.await),
            }
        });
        let (status, bytes) = exchanged
            .map_err(|_| late(&format!("{}{path} has not answered", self.address)))?
            .map_err(|error| self.unreachable(error.as_ref()))?;
        if status.is_success() {
            Ok(bytes)
        } else {
            Err(problem_failure(
                status,
                &bytes,
                &format!("{}{path}", self.address),
            ))
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Request<Full<Bytes>>> {
        let host = match &self.address {
            ApiAddress::Unix(_) => "localhost",
            ApiAddress::Tcp(authority) => authority,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host);
        if let Some(token) = &self.token {
            let bearer = Zeroizing::new(format!("Bearer {}", token.as_str()));
            let mut value = HeaderValue::from_str(&bearer)
                .map_err(|error| Failure::invalid(format!("the token cannot be sent: {error}")))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| Failure::invalid(format!("--api {}: {error}", self.address)))
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> std::result::Result<(StatusCode, Vec<u8>), ExchangeError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its failures are the request's, too.
        drop(tokio::spawn(connection));
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        Ok((status, body.collect().await?.to_bytes().to_vec()))
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.address {
            ApiAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
            ApiAddress::Tcp(authority) => Box::new(TcpStream::connect(authority.as_str()).await?),
        })
    }

    fn unreachable(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut causes = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            let _ = write!(causes, ": {cause}");
            next = cause.source();
        }
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = if error.downcast_ref().is_some_and(denied) {
            "only its own user and root may use this socket, unless it was started with --api-group"
        } else {
            "start one with `firn serve`, or name another with --api or FIRN_API"
        };
        let code = match error.downcast_ref().is_some_and(denied) {
            true => FailureCode::NotAllowed,
            false => FailureCode::ServerUnreachable,
        };
        Failure::new(
            code,
            format!(
                "no answer from a firn server at {}: {causes}; {remedy}",
                self.address
            ),
        )
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type ExchangeError = Box<dyn std::error::Error + Send + Sync>;

/// The socket of a server that runs in this directory, or else of the one that the system runs.
fn find_server() -> Result<ApiAddress> {
    let places = [SOCKET_DEFAULT, SYSTEM_SOCKET].map(Path::new);
    let found = places.iter().find(|place| place.exists());
    let Some(place) = found else {
        return Err(Failure::new(
            FailureCode::ServerUnreachable,
            format!(
                "no firn server is found: there is no socket at {SOCKET_DEFAULT} or {SYSTEM_SOCKET}; \
                 start one here with `firn serve`, or name another with --api or FIRN_API"
            ),
        ));
    };
    Ok(ApiAddress::Unix(place.to_path_buf()))
}

/// The token of a server that was started in this directory, for this machine alone.
fn default_token(authority: &str) -> Result<Option<Zeroizing<String>>> {
    let host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = bare == "localhost" || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let file = tokens::token_path(Path::new(TOKENS_DEFAULT), Role::Admin);
    if !is_here || !file.exists() {
        return Ok(None);
    }
    tokens::read(&file).map(Some)
}

fn problem_failure(status: StatusCode, bytes: &[u8], url: &str) -> Failure {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => Failure::new(FailureCode::from_name(&problem.code), problem.detail),
        Err(_) => Failure::new(
            FailureCode::NotFirn,
            format!(
                "{url} answered {status} without a firn problem document; is that a firn server?"
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
        let at = |api: &str| {
            Client::new(&ApiArgs {
                api: vec![api.to_owned()],
                token_file: None,
            })
        };
        let client = at("127.0.0.1:1").unwrap();
        let error = client.get::<Problem>("/v1/volumes").unwrap_err();
        assert!(error.detail.contains("http://127.0.0.1:1"), "{error}");
        assert!(error.detail.contains("firn serve"), "{error}");
        assert!(at("https://127.0.0.1:1").is_err());
        let error = at("unix:/nowhere/api.sock")
            .unwrap()
            .get::<Problem>("/")
            .unwrap_err();
        assert!(error.detail.contains("unix:/nowhere/api.sock"), "{error}");
    }

    #[test]
    fn no_token_goes_to_another_machine_unless_it_was_named() {
        for host in [
            "example.org:1",
            "192.0.2.1:1",
            "[2001:db8::1]:1",
            "127.0.0.1.example.org:1",
        ] {
            assert!(default_token(host).unwrap().is_none(), "{host}");
        }
    }
}
