//! `firn gc`: a pass of the garbage collector, and what it found.

use indicatif::ProgressBar;

use super::args::{ApiArgs, GcArgs};
use super::client::Client;
use super::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{GcAmount, GcPass, GcRequest};
use crate::units::ApproximateSize;

pub(crate) fn gc(api: &ApiArgs, json: bool, args: GcArgs) -> Result<()> {
    let request = GcRequest {
        dry_run: args.dry_run,
    };
    let client = Client::new(api)?;
    let progress = progress(args.dry_run);
    let pass: Result<GcPass> = client.post("/v1/gc", &request);
    progress.finish_and_clear();
    let pass = pass?;
    if json {
        output::json(&pass)?;
        return end(&pass);
    }
    let row = |what: &str, amount: GcAmount, meaning: &str| {
        vec![
            what.to_owned(),
            amount.objects.to_string(),
            ApproximateSize(amount.bytes).to_string(),
            meaning.to_owned(),
        ]
    };
    let mut rows = vec![
        row(
            "live packs",
            pass.live_packs,
            "data that volumes, snapshots and forks reach",
        ),
        row("live indexes", pass.live_indexes, "their index"),
        row(
            "held",
            pass.held,
            "nothing reaches it, but its server may still come to name it",
        ),
        row(
            "garbage",
            pass.garbage,
            "nothing reaches it, and nothing ever will",
        ),
        row(
            "removed",
            pass.removed,
            "garbage that an earlier pass had found, too",
        ),
    ];
    if pass.failed.objects > 0 {
        rows.push(row(
            "failed",
            pass.failed,
            "could not be removed; a later pass will",
        ));
    }
    if pass.recovered.objects > 0 {
        rows.push(row(
            "recovered",
            pass.recovered,
            "was garbage to an earlier pass: please report it",
        ));
    }
    output::table(&["WHAT", "OBJECTS", "SIZE", "MEANING"], &rows)?;
    if !args.dry_run && pass.garbage.objects > pass.removed.objects {
        eprintln!("firn: what was found now is removed by the next pass, once that finds the same");
    }
    end(&pass)
}

/// A pass that could remove nothing of what it had to remove has failed.
fn end(pass: &GcPass) -> Result<()> {
    match &pass.why_nothing_went {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            FailureCode::StoreFailed,
            format!(
                "no removal of garbage succeeded: {why}; see that the server may delete what is below packs/, \
                 indexes/ and pins/"
            ),
        )),
    }
}

/// That something goes on, and for how long: how much is left is not known before all was listed and read.
fn progress(dry_run: bool) -> ProgressBar {
    let bar = output::spinner();
    bar.set_message(match dry_run {
        true => "reading what volumes, snapshots and forks reach",
        false => "reading what volumes, snapshots and forks reach, and removing what nothing does",
    });
    bar
}
