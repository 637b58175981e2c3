//! Sessions of browsers: a cookie that was given for a token, and ends by itself.
//!
//! A page cannot keep a token where no script of another page could ever read it; a cookie that no
//! script reads can. The server keeps hashes of cookies, in memory alone: a restart ends all of them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use zeroize::Zeroizing;

use crate::access::Role;
use crate::access::tokens::random_token;
use crate::failure::{Failure, Result};

const NAME: &str = "firn-session=";

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// How many sessions of one role are open at once. The oldest of it ends when one more is opened: whoever
/// has the token of a low role ends no session of a higher one.
const SESSIONS_PER_ROLE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<VecDeque<Session>>,
}

#[derive(Debug)]
struct Session {
    hash: blake3::Hash,
    role: Role,
    began: Instant,
}

impl Sessions {
    /// Opens a session; its cookie, as `NAME=VALUE`.
    pub(crate) fn open(&self, role: Role) -> Result<Zeroizing<String>> {
        let value = random_token()
            .map_err(|source| Failure::internal(format!("no random numbers: {source}")))?;
        let mut open = self.lock();
        let of_role = |open: &VecDeque<Session>| {
            let of_role = open.iter().filter(|session| session.role == role);
            of_role.count()
        };
        while of_role(&open) >= SESSIONS_PER_ROLE {
            let oldest = open.iter().position(|session| session.role == role);
            oldest.and_then(|at| open.remove(at));
        }
        open.push_back(Session {
            hash: blake3::hash(value.as_bytes()),
            role,
            began: Instant::now(),
        });
        Ok(Zeroizing::new(format!("{NAME}{}", value.as_str())))
    }

    /// The header that gives a browser its cookie: for this host, and for no script. Cookies know no
    /// ports: the browser shows it to every other server of the host, too.
    pub(crate) fn set_cookie(cookie: &str) -> String {
        let seconds = LIFETIME.as_secs();
        format!("{cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}")
    }

    /// The header that takes it away.
    pub(crate) fn clear_cookie() -> String {
        format!("{NAME}; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    pub(crate) fn role_of(&self, value: &[u8]) -> Option<Role> {
        let hash = blake3::hash(value);
        let mut open = self.lock();
        open.retain(|session| session.began.elapsed() < LIFETIME);
        let found = open.iter().find(|session| session.hash == hash);
        found.map(|session| session.role)
    }

    pub(crate) fn close(&self, value: &[u8]) {
        let hash = blake3::hash(value);
        self.lock().retain(|session| session.hash != hash);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Session>> {
        self.open
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The value of the session's cookie.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&[u8]> {
    let mut pairs = headers
        .get_all(header::COOKIE)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    pairs.find_map(|pair| pair.trim_ascii().strip_prefix(NAME.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_carries_its_role_until_it_is_closed_and_the_oldest_go_first() {
        let sessions = Sessions::default();
        let value = |cookie: &str| cookie.strip_prefix(NAME).unwrap().as_bytes().to_vec();
        let first = value(&sessions.open(Role::Read).unwrap());
        let second = value(&sessions.open(Role::Admin).unwrap());
        assert_eq!(sessions.role_of(&first), Some(Role::Read));
        assert_eq!(sessions.role_of(&second), Some(Role::Admin));
        sessions.close(&second);
        assert_eq!(sessions.role_of(&second), None);
        let admin = value(&sessions.open(Role::Admin).unwrap());
        for _ in 0..SESSIONS_PER_ROLE {
            sessions.open(Role::Read).unwrap();
        }
        assert_eq!(sessions.role_of(&first), None);
        assert_eq!(sessions.role_of(&admin), Some(Role::Admin));
        assert_eq!(sessions.lock().len(), SESSIONS_PER_ROLE + 1);
    }
}
