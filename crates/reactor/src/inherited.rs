//! Descriptors that this process was started with.
//!
//! Nothing else may make an owner of a bare number: a number that this process opened by itself has
//! an owner already. Those it opened are closed on exec, and one that came over an exec is not, so
//! the two can be distinguished.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that was passed to this process. It is closed on exec from now on, so that
/// it is taken over once.
///
/// # Errors
/// `InvalidInput` for standard input, output and error; `NotFound` if it is not open, or was
/// opened by this process.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a descriptor of the standard streams",
        ));
    }
    // SAFETY: it is used for two calls that fail on a number that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let is_passed = fcntl_getfd(borrowed).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
    if !is_passed {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("no descriptor {number} was passed to this process"),
        ));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and was passed: whatever this process opens is closed on exec. No second
    // call gets here, because the flag is set now.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn only_a_descriptor_that_was_passed_is_taken_over_and_only_once() {
        let own = crate::memfd(c"own", 0).unwrap();
        assert!(inherited_fd(own.as_raw_fd()).is_err(), "it has an owner");
        fcntl_setfd(&own, FdFlags::empty()).unwrap();
        let number = own.into_raw_fd();
        let taken = inherited_fd(number).unwrap();
        assert!(inherited_fd(number).is_err());
        drop(taken);
        assert!(inherited_fd(1).is_err());
        assert!(inherited_fd(1 << 20).is_err());
    }
}
