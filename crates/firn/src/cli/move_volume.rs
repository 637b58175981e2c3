//! `firn move`: a volume that one server has goes to another server of the same store.
//!
//! Only requests to the two servers, in an order in which a failure at any step leaves the volume with one of them or
//! with none, and never with both: the second attaches it without taking it over, which the store refuses as long as
//! the first has it. While the volume is with neither, everything that was written to it is in the store.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::args::{ApiArgs, MoveArgs};
use super::client::{Client, volume_path};
use super::warm_up::{WarmUp, prepare_index, warm_up};
use super::{output, similar_name, sync};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    AttachRequest, Attachment, DataMode, DetachRequest, TransportChoice, Volume, VolumeState,
};

/// What `firn move --json` prints.
#[derive(Debug, Serialize)]
struct MoveReport {
    volume: String,
    /// How it is reached now.
    attachment: Attachment,
    /// For how long neither server had it.
    unserved_seconds: f64,
    /// What the other server has read ahead, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    warm_up: Option<WarmUp>,
    /// What was done, in its order.
    steps: Vec<Step>,
}

/// One step, and how long it took.
#[derive(Debug, Serialize)]
struct Step {
    step: &'static str,
    seconds: f64,
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps(Vec<Step>);

impl Steps {
    fn time<T>(&mut self, step: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let done = work()?;
        let seconds = began.elapsed().as_secs_f64();
        self.0.push(Step { step, seconds });
        Ok(done)
    }
}

pub(crate) fn move_volume(api: &ApiArgs, json: bool, args: &MoveArgs) -> Result<()> {
    let (from, to) = (Client::new(api)?, Client::new(&target(args))?);
    let name = &args.name;
    let path = volume_path(name);
    let volume: Volume = from
        .get(&path)
        .map_err(|failure| similar_name::suggest(&from, name, failure))?;
    check_leaves(&volume)?;
    check_is_known(&to, &volume, args)?;
    let back = attach_request(&volume, None);
    let there = attach_request(&volume, args.transport);
    let mut steps = Steps::default();
    let warmed = make_ready((&from, &to), args, &mut steps)?;
    let began = Instant::now();
    steps.time("let go", || let_go(&from, args))?;
    let attached = steps.time("attach", || to.post(&format!("{path}/attach"), &there));
    let attachment = attached.map_err(|failure| take_back(&from, name, &back, failure))?;
    let moved = MoveReport {
        volume: name.clone(),
        attachment,
        unserved_seconds: began.elapsed().as_secs_f64(),
        warm_up: warmed,
        steps: steps.0,
    };
    if json {
        return output::json(&moved);
    }
    eprintln!(
        "firn: {name} is moved; for {} ms no server had it",
        Duration::from_secs_f64(moved.unserved_seconds).as_millis()
    );
    if let Some(warmed) = &moved.warm_up {
        eprintln!("firn: {}", warmed.describe());
    }
    let Attachment { device, uri, .. } = moved.attachment;
    output::line(&device.or(uri).unwrap_or_default())
}

/// All that can be done while the volume is served. The first upload may take long; each leaves what was written meanwhile
/// to the next, and the last so little that letting go is short.
fn make_ready(
    (from, to): (&Client, &Client),
    args: &MoveArgs,
    steps: &mut Steps,
) -> Result<Option<WarmUp>> {
    let name = &args.name;
    steps.time("first upload", || sync::upload(from, name))?;
    let mut warmed = None;
    if !args.no_warm_up {
        let time = args.warm_up.0;
        warmed = Some(steps.time("warm-up", || Ok(warm_up(from, to, name, time)))?);
        steps.time("second upload", || sync::upload(from, name))?;
        steps.time("index there", || {
            prepare_index(to, name);
            Ok(())
        })?;
    }
    steps.time("last upload", || sync::upload(from, name))?;
    Ok(warmed)
}

fn let_go(from: &Client, args: &MoveArgs) -> Result<()> {
    let path = format!("{}/detach", volume_path(&args.name));
    let request = DetachRequest {
        force: args.force,
        awaited: true,
        ticket: None,
    };
    match from.post_no_content(&path, &request) {
        // A server of an older version does not know that another waits.
        Err(failure) if failure.detail.contains("awaited") => {
            let usual = DetachRequest {
                awaited: false,
                ..request
            };
            from.post_no_content(&path, &usual)
        }
        done => done,
    }
}

/// How the other server is asked.
fn target(args: &MoveArgs) -> ApiArgs {
    ApiArgs {
        api: vec![args.to.clone()],
        token_file: args.to_token_file.clone(),
    }
}

/// Refuses a volume that this server does not have, and one that it cannot give away.
fn check_leaves(volume: &Volume) -> Result<()> {
    let name = &volume.name;
    match volume.state {
        VolumeState::Open => Ok(()),
        VolumeState::Closed => Err(Failure::new(
            FailureCode::NotOpenYet,
            format!("volume {name} is open nowhere; attach it where it is to be"),
        )),
        state => Err(Failure::new(
            FailureCode::VolumeHeld,
            format!(
                "volume {name} is {} here; only the server that has it open can let it go",
                state.as_str()
            ),
        )),
    }
}

/// Refuses a server of another store, before anything is given up.
fn check_is_known(to: &Client, volume: &Volume, args: &MoveArgs) -> Result<()> {
    let known = to.get::<Volume>(&volume_path(&volume.name));
    match known {
        Ok(known) if known.id == volume.id && known.state == VolumeState::Open => {
            Err(Failure::invalid(format!(
                "{} is the server that has volume {} already",
                args.to, volume.name
            )))
        }
        Ok(known) if known.id == volume.id => Ok(()),
        Err(failure) if failure.code != FailureCode::NoSuchVolume => Err(failure),
        _ => Err(Failure::new(
            FailureCode::NoSuchVolume,
            format!(
                "the server at {} knows no volume {} of this identity: does it use the same store?",
                args.to, volume.name
            ),
        )),
    }
}

/// The way in which the volume is attached here, or another one.
fn attach_request(volume: &Volume, transport: Option<TransportChoice>) -> AttachRequest {
    let disk = match transport {
        None | Some(TransportChoice::Ublk) => volume.disk.as_ref(),
        Some(_) => None,
    };
    let Some(disk) = disk else {
        return AttachRequest {
            transport: transport.unwrap_or(TransportChoice::Nbd),
            ..AttachRequest::default()
        };
    };
    AttachRequest {
        transport: TransportChoice::Ublk,
        data_mode: Some(disk.data_mode_asked).filter(|mode| *mode != DataMode::Auto),
        queues: Some(disk.queues),
        depth: Some(disk.depth),
        read_only: disk.read_only,
        no_part_scan: !disk.part_scan,
        park_timeout_seconds: disk.park_timeout_seconds,
        take_over: false,
        ticket: None,
    }
}

/// The other server did not attach it, or did not say so: this one tries to. If the other has it after all, that is
/// refused.
fn take_back(from: &Client, name: &str, back: &AttachRequest, failure: Failure) -> Failure {
    let attached = from.post::<Attachment>(&format!("{}/attach", volume_path(name)), back);
    let where_it_is = match attached {
        Ok(_) => format!("volume {name} is attached here again"),
        Err(again) => format!(
            "volume {name} could not be attached here again either ({}); everything that was written to it is in \
             the store",
            again.detail
        ),
    };
    Failure::new(
        failure.code,
        format!(
            "it was not attached there: {}; {where_it_is}",
            failure.detail
        ),
    )
}
