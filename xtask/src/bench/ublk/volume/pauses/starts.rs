//! What servers say in their logs of the way from the end of the one before to the last disk that is served again.

/// Moments of a start: what the log says, whether its first or its last line counts, and what it is called here.
const MOMENTS: [(&str, bool, &str); 4] = [
    ("the log was recovered", false, "the log is recovered"),
    ("the disk is recovered", false, "the first disk is served"),
    ("the disk is recovered", true, "the last disk is served"),
    ("firn is ready", true, "ready"),
];

const DAY_MS: f64 = 86_400_000.0;

/// Milliseconds from each kill to each moment of the next server's start.
#[derive(Debug, Default)]
pub(super) struct Starts([Vec<f64>; MOMENTS.len()]);

impl Starts {
    /// Notes what a server said since its predecessor was killed.
    pub(super) fn note(&mut self, killed_at: u64, log: &str) {
        for ((words, last, _), times) in MOMENTS.iter().zip(&mut self.0) {
            let mut lines = log.lines().filter(|line| line.contains(words));
            let line = if *last {
                lines.next_back()
            } else {
                lines.next()
            };
            if let Some(at) = line.and_then(day_ms) {
                // Over midnight, too.
                times.push((at - killed_at as f64 % DAY_MS).rem_euclid(DAY_MS));
            }
        }
    }

    /// The moments that there were, with their times.
    pub(super) fn times(&self) -> Vec<(String, Vec<f64>)> {
        let named = MOMENTS.iter().zip(&self.0);
        let told = named.filter(|(_, times)| !times.is_empty());
        told.map(|((_, _, name), times)| ((*name).to_owned(), times.clone()))
            .collect()
    }
}

/// Milliseconds since midnight at which a line was logged: `2026-11-22T01:02:03.456789Z  INFO module: text`.
fn day_ms(line: &str) -> Option<f64> {
    let time = line.split_once('T')?.1.split_once('Z')?.0;
    let parts: Option<Vec<f64>> = time.split(':').map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = parts?[..] else {
        return None;
    };
    Some(((hours * 60.0 + minutes) * 60.0 + seconds) * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_from_the_kill_over_midnight_too() {
        let log = "2026-11-22T00:00:00.100000Z  INFO x: the log was recovered frames=1\n\
                   2026-11-22T00:00:00.200000Z  INFO x: the disk is recovered volume=a\n\
                   2026-11-22T00:00:00.250000Z  INFO x: the disk is recovered volume=b\n";
        let mut starts = Starts::default();
        starts.note(1_795_822_914 / 86_400 * 86_400 * 1000 - 50, log);
        let times: Vec<f64> = starts.times().into_iter().flat_map(|one| one.1).collect();
        assert_eq!(times.len(), 3);
        for (time, expected) in times.iter().zip([150.0, 250.0, 300.0]) {
            assert!((time - expected).abs() < 0.01, "{times:?}");
        }
    }
}
