//! What a store's URL says: `s3://bucket/prefix?option=value&…`.
//!
//! Owns the grammar and refuses what it does not know: a misspelt option must never silently mean
//! the default. It must never hold a secret: a URL is seen in `ps`, in unit files and in logs, so
//! an option that would carry one is refused without repeating it.

use std::path::PathBuf;

use crate::{Error, Kind, Op, Result, check_key};

/// The options of a URL, all services together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloudUrl {
    /// Scheme, bucket and prefix: what messages call the store.
    pub(crate) plain: String,
    pub(crate) bucket: String,
    /// Without slashes at its ends; may be empty.
    pub(crate) prefix: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) path_style: Option<bool>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) proxy: Option<String>,
    pub(crate) no_proxy: Option<String>,
    pub(crate) profile: Option<String>,
    pub(crate) checksum: Option<String>,
    pub(crate) account: Option<String>,
    pub(crate) anonymous: bool,
}

const KNOWN: &str = "endpoint, region, path-style, ca, proxy, no-proxy, profile, checksum, account, \
                     anonymous";

/// Options that people write and that would show a secret.
const SECRET: &[&str] = &["secret", "key", "token", "password", "sas", "sig"];

impl CloudUrl {
    /// Reads what follows `scheme://`.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self> {
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = location.split_once('/').unwrap_or((location, ""));
        if bucket.contains('@') {
            return Err(url_error(
                &format!("{scheme}://…"),
                "a URL must not hold credentials, since everybody on this machine can see it; use \
                 the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a profile",
            ));
        }
        let mut url = CloudUrl {
            plain: format!("{scheme}://{location}"),
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            ..CloudUrl::default()
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(url.error(format!(
                "there is no bucket in it; write {scheme}://BUCKET/PREFIX?option=value"
            )));
        }
        if !url.prefix.is_empty() {
            check_key(Op::Open, &url.prefix)?;
        }
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            url.set(&name, value.into_owned())?;
        }
        Ok(url)
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        if value.is_empty() {
            return Err(self.error(format!("option {name:?} has no value")));
        }
        match name {
            "endpoint" => self.endpoint = Some(self.check_address(name, value)?),
            "region" => self.region = Some(value),
            "path-style" => self.path_style = Some(self.parse_bool(name, &value)?),
            "ca" => self.ca = Some(PathBuf::from(value)),
            "proxy" => self.proxy = Some(self.check_address(name, value)?),
            "no-proxy" => self.no_proxy = Some(value),
            "profile" => self.profile = Some(value),
            "checksum" if ["crc64nvme", "sha256", "none"].contains(&value.as_str()) => {
                self.checksum = Some(value);
            }
            "checksum" => {
                return Err(self.error("checksum is crc64nvme, sha256 or none"));
            }
            "account" => self.account = Some(value),
            "anonymous" => self.anonymous = self.parse_bool(name, &value)?,
            _ => {
                let lower = name.to_ascii_lowercase();
                let secret = SECRET.iter().any(|word| lower.contains(word));
                let detail = if secret {
                    format!(
                        "option {name:?} would show a secret to everybody on this machine; use \
                         the environment or a profile"
                    )
                } else {
                    format!("there is no option {name:?}; known are {KNOWN}")
                };
                return Err(self.error(detail));
            }
        }
        Ok(())
    }

    /// An address without credentials in it.
    fn check_address(&self, name: &str, value: String) -> Result<String> {
        let Some((_, rest)) = value
            .split_once("://")
            .filter(|(scheme, rest)| ["http", "https"].contains(scheme) && !rest.is_empty())
        else {
            return Err(self.error(format!("{name} must begin with http:// or https://")));
        };
        if rest.contains('@') {
            return Err(self.error(format!(
                "{name} must not hold credentials, since everybody on this machine can see it; \
                 for a proxy use HTTPS_PROXY in the environment"
            )));
        }
        Ok(value.trim_end_matches('/').to_owned())
    }

    fn parse_bool(&self, name: &str, value: &str) -> Result<bool> {
        value
            .parse()
            .map_err(|_| self.error(format!("{name} is true or false")))
    }

    /// An error of opening this store.
    pub(crate) fn error(&self, detail: impl Into<String>) -> Error {
        url_error(&self.plain, detail)
    }
}

fn url_error(plain: &str, detail: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, Op::Open, format!("store {plain:?}"), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_bucket_prefix_and_options() {
        let url = CloudUrl::parse(
            "s3",
            "b/a/c/?endpoint=http://h:9000/&region=eu-1&path-style=true&ca=/x.pem&checksum=none",
        )
        .unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("b", "a/c"));
        assert_eq!(url.endpoint.as_deref(), Some("http://h:9000"));
        assert_eq!(url.path_style, Some(true));
        assert_eq!(url.ca, Some(PathBuf::from("/x.pem")));
    }

    #[test]
    fn what_a_url_cannot_mean_is_refused_with_what_it_can() {
        for (rest, says) in [
            ("", "no bucket"),
            ("/x", "no bucket"),
            ("b?reigon=x", "region"),
            ("b?region=", "no value"),
            ("b?path-style=yes", "true or false"),
            ("b?endpoint=h:9000", "http://"),
            ("b?checksum=md5", "crc64nvme"),
            ("b/../x", "dot"),
        ] {
            let error = CloudUrl::parse("s3", rest).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{rest}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_secret_in_a_url_is_refused_and_never_repeated() {
        for rest in [
            "KEY:hunter2@bucket/x",
            "b?secret_access_key=hunter2",
            "b?sas_token=hunter2",
            "b?endpoint=http://KEY:hunter2@host",
            "b?proxy=http://me:hunter2@host",
        ] {
            let error = CloudUrl::parse("s3", rest).unwrap_err();
            let shown = format!("{} {error:?}", error.chain());
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("everybody"), "{shown}");
        }
    }
}
