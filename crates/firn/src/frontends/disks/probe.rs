//! What this machine offers for disks, what `auto` chooses here, and why.
//!
//! Looks, and changes nothing: `firn doctor` and `firn attach` ask the same questions in the same
//! place, so that the one tells what the other will do.

use ublk::control::Control;
use ublk::error::{Error, Kind};
use ublk::{DeviceSpec, Modes, negotiate};

use super::disk::mode_shown;
use crate::failure::{Failure, Result};
use crate::model::{AttachRequest, DataMode, Transport};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, status) = match error.kind() {
            Kind::NoDriver => ("ublk-missing", 501),
            Kind::Denied => ("ublk-denied", 500),
            Kind::TooOld | Kind::NotGranted | Kind::Handler => ("ublk-unsupported", 501),
            Kind::Limit => ("ublk-limit", 503),
            Kind::Invalid => ("invalid", 400),
            Kind::Busy => ("volume-in-use", 409),
            Kind::Late | Kind::Stuck => ("ublk-stuck", 504),
            _ => ("ublk-failed", 500),
        };
        Failure::new(code, status, error.to_string())
    }
}

/// Ready to make disks, or why not.
pub(crate) type Offered = std::result::Result<Control, Failure>;

/// What the kernel offers to this process.
pub(crate) fn look() -> Offered {
    Control::open().map_err(Failure::from)
}

/// Disks are served by rings alone.
pub(crate) fn no_rings() -> Failure {
    Failure::new(
        "ublk-denied",
        500,
        "io_uring is refused, and ublk needs it: see /proc/sys/kernel/io_uring_disabled and the \
         container's seccomp profile",
    )
}

/// The data mode that `auto` comes to here, and what it would rather have had.
pub(crate) fn auto_mode(control: &Control) -> Result<(DataMode, Vec<String>)> {
    let spec = DeviceSpec::new(ublk::Disk::new(1 << 30)).with_environment()?;
    let ask = negotiate::ask(&spec, control.offer(), Modes::ALL)?;
    let better = ask.dropped.iter().map(ToString::to_string).collect();
    Ok((mode_shown(ask.mode), better))
}

/// The transport of an attach. `auto` is ublk where that can be used; else it is nbd, unless
/// something was wished for that nbd would silently lack (R9).
pub(crate) fn choose<T>(
    request: &AttachRequest,
    offered: &std::result::Result<T, Failure>,
) -> Result<Transport> {
    match (request.transport, offered) {
        (Transport::Nbd, _) => Ok(Transport::Nbd),
        (_, Ok(_)) => Ok(Transport::Ublk),
        (Transport::Ublk, Err(why)) => Err(Failure {
            text: format!("{}; or use --transport nbd", why.text),
            ..why.clone()
        }),
        (Transport::Auto, Err(why)) => match request.names_of_wishes().first() {
            None => Ok(Transport::Nbd),
            Some(wish) => Err(Failure {
                text: format!("{wish} needs a ublk disk: {}", why.text),
                ..why.clone()
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent() -> std::result::Result<(), Failure> {
        Err(Error::kernel(ublk::error::Operation::Open, None, 2).into())
    }

    fn asked(transport: Transport) -> AttachRequest {
        AttachRequest {
            transport,
            ..AttachRequest::default()
        }
    }

    #[test]
    fn auto_is_ublk_where_it_can_be_used_and_else_nbd() {
        let auto = asked(Transport::Auto);
        assert_eq!(choose(&auto, &Ok(())), Ok(Transport::Ublk));
        assert_eq!(choose(&auto, &absent()), Ok(Transport::Nbd));
        assert_eq!(choose(&asked(Transport::Nbd), &Ok(())), Ok(Transport::Nbd));
    }

    #[test]
    fn a_machine_without_the_driver_is_told_how_to_load_it() {
        let failure = choose(&asked(Transport::Ublk), &absent()).unwrap_err();
        assert_eq!(failure.code, "ublk-missing");
        assert!(failure.text.contains("modprobe ublk_drv"), "{failure}");
        assert!(failure.text.contains("--transport nbd"), "{failure}");
    }

    #[test]
    fn a_wish_that_nbd_would_drop_keeps_auto_from_choosing_it() {
        let mut request = asked(Transport::Auto);
        request.read_only = true;
        let failure = choose(&request, &absent()).unwrap_err();
        assert!(
            failure.text.contains("read_only needs a ublk disk"),
            "{failure}"
        );
    }
}
