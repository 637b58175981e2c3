//! The page at the API's root: one file, which asks the API as any other client does.
//!
//! It says nothing by itself, so it is open to everybody who reaches the API; what it shows it may
//! ask for only with a session. It loads nothing from elsewhere, and runs no script but its own: its
//! policy names a nonce that is new in each answer.

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use crate::access::tokens::random_token;
use crate::failure::{Failure, Result};

/// The page, with a place for the nonce.
const PAGE: &str = include_str!("page.html");

const NONCE: &str = "@NONCE@";

pub(super) async fn page() -> Result<Response> {
    let nonce = random_token()
        .map_err(|source| Failure::internal(format!("no random numbers: {source}")))?;
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; \
         connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
        nonce.as_str()
    );
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, &policy),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, PAGE.replace(NONCE, &nonce)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_asks_nobody_but_this_server() {
        assert!(PAGE.len() < 100 << 10, "{} bytes", PAGE.len());
        for foreign in [
            "http://",
            "https://",
            "//cdn",
            "@import",
            "url(",
            " src=",
            "innerHTML",
        ] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
        // Nothing that the policy would keep from running.
        for inline in [" style=", " onclick=", "javascript:"] {
            assert!(!PAGE.contains(inline), "{inline}");
        }
        assert_eq!(PAGE.matches(NONCE).count(), 2);
    }
}
