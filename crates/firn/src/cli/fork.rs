//! `firn fork`: a request for each new volume, and its name on standard output. What a new volume lacks, because another
//! host has its parent open, is said on standard error.

use std::sync::Mutex;
use std::sync::PoisonError;

use serde::Serialize;

use super::args::{ApiArgs, ForkArgs};
use super::client::{Client, volume_path};
use super::{output, similar_name};
use crate::failure::{Failure, Result};
use crate::model::{ForkVolume, Forked, SnapshotWait};

/// Requests at once: most of each is a wait for the store.
const AT_ONCE: usize = 8;

/// What is printed of several forks as JSON.
#[derive(Serialize)]
struct Forks {
    forks: Vec<Forked>,
}

pub(crate) fn fork(api: &ApiArgs, json: bool, args: &ForkArgs) -> Result<()> {
    let client = Client::new(api)?;
    if let [name] = args.names.as_slice() {
        let forked = make(&client, &args.parent, name, args.wait)?;
        return match json {
            true => output::json(&forked),
            false => output::line(&forked.volume.name),
        };
    }
    fork_all(&client, json, args)
}

/// How far the forks of one command are.
struct Progress<'a> {
    left: std::slice::Iter<'a, String>,
    made: Vec<Forked>,
    failure: Option<Failure>,
}

/// Makes several, some at once; the first failure ends it when those under way have ended.
fn fork_all(client: &Client, json: bool, args: &ForkArgs) -> Result<()> {
    let progress = Mutex::new(Progress {
        left: args.names.iter(),
        made: Vec::new(),
        failure: None,
    });
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(args.names.len()) {
            scope.spawn(|| make_in_turn(client, json, args, &progress));
        }
    });
    let progress = progress
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if json {
        output::json(&Forks {
            forks: progress.made,
        })?;
    }
    match progress.failure {
        None => Ok(()),
        Some(failure) => Err(failure),
    }
}

fn make_in_turn(client: &Client, json: bool, args: &ForkArgs, progress: &Mutex<Progress<'_>>) {
    let lock = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = {
            let mut progress = lock();
            let goes_on = progress.failure.is_none();
            goes_on.then(|| progress.left.next()).flatten()
        };
        let Some(name) = next else { return };
        let made = make(client, &args.parent, name, args.wait).and_then(|forked| {
            match json {
                true => Ok(()),
                false => output::line(name),
            }
            .map(|()| forked)
        });
        match made {
            Ok(forked) => lock().made.push(forked),
            Err(failure) => {
                let mut progress = lock();
                progress.failure.get_or_insert(failure);
            }
        }
    }
}

/// Makes a fork, and says what it lacks.
pub(super) fn make(
    client: &Client,
    parent: &str,
    name: &str,
    wait: SnapshotWait,
) -> Result<Forked> {
    let asked = ForkVolume {
        name: name.to_owned(),
        wait,
    };
    let forked: Forked = client
        .post(&format!("{}/fork", volume_path(parent)), &asked)
        .map_err(|failure| similar_name::suggest(client, parent, failure))?;
    if let Some(holder) = &forked.parent_holder {
        eprintln!(
            "firn: {parent} is open on host {holder}: {} begins with what the store has of it, up to LSN {}, and lacks \
             what was written there since",
            forked.volume.name, forked.parent_lsn
        );
    }
    Ok(forked)
}
