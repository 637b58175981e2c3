//! The last starts of a server, and the rule by which a volume is left out: three starts in a row, begun within a
//! minute, ended while it was under way, and at the last of them nothing else was.
//!
//! Normative description of its text: docs/format.md "Starts". Memory only, without file or clock. It must never
//! accuse a volume of an end at which it was not under way.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;

/// So many starts in a row say which volume it is.
const STARTS: usize = 3;

/// The first and the last of them begin within this time.
const WITHIN_MS: u64 = 60_000;

/// A start that has not ended well, or not yet: it did not open all volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    unix_ms: u64,
    /// Volumes that it was opening, or whose disks it was restoring.
    under_way: BTreeSet<String>,
}

/// A volume that starts do not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeftOut {
    /// When that was decided.
    pub(super) unix_ms: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartHistory {
    version: u32,
    /// The oldest first; the last is this one, until it has opened all volumes.
    starts: Vec<Start>,
    left_out: BTreeMap<String, LeftOut>,
}

impl Default for StartHistory {
    fn default() -> Self {
        StartHistory {
            version: VERSION,
            starts: Vec::new(),
            left_out: BTreeMap::new(),
        }
    }
}

impl StartHistory {
    /// Reads what a server before has written.
    pub(super) fn decode(text: &[u8]) -> Result<StartHistory, String> {
        let found: StartHistory =
            serde_json::from_slice(text).map_err(|source| source.to_string())?;
        match found.version {
            VERSION => Ok(found),
            version => Err(format!(
                "it has version {version}, this firn knows version {VERSION}"
            )),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers always serialize")
    }

    /// A server starts: judges the starts before it. Returns the volume that is left out from now on.
    pub(super) fn begin(&mut self, unix_ms: u64) -> Option<String> {
        let found = self.find_culprit();
        if let Some(name) = &found {
            self.left_out.insert(name.clone(), LeftOut { unix_ms });
            // They say nothing of other volumes.
            self.starts.clear();
        }
        let start = Start {
            unix_ms,
            ..Start::default()
        };
        self.starts.push(start);
        let old = self.starts.len().saturating_sub(STARTS);
        self.starts.drain(..old);
        found
    }

    fn find_culprit(&self) -> Option<String> {
        let [first, second, third] = self.starts.as_slice() else {
            return None;
        };
        let mut under_way = third.under_way.iter();
        let (Some(name), None) = (under_way.next(), under_way.next()) else {
            return None;
        };
        let is_each = first.under_way.contains(name) && second.under_way.contains(name);
        let found = is_each && is_soon(first, third) && !canary::active!("no_volume_is_left_out");
        found.then(|| name.clone())
    }

    /// The volumes that were under way when each of the two starts before this one ended: opened one by one, the
    /// third one tells which it is.
    pub(super) fn suspects(&self) -> BTreeSet<String> {
        match self.starts.as_slice() {
            [.., first, second, _] if is_soon(first, second) => {
                let both = first.under_way.intersection(&second.under_way);
                both.cloned().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// This start opens these volumes, or restores their disks.
    pub(super) fn add_under_way(&mut self, names: &[&str]) {
        if let Some(start) = self.starts.last_mut() {
            start
                .under_way
                .extend(names.iter().map(|name| (*name).to_owned()));
        }
    }

    /// It has, or has failed and goes on. How many are left.
    pub(super) fn remove_under_way(&mut self, name: &str) -> usize {
        self.starts.last_mut().map_or(0, |start| {
            start.under_way.remove(name);
            start.under_way.len()
        })
    }

    /// This start has come to its end in good order.
    pub(super) fn end_start(&mut self) {
        self.starts.clear();
    }

    pub(super) fn left_out(&self) -> &BTreeMap<String, LeftOut> {
        &self.left_out
    }

    /// Keeps only those that `is_kept`; whether there were others.
    pub(super) fn retain_left_out(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.left_out.len();
        self.left_out.retain(|name, _| is_kept(name));
        self.left_out.len() != before
    }
}

/// A clock that was set back in between says nothing.
fn is_soon(first: &Start, last: &Start) -> bool {
    let between_ms = last.unix_ms.checked_sub(first.unix_ms);
    between_ms.is_some_and(|between_ms| between_ms <= WITHIN_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts that ended while these were under way, each at this second; then one more begins.
    fn after(ended: &[(u64, &[&str])]) -> (StartHistory, Option<String>) {
        let mut history = StartHistory::default();
        for (second, under_way) in ended {
            let found = history.begin(1_000_000 + second * 1000);
            assert_eq!(found, None, "{ended:?}");
            history.add_under_way(under_way);
            history = StartHistory::decode(&history.encode()).unwrap();
        }
        let found = history.begin(9_000_000);
        (history, found)
    }

    #[test]
    fn a_volume_is_left_out_after_three_starts_within_a_minute_that_ended_while_it_was_under_way() {
        let (history, found) = after(&[(0, &["a", "b", "c"]), (1, &["b", "c"]), (60, &["b"])]);
        assert_eq!(found.as_deref(), Some("b"));
        assert_eq!(history.left_out()["b"].unix_ms, 9_000_000);
        // It stays so, and nothing that it has explained counts for another one.
        let mut history = StartHistory::decode(&history.encode()).unwrap();
        assert_eq!(history.begin(9_000_001), None);
        assert!(history.suspects().is_empty());
        assert!(history.left_out().contains_key("b"));
        assert!(history.retain_left_out(|name| name != "b"));
        assert!(history.left_out().is_empty());
    }

    #[test]
    fn no_volume_is_left_out_for_ends_that_do_not_name_it_alone_each_time() {
        let not_enough: [&[(u64, &[&str])]; 7] = [
            &[(0, &["b"]), (1, &["b"])],
            &[(0, &["b"]), (1, &["b"]), (61, &["b"])],
            &[(0, &["b"]), (1, &[]), (2, &["b"])],
            &[(0, &[]), (1, &[]), (2, &[])],
            &[(0, &["a"]), (1, &["b"]), (2, &["a"])],
            &[(0, &["a", "b"]), (1, &["a", "b"]), (2, &["a", "b"])],
            // A clock that goes back.
            &[(30, &["b"]), (20, &["b"]), (10, &["b"])],
        ];
        for ended in not_enough {
            let (history, found) = after(ended);
            assert_eq!(found, None, "{ended:?}");
            assert!(history.left_out().is_empty(), "{ended:?}");
        }
    }

    #[test]
    fn only_the_last_three_starts_count() {
        let four: &[(u64, &[&str])] = &[(0, &["b"]), (1, &["a"]), (2, &["b"]), (3, &["b"])];
        assert_eq!(after(four).1, None);
        let five = [four, &[(4, &["b"])]].concat();
        assert_eq!(after(&five).1.as_deref(), Some("b"));
    }

    #[test]
    fn a_start_that_ended_well_ends_the_count() {
        let (mut history, _) = after(&[(0, &["b"]), (1, &["b"])]);
        history.add_under_way(&["b"]);
        history.remove_under_way("b");
        history.end_start();
        for ms in 0..2 {
            assert_eq!(history.begin(9_000_000 + ms), None);
            history.add_under_way(&["b"]);
        }
        assert_eq!(history.begin(9_000_010), None);
    }

    #[test]
    fn volumes_that_were_under_way_at_two_ends_are_suspects_at_the_third_start() {
        let suspects = |ended| after(ended).0.suspects().into_iter().collect::<Vec<_>>();
        assert_eq!(suspects(&[(0, &["a", "b"])]), Vec::<String>::new());
        assert_eq!(
            suspects(&[(0, &["a", "b", "c"]), (1, &["b", "c", "d"])]),
            ["b", "c"]
        );
        assert_eq!(suspects(&[(0, &["b"]), (61, &["b"])]), Vec::<String>::new());
    }

    #[test]
    fn the_text_is_as_docs_format_md_shows_it_and_no_other_is_read() {
        let text = r#"{"version": 1,
            "starts": [{"unix_ms": 1795725086123, "under_way": ["demo"]}],
            "left_out": {"other": {"unix_ms": 1795724000000}}}"#;
        let history = StartHistory::decode(text.as_bytes()).unwrap();
        assert_eq!(history.starts[0].under_way.len(), 1);
        assert_eq!(history.left_out()["other"].unix_ms, 1_795_724_000_000);
        for other in [
            &text.replace("\"version\": 1", "\"version\": 2"),
            &text.replace("unix_ms", "unix"),
            &text[..40],
            "",
        ] {
            assert!(StartHistory::decode(other.as_bytes()).is_err(), "{other}");
        }
    }
}
