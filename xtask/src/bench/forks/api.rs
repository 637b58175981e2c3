//! The server's API, asked without a program in between, so that the time is the server's.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Request;

use crate::Failure;
use crate::bench::rig::FirnServer;

/// How long an answer may take: a snapshot waits until the store has everything.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct Api {
    agent: ureq::Agent,
    address: String,
    token: String,
}

impl Api {
    pub(super) fn of(server: &FirnServer<'_>) -> Result<Api, Failure> {
        let token = server.scratch().join(Path::new("firn-data/tokens/admin"));
        Api::at(server.api.clone(), &token)
    }

    /// Of a server at this address, with the token in this file.
    pub(super) fn at(address: String, file: &Path) -> Result<Api, Failure> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(ANSWER_TIMEOUT))
            .build()
            .new_agent();
        let token = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        Ok(Api {
            agent,
            address,
            token: token.trim().to_owned(),
        })
    }

    /// Asks for something that must succeed; how long that took.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Duration, Failure> {
        self.ask(path, body).map(|(took, _)| took)
    }

    /// The same, and the answer.
    pub(super) fn ask(&self, path: &str, body: &Value) -> Result<(Duration, Value), Failure> {
        self.send("POST", path, body)
    }

    /// Removes something; how long that took.
    pub(super) fn delete(&self, path: &str) -> Result<Duration, Failure> {
        self.send("DELETE", path, &Value::Null)
            .map(|(took, _)| took)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<(Duration, Value), Failure> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(body)?;
        let began = Instant::now();
        let mut answer = self.agent.run(request)?;
        let text = answer.body_mut().read_to_string()?;
        let took = began.elapsed();
        if !answer.status().is_success() {
            return Err(format!("{method} {path}: {} {text}", answer.status()).into());
        }
        // Some answers have no body.
        Ok((took, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// A snapshot, and what is to have it when the call ends: `log` or `store`.
    pub(super) fn snapshot(
        &self,
        volume: &str,
        name: &str,
        wait: &str,
    ) -> Result<Duration, Failure> {
        let path = format!("/v1/volumes/{volume}/snapshots");
        self.post(&path, &json!({"name": name, "wait": wait}))
    }

    /// A fork of a volume or, as `VOLUME@SNAPSHOT`, of a snapshot, and what is to have it when the call ends.
    pub(super) fn fork(&self, parent: &str, name: &str, wait: &str) -> Result<Duration, Failure> {
        let path = format!("/v1/volumes/{}/fork", parent.replace('@', "%40"));
        self.post(&path, &json!({"name": name, "wait": wait}))
    }

    /// Makes a volume a ublk disk, which is not searched for partitions; how long that took, and where it is.
    pub(super) fn attach_disk(&self, volume: &str) -> Result<(Duration, PathBuf), Failure> {
        let path = format!("/v1/volumes/{volume}/attach");
        let how = json!({"transport": "ublk", "no_part_scan": true});
        let (took, answer) = self.ask(&path, &how)?;
        let device = answer["device"].as_str().ok_or("a disk without a device")?;
        Ok((took, PathBuf::from(device)))
    }

    pub(super) fn attach(&self, volume: &str) -> Result<Duration, Failure> {
        let path = format!("/v1/volumes/{volume}/attach");
        self.post(&path, &json!({"transport": "nbd"}))
    }
}
