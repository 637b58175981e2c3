//! How many requests callers may send: a bucket of permits for each kind of caller.
//!
//! One kind cannot use up what another needs: a caller that guesses tokens slows down neither the callers that
//! have one, nor a log-in with one, nor a probe of health, and a page that polls too often does not keep an
//! operator out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::caller::{Caller, Peer};
use crate::access::Role;

/// Requests of callers that are known: far more than 1,000 creates and attaches a minute.
const KNOWN: (f64, f64) = (300.0, 1500.0);

/// Probes of health, and as many looks at what else is open to everybody: cheap to answer, never logged.
const OPEN: (f64, f64) = (300.0, 1500.0);

/// What else callers ask that are not known, which is refused: too few to flood the log with.
const REFUSED: (f64, f64) = (20.0, 100.0);

/// What a caller asks that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Whether the server lives and is ready.
    Health,
    /// Something else that is open to everybody.
    Open,
    /// What he may not, or a login with a wrong token.
    Refused,
}

#[derive(Debug)]
pub(super) struct RequestLimits {
    /// By [`Unknown`].
    unknown: [TokenBucket; 3],
    /// By role, over a Unix socket and over TCP.
    known: [[TokenBucket; 2]; Role::ALL.len()],
}

impl RequestLimits {
    pub(super) fn new(now: Instant) -> Self {
        RequestLimits {
            unknown: [OPEN, OPEN, REFUSED].map(|rate| TokenBucket::new(rate, now)),
            known: std::array::from_fn(|_| std::array::from_fn(|_| TokenBucket::new(KNOWN, now))),
        }
    }

    /// Takes a permit for a known caller, or says how long to wait for one.
    pub(super) fn take(&self, caller: &Caller, now: Instant) -> Result<(), Duration> {
        let is_tcp = matches!(caller.peer, Peer::Tcp { .. });
        self.known[caller.role as usize][usize::from(is_tcp)].take(now)
    }

    /// The same for one that is not known.
    pub(super) fn take_unknown(&self, what: Unknown, now: Instant) -> Result<(), Duration> {
        self.unknown[what as usize].take(now)
    }
}

/// Permits that come back at a rate, up to a number.
#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl TokenBucket {
    fn new((per_second, burst): (f64, f64), now: Instant) -> Self {
        TokenBucket {
            per_second,
            burst,
            state: Mutex::new((burst, now)),
        }
    }

    fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let (permits, at) = *state;
        let gained = now.saturating_duration_since(at).as_secs_f64() * self.per_second;
        let permits = (permits + gained).min(self.burst);
        if permits >= 1.0 {
            *state = (permits - 1.0, now.max(at));
            return Ok(());
        }
        *state = (permits, now.max(at));
        Err(Duration::from_secs_f64((1.0 - permits) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::caller::Proof;

    #[test]
    fn permits_come_back_with_time_and_one_kind_of_caller_takes_none_of_another() {
        let start = Instant::now();
        let limits = RequestLimits::new(start);
        let burst = REFUSED.1 as usize;
        for _ in 0..burst {
            limits.take_unknown(Unknown::Refused, start).unwrap();
        }
        let wait = limits.take_unknown(Unknown::Refused, start).unwrap_err();
        assert!(wait <= Duration::from_secs_f64(1.0 / REFUSED.0), "{wait:?}");
        assert!(limits.take_unknown(Unknown::Refused, start + wait).is_ok());
        assert!(limits.take_unknown(Unknown::Health, start).is_ok());
        assert!(limits.take_unknown(Unknown::Open, start).is_ok());
        let later = start + Duration::from_secs(3600);
        let taken = (0..2 * burst).filter(|_| limits.take_unknown(Unknown::Refused, later).is_ok());
        assert_eq!(taken.count(), burst);
        let root = Caller {
            role: Role::Admin,
            proof: Proof::Credentials,
            peer: Peer::Unix { uid: 0, pid: None },
        };
        assert!(limits.take(&root, later).is_ok());
    }
}
