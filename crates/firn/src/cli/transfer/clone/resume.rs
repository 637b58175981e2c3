//! Where a command that was cut short goes on: the last snapshot that the copy has whole, which is proven by reading it here and there.

use indicatif::ProgressBar;

use super::attachments::Attachments;
use super::step::Step;
use super::target::Copy;
use crate::failure::Result;
use crate::model::Snapshot;

/// Removes what the original does not have any more, and sets the copy to the last of these snapshots that it has and that is whole; which one that is. The ones before were
/// proven before it was begun.
pub(super) fn go_on(
    copy: &Copy<'_>,
    snapshots: &[Snapshot],
    holds: &Attachments,
) -> Result<Option<usize>> {
    copy.take()?;
    copy.remove_leftovers(snapshots)?;
    let mut there = copy.list()?;
    loop {
        let copies: Vec<usize> = (0..snapshots.len())
            .filter(|nth| copy.has(&there, &snapshots[*nth]))
            .collect();
        let Some(&last) = copies.last() else {
            copy.set_to(None)?;
            return Ok(None);
        };
        let before = copies.iter().rev().nth(1);
        let before = before.map(|nth| holds.hold(&snapshots[*nth])).transpose()?;
        let held = holds.hold(&snapshots[last])?;
        let step = Step {
            before: before.as_ref(),
            held: &held,
            copy,
            bar: &ProgressBar::hidden(),
        };
        let name = copy.name_of(&snapshots[last]);
        if step.is_whole()? {
            copy.set_to(Some(&snapshots[last]))?;
            eprintln!("firn: {name} is there already, and whole: going on after it");
            return Ok(Some(last));
        }
        let original = &snapshots[last].name;
        eprintln!("firn: {name} is not what {original} is, and is made anew");
        copy.delete_snapshot(&snapshots[last])?;
        there.retain(|one| one.name != name);
    }
}
