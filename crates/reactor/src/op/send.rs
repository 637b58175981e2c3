//! Vectored sends, and how much of one is left, in the kernel's form.

use crate::buf::Buf;

/// A piece of a vectored send.
#[derive(Debug)]
pub enum SendPart {
    /// A few bytes: headers.
    Bytes(Vec<u8>),
    /// A buffer.
    Buf(Buf),
}

impl SendPart {
    fn bytes(&self) -> &[u8] {
        match self {
            SendPart::Bytes(bytes) => bytes,
            SendPart::Buf(buf) => buf,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}

/// A vectored send in progress: the kernel reads `msg`, `iov` and the parts until it is done.
pub(crate) struct SendTransfer {
    parts: Vec<SendPart>,
    pub(super) iov: Vec<libc::iovec>,
    /// First vector with something left.
    pub(super) next: usize,
    pub(super) msg: libc::msghdr,
}

/// Vectors per call; the kernel's own limit.
const IOV_MAX: usize = 1024;

impl SendTransfer {
    pub(crate) fn new(parts: Vec<SendPart>) -> Box<SendTransfer> {
        let iov = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| libc::iovec {
                iov_base: part.bytes().as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        // SAFETY: a `msghdr` of zeroes is valid: no name, no vectors, no control data.
        let msg = unsafe { std::mem::zeroed() };
        Box::new(SendTransfer {
            parts,
            iov,
            next: 0,
            msg,
        })
    }

    pub(crate) fn into_parts(self) -> Vec<SendPart> {
        self.parts
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.next == self.iov.len()
    }

    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        let rest = &mut self.iov[self.next..];
        self.msg.msg_iov = rest.as_mut_ptr();
        // Both libcs take another integer type here.
        self.msg.msg_iovlen = rest.len().min(IOV_MAX) as _;
        &raw const self.msg
    }

    /// Skips the first `sent` bytes.
    pub(crate) fn advance(&mut self, mut sent: usize) {
        while let Some(head) = self.iov.get_mut(self.next) {
            if sent < head.iov_len {
                head.iov_base = head.iov_base.cast::<u8>().wrapping_add(sent).cast();
                head.iov_len -= sent;
                return;
            }
            sent -= head.iov_len;
            self.next += 1;
        }
    }
}
