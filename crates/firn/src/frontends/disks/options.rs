//! The options of a disk: their bounds, their defaults, and how they are compared.
//!
//! Validated in one place for the command line and for the API, before anything is touched. What
//! the kernel grants may differ, and the API shows both (R9).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ublk::ModeChoice;

use crate::failure::{Failure, Result};
use crate::model::{AttachRequest, DataMode, TransportChoice};

/// The driver's bounds on a disk.
const QUEUES_MAX: u16 = 4096;
const DEPTH_MAX: u16 = 4096;

/// Default number of outstanding requests of one queue: enough to hide an object store's latency,
/// few enough to be cancelled quickly.
const DEPTH_DEFAULT: u16 = 128;
/// Largest default number of queues: more do not make one disk faster, and each slows the exit.
const QUEUES_DEFAULT_MAX: u16 = 4;

/// How long a request may stay parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ParkTimeout {
    /// The default of this kernel: `Wait`, or a limit where the driver needs an answer in time.
    Default,
    /// Without limit (S10).
    Wait,
    /// The request fails after this many milliseconds.
    AtMostMs(u64),
}

/// The options of a disk, as the file `attached` records them, so that the next server makes the
/// same disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskOptions {
    pub(crate) data_mode: DataMode,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) read_only: bool,
    pub(crate) part_scan: bool,
    #[serde(rename = "patience")]
    pub(crate) park_timeout: ParkTimeout,
}

impl AttachRequest {
    /// Refuses options that make no sense on any machine.
    pub(crate) fn validate(&self) -> Result<()> {
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
            Some(option) if self.transport == TransportChoice::Nbd => {
                Err(Failure::invalid(format!(
                    "{} is a property of a ublk disk and means nothing over nbd; leave it out, \
                     or use transport ublk",
                    flag_of(option)
                )))
            }
            _ => Ok(()),
        }
    }

    /// The options in this request that only a disk has, by their names in the API.
    pub(crate) fn disk_option_names(&self) -> Vec<&'static str> {
        let options = [
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
        let named = options.into_iter().filter(|(_, given)| *given);
        named.map(|(name, _)| name).collect()
    }

    fn park_timeout(&self) -> Option<ParkTimeout> {
        // `validate` has refused what is no duration.
        let limit = Duration::try_from_secs_f64(self.park_timeout_seconds?).ok()?;
        Some(if limit.is_zero() {
            ParkTimeout::Wait
        } else {
            ParkTimeout::AtMostMs(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1))
        })
    }
}

/// An option of a request as people write it on the command line.
pub(super) fn flag_of(option: &str) -> String {
    format!(
        "--{}",
        option.trim_end_matches("_seconds").replace('_', "-")
    )
}

impl DiskOptions {
    /// The options of a validated request, with defaults for a server of this many reactors.
    pub(crate) fn from_request(request: &AttachRequest, reactors: usize) -> DiskOptions {
        let reactors = u16::try_from(reactors).unwrap_or(u16::MAX).max(1);
        DiskOptions {
            data_mode: request.data_mode.unwrap_or(DataMode::Auto),
            queues: request.queues.unwrap_or(reactors.min(QUEUES_DEFAULT_MAX)),
            depth: request.depth.unwrap_or(DEPTH_DEFAULT),
            read_only: request.read_only,
            part_scan: !request.no_part_scan,
            park_timeout: request.park_timeout().unwrap_or(ParkTimeout::Default),
        }
    }

    /// The first option that the request gives and that differs from this disk's. An option that
    /// the request leaves out never differs.
    pub(crate) fn find_difference(&self, request: &AttachRequest) -> Option<&'static str> {
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
                    .park_timeout()
                    .is_some_and(|timeout| timeout != self.park_timeout),
            ),
        ];
        differs
            .into_iter()
            .find(|(_, differs)| *differs)
            .map(|(name, _)| name)
    }
}

/// The data modes that the driver is to negotiate.
pub(super) fn mode_choice(mode: DataMode) -> ModeChoice {
    ModeChoice::Only(match mode {
        DataMode::Auto => return ModeChoice::Auto,
        DataMode::ZeroCopy => ublk::DataMode::ZeroCopy,
        DataMode::UserCopy => ublk::DataMode::UserCopy,
        DataMode::GetData => ublk::DataMode::GetData,
        DataMode::Copy => ublk::DataMode::Copy,
    })
}

/// A data mode of the driver as the API names it.
pub(super) fn model_data_mode(mode: ublk::DataMode) -> DataMode {
    match mode {
        ublk::DataMode::ZeroCopy => DataMode::ZeroCopy,
        ublk::DataMode::UserCopy => DataMode::UserCopy,
        ublk::DataMode::GetData => DataMode::GetData,
        ublk::DataMode::Copy => DataMode::Copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureCode;

    fn request_with(change: impl FnOnce(&mut AttachRequest)) -> AttachRequest {
        let mut request = AttachRequest::default();
        change(&mut request);
        request
    }

    #[test]
    fn numbers_out_of_range_are_refused_and_named() {
        for (request, says) in [
            (request_with(|r| r.queues = Some(0)), "queues 0"),
            (request_with(|r| r.queues = Some(4097)), "1 to 4096"),
            (request_with(|r| r.depth = Some(0)), "depth 0"),
            (request_with(|r| r.depth = Some(5000)), "depth 5000"),
            (
                request_with(|r| r.park_timeout_seconds = Some(-1.0)),
                "park timeout -1",
            ),
            (
                request_with(|r| r.park_timeout_seconds = Some(f64::NAN)),
                "park timeout NaN",
            ),
        ] {
            let failure = request.validate().unwrap_err();
            assert_eq!(failure.code, FailureCode::Invalid);
            assert!(failure.detail.contains(says), "{failure}");
        }
        request_with(|r| (r.queues, r.depth) = (Some(4096), Some(1)))
            .validate()
            .unwrap();
    }

    #[test]
    fn what_only_a_disk_can_do_is_refused_over_nbd_and_never_dropped() {
        for (change, says) in [
            (
                (|r| r.read_only = true) as fn(&mut AttachRequest),
                "--read-only",
            ),
            (|r| r.data_mode = Some(DataMode::ZeroCopy), "--data-mode"),
            (|r| r.queues = Some(2), "--queues"),
            (|r| r.no_part_scan = true, "--no-part-scan"),
            (|r| r.park_timeout_seconds = Some(0.0), "--park-timeout "),
        ] {
            let mut request = request_with(change);
            request.validate().unwrap();
            request.transport = TransportChoice::Nbd;
            let failure = request.validate().unwrap_err();
            assert!(failure.detail.contains(says), "{failure}");
        }
        let plain = request_with(|r| {
            r.transport = TransportChoice::Nbd;
            r.data_mode = Some(DataMode::Auto);
        });
        plain.validate().unwrap();
    }

    #[test]
    fn what_was_not_said_is_fulfilled_by_any_disk_and_what_was_said_only_by_its_like() {
        let request = request_with(|r| {
            r.queues = Some(2);
            r.read_only = true;
            r.park_timeout_seconds = Some(5.0);
        });
        let disk = DiskOptions::from_request(&request, 8);
        assert_eq!((disk.queues, disk.depth), (2, DEPTH_DEFAULT));
        assert_eq!(disk.find_difference(&AttachRequest::default()), None);
        assert_eq!(disk.find_difference(&request), None);
        assert_eq!(
            disk.find_difference(&request_with(|r| r.queues = Some(3))),
            Some("queues")
        );
        assert_eq!(
            disk.find_difference(&request_with(|r| r.park_timeout_seconds = Some(0.0))),
            Some("park_timeout_seconds")
        );
        assert_eq!(
            disk.find_difference(&request_with(|r| r.no_part_scan = true)),
            Some("no_part_scan")
        );
    }

    #[test]
    fn a_disk_has_a_queue_for_each_reactor_up_to_four() {
        for (reactors, queues) in [(0, 1), (1, 1), (3, 3), (64, 4)] {
            assert_eq!(
                DiskOptions::from_request(&AttachRequest::default(), reactors).queues,
                queues
            );
        }
    }
}
