//! The warm-up of `firn move`: the server that is to have the volume reads what the other has at hand.
//!
//! It is worth having and no more: whatever fails here is said, and the volume moves without it. It is bounded in time, in bytes
//! and in the number of ranges, and changes neither server's volumes.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::client::{Client, volume_path};
use crate::failure::{FailureCode, Result};
use crate::model::{HintList, HintRange, PrepareRange, PrepareRequest, Prepared};
use crate::units::Size;

/// Ranges that are asked for at all.
const RANGES_MAX: usize = 256 << 10;
/// Bytes that are asked for at all.
const BYTES_MAX: u64 = 4 << 30;
/// Ranges of one request.
const RANGES_AT_ONCE: usize = 1024;

/// How far it came.
#[derive(Debug, Default, Serialize)]
pub(super) struct WarmUp {
    /// What the server that has the volume has at hand of it, as far as it was asked for.
    hinted_bytes: u64,
    /// Of that: what the other one has read, or had.
    done_bytes: u64,
    /// Bytes that the store sent for it.
    fetched_bytes: u64,
    /// Why it ended before all was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

/// Has `to` read ahead of the volume, for no longer than this.
pub(super) fn warm_up(from: &Client, to: &Client, name: &str, time: Duration) -> WarmUp {
    let until = Instant::now() + time;
    let mut warmed = WarmUp::default();
    if let Err(failure) = run((from, to), name, until, &mut warmed) {
        warmed.ended = Some(match failure.code {
            FailureCode::NoSuchPath => {
                "one of the servers is of an older version, which has no warm-up".to_owned()
            }
            _ => failure.detail,
        });
    }
    if let Some(why) = &warmed.ended {
        eprintln!("firn: {name} is not warmed up in whole: {why}");
    }
    warmed
}

/// Has `to` read the index up to now. Where that fails the attach reads it.
pub(super) fn prepare_index(to: &Client, name: &str) {
    // Whatever it is, the attach meets it again and says so.
    let _ = prepare(to, name, &[]);
}

fn run(
    (from, to): (&Client, &Client),
    name: &str,
    until: Instant,
    warmed: &mut WarmUp,
) -> Result<()> {
    prepare(to, name, &[])?;
    let hints = list(from, name, until)?;
    warmed.hinted_bytes = hints.iter().map(|hint| hint.bytes).sum();
    let bar = bar(warmed.hinted_bytes, name);
    let mut left = &hints[..];
    while !left.is_empty() {
        if Instant::now() >= until {
            warmed.ended = Some("its time was over".to_owned());
            break;
        }
        let some = &left[..left.len().min(RANGES_AT_ONCE)];
        let prepared = prepare(to, name, some)?;
        let done = prepared.ranges.min(some.len());
        warmed.done_bytes += some[..done].iter().map(|hint| hint.bytes).sum::<u64>();
        warmed.fetched_bytes += prepared.fetched_bytes;
        bar.set_position(warmed.done_bytes);
        left = &left[done..];
    }
    bar.finish_and_clear();
    Ok(())
}

/// What `from` has at hand, the hot ranges first; as many as are wanted at all, or as it says in time.
fn list(from: &Client, name: &str, until: Instant) -> Result<Vec<HintRange>> {
    let (mut hints, mut next) = (Vec::new(), Some(0));
    while let Some(at) = next.filter(|_| hints.len() < RANGES_MAX && Instant::now() < until) {
        let path = format!("{}/hints?from={at}", volume_path(name));
        let part: HintList = from.get(&path)?;
        hints.extend(part.ranges);
        next = part.next.filter(|next| *next > at);
    }
    Ok(choose(hints))
}

fn choose(mut hints: Vec<HintRange>) -> Vec<HintRange> {
    hints.truncate(RANGES_MAX);
    hints.sort_by_key(|hint| !hint.is_hot);
    let mut left = BYTES_MAX;
    // The one that does not fit is read as far as it does.
    hints.retain_mut(|hint| {
        hint.bytes = hint.bytes.min(left);
        left -= hint.bytes;
        hint.bytes > 0
    });
    hints
}

fn prepare(to: &Client, name: &str, hints: &[HintRange]) -> Result<Prepared> {
    let ranges = hints.iter().map(|hint| PrepareRange {
        offset: hint.offset,
        bytes: hint.bytes,
    });
    let request = PrepareRequest {
        ranges: ranges.collect(),
    };
    to.post(&format!("{}/prepare", volume_path(name)), &request)
}

fn bar(bytes: u64, name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    bar.set_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message(format!("warm up {name}"));
    bar
}

impl WarmUp {
    /// In a line for people.
    pub(super) fn describe(&self) -> String {
        let (done, of) = (Size(self.done_bytes), Size(self.hinted_bytes));
        format!("{done} of {of} that were at hand were read ahead")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_ranges_are_read_first_and_no_more_than_the_bound() {
        let hint = |offset, bytes, is_hot| HintRange {
            offset,
            bytes,
            is_hot,
        };
        let hints = vec![
            hint(0, 4096, false),
            hint(1 << 20, BYTES_MAX - 4096, true),
            hint(1 << 40, 4096, false),
        ];
        let chosen = choose(hints);
        let offsets: Vec<u64> = chosen.iter().map(|hint| hint.offset).collect();
        assert_eq!(offsets, [1 << 20, 0]);
        let many = vec![hint(0, 1, true); RANGES_MAX + 1];
        assert_eq!(choose(many).len(), RANGES_MAX);
    }

    #[test]
    fn a_range_beyond_the_bound_is_read_as_far_as_it_fits_and_hides_none_before_it() {
        let hint = |offset, bytes| HintRange {
            offset,
            bytes,
            is_hot: false,
        };
        let chosen = choose(vec![
            hint(0, 4096),
            hint(1 << 20, 2 * BYTES_MAX),
            hint(1 << 60, 4096),
        ]);
        let found: Vec<_> = chosen
            .iter()
            .map(|hint| (hint.offset, hint.bytes))
            .collect();
        assert_eq!(found, [(0, 4096), (1 << 20, BYTES_MAX - 4096)]);
    }
}
