//! The memory that a command names, owned until the driver has completed the command.

use std::fmt;
use std::ptr::NonNull;

use super::port::Argument;

/// Bytes that the driver may read and write at any time. They are not accessed before the command has
/// completed; if it never completes, they are never freed.
pub(super) struct CommandBuffer {
    bytes: Option<NonNull<[u8]>>,
}

// SAFETY: it is the only owner of the bytes, and has no thread affinity.
unsafe impl Send for CommandBuffer {}

impl CommandBuffer {
    pub(super) fn new(argument: Argument) -> CommandBuffer {
        let bytes = match argument {
            Argument::None => None,
            Argument::Bytes(bytes) => NonNull::new(Box::into_raw(bytes.into_boxed_slice())),
        };
        CommandBuffer { bytes }
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
    /// The command that names them has completed, or was never submitted.
    pub(super) unsafe fn into_argument(self) -> Argument {
        match self.bytes {
            None => Argument::None,
            Some(bytes) => {
                // SAFETY: it came from `Box::into_raw` and is taken back once: `self` goes with
                // it. By the contract of this function the driver does not use it any more.
                let bytes = unsafe { Box::from_raw(bytes.as_ptr()) };
                Argument::Bytes(bytes.into_vec())
            }
        }
    }
}

impl fmt::Debug for CommandBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommandBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_comes_back() {
        let buffer = CommandBuffer::new(Argument::Bytes(vec![1, 2, 3]));
        assert_ne!(buffer.address(), 0);
        assert_eq!(buffer.len(), 3);
        // SAFETY: no command names it.
        let argument = unsafe { buffer.into_argument() };
        assert_eq!(argument.bytes(), [1, 2, 3]);
        assert_eq!(CommandBuffer::new(Argument::None).address(), 0);
    }
}
