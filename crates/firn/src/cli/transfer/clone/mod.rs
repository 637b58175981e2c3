//! `firn clone VOLUME --to STORE`: a volume with its snapshots becomes a volume of its own in another store.
//!
//! The snapshots go first, the oldest first, each as what it has over the one before; the last is one that is taken of the
//! present state. What the indexes say differs is read here and written there ([`content`]), by a server of the command's own
//! on the other store ([`other_store`]); the snapshot there is taken, and what was written is read from it again and compared, before the
//! next one begins ([`step`]). Until all are there the copy has a snapshot that marks it as unfinished ([`target`]); a command that
//! finds that goes on after the last snapshot that is whole ([`resume`]). It must never touch a volume without that mark.

mod attachments;
mod command_lock;
mod content;
mod other_store;
mod progress_note;
mod resume;
mod source;
mod step;
mod target;

use std::io::IsTerminal;

use indicatif::ProgressBar;
use serde_json::json;

use self::attachments::Attachments;
use self::content::{Changes, count_data};
use self::other_store::OtherStore;
use self::progress_note::{NoteContent, ProgressNote};
use self::resume::go_on;
use self::source::Original;
use self::step::Step;
use self::target::{Copy, ExistingCopy};
use super::increment::points;
use super::progress;
use crate::cli::args::{ApiArgs, CloneArgs};
use crate::cli::client::Client;
use crate::cli::output;
use crate::cli::volume_io::Undo;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::Snapshot;
use crate::units::{ApproximateSize, Size};

pub(crate) fn clone(api: &ApiArgs, json: bool, args: &CloneArgs) -> Result<()> {
    let client = Client::new(api)?;
    let original = Original::find(&client, &args.volume)?;
    let name = args.name.as_ref().unwrap_or(&args.volume);
    let undo = Undo::watch()?;
    let other = OtherStore::open(args, name)?;
    other.stop_with(&undo);
    let holds = Attachments::new(&client, &other.held_file());
    holds.end_with(&undo);
    let made = make(&original, &other, &holds, name);
    let made = made.map_err(|failure| match other.is_begun() {
        false => failure,
        true => Failure::new(
            failure.code,
            format!(
                "{failure}; what {name} has of it stays in {}, and the same command goes on from there",
                args.to
            ),
        ),
    })?;
    holds.end();
    other.finish();
    undo.keep();
    let printed = print(json, args, name, &made);
    other.remove();
    printed
}

/// What was copied.
struct CloneReport {
    id: String,
    bytes: u64,
    data: u64,
    snapshots: Vec<String>,
    /// The snapshot of the original that has what the volume held.
    moment: String,
    /// The snapshot after which it went on.
    went_on_after: Option<String>,
}

fn make(
    original: &Original<'_>,
    other: &OtherStore,
    holds: &Attachments,
    name: &str,
) -> Result<CloneReport> {
    let (there, note) = (other.client(), other.note());
    let (moment, copy) = match Copy::find(there, name, original, &note)? {
        ExistingCopy::Whole(copy) => {
            other.begin();
            return describe_whole(original, &copy);
        }
        ExistingCopy::Unfinished(mut copy) => {
            other.begin();
            let moment = original.moment_again(&copy.moment, name)?;
            copy.moment.clone_from(&moment.id);
            (moment, copy)
        }
        ExistingCopy::Nothing => begin(original, other, &note, name)?,
    };
    let snapshots = original.snapshots(&moment)?;
    let base = go_on(&copy, &snapshots, holds)?;
    let went_on_after = base.map(|base| copy.name_of(&snapshots[base]));
    let mut before = match base {
        Some(base) => Some(holds.hold(&snapshots[base])?),
        None => None,
    };
    let first = base.map_or(0, |base| base + 1);
    let bar = bar(holds, base, &snapshots, name)?;
    let mut data = 0;
    for snapshot in &snapshots[first..] {
        let held = match holds.hold(snapshot) {
            Err(failure) if is_gone(&failure) && snapshot.id != moment.id => {
                eprintln!(
                    "firn: {} was deleted meanwhile, and is left out",
                    snapshot.name
                );
                continue;
            }
            held => held?,
        };
        if before.is_none() {
            check_first(holds.client(), snapshot)?;
        }
        let step = Step {
            before: before.as_ref(),
            held: &held,
            copy: &copy,
            bar: &bar,
        };
        data += step.run()?;
        before = Some(held);
    }
    bar.finish_and_clear();
    let volume = copy.finish(&note)?;
    Ok(CloneReport {
        id: volume.id,
        bytes: volume.size_bytes,
        data,
        snapshots: copy.list()?.into_iter().map(|one| one.name).collect(),
        moment: moment.name,
        went_on_after,
    })
}

/// Makes the volume, and says in the store what it is.
fn begin<'a>(
    original: &Original<'_>,
    other: &'a OtherStore,
    note: &ProgressNote,
    name: &str,
) -> Result<(Snapshot, Copy<'a>)> {
    let moment = original.take_moment(name)?;
    let snapshots = original.snapshots(&moment)?;
    let first = snapshots.first().unwrap_or(&moment);
    other.begin();
    note.write(&NoteContent {
        moment: moment.id.clone(),
        size_bytes: first.size_bytes,
        whole: None,
    })?;
    let copy = Copy::create(other.client(), name, (original, first), &moment);
    let is_taken = |failure: &Failure| failure.code == FailureCode::VolumeExists;
    if copy.as_ref().is_err_and(is_taken) {
        // Another one has made it meanwhile: no later command may take that for its own.
        note.remove()?;
    }
    Ok((moment, copy?))
}

/// An earlier command came to its end, but for what it left on this machine. The copy may have been used since.
fn describe_whole(original: &Original<'_>, copy: &Copy<'_>) -> Result<CloneReport> {
    let volume = copy.show()?;
    let there = copy.list()?;
    let moment = there.iter().find(|one| copy.is_of_moment(one));
    let moment = moment.map_or("", |moment| moment.name.as_str());
    Ok(CloneReport {
        id: volume.id,
        bytes: volume.size_bytes,
        data: 0,
        moment: format!("{}@{}", original.volume.name, points::split(moment).1),
        went_on_after: Some(moment.to_owned()),
        snapshots: there.iter().map(|one| one.name.clone()).collect(),
    })
}

/// That the first one is what was listed under its name; of all others the diff says so.
fn check_first(client: &Client, snapshot: &Snapshot) -> Result<()> {
    match points::find(client, &snapshot.name)?.id == snapshot.id {
        true => Ok(()),
        false => Err(Failure::new(
            FailureCode::VolumeBusy,
            format!("{} was deleted and taken again meanwhile", snapshot.name),
        )),
    }
}

fn is_gone(failure: &Failure) -> bool {
    failure.code == FailureCode::NoSuchSnapshot
}

/// How much there is to copy and to read again, where a person waits for it.
fn bar(
    holds: &Attachments,
    base: Option<usize>,
    snapshots: &[Snapshot],
    name: &str,
) -> Result<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let mut bytes = 0;
    let first = base.map_or(0, |base| base + 1);
    for nth in first..snapshots.len() {
        bytes += match nth.checked_sub(1) {
            Some(before) => {
                let (from, to) = (&snapshots[before], &snapshots[nth]);
                match count_data(Changes::since(holds.client(), from, to)) {
                    // One of them was deleted meanwhile: that is found again.
                    Err(failure) if is_gone(&failure) => 0,
                    counted => counted?,
                }
            }
            None => match holds.hold(&snapshots[nth]) {
                Err(failure) if is_gone(&failure) => 0,
                held => count_data(Changes::all(&held?.uris)?)?,
            },
        };
    }
    Ok(progress(format!("clone to {name}"), 2 * bytes))
}

fn print(json: bool, args: &CloneArgs, name: &str, made: &CloneReport) -> Result<()> {
    if json {
        return output::json(&json!({
            "volume": name,
            "id": made.id,
            "store": args.to,
            "size_bytes": made.bytes,
            "copied_bytes": made.data,
            "snapshots": made.snapshots,
            "moment": made.moment,
            "went_on_after": made.went_on_after,
        }));
    }
    output::line(&format!(
        "{name}: {} with {} snapshots, {} copied, in {}; it holds what {} is",
        Size(made.bytes),
        made.snapshots.len(),
        ApproximateSize(made.data),
        args.to,
        made.moment
    ))
}
