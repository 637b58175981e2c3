//! Who sends a request: what the listener knows of the connection, and the role that follows.
//!
//! A caller is known by the kernel's word (a Unix socket's peer credentials) or by a token; nothing
//! that a request merely says about itself counts.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};

use super::sessions::{self, Sessions};
use crate::access::Role;
use crate::access::tokens::Tokens;
use crate::failure::{Failure, FailureCode, Result};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this machine, as the kernel names it.
    Unix { uid: u32, pid: Option<i32> },
    /// An address of the network, and the one of ours that it reached.
    Tcp { from: SocketAddr, here: SocketAddr },
}

/// Who may use the API, and how that is found out.
#[derive(Debug)]
pub(crate) struct AccessRules {
    /// The server's own user. He and root may do everything over a Unix socket.
    pub(crate) owner: u32,
    /// What others may do whom the mode of the Unix socket lets in: the server's group.
    pub(crate) group: Option<Role>,
    /// None: TCP is open to everybody, as the operator asked.
    pub(crate) tokens: Option<Tokens>,
    /// Names besides localhost that a server on the loopback address answers to: a proxy's before it.
    pub(crate) hosts: Vec<String>,
    pub(crate) sessions: Sessions,
}

/// Who sends a request, and what he may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: Role,
    /// How the role was found.
    pub(crate) proof: Proof,
    pub(crate) peer: Peer,
}

/// How a caller's role was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Peer credentials.
    Credentials,
    Token,
    /// A cookie that was given for a token.
    Session,
    /// None was asked for.
    Nothing,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix { uid, pid: None } => write!(f, "uid {uid}"),
            Peer::Unix {
                uid,
                pid: Some(pid),
            } => write!(f, "uid {uid} (process {pid})"),
            Peer::Tcp { from, .. } => write!(f, "{from}"),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (role, peer) = (self.role.as_str(), &self.peer);
        match self.proof {
            Proof::Credentials => write!(f, "{peer}"),
            Proof::Token => write!(f, "token {role} from {peer}"),
            Proof::Session => write!(f, "session {role} from {peer}"),
            Proof::Nothing => write!(f, "anybody from {peer}"),
        }
    }
}

impl Caller {
    /// Refuses what this caller's role does not reach.
    pub(crate) fn require(&self, role: Role, what: &str) -> Result<()> {
        if self.role >= role || canary::active!("every_role_is_admin") {
            return Ok(());
        }
        Err(Failure::new(
            FailureCode::NotAllowed,
            format!(
                "{what} needs the role {}, and {self} has the role {}",
                role.as_str(),
                self.role.as_str()
            ),
        ))
    }
}

impl AccessRules {
    /// Who sends a request with these headers over this connection.
    pub(crate) fn identify(&self, peer: Peer, headers: &HeaderMap) -> Result<Caller> {
        let caller = |role, proof| Ok(Caller { role, proof, peer });
        let Peer::Unix { uid, .. } = peer else {
            return self.identify_by_secret(headers, caller);
        };
        if uid == 0 || uid == self.owner {
            return caller(Role::Admin, Proof::Credentials);
        }
        match self.group {
            Some(role) => caller(role, Proof::Credentials),
            None => Err(Failure::new(
                FailureCode::NotAllowed,
                format!(
                    "this server's socket is for uid {} and root, not for uid {uid}; start the server \
                     with --api-group ROLE to let in its group",
                    self.owner
                ),
            )),
        }
    }

    fn identify_by_secret(
        &self,
        headers: &HeaderMap,
        caller: impl Fn(Role, Proof) -> Result<Caller>,
    ) -> Result<Caller> {
        let Some(tokens) = &self.tokens else {
            return caller(Role::Admin, Proof::Nothing);
        };
        let failure = match (bearer(headers), sessions::cookie(headers)) {
            (Some(token), _) => match tokens.role_of(token) {
                Some(role) => return caller(role, Proof::Token),
                None => "the token is none of this server's",
            },
            (None, Some(cookie)) => match self.sessions.role_of(cookie) {
                Some(role) => return caller(role, Proof::Session),
                None => "the session is over",
            },
            (None, None) => "over TCP this API wants a token",
        };
        Err(Failure::new(
            FailureCode::NotAuthenticated,
            format!(
                "{failure}; send one of the files in the server's --api-tokens directory as \
                 `authorization: Bearer TOKEN`, or name the file to the command line with --token-file"
            ),
        ))
    }
}

/// The token of the header `authorization`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// The rules, shared by all requests.
pub(crate) type SharedRules = Arc<AccessRules>;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(group: Option<Role>, tokens: Option<Tokens>) -> AccessRules {
        AccessRules {
            owner: 1000,
            group,
            tokens,
            hosts: Vec::new(),
            sessions: Sessions::default(),
        }
    }

    #[test]
    fn the_owner_and_root_may_do_everything_and_others_what_the_group_may() {
        let role = |group, uid| {
            let peer = Peer::Unix { uid, pid: Some(1) };
            let caller = rules(group, None).identify(peer, &HeaderMap::new());
            caller.map(|caller| caller.role)
        };
        assert_eq!(role(None, 0), Ok(Role::Admin));
        assert_eq!(role(None, 1000), Ok(Role::Admin));
        assert_eq!(role(Some(Role::Read), 1000), Ok(Role::Admin));
        assert_eq!(role(Some(Role::Read), 1001), Ok(Role::Read));
        let refused = role(None, 1001).unwrap_err();
        assert_eq!(refused.code, FailureCode::NotAllowed);
        assert!(refused.detail.contains("--api-group"), "{refused}");
    }

    #[test]
    fn over_tcp_only_a_token_or_its_session_counts() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let rules = rules(Some(Role::Admin), Some(tokens));
        let address = "127.0.0.1:1".parse().unwrap();
        let peer = Peer::Tcp {
            from: address,
            here: address,
        };
        let identify = |name: &'static str, value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            rules.identify(peer, &headers).map(|caller| caller.role)
        };
        for role in Role::ALL {
            let path = crate::access::tokens::token_path(dir.path(), role);
            let token = crate::access::tokens::read(&path).unwrap();
            for scheme in ["Bearer", "bearer"] {
                let value = format!("{scheme} {}", token.as_str());
                assert_eq!(identify("authorization", value), Ok(role));
            }
            let basic = format!("Basic {}", token.as_str());
            assert!(identify("authorization", basic).is_err());
            let cookie = rules.sessions.open(role).unwrap();
            let other = format!("a=b; {}; c=d", cookie.as_str());
            assert_eq!(identify("cookie", other), Ok(role));
        }
        for (name, value) in [
            ("authorization", "Bearer "),
            ("authorization", "Bearer x"),
            ("cookie", "firn-session=x"),
            ("x", "y"),
        ] {
            let refused = identify(name, value.to_owned()).unwrap_err();
            assert_eq!(refused.code, FailureCode::NotAuthenticated, "{name}");
        }
    }
}
