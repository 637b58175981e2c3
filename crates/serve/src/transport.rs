//! What a transport says to the engine: where the bytes of its requests are, and how answers leave.
//!
//! A transport owns its protocol or driver. It makes requests, passes the completions and wakes of
//! its source to the engine, and never plans or moves anything itself.

use std::fmt;

use blkmq::error::ErrorKind;
use blkmq::io::{Extents, Op, Piece};
use reactor::{Buf, FileIndex, Port};

/// Where the bytes of a READ or WRITE are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In memory of this process: in the buffer that came with the request, or, of a READ without
    /// one, in a buffer of the pool with which it is answered.
    Buffer,
    /// In this buffer slot of the ring, from its first byte on. They move between slot and files
    /// where direct I/O allows it, else through the window.
    Slot(u16),
    /// In the request's window alone.
    Window,
}

/// A place in a file (a char device) at which a request's bytes can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The file.
    pub file: FileIndex,
    /// Offset of the request's first byte.
    pub offset: u64,
}

/// A transport's request. It is answered exactly once (R6): by [`Transport::answer`], or by the
/// transport's `blkmq::Completer` where it ends inside the multi-queue core.
pub trait Request: fmt::Debug + Send + 'static {
    /// What is asked.
    fn op(&self) -> &Op;

    /// Bytes that a READ or WRITE carries; zero for the others.
    fn bytes(&self) -> u32;

    /// Where its bytes are.
    fn location(&self) -> Location;

    /// Takes away the buffer that came with it, if one did.
    fn take_buffer(&mut self) -> Option<Buf>;

    /// Gives it a buffer before it is answered: what a READ brought, or the one that was taken away.
    fn set_buffer(&mut self, buf: Buf);

    /// The bytes of a READ are in place, as this plan has them. For transports that tell their
    /// clients which of them are holes.
    fn on_read(&mut self, _pieces: &[Piece]) {}

    /// Gives it what [`Op::Status`] asked for, before it is answered.
    fn set_extents(&mut self, _extents: Extents) {}
}

/// What the engine has of its transport during a call.
pub trait Transport {
    /// The transport's requests.
    type Request: Request;
    /// Its way to the reactor.
    type Port: Port;

    /// The reactor. Every token that the engine uses there is one of
    /// [`is_engine_token`](crate::is_engine_token).
    fn port(&mut self) -> &mut Self::Port;

    /// Answers a request.
    fn answer(&mut self, request: Self::Request, result: Result<(), ErrorKind>);

    /// Answers a request that came after [`retire`](crate::RequestEngine::retire).
    fn reject(&mut self, request: Self::Request) {
        self.answer(request, Err(ErrorKind::Closed));
    }

    /// The request's window, if it has one. Also asked where the bytes are in a slot.
    fn window(&self, _request: &Self::Request) -> Option<Window> {
        None
    }

    /// Counts a plan whose bytes were moved, with a copy in this process's memory or without.
    fn count_move(&mut self, _copied: bool) {}

    /// Calls what may panic over one of several requests. A transport that outlives a panic
    /// catches it here; the request at hand is dropped with the call, and so fails.
    fn catch_panic(&mut self, call: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        call(self);
    }
}
