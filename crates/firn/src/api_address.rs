//! Where an API is: a Unix socket, or an address of TCP. Shared by the server and the commands, which
//! find a server's socket by themselves where the server makes it by itself.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::failure::Failure;

/// Where a server makes its socket unless it is told otherwise.
pub(crate) const SOCKET_DEFAULT: &str = "./firn-data/api.sock";

/// Where a server that the system starts has its socket.
pub(crate) const SYSTEM_SOCKET: &str = "/run/firn/api.sock";

/// Where a server keeps its tokens unless it is told otherwise.
pub(crate) const TOKENS_DEFAULT: &str = "./firn-data/tokens";

/// Where an API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiAddress {
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl FromStr for ApiAddress {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path.contains('\0') {
                return Err(not_an_address(text));
            }
            return Ok(ApiAddress::Unix(PathBuf::from(path)));
        }
        let authority = match text.split_once("://") {
            None => text,
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(Failure::invalid(format!(
                    "--api {text:?}: {scheme} is not supported; write unix:PATH, HOST:PORT or \
                     http://HOST:PORT"
                )));
            }
        };
        let authority = authority.trim_end_matches('/');
        let port = authority.rsplit_once(':').map(|(_, port)| port);
        if authority.contains(['/', '@', '?', '#', ' '])
            || port.is_none_or(|port| port.parse::<u16>().is_err())
        {
            return Err(not_an_address(text));
        }
        Ok(ApiAddress::Tcp(authority.to_owned()))
    }
}

fn not_an_address(text: &str) -> Failure {
    Failure::invalid(format!(
        "--api {text:?} is no address; write unix:PATH or IP:PORT, for example \
         unix:{SOCKET_DEFAULT} or 127.0.0.1:7070"
    ))
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ApiAddress::Tcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_or_a_host_with_a_port() {
        let parse = |text: &str| text.parse::<ApiAddress>();
        assert_eq!(parse("unix:/a b"), Ok(ApiAddress::Unix("/a b".into())));
        for text in ["h:1", "http://h:1", "http://h:1/"] {
            assert_eq!(parse(text), Ok(ApiAddress::Tcp("h:1".into())), "{text}");
        }
        assert_eq!(parse("[::1]:1"), Ok(ApiAddress::Tcp("[::1]:1".into())));
        for text in [
            "",
            "unix:",
            "7070",
            "h",
            "h:x",
            "https://h:1",
            "a@h:1",
            "h:1/x",
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.detail.contains("--api"), "{text}: {failure}");
        }
        for text in ["unix:/a b", "http://h:1"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }
}
