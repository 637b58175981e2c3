//! Upgrades that were asked for: one at a time, and how the last one ended.
//!
//! Only keeps the state. The server itself hands over, because that ends all that runs here.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::failure::{Failure, FailureCode, Result};
use crate::model::{UpgradeRequest, UpgradeStage, UpgradeState};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// An upgrade that is to be made.
#[derive(Debug)]
pub(crate) struct UpgradePlan {
    pub(crate) number: u64,
    /// None: what is now at the path of the program that runs.
    pub(crate) program: Option<PathBuf>,
    /// How long each of its parts may take: the check, the draining, the new program's start.
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Upgrades {
    state: Mutex<UpgradeState>,
    wanted: Mutex<Option<UpgradePlan>>,
    asked: Notify,
}

impl Default for Upgrades {
    fn default() -> Self {
        let state = UpgradeState {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..UpgradeState::default()
        };
        Upgrades {
            state: Mutex::new(state),
            wanted: Mutex::default(),
            asked: Notify::new(),
        }
    }
}

impl Upgrades {
    fn lock(&self) -> MutexGuard<'_, UpgradeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> UpgradeState {
        self.lock().clone()
    }

    /// Begins an upgrade, which goes on by itself.
    pub(crate) fn request(&self, request: UpgradeRequest) -> Result<UpgradeState> {
        let timeout = request
            .timeout_ms
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis);
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(Failure::invalid(
                "timeout_ms is more than 0 and at most an hour",
            ));
        }
        if request
            .program
            .as_ref()
            .is_some_and(|path| !path.is_absolute())
        {
            return Err(Failure::invalid("program must be an absolute path"));
        }
        let mut state = self.lock();
        if matches!(
            state.stage,
            UpgradeStage::Checking | UpgradeStage::HandingOver
        ) {
            return Err(Failure::new(
                FailureCode::UpgradeUnderWay,
                format!("upgrade {} is under way; wait for its end", state.number),
            ));
        }
        state.number += 1;
        state.stage = UpgradeStage::Checking;
        state.why = None;
        state.program = request
            .program
            .as_ref()
            .map(|path| path.display().to_string());
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(UpgradePlan {
            number: state.number,
            program: request.program,
            timeout,
        });
        self.asked.notify_one();
        Ok(state.clone())
    }

    /// Waits for the next one that is asked for.
    pub(crate) async fn next(&self) -> UpgradePlan {
        loop {
            let wanted = self
                .wanted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(plan) = wanted {
                return plan;
            }
            self.asked.notified().await;
        }
    }

    pub(crate) fn on_handing_over(&self) {
        self.lock().stage = UpgradeStage::HandingOver;
    }

    pub(crate) fn on_failed(&self, why: String) {
        let mut state = self.lock();
        state.stage = UpgradeStage::Failed;
        state.why = Some(why);
    }

    /// This program has taken the place of another one, or got its own place back.
    pub(crate) fn on_taken_over(&self, number: u64, program: &str, returned: Option<&str>) {
        let mut state = self.lock();
        state.number = number;
        state.program = Some(program.to_owned());
        state.stage = match returned {
            None => UpgradeStage::Done,
            Some(_) => UpgradeStage::Failed,
        };
        state.why = returned.map(|why| {
            format!("{program} does not come up: {why}; this server is the one before, and its clients are still connected")
        });
    }
}
