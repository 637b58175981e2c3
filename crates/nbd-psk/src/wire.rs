//! What the library takes for a socket: memory, one buffer for each way.
//!
//! Never waits for anything and wakes nobody: whoever puts bytes in calls the library right after.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Default)]
pub(super) struct Buffers {
    /// What came and the library has not read, from `read` on.
    pub(super) received: Vec<u8>,
    read: usize,
    /// What it wrote.
    pub(super) sent: Vec<u8>,
}

impl Buffers {
    /// How many bytes the library has not read.
    pub(super) fn unread(&self) -> usize {
        self.received.len() - self.read
    }
}

/// Both ends of it: the library's, and the one of what calls it.
#[derive(Clone, Default)]
pub(super) struct Wire(Arc<Mutex<Buffers>>);

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = self.lock();
        f.debug_struct("Wire")
            .field("unread", &buffers.unread())
            .field("sent", &buffers.sent.len())
            .finish()
    }
}

impl Wire {
    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.lock();
        let read = buffers.read;
        let unread = &buffers.received[read..];
        if unread.is_empty() {
            // The library's wrapper checks that who waits has asked to be woken.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = unread.len().min(buf.remaining());
        buf.put_slice(&unread[..taken]);
        buffers.read += taken;
        if buffers.unread() == 0 {
            // What waits for its client keeps no memory.
            (buffers.received, buffers.read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().sent.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
