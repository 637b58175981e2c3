//! Store faults on purpose, for soaks: the hidden flag `--planned-store-faults`.
//!
//! Stacks the store's fault decorator below the retries of a real server, with outages that come
//! and go. It must never be there unless the flag was given on the command line (neither file nor
//! environment can ask for it), and it says loudly that it is: somebody's volumes suffer from it.

use std::sync::Arc;
use std::time::Duration;

use store::{FaultKind, FaultPlan, Faults, Rate, SharedStore};

use crate::metrics::Text;
use crate::units::Span;

/// What is planned, as `seed=7,refuse=20,delay=100,delay-max=300ms,outage-every=60s,outage-for=9s`.
/// Rates are in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planned {
    seed: u64,
    plan: FaultPlan,
    /// From the beginning of one outage to that of the next; none if zero.
    outage_every: Duration,
    outage_for: Duration,
}

impl std::str::FromStr for Planned {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut planned = Planned::default();
        for wish in text.split(',') {
            let (name, value) = wish
                .split_once('=')
                .ok_or_else(|| format!("{wish:?} is not NAME=VALUE"))?;
            let number = || value.parse::<u64>().map_err(|bad| format!("{wish}: {bad}"));
            let time = || value.parse::<Span>().map(|span| span.0);
            let rate = || match value.parse::<u32>() {
                Ok(rate) if rate <= 1000 => Ok(Rate(rate)),
                _ => Err(format!("{wish}: a rate is 0 to 1000 thousandths")),
            };
            match name {
                "seed" => planned.seed = number()?,
                "refuse" => planned.plan.refuse = rate()?,
                "lose-request" => planned.plan.lose_request = rate()?,
                "lose-answer" => planned.plan.lose_answer = rate()?,
                "delay" => planned.plan.delay = rate()?,
                "delay-max" => planned.plan.delay_max = time()?,
                "outage-every" => planned.outage_every = time()?,
                "outage-for" => planned.outage_for = time()?,
                _ => return Err(format!("{name:?} is no planned fault")),
            }
        }
        Ok(planned)
    }
}

/// The running plan.
#[derive(Clone, Debug)]
pub(crate) struct Running(Arc<Faults<SharedStore>>);

impl Planned {
    /// Puts the plan above a store. Outages begin with the time between them, so that a server
    /// comes up. Must be called on a runtime.
    pub(crate) fn over(self, store: SharedStore) -> Running {
        tracing::error!(
            plan = ?self,
            "STORE FAULTS ARE PLANNED (--planned-store-faults): requests to the store are refused, \
             lost and delayed on purpose. Never do this to a volume that matters"
        );
        let faults = Arc::new(Faults::new(store, self.seed, self.plan));
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
        Running(faults)
    }
}

impl Running {
    /// The store that fails.
    pub(crate) fn store(&self) -> SharedStore {
        Arc::clone(&self.0) as SharedStore
    }

    /// Adds how often each kind has fired.
    pub(crate) fn write(&self, text: &mut Text) {
        text.family(
            "firn_planned_store_faults_total",
            "counter",
            "Faults of the store that were planned, for tests.",
        );
        for kind in FaultKind::ALL {
            let name = match kind {
                FaultKind::Refused => "refused",
                FaultKind::LostRequest => "lost_request",
                FaultKind::LostAnswer => "lost_answer",
                FaultKind::Delayed => "delayed",
                FaultKind::Outage => "outage",
            };
            text.sample(&[("kind", name)], self.0.count(kind) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_what_is_unknown_or_out_of_range_is_refused() {
        let plan: Planned =
            "seed=7,refuse=20,delay=100,delay-max=300ms,outage-every=60s,outage-for=9s"
                .parse()
                .unwrap();
        assert_eq!((plan.seed, plan.plan.refuse), (7, Rate(20)));
        assert_eq!(plan.plan.delay_max, Duration::from_millis(300));
        assert_eq!(plan.outage_for, Duration::from_secs(9));
        for bad in ["", "seed", "refuse=1001", "typo=1", "outage-for=soon"] {
            assert!(bad.parse::<Planned>().is_err(), "{bad}");
        }
    }
}
