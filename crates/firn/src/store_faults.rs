//! Injected store faults, for soak tests: the hidden flag `--planned-store-faults`.
//!
//! Puts the store's fault decorator below the retries of a real server, with periodic outages. It
//! must never be active unless the flag was given on the command line (neither a file nor the
//! environment can ask for it), and it logs an error when it is: the server's volumes suffer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use store::{FaultKind, FaultPlan, Rate, SharedStore};

use crate::metrics::exposition::MetricsText;
use crate::units::TimeSpan;

/// The faults to inject, as `seed=7,refuse=20,delay=100,delay-max=300ms,outage-every=60s,outage-for=9s`.
/// Rates are in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreFaultPlan {
    seed: u64,
    plan: FaultPlan,
    /// From the start of one outage to the start of the next; zero for no outages.
    outage_every: Duration,
    outage_for: Duration,
}

impl std::str::FromStr for StoreFaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = StoreFaultPlan::default();
        for setting in text.split(',') {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("{setting:?} is not NAME=VALUE"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|bad| format!("{setting}: {bad}"))
            };
            let time = || value.parse::<TimeSpan>().map(|span| span.0);
            let rate = || match value.parse::<u32>() {
                Ok(rate) if rate <= 1000 => Ok(Rate(rate)),
                _ => Err(format!("{setting}: a rate is 0 to 1000 thousandths")),
            };
            match name {
                "seed" => faults.seed = number()?,
                "refuse" => faults.plan.refuse = rate()?,
                "lose-request" => faults.plan.lose_request = rate()?,
                "lose-answer" => faults.plan.lose_answer = rate()?,
                "delay" => faults.plan.delay = rate()?,
                "delay-max" => faults.plan.delay_max = time()?,
                "outage-every" => faults.outage_every = time()?,
                "outage-for" => faults.outage_for = time()?,
                _ => return Err(format!("{name:?} is not a fault that can be planned")),
            }
        }
        Ok(faults)
    }
}

/// The faults injected into a store.
#[derive(Clone, Debug)]
pub(crate) struct InjectedFaults(Arc<store::FaultyStore<SharedStore>>);

impl StoreFaultPlan {
    /// Injects the faults into a store. The time between outages comes first, so that a server can
    /// start. Must be called on a tokio runtime.
    pub(crate) fn apply(self, store: SharedStore) -> InjectedFaults {
        tracing::error!(
            plan = ?self,
            "STORE FAULTS ARE PLANNED (--planned-store-faults): requests to the store are refused, \
             lost and delayed on purpose. Never do this to a volume that matters"
        );
        let faults = Arc::new(store::FaultyStore::new(store, self.seed, self.plan));
        if !self.outage_every.is_zero() {
            let faults = Arc::downgrade(&faults);
            drop(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(self.outage_every.saturating_sub(self.outage_for)).await;
                    for (on, lasts) in [(true, self.outage_for), (false, Duration::ZERO)] {
                        let Some(faults) = faults.upgrade() else {
                            return;
                        };
                        tracing::warn!(on, "planned outage of the store");
                        faults.set_outage(on);
                        drop(faults);
                        tokio::time::sleep(lasts).await;
                    }
                }
            }));
        }
        InjectedFaults(faults)
    }
}

impl InjectedFaults {
    /// The store, with faults.
    pub(crate) fn store(&self) -> SharedStore {
        Arc::clone(&self.0) as SharedStore
    }

    /// Writes how often each kind of fault was injected.
    pub(crate) fn write_to(&self, text: &mut MetricsText<'_>) -> fmt::Result {
        let name_of = |kind| match kind {
            FaultKind::Refused => "refused",
            FaultKind::LostRequest => "lost_request",
            FaultKind::LostAnswer => "lost_answer",
            FaultKind::Delayed => "delayed",
            FaultKind::Outage => "outage",
        };
        text.counters(
            "firn_planned_store_faults",
            "Store faults that were injected for a test.",
            FaultKind::ALL.into_iter().map(|kind| {
                let labels = vec![("kind", name_of(kind))];
                (labels, self.0.count(kind))
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_what_is_unknown_or_out_of_range_is_refused() {
        let plan: StoreFaultPlan =
            "seed=7,refuse=20,delay=100,delay-max=300ms,outage-every=60s,outage-for=9s"
                .parse()
                .unwrap();
        assert_eq!((plan.seed, plan.plan.refuse), (7, Rate(20)));
        assert_eq!(plan.plan.delay_max, Duration::from_millis(300));
        assert_eq!(plan.outage_for, Duration::from_secs(9));
        for bad in ["", "seed", "refuse=1001", "typo=1", "outage-for=soon"] {
            assert!(bad.parse::<StoreFaultPlan>().is_err(), "{bad}");
        }
    }
}
