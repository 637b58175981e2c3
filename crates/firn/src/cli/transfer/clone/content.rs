//! Moves what a snapshot has over another one from volume to volume, and proves it by digests.
//!
//! Digests do not depend on the order in which parts are moved; there is one for each GiB, so that a difference has a
//! place. Nothing here decides what is moved.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

use super::super::copy::DataMap;
use super::super::digest::PartsDigest;
use super::super::{CHUNK_BYTES, CONNECTIONS, data_runs};
use crate::cli::client::Client;
use crate::cli::diff::DiffWalk;
use crate::cli::volume_io::{Connection, connect, failed, run_on_each};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{Diff, DiffKind, DiffRange, Snapshot};

/// How much a request zeroes, or asks about, at once.
const ZEROES_BYTES: u64 = 1 << 30;
/// What one digest is of.
const GROUP_BYTES: u64 = 1 << 30;

/// What a snapshot has, all of it or over another, in order, in parts that one request moves.
pub(super) struct Changes<'a> {
    from: Walk<'a>,
    known: VecDeque<DiffRange>,
}

enum Walk<'a> {
    /// All of a volume that is reached over NBD: where it has data, and up to where that is told.
    All { map: DataMap, at: u64, bytes: u64 },
    Since {
        walk: DiffWalk<'a>,
        ids: [&'a str; 2],
    },
}

impl<'a> Changes<'a> {
    pub(super) fn all(uris: &[String]) -> Result<Changes<'a>> {
        let asker = connect(uris, 1)?.pop();
        let asker = asker.ok_or_else(|| Failure::internal("no connection to ask over"))?;
        let bytes = asker.facts().bytes;
        let map = DataMap::new(asker);
        Ok(Changes {
            from: Walk::All { map, at: 0, bytes },
            known: VecDeque::new(),
        })
    }

    pub(super) fn since(client: &'a Client, from: &'a Snapshot, to: &'a Snapshot) -> Changes<'a> {
        Changes {
            from: Walk::Since {
                walk: DiffWalk::new(client, &from.name, &to.name),
                ids: [&from.id, &to.id],
            },
            known: VecDeque::new(),
        }
    }

    /// The next part; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<DiffRange>> {
        while self.known.is_empty() {
            match &mut self.from {
                Walk::All { at, bytes, .. } if *at == *bytes => return Ok(None),
                Walk::All { map, at, bytes } => {
                    let data = map.next()?.unwrap_or(*bytes..*bytes);
                    self.known.push_back(range(*at..data.start, DiffKind::Zero));
                    self.known.push_back(range(data.clone(), DiffKind::Data));
                    *at = data.end;
                }
                Walk::Since { walk, ids } => {
                    let Some(part) = walk.next()? else {
                        return Ok(None);
                    };
                    check_same(&part, *ids)?;
                    self.known.extend(part.ranges);
                }
            }
            self.known.retain(|range| range.bytes > 0);
        }
        let Some(mut next) = self.known.pop_front() else {
            return Ok(None);
        };
        let most = match next.kind {
            DiffKind::Data => CHUNK_BYTES,
            DiffKind::Zero => ZEROES_BYTES,
        };
        if next.bytes > most {
            let mut rest = next;
            rest.offset += most;
            rest.bytes -= most;
            self.known.push_front(rest);
            next.bytes = most;
        }
        Ok(Some(next))
    }
}

fn range(range: Range<u64>, kind: DiffKind) -> DiffRange {
    DiffRange {
        offset: range.start,
        bytes: range.end - range.start,
        kind,
    }
}

/// What is compared is what was listed.
fn check_same(part: &Diff, ids: [&str; 2]) -> Result<()> {
    for (side, id) in [(&part.from, ids[0]), (&part.to, ids[1])] {
        if side.id != id {
            return Err(Failure::new(
                FailureCode::VolumeBusy,
                format!("{} was deleted and taken again meanwhile", side.name),
            ));
        }
    }
    Ok(())
}

/// How many bytes there are to read.
pub(super) fn count_data(mut changes: Changes<'_>) -> Result<u64> {
    let mut bytes = 0;
    while let Some(part) = changes.next()? {
        if part.kind == DiffKind::Data {
            bytes += part.bytes;
        }
    }
    Ok(bytes)
}

/// What some parts of a volume hold, by the GiB.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Digests(BTreeMap<u64, PartsDigest>);

impl Digests {
    fn add(&mut self, offset: u64, data: &[u8]) {
        let digest = self.0.entry(offset / GROUP_BYTES).or_default();
        digest.add(offset, data);
    }

    fn merge(mut self, other: Digests) -> Digests {
        for (group, digest) in other.0 {
            self.0.entry(group).or_default().merge(digest);
        }
        self
    }

    /// The first GiB in which two differ.
    pub(super) fn find_difference(&self, other: &Digests) -> Option<u64> {
        let groups = self.0.keys().chain(other.0.keys());
        let differing = groups.filter(|group| self.0.get(group) != other.0.get(group));
        differing.min().copied()
    }
}

/// What was moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) digests: Digests,
    /// Bytes that were written; zeroes are not.
    pub(super) data: u64,
}

/// The part that a connection moves next.
fn take_next(changes: &Mutex<Changes<'_>>) -> Result<Option<DiffRange>> {
    let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
    changes.next()
}

/// Copies the parts from one volume to another. One that `has_content` is zeroed where the other is.
pub(super) fn copy(
    changes: Changes<'_>,
    (from, to): (&[String], &[String]),
    has_content: bool,
    bar: &ProgressBar,
) -> Result<Moved> {
    let lanes = connect(from, CONNECTIONS)?.into_iter();
    let lanes: Vec<_> = lanes.zip(connect(to, CONNECTIONS)?).collect();
    if lanes.iter().any(|(_, to)| to.is_read_only()) {
        return Err(failed("the copy takes no writes".to_owned()));
    }
    let changes = Mutex::new(changes);
    let moved = run_on_each(lanes, |(mut from, mut to), stop| {
        let mut moved = Moved::default();
        let mut data = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(part) = take_next(&changes)? else {
                break;
            };
            match part.kind {
                DiffKind::Zero if has_content => to.write_zeroes(part.offset, part.bytes as u32)?,
                DiffKind::Zero => {}
                DiffKind::Data => {
                    data.resize(part.bytes as usize, 0);
                    from.read(part.offset, &mut data)?;
                    moved.digests.add(part.offset, &data);
                    moved.data += write(&mut to, part.offset, &data, has_content)?;
                    bar.inc(part.bytes);
                }
            }
        }
        to.flush()?;
        to.disconnect()?;
        from.disconnect()?;
        Ok(moved)
    })?;
    let sum = |sum: Moved, one: Moved| Moved {
        digests: sum.digests.merge(one.digests),
        data: sum.data + one.data,
    };
    Ok(moved.into_iter().fold(Moved::default(), sum))
}

/// Writes what is not zero, and zeroes the rest if something may be there. How much was written.
fn write(to: &mut Connection, offset: u64, data: &[u8], has_content: bool) -> Result<u64> {
    let (mut end, mut written) = (0, 0);
    let zero = |to: &mut Connection, range: Range<usize>| -> Result<()> {
        match has_content && !range.is_empty() {
            true => Ok(to.write_zeroes(offset + range.start as u64, range.len() as u32)?),
            false => Ok(()),
        }
    };
    for run in data_runs(data) {
        zero(to, end..run.start)?;
        to.write(offset + run.start as u64, &data[run.clone()])?;
        written += run.len() as u64;
        end = run.end;
    }
    zero(to, end..data.len())?;
    Ok(written)
}

/// Reads the parts of a volume. What should be zero and is not is in the digests, too.
pub(super) fn read(changes: Changes<'_>, from: &[String], bar: &ProgressBar) -> Result<Digests> {
    let changes = Mutex::new(changes);
    let read = run_on_each(connect(from, CONNECTIONS)?, |mut from, stop| {
        let mut digests = Digests::default();
        let mut data = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(part) = take_next(&changes)? else {
                break;
            };
            match part.kind {
                DiffKind::Zero => read_zeroes(&mut from, &part, &mut digests)?,
                DiffKind::Data => {
                    data.resize(part.bytes as usize, 0);
                    from.read(part.offset, &mut data)?;
                    digests.add(part.offset, &data);
                    bar.inc(part.bytes);
                }
            }
        }
        from.disconnect()?;
        Ok(digests)
    })?;
    Ok(read.into_iter().fold(Digests::default(), Digests::merge))
}

/// Reads what is not known to be zeroes.
fn read_zeroes(from: &mut Connection, part: &DiffRange, digests: &mut Digests) -> Result<()> {
    let mut at = part.offset;
    let mut data = Vec::new();
    for known in from.allocation(part.offset, part.bytes as u32)? {
        let end = (at + known.bytes).min(part.offset + part.bytes);
        while !known.zero && at < end {
            data.resize((end - at).min(CHUNK_BYTES) as usize, 0);
            from.read(at, &mut data)?;
            if data.iter().any(|byte| *byte != 0) {
                digests.add(at, &data);
            }
            at += data.len() as u64;
        }
        at = end;
    }
    match at == part.offset + part.bytes {
        true => Ok(()),
        false => Err(failed(
            "the server says nothing of a part of the volume".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_equal_for_equal_parts_in_any_order_and_say_where_others_differ() {
        let parts = [(0, [1; 8]), (512, [2; 8]), (5 << 30, [3; 8])];
        let (mut one, mut two) = (Digests::default(), Digests::default());
        for (offset, data) in parts {
            one.add(offset, &data);
        }
        for (offset, data) in parts.into_iter().rev() {
            let mut part = Digests::default();
            part.add(offset, &data);
            two = two.merge(part);
        }
        assert_eq!(one.find_difference(&two), None);
        two.add(7 << 30, &[0; 8]);
        assert_eq!(one.find_difference(&two), Some(7));
    }
}
