//! Draws requests: of each operation of `openapi.json`, with values that fit its schema, that nearly do, and that do not.

use std::fmt;

use serde_json::{Map, Value, json};

/// The names that requests have in common, so that they meet what others made; the volumes' are first.
const NAMES: [&str; 8] = ["a", "b", "c", "a@s", "b@s", "a@t", "s", "t"];

/// Names that are none.
const ODD_NAMES: [&str; 12] = [
    "", ".", "..", "../a", "a/b", "-", "a b", "\u{e9}", "\0", "@", "a@", "*",
];

/// Text of values that have a meaning.
const TEXTS: [&str; 16] = [
    "off",
    "0",
    "1s",
    "10m",
    "6h",
    "1ns",
    "99999999999999999h",
    "-1s",
    "a=1h,keep=2",
    "*=1s,keep=0",
    "64MiB",
    "0B",
    "18446744073709551616B",
    "NaN",
    "true",
    "null",
];

const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "511",
    "512",
    "4096",
    "8388608",
    "1e400",
    "1.5",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-0",
];

/// One request, as bytes.
pub(super) struct Drawn {
    pub(super) bytes: Vec<u8>,
    /// It is a whole request of HTTP: it is answered.
    pub(super) is_http: bool,
    /// Less follows than it says.
    pub(super) is_cut_short: bool,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.bytes[..self.bytes.len().min(1500)];
        write!(f, "{:?}", String::from_utf8_lossy(shown))
    }
}

/// One operation of the API.
struct Operation {
    method: String,
    path: String,
    query: Vec<String>,
    body: Value,
}

pub(super) struct Requests {
    rng: fastrand::Rng,
    operations: Vec<Operation>,
    schemas: Value,
}

impl Requests {
    pub(super) fn new(seed: u64) -> Requests {
        let api = include_str!("../../../src/api/openapi.json");
        let api: Value = serde_json::from_str(api).unwrap();
        let paths = api["paths"].as_object().unwrap();
        let operations = paths
            .iter()
            // Its program would take the place of the server's.
            .filter(|(path, _)| *path != "/v1/upgrade")
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().iter();
                let operations = methods.filter(|(method, _)| *method != "parameters");
                operations.map(|(method, operation)| Operation::new(method, path, operation))
            })
            .collect();
        Requests {
            rng: fastrand::Rng::with_seed(seed),
            operations,
            schemas: api["components"]["schemas"].clone(),
        }
    }

    pub(super) fn draw(&mut self, token: &str) -> Drawn {
        let at = self.rng.usize(..self.operations.len());
        let mut method = self.operations[at].method.to_uppercase();
        if self.one_of(40) {
            method = self
                .choose(&["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "BREW"])
                .into();
        }
        let target = self.target(at);
        let mut body = self.body(at);
        let mut headers = format!("authorization: Bearer {token}\r\nconnection: close\r\n");
        if self.one_of(60) {
            headers = "connection: close\r\n".into();
        }
        if !body.is_empty() {
            let kind = match self.one_of(25) {
                true => self.choose(&[
                    "text/plain",
                    "application/json; charset=latin1",
                    "",
                    "a/b/c",
                ]),
                false => "application/json",
            };
            headers += &format!("content-type: {kind}\r\n");
        }
        if self.one_of(25) {
            let long = "x".repeat(self.rng.usize(1..20_000));
            headers += &format!("x-request-id: {long}\r\ntraceparent: 00-{long}-1-01\r\n");
        }
        let length = match self.one_of(60) {
            true => body.len() + self.rng.usize(1..1000),
            false => body.len(),
        };
        let is_cut_short = length > body.len();
        let mut bytes = format!(
            "{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}content-length: {length}\r\n\r\n"
        )
        .into_bytes();
        bytes.append(&mut body);
        let is_broken = self.one_of(30);
        if is_broken {
            self.break_bytes(&mut bytes);
        }
        Drawn {
            bytes,
            // An answer to HEAD has no body.
            is_http: !is_broken && !is_cut_short && method != "HEAD",
            is_cut_short: is_broken || is_cut_short,
        }
    }

    /// Once in so many times.
    fn one_of(&mut self, times: u32) -> bool {
        self.rng.u32(..times) == 0
    }

    fn choose<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.usize(..from.len())]
    }

    /// Bytes that are no HTTP any more, or that are in a way that nobody meant.
    fn break_bytes(&mut self, bytes: &mut Vec<u8>) {
        match self.rng.u32(..3) {
            0 => bytes.truncate(self.rng.usize(..bytes.len())),
            1 => {
                for _ in 0..self.rng.usize(1..5) {
                    let at = self.rng.usize(..bytes.len());
                    bytes[at] = self.rng.u8(..);
                }
            }
            _ => self.rng.fill(bytes),
        }
    }

    fn target(&mut self, at: usize) -> String {
        let path = self.operations[at].path.clone();
        let mut target = String::new();
        for part in path.split('/').skip(1) {
            target.push('/');
            match part.strip_prefix('{') {
                Some(_) => target += &encode(&self.name()),
                None => target += part,
            }
        }
        let mut separator = '?';
        for parameter in self.operations[at].query.clone() {
            if self.rng.bool() {
                let value = self.text();
                target += &format!("{separator}{parameter}={}", encode(&value));
                separator = '&';
            }
        }
        if self.one_of(40) {
            target += &format!("{separator}unknown=%FF%zz&{separator}");
        }
        target
    }

    fn body(&mut self, at: usize) -> Vec<u8> {
        let schema = self.operations[at].body.clone();
        if schema.is_null() && !self.one_of(20) {
            return Vec::new();
        }
        let value = self.value(&schema, 0);
        // A number is not what the parser of this test can hold: its text stands in a string.
        let mut text = value.to_string();
        for number in NUMBERS {
            text = text.replace(&format!("\"#{number}\""), number);
        }
        if self.one_of(30) {
            text.truncate(text.floor_char_boundary(self.rng.usize(..=text.len())));
        }
        if self.one_of(60) {
            text = "[".repeat(self.rng.usize(1..5000));
        }
        text.into_bytes()
    }

    fn name(&mut self) -> String {
        match self.rng.u32(..10) {
            0 => self.choose(&ODD_NAMES).to_owned(),
            1 if self.one_of(3) => "n".repeat(self.rng.usize(1..5000)),
            2..=6 => self.choose(&NAMES[..3]).to_owned(),
            _ => self.choose(&NAMES).to_owned(),
        }
    }

    fn text(&mut self) -> String {
        match self.rng.u32(..4) {
            0 => self.choose(&TEXTS).to_owned(),
            1 => self.choose(&NUMBERS).to_owned(),
            _ => self.name(),
        }
    }

    /// A value of this schema, for the most part.
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap();
            let schema = self.schemas[name].clone();
            return self.value(&schema, depth);
        }
        if self.one_of(12) || depth > 4 {
            return self.other();
        }
        if let Some(values) = schema["enum"].as_array() {
            return values[self.rng.usize(..values.len())].clone();
        }
        match schema["type"].as_str() {
            Some("object") => self.object(schema, depth),
            Some("array") => {
                let count = self.rng.usize(..4);
                (0..count)
                    .map(|_| self.value(&schema["items"], depth + 1))
                    .collect()
            }
            Some("integer" | "number") => match self.rng.bool() {
                true => json!(8 << 20),
                false => json!(format!("#{}", self.choose(&NUMBERS))),
            },
            Some("boolean") => json!(self.rng.bool()),
            Some("string") => json!(self.text()),
            _ => self.other(),
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut members = Map::new();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let chance = if required.contains(&json!(name)) {
                20
            } else {
                2
            };
            if !self.one_of(chance) {
                let value = self.value(member, depth + 1);
                members.insert(name.clone(), value);
            }
        }
        if schema["properties"].is_null() || self.one_of(20) {
            members.insert(self.text(), self.other());
        }
        Value::Object(members)
    }

    /// A value of any kind.
    fn other(&mut self) -> Value {
        match self.rng.u32(..7) {
            0 => Value::Null,
            1 => json!(self.rng.bool()),
            2 => json!(format!("#{}", self.choose(&NUMBERS))),
            3 => json!([self.text(), null]),
            4 => json!({ self.text(): self.text() }),
            5 => json!("x".repeat(self.rng.usize(..70_000))),
            _ => json!(self.text()),
        }
    }
}

impl Operation {
    fn new(method: &str, path: &str, operation: &Value) -> Operation {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let in_query = parameters.filter(|one| one["in"] == "query");
        Operation {
            method: method.to_owned(),
            path: path.to_owned(),
            query: in_query
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect(),
            body: operation["requestBody"]["content"]["application/json"]["schema"].clone(),
        }
    }
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@-_".contains(&byte);
    let encoded = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}
