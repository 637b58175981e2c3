//! One connection: banner, hello, authentication, signatures; then frames both ways.
//!
//! Owns the connection's parser, keys, and the bytes staged for its socket. It knows no session:
//! which session a connection belongs to is for `session` and `node`. It must never wait, and never
//! trust anything a peer says before the signatures.
//!
//! ```text
//! Banner -> Hello -> Auth -> Signature -> Ready
//! ```

use std::net::SocketAddr;

use crate::addr::EntityAddr;
use crate::auth::{AuthError, ClientAuth, Credentials, Keys, ServerAuth, ServerStep};
use crate::control::{
    AuthBadMethod, AuthDone, AuthReplyMore, AuthRequest, AuthRequestMore, AuthSignature,
    ControlBody, Hello, entity,
};
use crate::env::Env;
use crate::fault::Fault;
use crate::frame::{Banner, BannerDecoder, Decoder, Frame, Limits, Sealer, SecureKeys, Tag, TxBuf};

#[derive(Debug)]
enum Phase {
    Banner(BannerDecoder),
    Hello,
    Auth,
    Signature,
    Ready,
}

#[derive(Debug)]
enum Side {
    Connecting(ClientAuth),
    Accepting(ServerAuth),
}

/// The result of received bytes.
#[derive(Debug)]
pub(crate) enum Step {
    /// The peer is authenticated; ident may begin.
    Ready,
    /// A frame after that.
    Frame(Frame),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    side: Side,
    phase: Phase,
    decoder: Decoder,
    sealer: Sealer,
    /// Bytes for the socket.
    pub(crate) tx: TxBuf,
    /// All bytes of the handshake, for the signatures: received and sent. Bounded by the limits
    /// of handshake frames and the fixed number of them.
    received_bytes: Vec<u8>,
    sent_bytes: Vec<u8>,
    credentials: Credentials,
    keys: Option<Keys>,
    /// Our address as the peer sees it, from its hello.
    pub(crate) our_addr: Option<EntityAddr>,
    remote: SocketAddr,
}

impl Link {
    /// The connecting side of a fresh connection. The banner is staged at once.
    pub(crate) fn connecting(
        env: &mut Env<'_>,
        credentials: &Credentials,
        global_id: u64,
        remote: SocketAddr,
    ) -> Self {
        let auth = credentials.client(global_id, env.entropy);
        Self::new(Side::Connecting(auth), credentials, remote)
    }

    /// The accepting side.
    pub(crate) fn accepting(
        env: &mut Env<'_>,
        credentials: &Credentials,
        remote: SocketAddr,
    ) -> Self {
        let auth = credentials.server(env.entropy);
        Self::new(Side::Accepting(auth), credentials, remote)
    }

    fn new(side: Side, credentials: &Credentials, remote: SocketAddr) -> Self {
        let mut link = Self {
            side,
            phase: Phase::Banner(BannerDecoder::default()),
            decoder: Decoder::new(Limits::HANDSHAKE),
            sealer: Sealer::Crc,
            tx: TxBuf::default(),
            received_bytes: Vec::new(),
            sent_bytes: Vec::new(),
            credentials: credentials.clone(),
            keys: None,
            our_addr: None,
            remote,
        };
        let banner = Banner::OURS.encode();
        link.sent_bytes.extend_from_slice(&banner);
        link.tx.push(banner.to_vec());
        link
    }

    /// The name the peer authenticated as; empty before.
    pub(crate) fn peer_name(&self) -> &str {
        self.keys.as_ref().map_or("", |k| &k.peer)
    }

    /// The number a Ceph monitor gave us; 0 between hosts.
    pub(crate) fn global_id(&self) -> u64 {
        self.keys.as_ref().map_or(0, |k| k.global_id)
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// The session is established: frames may be as large as messages.
    pub(crate) fn open(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    #[cfg(test)]
    pub(crate) fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_message()
    }

    /// Stages a frame.
    pub(crate) fn emit(&mut self, frame: &Frame) {
        let before = self.tx.len();
        self.sealer.seal(frame, &mut self.tx);
        if self.is_recording() {
            self.tx.copy_from(before, &mut self.sent_bytes);
        }
    }

    /// The signatures cover everything before them.
    fn is_recording(&self) -> bool {
        matches!(self.phase, Phase::Banner(_) | Phase::Hello | Phase::Auth)
    }

    /// Takes bytes from `input` until there is a result.
    pub(crate) fn step(
        &mut self,
        env: &mut Env<'_>,
        input: &mut &[u8],
    ) -> Result<Option<Step>, Fault> {
        loop {
            let before = *input;
            let recording = self.is_recording();
            if let Phase::Banner(decoder) = &mut self.phase {
                let banner = decoder.decode(input)?;
                self.received_bytes
                    .extend_from_slice(&before[..before.len() - input.len()]);
                let Some(banner) = banner else {
                    return Ok(None);
                };
                banner.check()?;
                self.phase = Phase::Hello;
                let your_addr = EntityAddr::msgr2(self.remote, 0);
                self.emit(
                    &Hello {
                        entity: entity::CLIENT,
                        your_addr,
                    }
                    .frame(),
                );
                continue;
            }
            let frame = self.decoder.decode(input)?;
            if recording {
                self.received_bytes
                    .extend_from_slice(&before[..before.len() - input.len()]);
            }
            let Some(frame) = frame else { return Ok(None) };
            if let Some(step) = self.on_frame(env, frame)? {
                return Ok(Some(step));
            }
        }
    }

    fn on_frame(&mut self, _env: &mut Env<'_>, frame: Frame) -> Result<Option<Step>, Fault> {
        match (&self.phase, frame.tag) {
            (Phase::Ready, _) => return Ok(Some(Step::Frame(frame))),
            (Phase::Hello, Tag::Hello) => self.on_hello(&Hello::from_frame(&frame)?),
            (Phase::Auth, _) => self.on_auth(&frame)?,
            (Phase::Signature, Tag::AuthSignature) => {
                self.check_signature(&AuthSignature::from_frame(&frame)?)?;
                return Ok(Some(Step::Ready));
            }
            (_, tag) => {
                return Err(Fault::Unexpected {
                    tag,
                    during: "the handshake",
                });
            }
        }
        Ok(None)
    }

    fn on_hello(&mut self, hello: &Hello) {
        self.our_addr = Some(hello.your_addr);
        self.phase = Phase::Auth;
        if let Side::Connecting(auth) = &mut self.side {
            let request = auth.request();
            self.emit(&request.frame());
        }
    }

    fn on_auth(&mut self, frame: &Frame) -> Result<(), Fault> {
        match (&mut self.side, frame.tag) {
            (Side::Connecting(auth), Tag::AuthReplyMore) => {
                let answer = auth.more(&AuthReplyMore::from_frame(frame)?.0)?;
                self.emit(&AuthRequestMore(answer).frame());
            }
            (Side::Connecting(auth), Tag::AuthDone) => {
                let keys = auth.on_done(&AuthDone::from_frame(frame)?)?;
                self.on_keys_agreed(keys);
            }
            (Side::Connecting(_), Tag::AuthBadMethod) => {
                let refusal = AuthBadMethod::from_frame(frame)?;
                return Err(AuthError::Refused {
                    result: refusal.result,
                }
                .into());
            }
            (Side::Accepting(auth), Tag::AuthRequest) => {
                let request = AuthRequest::from_frame(frame)?;
                let step = auth.request(&request);
                self.answer(request.method, step)?;
            }
            (Side::Accepting(auth), Tag::AuthRequestMore) => {
                let step = auth.more(&AuthRequestMore::from_frame(frame)?.0);
                self.answer(crate::auth::method::SHARED_SECRET, step)?;
            }
            (_, tag) => {
                return Err(Fault::Unexpected {
                    tag,
                    during: "authentication",
                });
            }
        }
        Ok(())
    }

    fn answer(&mut self, method: u32, step: Result<ServerStep, AuthError>) -> Result<(), Fault> {
        match step {
            Ok(ServerStep::More(payload)) => self.emit(&AuthReplyMore(payload).frame()),
            Ok(ServerStep::Done(done, keys)) => {
                self.emit(&done.frame());
                self.on_keys_agreed(*keys);
            }
            Err(e) => {
                let refusal = self.credentials.refusal(method);
                self.emit(&refusal.frame());
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Both sides know the keys: from here on frames are in the mode that was granted, and each
    /// side signs the bytes it received.
    fn on_keys_agreed(&mut self, keys: Keys) {
        self.phase = Phase::Signature;
        if let Some(secure) = &keys.secure {
            self.secure(secure);
        }
        let signature = keys
            .signing
            .as_ref()
            .map_or([0; 32], |key| key.signature(&self.received_bytes));
        self.keys = Some(keys);
        self.emit(&AuthSignature(signature).frame());
    }

    fn secure(&mut self, keys: &SecureKeys) {
        let (rx, tx) = keys.streams(matches!(self.side, Side::Connecting(_)));
        self.decoder.set_secure(rx);
        self.sealer = Sealer::Secure(Box::new(tx));
    }

    /// The peer signed the bytes it received, which must be the bytes sent here.
    fn check_signature(&mut self, signature: &AuthSignature) -> Result<(), Fault> {
        let key = self.keys.as_ref().and_then(|k| k.signing.as_ref());
        let good = match key {
            Some(key) => key.verify(&self.sent_bytes, &signature.0),
            None => signature.0 == [0; 32],
        };
        if !good {
            return Err(AuthError::Signature.into());
        }
        self.phase = Phase::Ready;
        self.received_bytes = Vec::new();
        self.sent_bytes = Vec::new();
        Ok(())
    }
}
