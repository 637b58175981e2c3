//! A connection whose client asks for an export that is being opened: its handshake is parked, without a thread and
//! without a receive, until it is decided what comes of the export, for as long as a client may wait, or until the
//! client leaves or the server ends.
//!
//! It is registered first and looks the export up again after that, so a decision that comes in between is not missed.
//! The client's time for its handshake stands still meanwhile.

use std::time::Instant;

use blkmq::io::Backend;
use reactor::{Cx, Op, OpId};

use super::super::parked::Parked;
use super::super::token;
use super::{Connection, Phase};
use crate::codec::ParkEnd;

/// How a connection waits for its export.
#[derive(Debug, Default)]
pub(super) struct Parking {
    /// The export's own name, while it waits.
    export: Option<String>,
    /// Until when it may, however often it asks.
    until: Option<Instant>,
    timer: Option<OpId>,
    /// It may have been decided what comes of the export.
    looks_again: bool,
    /// The log says that it waited in vain. It may ask again and again.
    has_said: bool,
}

impl<B: Backend> Connection<B> {
    /// Waits for this export, as far as it may.
    pub(super) fn park(&mut self, cx: &mut Cx<'_>, export: String) {
        let most = self.shared.options.parked_max;
        match self.membership.park(&export, most) {
            Parked::Already => {}
            Parked::Crowded => self.give_up_parking(cx, ParkEnd::Crowded),
            Parked::Begun => {
                self.parking.looks_again = true;
                self.shared.exports.on_parked(&export);
                self.parking.export = Some(export);
                self.start_park_timer(cx);
            }
        }
    }

    fn start_park_timer(&mut self, cx: &mut Cx<'_>) {
        if self.parking.timer.is_some() {
            return;
        }
        if let Some(timer) = self.handshake_timer.take() {
            cx.cancel(timer);
        }
        let now = Instant::now();
        let within = self.shared.options.parked_within;
        let until = *self.parking.until.get_or_insert_with(|| now + within);
        let after = until.saturating_duration_since(now);
        self.parking.timer = Some(cx.submit(token::PARK_TIMER, Op::Timeout { after }));
    }

    /// It was decided what comes of the export.
    pub(super) fn on_export_decided(&mut self) {
        self.parking.looks_again = true;
    }

    /// Whether a parked handshake is to look its export up now.
    pub(super) fn takes_second_look(&mut self) -> bool {
        std::mem::take(&mut self.parking.looks_again)
    }

    /// The handshake has its answer, and the client its time for the rest of it.
    pub(super) fn end_parking(&mut self, cx: &mut Cx<'_>) {
        self.membership.unpark();
        self.parking.export = None;
        if let Some(timer) = self.parking.timer.take() {
            cx.cancel(timer);
        }
        self.start_handshake_timer(cx);
    }

    /// A parked handshake gets its answer without the export.
    pub(super) fn give_up_parking(&mut self, cx: &mut Cx<'_>, why: ParkEnd) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return;
        };
        if !handshake.is_parked() {
            return;
        }
        let mut answer = Vec::new();
        let ended = handshake.give_up(why, &mut answer);
        self.outbox.push_bytes(&answer);
        let is_expected = why == ParkEnd::Stopping;
        if !is_expected && !std::mem::replace(&mut self.parking.has_said, true) {
            let export = self.parking.export.as_deref();
            tracing::warn!(
                export,
                ?why,
                "a client waits in vain for an export that is being opened"
            );
        }
        self.end_parking(cx);
        if ended.is_some() {
            self.drain();
        }
    }

    /// It has waited for as long as it may.
    pub(super) fn on_park_timer(&mut self, cx: &mut Cx<'_>) {
        if self.parking.timer.take().is_some() {
            self.give_up_parking(cx, ParkEnd::Late);
        }
    }
}
