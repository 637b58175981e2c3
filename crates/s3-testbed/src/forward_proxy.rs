//! An HTTP proxy of the kind that companies put between their machines and the rest: it makes tunnels (CONNECT) and
//! nothing else.
//!
//! Every tunnel ends at one address, whatever name it was asked for, so a test can use a name that only the proxy
//! knows. It must never look into a tunnel.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, spawn};

/// A request head that is longer is none.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// A proxy on a port of its own; it ends when dropped, with its tunnels.
#[derive(Debug)]
pub struct ForwardProxy {
    /// Where clients connect to.
    pub address: SocketAddr,
    tunnels: Arc<Tunnels>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Tunnels {
    upstream: SocketAddr,
    is_open: AtomicBool,
    refuses: AtomicBool,
    /// `HOST:PORT` of each request for a tunnel.
    asked: Mutex<Vec<String>>,
    /// Both ends of each tunnel, to break them.
    ends: Mutex<Vec<TcpStream>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForwardProxy {
    /// A proxy whose tunnels all lead to `upstream`.
    pub fn start(upstream: SocketAddr) -> io::Result<ForwardProxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let tunnels = Arc::new(Tunnels {
            upstream,
            is_open: AtomicBool::new(true),
            refuses: AtomicBool::new(false),
            asked: Mutex::default(),
            ends: Mutex::default(),
        });
        let shared = Arc::clone(&tunnels);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if !shared.is_open.load(Ordering::SeqCst) {
                    return;
                }
                let tunnels = Arc::clone(&shared);
                // An error ends the tunnel, which is what an error is to both sides.
                spawn(move || serve(client, &tunnels).ok());
            }
        });
        Ok(ForwardProxy {
            address,
            tunnels,
            acceptor: Some(acceptor),
        })
    }

    /// Answers 407 from now on: it wants to know who asks.
    pub fn refuse(&self) {
        self.tunnels.refuses.store(true, Ordering::SeqCst);
    }

    /// `HOST:PORT` of each tunnel that was asked for.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.tunnels.asked).clone()
    }
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.tunnels.is_open.store(false, Ordering::SeqCst);
        // Wakes the thread that accepts; where it cannot be reached it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for end in lock(&self.tunnels.ends).drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn serve(mut client: TcpStream, tunnels: &Tunnels) -> io::Result<()> {
    lock(&tunnels.ends).push(client.try_clone()?);
    let head = read_head(&mut client)?;
    let mut words = head.split_ascii_whitespace();
    let (Some("CONNECT"), Some(name)) = (words.next(), words.next()) else {
        return client.write_all(b"HTTP/1.1 405 Tunnels Only\r\nContent-Length: 0\r\n\r\n");
    };
    lock(&tunnels.asked).push(name.to_owned());
    if tunnels.refuses.load(Ordering::SeqCst) {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(refusal);
    }
    let mut store = TcpStream::connect(tunnels.upstream)?;
    store.set_nodelay(true)?;
    client.set_nodelay(true)?;
    lock(&tunnels.ends).push(store.try_clone()?);
    client.write_all(b"HTTP/1.1 200 Connection Established\r\n\r\n")?;
    let (mut from_store, mut to_client) = (store.try_clone()?, client.try_clone()?);
    let down = spawn(move || {
        let _ = io::copy(&mut from_store, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut client, &mut store);
    let _ = store.shutdown(Shutdown::Write);
    // It ends with the connection that it reads.
    let _ = down.join();
    Ok(())
}

/// Reads up to the empty line. Nothing comes behind it before the answer.
fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX || client.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend(byte);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}
