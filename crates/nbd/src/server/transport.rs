//! What a connection says to the request engine: where a request's bytes are, and how its reply
//! leaves. It knows neither plans nor files.

use std::ops::Range;

use blkmq::error::ErrorKind;
use blkmq::io::{Extents, Op, Piece, Place};
use blkmq::{Completer, SmallLock};
use reactor::{Buf, Cx};
use serve::{Location, Transport};

use super::outbox::{Outbox, Weight};
use crate::codec::{Command, Headers, Position, Request};

/// Holes that are reported as such: smaller ones are sent as the zeroes that they are, for a chunk of
/// their own would cost more.
const HOLE_BYTES_MIN: u32 = 4096;

/// What a structured answer needs beside the data.
#[derive(Debug)]
enum Details {
    /// Nothing: simple replies, or no request for which there is something to tell.
    None,
    /// A read's holes are to be told. There are none yet, or none at all.
    WantsHoles,
    /// A read's holes, ascending, as ranges of its buffer.
    Holes(Vec<Range<u32>>),
    /// What BLOCK_STATUS asked for.
    Extents(Extents),
}

/// A client's request that is owed its reply.
#[derive(Debug)]
pub(super) struct PendingRequest {
    header: Request,
    op: Op,
    /// A write's payload, or what a read brought; `None` while the engine has it.
    data: Option<Buf>,
    details: Details,
}

impl PendingRequest {
    pub(super) fn new(header: Request, payload: Option<Buf>, headers: Headers) -> PendingRequest {
        let tells_holes = header.command == Command::Read && !header.df;
        let details = match tells_holes && headers != Headers::Simple {
            true => Details::WantsHoles,
            false => Details::None,
        };
        PendingRequest {
            op: header.op(),
            header,
            data: payload,
            details,
        }
    }
}

/// What a client's request accounts for from its header to its reply.
pub(super) fn weight(request: &Request) -> Weight {
    Weight {
        requests: 1,
        bytes: request.payload_bytes() as usize,
    }
}

impl serve::Request for PendingRequest {
    fn op(&self) -> &Op {
        &self.op
    }

    fn bytes(&self) -> u32 {
        self.header.payload_bytes()
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

    fn on_read(&mut self, pieces: &[Piece]) {
        if matches!(self.details, Details::None) {
            return;
        }
        let holes = pieces
            .iter()
            .filter(|piece| piece.place == Place::Hole && piece.len >= HOLE_BYTES_MIN);
        self.details = Details::Holes(holes.map(|piece| piece.at..piece.at + piece.len).collect());
    }

    fn set_extents(&mut self, extents: Extents) {
        self.details = Details::Extents(extents);
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
        .filter(|data| is_read && data.len() as u64 == header.length);
    let result = if is_read && data.is_none() {
        result.and(Err(ErrorKind::Io))
    } else {
        result
    };
    if outbox.session().headers == Headers::Simple {
        let (error, data) = match result {
            Ok(()) => (0, data),
            Err(kind) => (kind.nbd(), None),
        };
        return outbox.push_reply(header.cookie, error, data, weight(&header));
    }
    let to = header.reply_to();
    match (result, data, request.details) {
        (Err(kind), ..) => outbox.push_with(|headers, out| {
            headers.push_error(out, to, kind.nbd(), &kind.to_string(), None);
        }),
        (Ok(()), Some(data), Details::Holes(holes)) => push_read(outbox, header, data, &holes),
        (Ok(()), Some(data), _) => push_read(outbox, header, data, &[]),
        (Ok(()), None, Details::Extents(extents)) => {
            let contexts = outbox.session().contexts;
            outbox.push_with(|headers, out| {
                headers.push_status(out, to, contexts, &extents, header.req_one);
            });
        }
        (Ok(()), None, _) => outbox.push_with(|headers, out| headers.push_success(out, to)),
    }
    outbox.add_weight(weight(&header));
}

/// Puts what a read brought into the outbox: chunks of data between chunks that say "hole".
fn push_read(outbox: &mut Outbox, header: Request, mut data: Buf, holes: &[Range<u32>]) {
    let (to, end) = (header.reply_to(), data.len() as u32);
    let position = |upto: u32| match upto == end {
        true => Position::Last,
        false => Position::Inner,
    };
    let mut at = 0;
    for hole in holes.iter().cloned().chain(std::iter::once(end..end)) {
        let offset = header.offset + u64::from(at);
        let length = (hole.start - at) as usize;
        if length > 0 {
            outbox.push_with(|headers, out| {
                headers.push_data_header(out, to, position(hole.start), offset, length);
            });
            outbox.push_data(data.split_to(length));
        }
        if !hole.is_empty() {
            let offset = header.offset + u64::from(hole.start);
            outbox.push_with(|headers, out| {
                headers.push_hole(out, to, position(hole.end), offset, hole.end - hole.start);
            });
            drop(data.split_to((hole.end - hole.start) as usize));
        }
        at = hole.end;
    }
}
