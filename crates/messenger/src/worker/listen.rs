//! Listening sockets: accepting connections, and pausing when the process runs out of descriptors.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

use super::socket::Socket;
use super::{TOKEN_LISTENER, Worker};
use crate::connection::Handler;
use crate::env::Env;

/// How long accepting pauses when descriptors run out. Without a pause the listener, which stays
/// readable, would keep the thread busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    socket: TcpListener,
    pub(super) handler: Arc<dyn Handler>,
}

impl Worker {
    pub(super) fn listen(&mut self, socket: TcpListener, handler: Arc<dyn Handler>) {
        let token = TOKEN_LISTENER + self.listeners.len() as u64;
        let data = epoll::EventData::new_u64(token);
        if let Err(e) = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN) {
            tracing::error!("cannot watch a listening socket: {e}");
            return;
        }
        self.listeners.push(Listener { socket, handler });
    }

    pub(super) fn accept(&mut self, at: usize) {
        if self.resume_accept.is_some() {
            return;
        }
        while let Some(listener) = self.listeners.get(at) {
            match listener.socket.accept() {
                Ok((stream, remote)) => self.on_accepted(at, stream, remote),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    tracing::warn!("accept: {e}: pausing");
                    self.resume_accept = Some(self.now() + ACCEPT_PAUSE);
                    self.watch_listeners(epoll::EventFlags::empty());
                    return;
                }
            }
        }
    }

    pub(super) fn watch_listeners(&self, flags: epoll::EventFlags) {
        for (i, listener) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(TOKEN_LISTENER + i as u64);
            if let Err(e) = epoll::modify(&self.epoll, &listener.socket, data, flags) {
                tracing::error!("cannot watch a listening socket: {e}");
            }
        }
    }

    fn on_accepted(&mut self, by: usize, stream: std::net::TcpStream, remote: SocketAddr) {
        let socket = match Socket::from_accepted(stream, self.config.keepalive_timeout * 2) {
            Ok(socket) => socket,
            Err(e) => {
                tracing::debug!(%remote, "an accepted connection cannot be set up: {e}");
                return;
            }
        };
        let env = Env {
            now: self.start.elapsed(),
            entropy: &mut self.entropy,
        };
        // Refused: the socket is closed here, and no state is kept.
        let Some(link) = self.node.on_accepted(env, remote) else {
            return;
        };
        self.listener_of.insert(link, by);
        self.register(link, socket, epoll::EventFlags::IN);
    }
}
