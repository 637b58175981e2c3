//! A connection that is given away between two requests, and one that goes on where another server
//! stopped.
//!
//! The one that gives it away has answered all that it took from the stream, and has no receive in
//! flight: the bytes that came and were not taken go along. From then on it must not touch the
//! socket, nor shut it down, for that would end the connection for whoever has it next.

use std::sync::Arc;

use blkmq::io::Backend;
use reactor::Cx;

use super::super::Shared;
use super::super::export::Export;
use super::super::handed::HandedConnection;
use super::super::intake::Intake;
use super::{Connection, DrainState, Phase};
use crate::codec::{ConnectionState, Decoder, Handshake, ParkEnd};

impl<B: Backend> Connection<B> {
    /// One that another server gave away.
    pub(in crate::server) fn resume(
        cx: &mut Cx<'_>,
        shared: Arc<Shared<B>>,
        connection: HandedConnection,
        (export, intake): (Arc<Export<B>>, Intake),
    ) -> Self {
        let HandedConnection { socket, state } = connection;
        let mut connection = Connection::new(cx, shared, socket);
        connection.intake = intake;
        connection.phase = Phase::Resuming(export, state);
        connection
    }

    /// Begins where the phase begins: with the greeting, or after it.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) {
        if let Phase::Resuming(export, state) = &self.phase {
            let (export, session, skip) = (Arc::clone(export), state.session, state.skip);
            self.open(cx, export, session);
            self.decoder = Decoder::resume(session, skip);
            return;
        }
        self.start_handshake_timer(cx);
        self.outbox.push_bytes(&Handshake::greeting());
    }

    /// From now on no request is taken, and the connection is given away once all that were are
    /// answered. One that has no export yet, or uses TLS, is closed instead: the state of a handshake
    /// and the keys of TLS cannot be given away.
    pub(super) fn begin_handover(&mut self, cx: &mut Cx<'_>) {
        let is_open = !matches!(self.phase, Phase::Handshake(_));
        if !is_open || self.outbox.tls().is_some() {
            self.give_up_parking(cx, ParkEnd::Stopping);
            return self.drain();
        }
        self.ending = self.ending.max(DrainState::Giving);
        self.is_receive_stopped = self.intake.stop_receiving(cx);
    }

    /// The connection stays here after all, and takes requests again.
    pub(super) fn keep(&mut self) {
        if self.ending == DrainState::Giving {
            self.ending = DrainState::No;
        }
    }

    /// Gives the connection away if it is due and all that was taken is answered.
    pub(super) fn hand_over_if_quiet(&mut self, cx: &mut Cx<'_>) {
        let is_due = self.ending == DrainState::Giving
            && self.outstanding.requests == 0
            && self.is_quiet()
            && !self.intake.is_receiving();
        let Some(serving) = self.serving.as_mut().filter(|_| is_due) else {
            return;
        };
        let Some((skip, header)) = self.decoder.resume_point() else {
            return self.drain();
        };
        let ahead = match canary::active!("bytes_that_came_ahead_are_dropped") {
            true => &[],
            false => self.intake.unconsumed_bytes(),
        };
        let header = match canary::active!("begun_header_is_forgotten") {
            true => &[],
            false => header,
        };
        let unread = [header, ahead].concat();
        let (info, session) = (serving.export.info(), self.outbox.session());
        let state = ConnectionState::new(&info, session, skip, unread);
        let Some(socket) = cx.share(self.socket) else {
            return self.drain();
        };
        let connection = HandedConnection { socket, state };
        if self.shared.registry.hand_over(connection).is_err() {
            // Called off: the registry wakes this connection to keep it, and then it goes on.
            return;
        }
        serving.engine.retire();
        self.ending = DrainState::Given;
        cx.close(self.socket);
    }
}
