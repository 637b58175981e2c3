//! A connection before it serves: the handshake, the begin of TLS, and the request engine, which the control
//! thread makes.
//!
//! One option is answered at a time, and nothing more is received while an answer has not left: a client that
//! does not read its answers is not served on.

use std::sync::{Arc, PoisonError};

use blkmq::io::Backend;
use reactor::{Cx, Op};
use serve::EngineOptions;

use super::super::export::{Export, Lookup};
use super::super::tls::TlsStreamError;
use super::super::token;
use super::super::transport::EndedRequests;
use super::{
    Connection, Delivery, DrainState, Engine, KEY_ENGINE_READY, KEY_RUN, Phase, ServeState,
};
use crate::codec::{Decoder, Progress, Session};

impl<B: Backend> Connection<B> {
    pub(super) fn advance_handshake(&mut self, cx: &mut Cx<'_>) {
        // One answer at a time: a client that does not read is not served on.
        while self.ending == DrainState::No && self.outbox.is_idle() {
            if std::mem::take(&mut self.tls_is_due) {
                self.begin_tls();
                continue;
            }
            let Phase::Handshake(handshake) = &self.phase else {
                return;
            };
            let is_parked = handshake.is_parked();
            if is_parked && !self.takes_second_look() {
                return;
            }
            let Phase::Handshake(handshake) = &mut self.phase else {
                return;
            };
            // What comes behind an option that waits is taken when that is answered.
            let input = match is_parked {
                true => Some(&[][..]),
                false => self.intake.unread(cx, self.socket),
            };
            let Some(input) = input else {
                return;
            };
            let mut answer = Vec::new();
            let lookup = Lookup {
                exports: &*self.shared.exports,
                client: &self.identity,
            };
            let (consumed, progress) = handshake.receive(input, &lookup, &mut answer);
            self.intake.consume(consumed);
            self.outbox.push_bytes(&answer);
            if is_parked && !matches!(progress, Progress::Park(_)) {
                self.end_parking(cx);
            }
            match progress {
                Progress::NeedMore => {}
                Progress::Park(export) => self.park(cx, export),
                Progress::Close(reason) => {
                    tracing::debug!(%reason, "handshake ended");
                    self.drain();
                }
                Progress::StartTls => self.tls_is_due = true,
                Progress::Transmission(export, session) => return self.open(cx, export, session),
            }
        }
    }

    /// From now on the client has its time for a handshake.
    pub(super) fn start_handshake_timer(&mut self, cx: &mut Cx<'_>) {
        let after = self.shared.options.handshake_within;
        self.handshake_timer = Some(cx.submit(token::HANDSHAKE_TIMER, Op::Timeout { after }));
    }

    fn begin_tls(&mut self) {
        let Some(options) = &self.shared.options.tls else {
            return self.drain();
        };
        let begun = options.config.begin().and_then(|mut tls| {
            let begun = self.intake.begin_tls(&mut tls);
            self.outbox.set_tls(tls);
            begun
        });
        if let Err(error) = begun {
            self.on_tls_broken(&error);
        }
    }

    /// What TLS has to say of it is sent, then the connection is closed.
    pub(super) fn on_tls_broken(&mut self, error: &TlsStreamError) {
        tracing::debug!(%error, "TLS ended");
        self.drain();
    }

    /// Has the control thread make the hardware queue: adding one takes the device's mutex,
    /// which a reactor thread never does (R4).
    pub(super) fn open(&mut self, cx: &mut Cx<'_>, export: Arc<Export<B>>, session: Session) {
        self.decoder = Decoder::new(session);
        self.outbox.set_session(session);
        if let Some(timer) = self.handshake_timer.take() {
            cx.cancel(timer);
        }
        let has_tls = self.outbox.tls().is_some();
        self.membership.set_export(&export.name, has_tls);
        let delivery = Delivery::<B>::default();
        let ended = Arc::new(EndedRequests::new());
        let (to, served) = (Arc::clone(&delivery), Arc::clone(&export));
        let completer = Arc::clone(&ended);
        let opened = cx.waker(KEY_ENGINE_READY);
        let options = EngineOptions {
            files: export.files.clone(),
            depth: self.shared.options.requests_max,
            tick: self.shared.options.tick,
            zeroes: None,
            latencies: Arc::clone(&export.latencies),
        };
        let made = self.shared.control.run(move || {
            let backend = Arc::clone(&served.backend);
            let engine = Engine::new(backend, &served.device, options, completer);
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
            opened.wake();
        });
        if !made {
            return self.cut(cx);
        }
        self.phase = Phase::Opening {
            export,
            delivery,
            ended,
        };
    }

    pub(super) fn on_engine_ready(&mut self, cx: &mut Cx<'_>) {
        let Phase::Opening {
            export,
            delivery,
            ended,
        } = &self.phase
        else {
            return;
        };
        let engine = delivery
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut engine) = engine else { return };
        if self.ending < DrainState::Cut {
            engine.attach(cx, KEY_RUN);
            self.serving = Some(ServeState {
                export: Arc::clone(export),
                engine,
                ended: Arc::clone(ended),
            });
        }
        self.phase = Phase::Serving;
    }
}
