//! What commands share that read and write a volume: they are clients as any other, over the server's own listeners.
//!
//! [`connection`] reaches a volume, [`temporary_fork`] makes one that goes with the command, [`threads`] has several work
//! side by side, and [`undo`] takes back what was begun.

mod connection;
mod temporary_fork;
mod threads;
mod undo;

pub(super) use connection::{Connection, connect};
pub(super) use temporary_fork::make_fork;
pub(super) use threads::run_on_each;
pub(super) use undo::Undo;

use super::client::{Client, volume_path};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{AttachRequest, Attachment, DetachRequest, TransportChoice};

/// Opens a volume on the server, and says where it is reached.
pub(super) fn attach(
    client: &Client,
    name: &str,
    transport: TransportChoice,
) -> Result<Attachment> {
    let request = AttachRequest {
        transport,
        ..AttachRequest::default()
    };
    client.post(&format!("{}/attach", volume_path(name)), &request)
}

pub(super) fn detach(client: &Client, name: &str, force: bool) -> Result<()> {
    client.post_no_content(
        &format!("{}/detach", volume_path(name)),
        &DetachRequest {
            force,
            ..DetachRequest::default()
        },
    )
}

/// Attaches with a number of the caller's own, by which it alone detaches it again: [`detach_own`].
pub(super) fn attach_own(client: &Client, name: &str, ticket: u64) -> Result<Attachment> {
    let request = AttachRequest {
        transport: TransportChoice::Nbd,
        ticket: Some(ticket),
        ..AttachRequest::default()
    };
    client.post(&format!("{}/attach", volume_path(name)), &request)
}

/// Detaches what [`attach_own`] attached, unless somebody had it attached, or attached it since; the command's own
/// connections end.
pub(super) fn detach_own(client: &Client, name: &str, ticket: u64) -> Result<()> {
    let request = DetachRequest {
        force: true,
        ticket: Some(ticket),
        ..DetachRequest::default()
    };
    match client.post_no_content(&format!("{}/detach", volume_path(name)), &request) {
        Err(failure) if failure.code == FailureCode::NotAttached => Ok(()),
        // Somebody else attached it, too, or the server forgot who did when it started anew.
        Err(failure) if failure.code == FailureCode::VolumeInUse => {
            eprintln!(
                "firn: {name} stays attached, for it may be in use otherwise; if it is not: firn detach {name}"
            );
            Ok(())
        }
        detached => detached,
    }
}

pub(super) fn failed(why: String) -> Failure {
    Failure::new(FailureCode::TransferFailed, why)
}
