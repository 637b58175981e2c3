//! What servers say that their queues did, and whether that is the data mode they were granted.
//!
//! A mode that is granted is not yet a mode that serves: a zero-copy server could send every byte
//! through its window, and all data would be right. So whatever a test does with a server, its
//! figures are judged before it ends.

use std::collections::BTreeMap;

/// A share of a queue's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShareKey {
    device: u32,
    queue: u16,
    share: u16,
}

/// The counters of one queue, or of one share of it.
type Counters = BTreeMap<String, u64>;

/// Counters by device, queue and share.
#[derive(Debug)]
pub struct Figures(BTreeMap<ShareKey, Counters>);

impl Figures {
    /// From the lines `device 0 queue 1 share 2: QueueStats { requests: 3, … }`; the last one of
    /// each share counts.
    pub fn read(log: &str) -> Figures {
        Figures(log.lines().filter_map(line).collect())
    }

    /// A counter of every share: its number among the shares of its queue, and the count.
    pub fn by_share(&self, counter: &str) -> Vec<(u16, u64)> {
        let of = |(key, counters): (&ShareKey, &Counters)| {
            let Some(count) = counters.get(counter) else {
                // A counter of another name must not read as nothing counted.
                panic!("no {counter} among {counters:?}");
            };
            (key.share, *count)
        };
        self.0.iter().map(of).collect()
    }

    /// A counter of all queues together.
    pub fn sum(&self, counter: &str) -> u64 {
        assert!(!self.0.is_empty(), "no figures were said");
        self.by_share(counter).iter().map(|(_, count)| count).sum()
    }

    /// The same of one device alone.
    fn of_device(&self, device: u32) -> Figures {
        let own = self.0.iter().filter(|(key, _)| key.device == device);
        Figures(own.map(|(key, own)| (*key, own.clone())).collect())
    }

    /// Whether a device was served in this mode, or what speaks against it. `moves` says of a
    /// server that it moves bytes at all, `shared` that slots are fewer than the tags that use them.
    pub fn check_mode(
        &self,
        device: u32,
        mode: &str,
        (moves, shared): (bool, bool),
    ) -> Result<(), String> {
        let own = self.of_device(device);
        if own.0.is_empty() {
            return Err(format!("device {device} has no figures"));
        }
        let [commits, uncopied, copied, fallbacks] =
            ["commits", "uncopied", "copied", "fallbacks"].map(|counter| own.sum(counter));
        // What was not answered yet need not have been moved.
        let must_move = moves && commits > 0;
        let right = match mode {
            "zero-copy" if shared => uncopied > 0 || !must_move,
            "zero-copy" => (uncopied > 0 || !must_move) && copied == 0 && fallbacks == 0,
            _ => (copied > 0 || !must_move) && uncopied == 0 && fallbacks == 0,
        };
        let wrong = || format!("device {device} was not served by {mode}: {own:?}");
        right.then_some(()).ok_or_else(wrong)
    }
}

fn line(line: &str) -> Option<(ShareKey, Counters)> {
    let (device, rest) = line.strip_prefix("device ")?.split_once(" queue ")?;
    let (queue, rest) = rest.split_once(" share ")?;
    let (share, rest) = rest.split_once(": QueueStats { ")?;
    let counters = rest.strip_suffix(" }")?.split(", ").map(|counter| {
        let (name, count) = counter.split_once(": ")?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    let key = ShareKey {
        device: device.parse().ok()?,
        queue: queue.parse().ok()?,
        share: share.parse().ok()?,
    };
    Some((key, counters.collect::<Option<_>>()?))
}
