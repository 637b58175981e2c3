//! Owns the record of what happened in a world: a digest always, lines on demand.
//!
//! Every event passes through here, so two runs of one seed that differ anywhere differ in their
//! digest. The trace must not feed anything back into the world.

use std::fmt;

/// Digest and, if asked for, text of a world's events.
#[derive(Clone, Debug)]
pub struct Trace {
    digest: u64,
    events: u64,
    print: bool,
    /// The last lines, kept for the report of a failure.
    tail: std::collections::VecDeque<String>,
    keep: usize,
}

impl Trace {
    /// A trace; with `print` each event goes to standard error, `keep` lines are kept for reports.
    pub fn new(print: bool, keep: usize) -> Trace {
        Trace {
            digest: 0xcbf2_9ce4_8422_2325,
            events: 0,
            print,
            tail: Default::default(),
            keep,
        }
    }

    /// Records numbers that identify an event.
    pub fn record(&mut self, words: &[u64]) {
        for word in words {
            let x = (self.digest ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
            self.digest = x ^ (x >> 29);
        }
        self.events += 1;
    }

    /// Records bytes that an event carried.
    pub fn record_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let x = (self.digest ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
            self.digest = x ^ (x >> 31);
        }
    }

    /// Describes an event, if anybody looks.
    pub fn log(&mut self, now: u64, text: impl FnOnce() -> String) {
        if !self.print && self.keep == 0 {
            return;
        }
        let line = format!("{:>12.3} ms  {}", now as f64 / 1e6, text());
        if self.print {
            eprintln!("{line}");
        }
        if self.keep > 0 {
            if self.tail.len() == self.keep {
                self.tail.pop_front();
            }
            self.tail.push_back(line);
        }
    }

    /// The digest of everything so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many events were recorded.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last lines said.
    pub fn tail(&self) -> impl Iterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }
}

/// A violated promise: what the oracles report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise, by its name in the design ("S2 host crash", ...).
    pub promise: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Violation {
    /// A violation of `promise`.
    pub fn new(promise: &'static str, detail: impl Into<String>) -> Violation {
        Violation {
            promise,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_depends_on_order_and_content() {
        let digest = |words: &[u64]| {
            let mut trace = Trace::new(false, 0);
            for word in words {
                trace.record(&[*word]);
            }
            trace.digest()
        };
        assert_eq!(digest(&[1, 2]), digest(&[1, 2]));
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[1, 2]), digest(&[1, 2, 0]));
    }
}
