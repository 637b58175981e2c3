//! What goes wrong on the way, for which requests, and how often.

/// What a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request reaches the store; its answer is lost with the connection.
    LoseAnswer,
    /// The connection breaks in the middle of the answer's body (after its head, if it has none).
    CutAnswer,
    /// The connection breaks in the middle of the request's body: the store sees a part of it.
    CutRequest,
    /// The store is not asked; the answer has this status and this code.
    Refuse {
        /// Status of the answer.
        status: u16,
        /// What its XML gives as `Code`.
        code: &'static str,
    },
    /// Nothing arrives any more, and nobody says so: what a firewall that drops packets does.
    Silence,
    /// The store is asked with a date of years ago, as by a client whose clock is wrong.
    OldDate,
}

impl Fault {
    /// What S3 answers to who asks too much.
    pub const SLOW_DOWN: Fault = Fault::Refuse {
        status: 503,
        code: "SlowDown",
    };
    /// What others answer to the same.
    pub const TOO_MANY: Fault = Fault::Refuse {
        status: 429,
        code: "TooManyRequests",
    };
}

/// Which requests a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFilter {
    /// All.
    All,
    /// GET and HEAD.
    Reads,
    /// PUT, POST and DELETE.
    Writes,
}

impl RequestFilter {
    fn includes(self, method: &str) -> bool {
        let reads = matches!(method, "GET" | "HEAD");
        match self {
            RequestFilter::All => true,
            RequestFilter::Reads => reads,
            RequestFilter::Writes => !reads,
        }
    }
}

/// A fault, the requests that it may meet, and how many of a thousand do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What happens.
    pub fault: Fault,
    /// To which requests.
    pub filter: RequestFilter,
    /// To how many of a thousand.
    pub permille: u32,
}

impl FaultRule {
    /// A fault that every request meets.
    pub const fn always(fault: Fault) -> FaultRule {
        FaultRule {
            fault,
            filter: RequestFilter::All,
            permille: 1000,
        }
    }

    /// Whether a request with this method is among those that fail; draws.
    pub(crate) fn draw(&self, method: &str) -> Option<Fault> {
        let meets = self.filter.includes(method) && fastrand::u32(0..1000) < self.permille;
        meets.then_some(self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_meets_only_the_requests_that_it_names() {
        let rule = FaultRule {
            filter: RequestFilter::Writes,
            ..FaultRule::always(Fault::LoseAnswer)
        };
        assert_eq!(rule.draw("PUT"), Some(Fault::LoseAnswer));
        assert_eq!(rule.draw("GET"), None);
        let never = FaultRule {
            permille: 0,
            ..rule
        };
        assert_eq!(never.draw("PUT"), None);
    }
}
