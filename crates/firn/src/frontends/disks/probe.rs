//! What this machine offers for disks, what `auto` chooses here, and why.
//!
//! Probes, and changes nothing. `firn doctor` and `firn attach` use the same functions, so that the
//! doctor reports what an attach will do.

use ublk::control::ControlDevice;
use ublk::{DeviceSpec, Modes, negotiate};

use super::options::{flag_of, model_data_mode};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{AttachRequest, DataMode, Transport, TransportChoice};

/// The driver's control device, or why it cannot be used.
pub(crate) type UblkSupport = std::result::Result<ControlDevice, Failure>;

/// Opens the driver's control device.
pub(crate) fn open_control() -> UblkSupport {
    ControlDevice::open().map_err(Failure::from)
}

/// The failure where io_uring is refused: nothing else can serve a disk.
pub(crate) fn io_uring_refused() -> Failure {
    Failure::new(
        FailureCode::UblkDenied,
        "io_uring is refused, and ublk needs it: see /proc/sys/kernel/io_uring_disabled and the \
         container's seccomp profile",
    )
}

/// The data mode that `auto` chooses here, and why it did not choose better ones.
pub(crate) fn auto_mode(control: &ControlDevice) -> Result<(DataMode, Vec<String>)> {
    let spec = DeviceSpec::new(ublk::Disk::new(1 << 30)).with_environment()?;
    let ask = negotiate::choose_flags(&spec, control.offer(), Modes::ALL)?;
    let better = ask.missing.iter().map(ToString::to_string).collect();
    Ok((model_data_mode(ask.mode), better))
}

/// The transport of an attach. `auto` is ublk where it can be used; else it is nbd, unless the
/// request has an option that nbd would silently drop (R9).
pub(crate) fn choose_transport<T>(
    request: &AttachRequest,
    ublk: &std::result::Result<T, Failure>,
) -> Result<Transport> {
    let unusable = |why: &Failure, detail| Failure::new(why.code, detail);
    match (request.transport, ublk) {
        (TransportChoice::Nbd, _) => Ok(Transport::Nbd),
        (TransportChoice::Ublk | TransportChoice::Auto, Ok(_)) => Ok(Transport::Ublk),
        (TransportChoice::Ublk, Err(why)) => {
            Err(unusable(why, format!("{why}; or use --transport nbd")))
        }
        (TransportChoice::Auto, Err(why)) => match request.disk_option_names().first() {
            None => Ok(Transport::Nbd),
            Some(option) => Err(unusable(
                why,
                format!("{} needs a ublk disk: {why}", flag_of(option)),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ublk::error::Error;

    fn refuse_without_driver() -> std::result::Result<(), Failure> {
        Err(Error::kernel(ublk::error::Operation::Open, None, 2).into())
    }

    fn request_for(transport: TransportChoice) -> AttachRequest {
        AttachRequest {
            transport,
            ..AttachRequest::default()
        }
    }

    #[test]
    fn auto_is_ublk_where_it_can_be_used_and_else_nbd() {
        let auto = request_for(TransportChoice::Auto);
        assert_eq!(choose_transport(&auto, &Ok(())), Ok(Transport::Ublk));
        assert_eq!(
            choose_transport(&auto, &refuse_without_driver()),
            Ok(Transport::Nbd)
        );
        assert_eq!(
            choose_transport(&request_for(TransportChoice::Nbd), &Ok(())),
            Ok(Transport::Nbd)
        );
    }

    #[test]
    fn a_machine_without_the_driver_is_told_how_to_load_it() {
        let failure = choose_transport(
            &request_for(TransportChoice::Ublk),
            &refuse_without_driver(),
        )
        .unwrap_err();
        assert_eq!(failure.code, FailureCode::UblkMissing);
        assert!(failure.detail.contains("modprobe ublk_drv"), "{failure}");
        assert!(failure.detail.contains("--transport nbd"), "{failure}");
    }

    #[test]
    fn an_option_that_nbd_would_drop_keeps_auto_from_choosing_it() {
        let mut request = request_for(TransportChoice::Auto);
        request.read_only = true;
        let failure = choose_transport(&request, &refuse_without_driver()).unwrap_err();
        assert!(
            failure.detail.contains("--read-only needs a ublk disk"),
            "{failure}"
        );
    }
}
