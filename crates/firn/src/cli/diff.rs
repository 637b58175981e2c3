//! `firn diff`: prints where one volume or snapshot differs from another, part by part, so that a list of any length
//! takes no more memory than a short one.

use serde_json::json;

use super::args::{ApiArgs, DiffArgs};
use super::client::{Client, volume_path};
use super::{output, similar_name};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{Diff, DiffKind, DiffRange, DiffSide};
use crate::units::ApproximateSize;

pub(crate) fn diff(api: &ApiArgs, json: bool, args: &DiffArgs) -> Result<()> {
    let client = Client::new(api)?;
    let mut totals = Totals::default();
    let mut is_first = true;
    let bar = output::spinner();
    let (from, to) = each_part(&client, &args.from, &args.to, |part| {
        bar.set_message(format!(
            "{} compared",
            ApproximateSize(end_of(&part.ranges))
        ));
        let mut text = String::new();
        if is_first {
            text.push_str(&heading(json, &part.from, &part.to));
        }
        for range in &part.ranges {
            totals.add(range);
            text.push_str(&row(json, range, totals.ranges == 1));
        }
        is_first = false;
        bar.suspend(|| output::raw(text.as_bytes()))
    })?;
    bar.finish_and_clear();
    if json {
        return output::line(&format!(
            "\n  ],\n  \"data_bytes\": {},\n  \"zero_bytes\": {}\n}}",
            totals.data, totals.zeroes
        ));
    }
    eprintln!(
        "firn: {} to {}: {} ranges, {} of data, {} of zeroes",
        from.name,
        to.name,
        totals.ranges,
        ApproximateSize(totals.data),
        ApproximateSize(totals.zeroes)
    );
    Ok(())
}

/// Gives each part to `visit`, in order; what was compared.
pub(super) fn each_part(
    client: &Client,
    from: &str,
    to: &str,
    mut visit: impl FnMut(&Diff) -> Result<()>,
) -> Result<(DiffSide, DiffSide)> {
    let mut walk = DiffWalk::new(client, from, to);
    let mut sides = None;
    while let Some(part) = walk.next()? {
        visit(&part)?;
        sides = Some((part.from, part.to));
    }
    sides.ok_or_else(|| Failure::internal("a diff without a part"))
}

/// A walk through the parts of a diff; there is at least one.
pub(super) struct DiffWalk<'a> {
    client: &'a Client,
    from: &'a str,
    to: &'a str,
    path: Option<String>,
}

impl<'a> DiffWalk<'a> {
    pub(super) fn new(client: &'a Client, from: &'a str, to: &'a str) -> DiffWalk<'a> {
        let mut walk = DiffWalk {
            client,
            from,
            to,
            path: None,
        };
        walk.path = Some(walk.first_path());
        walk
    }

    fn first_path(&self) -> String {
        format!("{}/diff?from={}", volume_path(self.to), self.from)
    }

    /// The next part; none: that was the last one.
    pub(super) fn next(&mut self) -> Result<Option<Diff>> {
        let Some(path) = self.path.take() else {
            return Ok(None);
        };
        let part: Diff = self
            .client
            .get(&path)
            .map_err(|failure| self.explain(failure))?;
        let first_path = self.first_path();
        let next = part.next.as_ref();
        self.path = next.map(|next| format!("{first_path}&after={next}"));
        Ok(Some(part))
    }

    /// Names the volume that is missing, and one that is called nearly so.
    fn explain(&self, failure: Failure) -> Failure {
        let is_missing = failure.code == FailureCode::NoSuchVolume;
        let volume = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
        let names = [volume(self.from), volume(self.to)];
        let missing = names.into_iter().find(|name| {
            is_missing
                && self
                    .client
                    .get::<serde_json::Value>(&volume_path(name))
                    .is_err()
        });
        match missing {
            Some(name) => similar_name::suggest(self.client, &name, failure),
            None => failure,
        }
    }
}

#[derive(Default)]
struct Totals {
    ranges: u64,
    data: u64,
    zeroes: u64,
}

impl Totals {
    fn add(&mut self, range: &DiffRange) {
        self.ranges += 1;
        match range.kind {
            DiffKind::Data => self.data += range.bytes,
            DiffKind::Zero => self.zeroes += range.bytes,
        }
    }
}

fn end_of(ranges: &[DiffRange]) -> u64 {
    ranges.last().map_or(0, |range| range.offset + range.bytes)
}

fn heading(json: bool, from: &DiffSide, to: &DiffSide) -> String {
    match json {
        true => format!(
            "{{\n  \"from\": {},\n  \"to\": {},\n  \"ranges\": [",
            json!(from),
            json!(to)
        ),
        false => format!("{:>16}  {:>14}  KIND\n", "OFFSET", "BYTES"),
    }
}

fn row(json: bool, range: &DiffRange, is_first: bool) -> String {
    match json {
        true => {
            let comma = if is_first { "" } else { "," };
            format!("{comma}\n    {}", json!(range))
        }
        false => format!(
            "{:>16}  {:>14}  {}\n",
            range.offset,
            range.bytes,
            range.kind.as_str()
        ),
    }
}
