//! What a connection says to the request engine: where a request's bytes are, and how its reply
//! leaves. It knows neither plans nor files.

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use blkmq::{Completer, SmallLock};
use reactor::{Buf, Cx};
use serve::{Location, Transport};

use super::outbox::{Outbox, Weight};
use crate::codec::{Command, Request};

/// A client's request that is owed its reply.
#[derive(Debug)]
pub(super) struct PendingRequest {
    header: Request,
    op: Op,
    /// A write's payload, or what a read brought; `None` while the engine has it.
    data: Option<Buf>,
}

impl PendingRequest {
    pub(super) fn new(header: Request, payload: Option<Buf>) -> PendingRequest {
        PendingRequest {
            op: header.op(),
            header,
            data: payload,
        }
    }
}

/// What a client's request accounts for from its header to its reply.
pub(super) fn weight(request: &Request) -> Weight {
    let moves = matches!(request.command, Command::Read | Command::Write);
    Weight {
        requests: 1,
        bytes: if moves { request.length as usize } else { 0 },
    }
}

impl serve::Request for PendingRequest {
    fn op(&self) -> &Op {
        &self.op
    }

    fn bytes(&self) -> u32 {
        match self.header.command {
            Command::Read | Command::Write => self.header.length,
            Command::Flush | Command::Trim | Command::WriteZeroes => 0,
        }
    }

    fn location(&self) -> Location {
        Location::Buffer
    }

    fn take_buffer(&mut self) -> Option<Buf> {
        self.data.take()
    }

    fn set_buffer(&mut self, buf: Buf) {
        self.data = Some(buf);
    }
}

/// Requests that ended inside the core (cancelled, refused, timed out), until the connection that
/// they came over takes them.
pub(super) struct EndedRequests(SmallLock<Vec<(PendingRequest, Result<(), ErrorKind>)>>);

impl EndedRequests {
    pub(super) fn new() -> Self {
        EndedRequests(SmallLock::new("ended requests", Vec::new()))
    }

    /// Puts their replies into the outbox.
    pub(super) fn answer_all(&self, outbox: &mut Outbox) {
        let ended = std::mem::take(&mut *self.0.lock());
        for (request, result) in ended {
            push_reply(outbox, request, result);
        }
    }
}

impl Completer<PendingRequest> for EndedRequests {
    fn complete(&self, request: PendingRequest, result: Result<(), ErrorKind>) {
        self.0.lock().push((request, result));
    }
}

/// A connection during a call of its engine.
pub(super) struct ConnectionCx<'a, 'c> {
    pub(super) cx: &'a mut Cx<'c>,
    pub(super) outbox: &'a mut Outbox,
}

impl<'c> Transport for ConnectionCx<'_, 'c> {
    type Request = PendingRequest;
    type Port = Cx<'c>;

    fn port(&mut self) -> &mut Cx<'c> {
        self.cx
    }

    fn answer(&mut self, request: PendingRequest, result: Result<(), ErrorKind>) {
        push_reply(self.outbox, request, result);
    }
}

/// Puts a request's reply into the outbox. A read that succeeded without bringing its bytes is
/// an error, because the client takes them off the stream after a success.
fn push_reply(outbox: &mut Outbox, request: PendingRequest, result: Result<(), ErrorKind>) {
    let header = request.header;
    let is_read = header.command == Command::Read;
    let data = request
        .data
        .filter(|data| is_read && data.len() == header.length as usize);
    let result = if is_read && data.is_none() {
        result.and(Err(ErrorKind::Io))
    } else {
        result
    };
    let (error, data) = match result {
        Ok(()) => (0, data),
        Err(kind) => (kind.nbd(), None),
    };
    outbox.push_reply(header.cookie, error, data, weight(&header));
}
