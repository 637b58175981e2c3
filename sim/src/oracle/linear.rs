//! Owns the black-box judgement of reads: per block, do the times of reads and writes allow one
//! order?
//!
//! This is the interval test for registers whose writes are all unique: each value's operations
//! span a zone from the earliest completion to the latest invocation of any of them. The history
//! is linearizable exactly if no two forward zones (completion before invocation) overlap and no
//! backward zone lies inside a forward one. It needs no commit order, so it also serves against a
//! server that runs elsewhere. Zeroes are not unique and are left to the history's own check.

use std::collections::BTreeMap;

use crate::trace::Violation;

/// The times of everything that touched one value of one block.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_response: u64,
    last_invoke: u64,
    /// When the write was invoked: nobody may have read the value before.
    written_at: u64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_response < self.last_invoke
    }
}

/// The reads and writes of unique values, by block.
#[derive(Clone, Debug, Default)]
pub struct Register {
    zones: BTreeMap<u64, BTreeMap<u64, Zone>>,
}

impl Register {
    /// A write of `value` to `block`, invoked at `invoke`; `response` if it was acknowledged.
    /// A write nobody acknowledged and nobody read is not recorded by anyone.
    pub fn write(&mut self, block: u64, value: u64, invoke: u64, response: Option<u64>) {
        let zone = Zone {
            first_response: response.unwrap_or(u64::MAX),
            last_invoke: invoke,
            written_at: invoke,
        };
        let old = self.zones.entry(block).or_default().insert(value, zone);
        assert!(
            old.is_none(),
            "value {value} is not unique in block {block}"
        );
    }

    /// A read of `block` between `invoke` and `response` found `value`.
    pub fn read(
        &mut self,
        block: u64,
        value: u64,
        invoke: u64,
        response: u64,
    ) -> Result<(), Violation> {
        let zone = self.zones.entry(block).or_default().get_mut(&value);
        let Some(zone) = zone.filter(|zone| zone.written_at <= response) else {
            let detail = format!("block {block}: value {value} was read before it was written");
            return Err(Violation::new("S5 linearizability", detail));
        };
        zone.first_response = zone.first_response.min(response);
        zone.last_invoke = zone.last_invoke.max(invoke);
        Ok(())
    }

    /// Judges everything so far.
    pub fn check(&self) -> Result<(), Violation> {
        for (block, zones) in &self.zones {
            // A value that was never acknowledged and never read may never have been written.
            let seen = zones
                .values()
                .copied()
                .filter(|zone| zone.first_response < u64::MAX);
            let (mut forward, backward): (Vec<Zone>, Vec<Zone>) = seen.partition(Zone::is_forward);
            forward.sort_by_key(|zone| zone.first_response);
            for pair in forward.windows(2) {
                if pair[1].first_response < pair[0].last_invoke {
                    return Err(Self::conflict(*block, pair[0], pair[1]));
                }
            }
            for zone in backward {
                let (low, high) = (zone.last_invoke, zone.first_response);
                let after = forward.partition_point(|f| f.first_response < low);
                if let Some(outer) = after.checked_sub(1).map(|index| forward[index])
                    && high < outer.last_invoke
                {
                    return Err(Self::conflict(*block, outer, zone));
                }
            }
        }
        Ok(())
    }

    fn conflict(block: u64, a: Zone, b: Zone) -> Violation {
        let detail = format!("block {block}: no order fits {a:?} and {b:?}");
        Violation::new("S5 linearizability", detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(writes: &[(u64, u64, u64)], reads: &[(u64, u64, u64)]) -> Result<(), Violation> {
        let mut register = Register::default();
        for (value, invoke, response) in writes {
            register.write(0, *value, *invoke, Some(*response));
        }
        for (value, invoke, response) in reads {
            register.read(0, *value, *invoke, *response)?;
        }
        register.check()
    }

    #[test]
    fn concurrent_reads_may_see_either_value_but_never_go_back() {
        let writes = [(1, 0, 1), (2, 2, 10)];
        register(&writes, &[(1, 3, 4), (2, 5, 6)]).expect("old then new");
        register(&writes, &[(2, 3, 4), (1, 5, 6)]).expect_err("new then old");
    }

    #[test]
    fn a_value_that_was_overwritten_before_the_read_is_stale() {
        register(&[(1, 0, 1), (2, 2, 3)], &[(1, 4, 5)]).expect_err("stale");
    }

    #[test]
    fn a_value_cannot_be_read_before_it_is_written() {
        register(&[(1, 5, 6)], &[(1, 1, 2)]).expect_err("too early");
    }

    #[test]
    fn the_verdict_agrees_with_a_search_over_all_orders() {
        // All histories of two writes and two reads over a small clock, against brute force.
        let mut rng = crate::rng::Rng::stream(5, "linear");
        let mut judged = [0; 2];
        for _ in 0..20_000 {
            let mut interval = || {
                let low = rng.below(8);
                (low * 2, low * 2 + 1 + 2 * rng.below(4))
            };
            let ops: Vec<(u64, u64)> = (0..4).map(|_| interval()).collect();
            let reads = [1 + rng.below(2), 1 + rng.below(2)];
            let values = [1, 2, reads[0], reads[1]];
            let expected = orders(&ops, &values);
            let writes = [(1, ops[0].0, ops[0].1), (2, ops[1].0, ops[1].1)];
            let reads = [
                (reads[0], ops[2].0, ops[2].1),
                (reads[1], ops[3].0, ops[3].1),
            ];
            let verdict = register(&writes, &reads).is_ok();
            assert_eq!(verdict, expected, "{ops:?} {values:?}");
            judged[usize::from(verdict)] += 1;
        }
        assert!(judged.iter().all(|n| *n > 500), "one-sided: {judged:?}");
    }

    /// Whether some order of the four operations fits their times and their values.
    fn orders(ops: &[(u64, u64)], values: &[u64; 4]) -> bool {
        fn go(left: &mut Vec<usize>, held: u64, ops: &[(u64, u64)], values: &[u64; 4]) -> bool {
            if left.is_empty() {
                return true;
            }
            for index in 0..left.len() {
                let op = left[index];
                // It may come first if nothing else had to end before it began.
                if left
                    .iter()
                    .any(|other| *other != op && ops[*other].1 < ops[op].0)
                {
                    continue;
                }
                let next = if op < 2 { values[op] } else { held };
                if op >= 2 && values[op] != held {
                    continue;
                }
                left.remove(index);
                if go(left, next, ops, values) {
                    return true;
                }
                left.insert(index, op);
            }
            false
        }
        go(&mut vec![0, 1, 2, 3], 0, ops, values)
    }
}
