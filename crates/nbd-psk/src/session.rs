//! TLS of one connection, from its handshake on.
//!
//! Calls the library with what came and takes what it wrote. Never hands a byte on before the client has proved a key
//! under a name, and nothing after an error.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use nbd::server::{ClientIdentity, TlsSession, TlsStreamError, bytes_for_one_send, encrypt_front};
use reactor::SendPart;
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::Version;
use s2n_tls::error::Error;
use s2n_tls_tokio::{TlsAcceptor, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wire::Wire;

/// Room for plaintext, at least: the library wants some to read records that have none.
const READ_BYTES_MIN: usize = 64;

/// How a record of an alert in the clear begins, and ends with "close notify": what the library says to a client whose first
/// message it refuses. Between them is a version, which nobody reads.
const CLOSE_NOTIFY: ([u8; 2], [u8; 4]) = ([21, 3], [0, 2, 1, 0]);

/// What that client hears: a fatal "decrypt error", and not whether it is the name or the key that is wrong.
const DECRYPT_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 51];

type Accepting = Pin<Box<dyn Future<Output = Result<TlsStream<Wire>, Error>> + Send>>;

enum State {
    Handshake(Accepting),
    Open(Box<TlsStream<Wire>>, ClientIdentity),
    /// After an error only what was said of it is sent.
    Broken,
}

pub(super) struct PskSession {
    wire: Wire,
    state: State,
    is_closing: bool,
}

impl fmt::Debug for PskSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PskSession")
            .field("is_open", &matches!(self.state, State::Open(..)))
            .field("wire", &self.wire)
            .finish_non_exhaustive()
    }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TlsStreamError {
    TlsStreamError::Tls(error.into())
}

impl PskSession {
    pub(super) fn new(config: &Config) -> PskSession {
        let wire = Wire::default();
        let (acceptor, end) = (TlsAcceptor::new(config.clone()), wire.clone());
        PskSession {
            wire,
            state: State::Handshake(Box::pin(async move { acceptor.accept(end).await })),
            is_closing: false,
        }
    }

    /// Goes on with the handshake as far as the bytes go.
    fn negotiate(&mut self) -> Result<(), TlsStreamError> {
        let State::Handshake(accepting) = &mut self.state else {
            return Ok(());
        };
        match accepting.as_mut().poll(&mut cx()) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(mut tls)) => {
                let identity = proved_identity(&tls)?;
                let connection: &mut Connection = tls.as_mut();
                connection.prefer_throughput().map_err(broken)?;
                self.state = State::Open(Box::new(tls), identity);
                Ok(())
            }
            Poll::Ready(Err(error)) => {
                self.tell_why();
                Err(broken(error))
            }
        }
    }

    /// A client whose first message is refused hears more than an end, and the same whatever was wrong with the key: its name,
    /// the key, or how the client would have proved it. Else one could ask which names there are.
    fn tell_why(&mut self) {
        let mut buffers = self.wire.lock();
        let (begin, end) = CLOSE_NOTIFY;
        let is_alone = buffers.sent.len() == DECRYPT_ERROR.len();
        if is_alone && buffers.sent.starts_with(&begin) && buffers.sent.ends_with(&end) {
            buffers.sent = DECRYPT_ERROR.to_vec();
        }
    }

    /// Decrypts what came, as far as it makes records.
    fn read(&mut self, plain: &mut Vec<u8>) -> Result<(), TlsStreamError> {
        let State::Open(tls, _) = &mut self.state else {
            return Ok(());
        };
        loop {
            let connection: &Connection = (**tls).as_ref();
            let room = self.wire.lock().unread() + connection.peek_len();
            let end = plain.len();
            plain.resize(end + room.max(READ_BYTES_MIN), 0);
            let mut into = ReadBuf::new(&mut plain[end..]);
            let read = Pin::new(&mut **tls).poll_read(&mut cx(), &mut into);
            let bytes = into.filled().len();
            plain.truncate(end + bytes);
            match read {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) if bytes == 0 => return Err(TlsStreamError::Closed),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    // Writes the alert, if there is one to be sent.
                    let _ = Pin::new(&mut **tls).poll_shutdown(&mut cx());
                    return Err(broken(error));
                }
            }
        }
    }
}

/// Who the client has proved to be. Nothing but a key lets one in: there is no certificate, and no ticket to resume.
fn proved_identity(tls: &TlsStream<Wire>) -> Result<ClientIdentity, TlsStreamError> {
    let connection: &Connection = tls.as_ref();
    let name = || {
        let mut name = vec![0; connection.negotiated_psk_identity_length()?];
        connection.negotiated_psk_identity(&mut name)?;
        Ok::<_, Error>((name, connection.actual_protocol_version()?))
    };
    let (name, version) = name().map_err(broken)?;
    match String::from_utf8(name) {
        Ok(name) if !name.is_empty() && version == Version::TLS13 => {
            Ok(ClientIdentity { names: vec![name] })
        }
        _ => Err(broken("the handshake proved no key")),
    }
}

impl TlsSession for PskSession {
    fn decrypt(&mut self, cipher: &mut [u8], plain: &mut Vec<u8>) -> Result<(), TlsStreamError> {
        if matches!(self.state, State::Broken) {
            return Err(TlsStreamError::Closed);
        }
        self.wire.lock().received.extend_from_slice(cipher);
        let result = self.negotiate().and_then(|()| self.read(plain));
        // After the client's own end it still hears the answers to what it asked before.
        if matches!(&result, Err(error) if !matches!(error, TlsStreamError::Closed)) {
            self.state = State::Broken;
            self.wire.lock().received = Vec::new();
        }
        result
    }

    fn wants_send(&self) -> bool {
        !self.wire.lock().sent.is_empty()
    }

    fn encrypt(&mut self, parts: &mut Vec<SendPart>) -> Result<Vec<u8>, TlsStreamError> {
        let own = || std::mem::take(&mut self.wire.lock().sent);
        let tls = match &mut self.state {
            State::Open(tls, _) if !parts.is_empty() => tls,
            State::Handshake(_) if !parts.is_empty() => return Err(TlsStreamError::Closed),
            State::Broken => {
                let own = own();
                if own.is_empty() && !parts.is_empty() {
                    return Err(TlsStreamError::Closed);
                }
                parts.clear();
                return Ok(own);
            }
            _ => return Ok(own()),
        };
        self.wire
            .lock()
            .sent
            .reserve(bytes_for_one_send(parts) * 65 / 64);
        encrypt_front(parts, |mut plain| {
            while !plain.is_empty() {
                match Pin::new(&mut **tls).poll_write(&mut cx(), plain) {
                    Poll::Ready(Ok(written)) if written > 0 => {
                        plain = plain.get(written..).unwrap_or_default();
                    }
                    Poll::Ready(Err(error)) => return Err(broken(error)),
                    // Memory takes all that is written to it.
                    _ => return Err(TlsStreamError::Closed),
                }
            }
            Ok(())
        })?;
        Ok(own())
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        if let State::Open(tls, _) = &mut self.state {
            let _ = Pin::new(&mut **tls).poll_shutdown(&mut cx());
        }
    }

    fn identity(&self) -> ClientIdentity {
        match &self.state {
            State::Open(_, identity) => identity.clone(),
            _ => ClientIdentity::default(),
        }
    }
}
