//! What an answer of a cloud store means: the one table from status and code to [`Kind`].
//!
//! It must never call an outcome certain that is not. A write is certainly not applied only if no
//! connection was made, or if the store itself says that it refused the request; everything else
//! (5xx, a broken connection, silence) leaves it [`Kind::Unknown`]. Each class has one remedy.

use crate::exchange::{Exchange, ExchangeOutcome, Refusal};
use crate::{Error, Kind, Op};

/// What firn makes of a failed operation, or `None` if the exchange does not decide it.
pub(crate) fn classify(op: Op, key: &str, store: &str, exchange: &Exchange) -> Option<Error> {
    let uncertain = if op.writes() {
        Kind::Unknown
    } else {
        Kind::Unavailable
    };
    let Some(outcome) = &exchange.outcome else {
        let (server, outcome) = exchange.credentials.as_ref()?;
        let (kind, detail) = classify_credentials(server, outcome, uncertain)?;
        return Some(Error::new(kind, op, key, detail));
    };
    let (kind, overload, detail) = match outcome {
        ExchangeOutcome::Refused(refusal) => classify_refusal(op, store, refusal, uncertain),
        ExchangeOutcome::NotConnected(why) => {
            (Kind::Unavailable, false, connection_error_text(store, why))
        }
        ExchangeOutcome::TimedOut => (
            uncertain,
            true,
            format!("{store} did not answer in time; check the network and the store's load"),
        ),
        ExchangeOutcome::Sent => (uncertain, false, broken_text(store, "it was given up")),
        ExchangeOutcome::Broken(why) => (uncertain, false, broken_text(store, why)),
        ExchangeOutcome::Success => (
            uncertain,
            false,
            format!("{store} answered, but the answer cannot be used"),
        ),
    };
    let error = Error::new(kind, op, key, detail);
    Some(if overload { error.overloaded() } else { error })
}

/// What it means that no request left because the credentials for it were not to be had. None, where they were given:
/// then a request may have left that was not known as one to the store. The address says which server it was; should that
/// be wrong, nothing may be certain that would not be so of the store, so only what proves the same there is.
fn classify_credentials(
    server: &str,
    outcome: &ExchangeOutcome,
    uncertain: Kind,
) -> Option<(Kind, String)> {
    let (kind, why) = match outcome {
        ExchangeOutcome::Refused(refusal) => {
            let kind = match refusal.status {
                408 | 429 | 500.. => uncertain,
                _ => Kind::Denied,
            };
            (kind, format!("it answers {}", refusal.as_text()))
        }
        ExchangeOutcome::NotConnected(why) => (Kind::Unavailable, why.clone()),
        ExchangeOutcome::Broken(why) => (uncertain, why.clone()),
        ExchangeOutcome::TimedOut | ExchangeOutcome::Sent => {
            (uncertain, "it did not answer".to_owned())
        }
        ExchangeOutcome::Success => return None,
    };
    let text = format!(
        "there are no credentials, for {server} gives none ({why}); check the web identity's token and role \
         (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN), or the role of the instance or container"
    );
    Some((kind, text))
}

fn broken_text(store: &str, why: &str) -> String {
    format!("the connection to {store} broke before the whole answer had come ({why})")
}

fn connection_error_text(store: &str, why: &str) -> String {
    let remedy = if why.contains("certificate") || why.contains("UnknownIssuer") {
        "its certificate is not trusted here; name the CA's certificate with ca=FILE in the URL, \
         or AWS_CA_BUNDLE"
    } else if why.contains("InvalidContentType") || why.contains("corrupt message") {
        "it does not speak TLS; write http:// in the endpoint if that is intended"
    } else {
        "check the endpoint, the network and the proxy"
    };
    format!("cannot connect to {store}: {remedy} ({why})")
}

/// Kind, whether the store has too much to do, and what helps.
type Verdict = (Kind, bool, &'static str);

fn classify_refusal(
    op: Op,
    store: &str,
    refusal: &Refusal,
    uncertain: Kind,
) -> (Kind, bool, String) {
    let (kind, overload, remedy) = classify_code(&refusal.code, uncertain)
        .unwrap_or_else(|| classify_status(op, refusal.status, uncertain));
    (kind, overload, describe(store, refusal, remedy))
}

/// What the service's own code decides, whatever its status.
fn classify_code(code: &str, uncertain: Kind) -> Option<Verdict> {
    Some(match code {
        "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" => (
            Kind::NoBucket,
            false,
            "there is no such bucket; create it, or correct its name in the URL",
        ),
        "RequestTimeTooSkewed" => (
            Kind::Denied,
            false,
            "this machine's clock is wrong; set it (for example with chrony)",
        ),
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidSecurity" => (
            Kind::Denied,
            false,
            "the store does not know the access key, or the secret key is wrong",
        ),
        "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => (
            Kind::Denied,
            false,
            "the credentials have expired; renew them",
        ),
        "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraint" => {
            (Kind::Invalid, false, OTHER_REGION)
        }
        "ConditionalRequestConflict" | "OperationAborted" => (
            Kind::Unavailable,
            false,
            "another conditional request was under way; this one was not applied",
        ),
        "XMinioServerNotInitialized" => (Kind::Unavailable, false, "the store is still starting"),
        "RequestTimeout" | "SlowDown" => (uncertain, true, TOO_MUCH_TO_DO),
        "XMinioStorageFull" | "QuotaExceeded" => {
            (uncertain, false, "the store is full; give it space")
        }
        "BadDigest" | "XAmzContentChecksumMismatch" | "InvalidDigest" | "IncompleteBody" => (
            Kind::Unavailable,
            false,
            "the bytes that arrived are not those that were sent, so nothing was stored",
        ),
        _ => return None,
    })
}

const OTHER_REGION: &str =
    "the bucket is in another region; name it with region=REGION in the URL, or AWS_REGION";
const REFUSED: &str =
    "the store refuses the request; check that it is of the kind that the URL's scheme names";
const TOO_MUCH_TO_DO: &str = "the store has too much to do";

fn classify_status(op: Op, status: u16, uncertain: Kind) -> Verdict {
    match status {
        301 | 307 | 308 => (Kind::Invalid, false, OTHER_REGION),
        401 | 403 => (
            Kind::Denied,
            false,
            "the store refuses the credentials; check the key and the bucket's policy",
        ),
        404 => (Kind::NotFound, false, "there is no such object"),
        304 | 409 | 412 if op.writes() => (
            Kind::PreconditionFailed,
            false,
            "another writer changed the object first; read it again",
        ),
        405 | 501 => (
            Kind::Unsupported,
            false,
            "the store does not offer this operation; use one with conditional PUT (If-Match)",
        ),
        416 => (
            Kind::OutOfRange,
            false,
            "the range is not inside the object; read its size with list first",
        ),
        408 | 503 | 509 => (uncertain, true, TOO_MUCH_TO_DO),
        429 => (Kind::Unavailable, true, "the store asks for fewer requests"),
        507 => (uncertain, false, "the store is full; give it space"),
        400..=499 => (Kind::Invalid, false, REFUSED),
        _ => (
            uncertain,
            false,
            "the store failed; look at its health and its log",
        ),
    }
}

fn describe(store: &str, refusal: &Refusal, remedy: &str) -> String {
    let mut text = format!("{remedy} ({store} answers {}", refusal.as_text());
    if let Some(region) = &refusal.region {
        text.push_str(&format!(", region {region}"));
    }
    text.push(')');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(op: Op, status: u16, code: &str) -> (Kind, bool) {
        let exchange = Exchange {
            outcome: Some(refused(status, code)),
            credentials: Some(("sts".to_owned(), ExchangeOutcome::Success)),
        };
        let error = classify(op, "k", "s3://b", &exchange).unwrap();
        (error.kind(), error.is_overload())
    }

    fn refused(status: u16, code: &str) -> ExchangeOutcome {
        ExchangeOutcome::Refused(Refusal {
            status,
            code: code.to_owned(),
            message: String::new(),
            region: None,
        })
    }

    #[test]
    fn a_write_without_credentials_is_certain_only_where_the_same_would_be_of_the_store() {
        for (outcome, kind) in [
            (refused(400, "InvalidParameterValue"), Kind::Denied),
            (refused(403, "AccessDenied"), Kind::Denied),
            (refused(429, ""), Kind::Unknown),
            (refused(500, ""), Kind::Unknown),
            (ExchangeOutcome::TimedOut, Kind::Unknown),
            (ExchangeOutcome::Sent, Kind::Unknown),
            (ExchangeOutcome::Broken("reset".to_owned()), Kind::Unknown),
            (
                ExchangeOutcome::NotConnected("refused".to_owned()),
                Kind::Unavailable,
            ),
        ] {
            let exchange = Exchange {
                outcome: None,
                credentials: Some(("sts.example".to_owned(), outcome)),
            };
            let error = classify(Op::Update, "k", "s3://b", &exchange).unwrap();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(
                error.to_string().contains("sts.example gives none"),
                "{error}"
            );
        }
        // Nothing is certain once they were given.
        for credentials in [None, Some(("sts".to_owned(), ExchangeOutcome::Success))] {
            let exchange = Exchange {
                outcome: None,
                credentials,
            };
            assert!(classify(Op::Update, "k", "s3://b", &exchange).is_none());
        }
    }

    #[test]
    fn a_failure_that_the_store_does_not_explain_leaves_a_write_unknown() {
        for status in [500, 502, 503, 504, 507, 599, 100, 408] {
            for op in [Op::Put, Op::Create, Op::Update, Op::Delete] {
                assert_eq!(
                    kind(
                        op,
                        status,
                        if status == 408 { "RequestTimeout" } else { "" }
                    )
                    .0,
                    Kind::Unknown,
                    "{op} {status}"
                );
            }
            assert_eq!(kind(Op::Get, 500, "").0, Kind::Unavailable);
        }
        for outcome in [
            ExchangeOutcome::Sent,
            ExchangeOutcome::Broken("reset".to_owned()),
            ExchangeOutcome::TimedOut,
            ExchangeOutcome::Success,
        ] {
            let exchange = Exchange {
                outcome: Some(outcome),
                credentials: None,
            };
            let error = classify(Op::Update, "k", "s3://b", &exchange).unwrap();
            assert_eq!(error.kind(), Kind::Unknown);
        }
    }

    #[test]
    fn a_missing_bucket_is_not_a_missing_object() {
        assert_eq!(kind(Op::Get, 404, "NoSuchKey").0, Kind::NotFound);
        assert_eq!(kind(Op::Get, 404, "").0, Kind::NotFound);
        assert_eq!(kind(Op::Get, 404, "NoSuchBucket").0, Kind::NoBucket);
        assert_eq!(kind(Op::Update, 404, "NoSuchBucket").0, Kind::NoBucket);
        assert_eq!(kind(Op::Get, 404, "ContainerNotFound").0, Kind::NoBucket);
    }

    #[test]
    fn a_conflict_that_nobody_may_have_won_is_no_loss() {
        let conflict = kind(Op::Create, 409, "ConditionalRequestConflict");
        assert_eq!(conflict.0, Kind::Unavailable);
        assert_eq!(
            kind(Op::Create, 409, "BlobAlreadyExists").0,
            Kind::PreconditionFailed
        );
        assert_eq!(
            kind(Op::Update, 412, "PreconditionFailed").0,
            Kind::PreconditionFailed
        );
    }

    #[test]
    fn a_store_with_too_much_to_do_is_told_from_one_that_fails() {
        assert!(kind(Op::Put, 503, "SlowDown").1);
        assert!(kind(Op::Get, 429, "").1);
        assert!(!kind(Op::Put, 500, "InternalError").1);
    }
}
