//! What a disk can be asked to be, and which wishes make no sense.
//!
//! Checked in one place for the command line and for the API, before anything is touched. What
//! the kernel grants of it is another matter, and shown beside it (R9).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::model::{AttachRequest, DataMode, TransportChoice};

/// The driver's bounds on a disk.
const QUEUES_MAX: u16 = 4096;
const DEPTH_MAX: u16 = 4096;

/// Requests that one queue of a disk may have outstanding, unless told otherwise: what an object
/// store's latency needs to hide behind, and little enough to be cancelled quickly.
const DEPTH_DEFAULT: u16 = 128;
/// More queues than this bring nothing to one disk and cost each exit.
const QUEUES_DEFAULT_MAX: u16 = 4;

/// How long a request may stay parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Patience {
    /// What is right for this kernel: `Wait`, or a limit where the kernel counts on one.
    Default,
    /// For as long as it takes (S10).
    Wait,
    /// Then it fails. In milliseconds.
    AtMostMs(u64),
}

/// How a disk is to be: remembered, so that a restarted server makes it the same again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) data_mode: DataMode,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) read_only: bool,
    pub(crate) part_scan: bool,
    pub(crate) patience: Patience,
}

impl AttachRequest {
    /// Refuses what makes no sense on any machine.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |what: &str, given: Option<u16>, most: u16| match given {
            Some(given) if given == 0 || given > most => Err(Failure::invalid(format!(
                "{what} {given}: a disk has 1 to {most}; leave it out to have it chosen"
            ))),
            _ => Ok(()),
        };
        within("queues", self.queues, QUEUES_MAX)?;
        within("depth", self.depth, DEPTH_MAX)?;
        if let Some(seconds) = self.park_timeout_seconds {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Failure::invalid(format!(
                    "park timeout {seconds} s: give seconds, or 0 to wait without limit"
                ))
            })?;
        }
        match self.disk_option_names().first() {
            Some(wish) if self.transport == TransportChoice::Nbd => Err(Failure::invalid(format!(
                "{wish} is a property of a ublk disk and means nothing over nbd; leave it out, \
                 or use transport ublk"
            ))),
            _ => Ok(()),
        }
    }

    /// Wishes that only a disk can fulfil, as they are called in the API.
    pub(crate) fn disk_option_names(&self) -> Vec<&'static str> {
        let wishes = [
            (
                "data_mode",
                self.data_mode.is_some_and(|mode| mode != DataMode::Auto),
            ),
            ("queues", self.queues.is_some()),
            ("depth", self.depth.is_some()),
            ("read_only", self.read_only),
            ("no_part_scan", self.no_part_scan),
            ("park_timeout_seconds", self.park_timeout_seconds.is_some()),
        ];
        let named = wishes.into_iter().filter(|(_, given)| *given);
        named.map(|(name, _)| name).collect()
    }

    fn patience(&self) -> Option<Patience> {
        // Checked: it is a time.
        let limit = Duration::try_from_secs_f64(self.park_timeout_seconds?).ok()?;
        Some(if limit.is_zero() {
            Patience::Wait
        } else {
            Patience::AtMostMs(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1))
        })
    }
}

impl Wanted {
    /// The wishes of a checked request, filled up for a server with this many reactors.
    pub(crate) fn of(request: &AttachRequest, reactors: usize) -> Wanted {
        let reactors = u16::try_from(reactors).unwrap_or(u16::MAX).max(1);
        Wanted {
            data_mode: request.data_mode.unwrap_or(DataMode::Auto),
            queues: request.queues.unwrap_or(reactors.min(QUEUES_DEFAULT_MAX)),
            depth: request.depth.unwrap_or(DEPTH_DEFAULT),
            read_only: request.read_only,
            part_scan: !request.no_part_scan,
            patience: request.patience().unwrap_or(Patience::Default),
        }
    }

    /// Of a request for a disk that is there already: the first wish that it does not fulfil.
    /// What was not said is fulfilled by anything.
    pub(crate) fn unlike(&self, request: &AttachRequest) -> Option<&'static str> {
        let differs = [
            (
                "data_mode",
                request.data_mode.is_some_and(|mode| mode != self.data_mode),
            ),
            (
                "queues",
                request.queues.is_some_and(|queues| queues != self.queues),
            ),
            (
                "depth",
                request.depth.is_some_and(|depth| depth != self.depth),
            ),
            ("read_only", request.read_only && !self.read_only),
            ("no_part_scan", request.no_part_scan && self.part_scan),
            (
                "park_timeout_seconds",
                request
                    .patience()
                    .is_some_and(|patience| patience != self.patience),
            ),
        ];
        differs
            .into_iter()
            .find(|(_, differs)| *differs)
            .map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureCode;

    fn asked(change: impl FnOnce(&mut AttachRequest)) -> AttachRequest {
        let mut request = AttachRequest::default();
        change(&mut request);
        request
    }

    #[test]
    fn numbers_out_of_range_are_refused_and_named() {
        for (request, says) in [
            (asked(|r| r.queues = Some(0)), "queues 0"),
            (asked(|r| r.queues = Some(4097)), "1 to 4096"),
            (asked(|r| r.depth = Some(0)), "depth 0"),
            (asked(|r| r.depth = Some(5000)), "depth 5000"),
            (
                asked(|r| r.park_timeout_seconds = Some(-1.0)),
                "park timeout -1",
            ),
            (
                asked(|r| r.park_timeout_seconds = Some(f64::NAN)),
                "park timeout NaN",
            ),
        ] {
            let failure = request.check().unwrap_err();
            assert_eq!(failure.code, FailureCode::Invalid);
            assert!(failure.detail.contains(says), "{failure}");
        }
        asked(|r| (r.queues, r.depth) = (Some(4096), Some(1)))
            .check()
            .unwrap();
    }

    #[test]
    fn what_only_a_disk_can_do_is_refused_over_nbd_and_never_dropped() {
        for (change, says) in [
            (
                (|r| r.read_only = true) as fn(&mut AttachRequest),
                "read_only",
            ),
            (|r| r.data_mode = Some(DataMode::ZeroCopy), "data_mode"),
            (|r| r.queues = Some(2), "queues"),
            (|r| r.no_part_scan = true, "no_part_scan"),
            (
                |r| r.park_timeout_seconds = Some(0.0),
                "park_timeout_seconds",
            ),
        ] {
            let mut request = asked(change);
            request.check().unwrap();
            request.transport = TransportChoice::Nbd;
            let failure = request.check().unwrap_err();
            assert!(failure.detail.contains(says), "{failure}");
        }
        let plain = asked(|r| {
            r.transport = TransportChoice::Nbd;
            r.data_mode = Some(DataMode::Auto);
        });
        plain.check().unwrap();
    }

    #[test]
    fn what_was_not_said_is_fulfilled_by_any_disk_and_what_was_said_only_by_its_like() {
        let request = asked(|r| {
            r.queues = Some(2);
            r.read_only = true;
            r.park_timeout_seconds = Some(5.0);
        });
        let disk = Wanted::of(&request, 8);
        assert_eq!((disk.queues, disk.depth), (2, DEPTH_DEFAULT));
        assert_eq!(disk.unlike(&AttachRequest::default()), None);
        assert_eq!(disk.unlike(&request), None);
        assert_eq!(disk.unlike(&asked(|r| r.queues = Some(3))), Some("queues"));
        assert_eq!(
            disk.unlike(&asked(|r| r.park_timeout_seconds = Some(0.0))),
            Some("park_timeout_seconds")
        );
        assert_eq!(
            disk.unlike(&asked(|r| r.no_part_scan = true)),
            Some("no_part_scan")
        );
    }

    #[test]
    fn a_disk_has_a_queue_for_each_reactor_up_to_four() {
        for (reactors, queues) in [(0, 1), (1, 1), (3, 3), (64, 4)] {
            assert_eq!(
                Wanted::of(&AttachRequest::default(), reactors).queues,
                queues
            );
        }
    }
}
