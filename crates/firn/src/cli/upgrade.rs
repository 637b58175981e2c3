//! `firn upgrade`: asks the server to hand over, and waits for how it ends.

use std::time::{Duration, Instant};

use super::args::{ApiArgs, UpgradeArgs};
use super::client::Client;
use super::output;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{UpgradeRequest, UpgradeStage, UpgradeState};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Check, draining, start, and the start of the old program again.
const PARTS: u32 = 4;

pub(crate) fn upgrade(api: &ApiArgs, json: bool, args: &UpgradeArgs) -> Result<()> {
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(|source| Failure::invalid(format!("--program: {source}")))?;
    let timeout = args.timeout.0;
    let request = UpgradeRequest {
        program,
        timeout_ms: Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
    };
    let client = Client::new(api)?;
    let begun: UpgradeState = client.post("/v1/upgrade", &request)?;
    let until = Instant::now() + timeout.saturating_mul(PARTS);
    loop {
        std::thread::sleep(POLL_INTERVAL);
        match client.get::<UpgradeState>("/v1/upgrade") {
            Ok(state) if state.number != begun.number => {
                return Err(Failure::new(
                    FailureCode::UpgradeRefused,
                    "the server was started anew meanwhile; nothing that was acknowledged is lost",
                ));
            }
            Ok(state) if state.stage == UpgradeStage::Done => {
                return match json {
                    true => output::json(&state),
                    false => output::line(&format!("upgraded: firn {} serves", state.version)),
                };
            }
            Ok(state) if state.stage == UpgradeStage::Failed => {
                let why = state.why.unwrap_or_default();
                return Err(Failure::new(FailureCode::UpgradeRefused, why));
            }
            // The API's connections end with the old program.
            Ok(_) => {}
            Err(failure) if failure.code == FailureCode::ServerUnreachable => {}
            Err(failure) => return Err(failure),
        }
        if Instant::now() >= until {
            return Err(Failure::new(
                FailureCode::TimedOut,
                "the server has not said how the upgrade ended; see its log",
            ));
        }
    }
}
