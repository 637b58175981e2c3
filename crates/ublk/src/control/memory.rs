//! Memory that a command names: owned until the driver is done with it.

use std::fmt;
use std::ptr::NonNull;

use super::port::Argument;

/// Bytes that the driver may read and write at any time. Nobody here looks at them before the
/// command has ended; if that never happens, they are never freed.
pub(super) struct Lent {
    bytes: Option<NonNull<[u8]>>,
}

// SAFETY: it is the only owner of the bytes, and has no thread affinity.
unsafe impl Send for Lent {}

impl Lent {
    pub(super) fn new(argument: Argument) -> Lent {
        let bytes = match argument {
            Argument::None => None,
            Argument::Bytes(bytes) => NonNull::new(Box::into_raw(bytes.into_boxed_slice())),
        };
        Lent { bytes }
    }

    /// Address for the driver; zero without an argument.
    pub(super) fn address(&self) -> u64 {
        self.bytes.map_or(0, |bytes| {
            bytes.as_ptr().cast::<u8>().expose_provenance() as u64
        })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.map_or(0, |bytes| bytes.len())
    }

    /// The bytes with what the driver wrote.
    ///
    /// # Safety
    /// The command that names them has ended: its completion was seen, or it was never given to
    /// the driver.
    pub(super) unsafe fn back(self) -> Argument {
        match self.bytes {
            None => Argument::None,
            Some(bytes) => {
                // SAFETY: it came from `Box::into_raw` and is taken back once: `self` goes with
                // it. By the contract of this function nobody else uses it any more.
                let bytes = unsafe { Box::from_raw(bytes.as_ptr()) };
                Argument::Bytes(bytes.into_vec())
            }
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_comes_back() {
        let lent = Lent::new(Argument::Bytes(vec![1, 2, 3]));
        assert_ne!(lent.address(), 0);
        assert_eq!(lent.len(), 3);
        // SAFETY: no command names it.
        let back = unsafe { lent.back() };
        assert_eq!(back.bytes(), [1, 2, 3]);
        assert_eq!(Lent::new(Argument::None).address(), 0);
    }
}
