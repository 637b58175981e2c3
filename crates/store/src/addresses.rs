//! Whom an HTTP request goes to: the store, or a server that gives credentials for it.
//!
//! Its address decides first. A bucket may be called as a part of a metadata service's path is, a role as the bucket, and a
//! container's credentials may come from any address; what a server of credentials answers says nothing of an object. Only
//! where the store's address is not known for certain the form of the request decides. It must never take a request for the
//! store's that may be another's.

/// What of a request says whom it is for.
pub(crate) struct Target<'a> {
    pub(crate) method: &'a str,
    pub(crate) is_tls: bool,
    pub(crate) host: &'a str,
    pub(crate) port: Option<u16>,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
}

/// Whom a request goes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Store,
    /// One that gives credentials, by its name.
    Credentials(String),
}

/// Host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    host: String,
    port: u16,
}

/// The addresses that are known of a store.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    bucket: String,
    store: Option<Authority>,
    /// Somebody named the store's address: whatever else is asked gives credentials.
    is_certain: bool,
    /// Where credentials are asked for, and how the path begins.
    credentials: Vec<(Authority, String)>,
}

impl Addresses {
    /// Of a store at `endpoint`, which the settings name.
    pub(crate) fn at_endpoint(bucket: &str, endpoint: &str) -> Addresses {
        let store = Authority::parse(endpoint).map(|(authority, _)| authority);
        Addresses {
            bucket: bucket.to_owned(),
            is_certain: store.is_some(),
            store,
            credentials: Vec::new(),
        }
    }

    /// Of a store that is probably at `endpoint`, where its service usually is.
    pub(crate) fn usually_at(bucket: &str, endpoint: &str) -> Addresses {
        Addresses {
            is_certain: false,
            ..Addresses::at_endpoint(bucket, endpoint)
        }
    }

    /// Credentials are asked for at URLs that begin so.
    pub(crate) fn with_credentials(mut self, url: &str) -> Addresses {
        self.credentials.extend(Authority::parse(url));
        self
    }

    /// Whom the request is for; none, if that is not known, and then nothing may be concluded from it.
    pub(crate) fn server(&self, target: &Target<'_>) -> Option<Server> {
        let credentials = || Some(Server::Credentials(target.host.to_owned()));
        let authority = target.authority();
        let begins = |path: &str| target.path.starts_with(path);
        let is_named = |(at, path): &(Authority, String)| *at == authority && begins(path);
        // Some stores give credentials themselves, at their own address.
        if target.is_for_token_service() || self.credentials.iter().any(is_named) {
            return credentials();
        }
        if self.store.as_ref() == Some(&authority) {
            return Some(Server::Store);
        }
        if self.is_certain || target.is_for_credentials() {
            return credentials();
        }
        target.is_for_bucket(&self.bucket).then_some(Server::Store)
    }
}

impl Authority {
    /// Of a URL, and the path of that without the query.
    fn parse(url: &str) -> Option<(Authority, String)> {
        let (scheme, rest) = url.split_once("://")?;
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (_, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
        // Of an IPv6 address the colons are within brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (authority, None),
        };
        let authority = Authority::new(host, port, scheme.eq_ignore_ascii_case("https"));
        Some((authority, path.to_owned()))
    }

    fn new(host: &str, port: Option<u16>, is_tls: bool) -> Authority {
        let usual = match is_tls {
            true => 443,
            false => 80,
        };
        Authority {
            host: host.to_ascii_lowercase(),
            port: port.unwrap_or(usual),
        }
    }
}

impl Target<'_> {
    fn authority(&self) -> Authority {
        Authority::new(self.host, self.port, self.is_tls)
    }

    /// A web identity is exchanged: at AWS, or at a store that does so itself.
    fn is_for_token_service(&self) -> bool {
        self.method == "POST" && self.query.contains("Action=AssumeRoleWithWebIdentity")
    }

    /// Whether it is one of the requests for credentials that the crate makes, by its form.
    fn is_for_credentials(&self) -> bool {
        let instance = [
            "/latest/api/token",
            "/latest/meta-data/",
            "/computeMetadata/",
            "/metadata/identity/",
        ];
        let instance = instance.iter().any(|begin| self.path.starts_with(begin));
        let container = ["169.254.170.2", "169.254.170.23"].contains(&self.host);
        let directory = self.host == "oauth2.googleapis.com"
            || (self.method == "POST" && self.path.ends_with("/oauth2/v2.0/token"));
        instance || container || directory
    }

    fn is_for_bucket(&self, bucket: &str) -> bool {
        let in_host = self
            .host
            .strip_prefix(bucket)
            .is_some_and(|rest| rest.starts_with('.'));
        // An account may come first, as in Azure's emulator. Google's client encodes all that is no letter
        // and no digit.
        let mut parts = self.path.split('/').skip(1).take(5);
        in_host || parts.any(|part| is_encoding_of(part, bucket))
    }
}

/// Whether a part of a path, some bytes of which may be percent-encoded, stands for `name`.
fn is_encoding_of(part: &str, name: &str) -> bool {
    let mut rest = part.as_bytes();
    for byte in name.bytes() {
        rest = match rest {
            [b'%', high, low, after @ ..] if decode_hex(*high, *low) == Some(byte) => after,
            [first, after @ ..] if *first == byte => after,
            _ => return false,
        };
    }
    rest.is_empty()
}

fn decode_hex(high: u8, low: u8) -> Option<u8> {
    let digits = [high, low];
    let text = std::str::from_utf8(&digits).ok()?;
    u8::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whom a request without a body goes to.
    fn server(addresses: &Addresses, method: &str, url: &str) -> String {
        let (plain, query) = url.split_once('?').unwrap_or((url, ""));
        let (authority, path) = Authority::parse(plain).unwrap();
        let target = Target {
            method,
            is_tls: url.starts_with("https"),
            host: &authority.host,
            port: Some(authority.port),
            path: &path,
            query,
        };
        match addresses.server(&target) {
            Some(Server::Store) => "store".to_owned(),
            Some(Server::Credentials(name)) => name,
            None => "unknown".to_owned(),
        }
    }

    #[test]
    fn a_server_of_credentials_is_not_the_store_whatever_a_role_is_called() {
        let store = Addresses::usually_at("firn", "https://firn.s3.eu-1.amazonaws.com");
        for (method, url, whom) in [
            (
                "GET",
                "http://169.254.169.254/latest/meta-data/iam/security-credentials/firn",
                "169.254.169.254",
            ),
            (
                "POST",
                "https://sts.eu-1.amazonaws.com/?Action=AssumeRoleWithWebIdentity&RoleArn=firn",
                "sts.eu-1.amazonaws.com",
            ),
            ("POST", "https://login/firn/oauth2/v2.0/token", "login"),
            ("GET", "http://other/token", "unknown"),
            ("GET", "https://minio/firn/volumes/a", "store"),
            (
                "PUT",
                "https://firn.s3.eu-1.amazonaws.com/volumes/a",
                "store",
            ),
        ] {
            assert_eq!(server(&store, method, url), whom, "{url}");
        }
    }

    #[test]
    fn credentials_at_any_address_are_not_the_stores_and_a_bucket_may_be_called_as_a_path_of_theirs()
     {
        let container = "http://127.0.0.1:9999/firn/credentials";
        let usual = Addresses::usually_at("firn", "https://s3.eu-1.amazonaws.com");
        assert_eq!(
            server(&usual.clone().with_credentials(container), "GET", container),
            "127.0.0.1"
        );
        // What a container is told may have a query, of which a request's path has nothing.
        let asked = "http://127.0.0.1:9999/firn/credentials?task=7";
        assert_eq!(
            server(&usual.with_credentials(asked), "GET", asked),
            "127.0.0.1"
        );
        let named = Addresses::at_endpoint("latest", "http://MinIO:9000/");
        for (method, url, whom) in [
            (
                "GET",
                "http://minio:9000/latest/meta-data/volumes/a",
                "store",
            ),
            ("PUT", "http://minio:9000/latest/api/token", "store"),
            ("GET", "http://minio:9999/latest/credentials", "minio"),
            ("GET", "http://pod/latest", "pod"),
            ("GET", container, "127.0.0.1"),
            (
                "POST",
                "http://minio:9000/?Action=AssumeRoleWithWebIdentity",
                "minio",
            ),
        ] {
            assert_eq!(server(&named, method, url), whom, "{url}");
        }
        // The store of a test beside its metadata service, at one address.
        let both = named.with_credentials("http://minio:9000/latest/meta-data/iam/");
        let role = "http://minio:9000/latest/meta-data/iam/security-credentials/latest";
        assert_eq!(server(&both, "GET", role), "minio");
        let bare = Addresses::usually_at("computeMetadata", "https://storage.googleapis.com");
        let object = "https://storage.googleapis.com/computeMetadata/volumes/a";
        assert_eq!(server(&bare, "GET", object), "store");
        let in_six = Addresses::at_endpoint("firn", "http://[::1]:9000");
        assert_eq!(server(&in_six, "GET", "http://[::1]:9000/firn/a"), "store");
        assert_eq!(server(&in_six, "GET", "http://[::1]/firn/a"), "[::1]");
    }

    #[test]
    fn a_bucket_is_known_in_a_path_however_it_is_encoded() {
        for (part, is_it) in [
            ("firn-test.1", true),
            ("firn%2Dtest%2E1", true),
            ("firn%2dtest.1", true),
            ("firn%2Dtest", false),
            ("firn%2Dtest%2E1x", false),
            ("firn%2Ftest%2E1", false),
            ("firn%", false),
            ("", false),
        ] {
            assert_eq!(is_encoding_of(part, "firn-test.1"), is_it, "{part}");
        }
    }
}
