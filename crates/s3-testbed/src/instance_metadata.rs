//! An instance's metadata service of one's own: it gives the keys of a role to whoever asks from the machine.
//!
//! It gives them for so short a time that a client asks again with each request, so what is set here counts at once.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};

/// Keys that are used up when they are given: a client uses them once.
const EXPIRATION: &str = "2020-01-01T00:00:00Z";

/// A service on a port of its own; it ends when dropped.
#[derive(Debug)]
pub struct InstanceMetadata {
    /// Where it listens.
    pub address: SocketAddr,
    role: Arc<Role>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Role {
    name: String,
    /// Access key and secret; none: the instance has no role.
    keys: Mutex<Option<(String, String)>>,
    given: AtomicU64,
    is_open: AtomicBool,
}

impl InstanceMetadata {
    /// One whose instance has a role of this name, and no keys yet.
    pub fn start(role: &str) -> io::Result<InstanceMetadata> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let role = Arc::new(Role {
            name: role.to_owned(),
            keys: Mutex::default(),
            given: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
        });
        let answering = Arc::clone(&role);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if !answering.is_open.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever got no answer asks again.
                let _ = answering.answer(client);
            }
        });
        Ok(InstanceMetadata {
            address,
            role,
            acceptor: Some(acceptor),
        })
    }

    /// What it gives from now on.
    pub fn set_keys(&self, keys: Option<(&str, &str)>) {
        let keys = keys.map(|(access, secret)| (access.to_owned(), secret.to_owned()));
        *self
            .role
            .keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// How often keys were given.
    pub fn given(&self) -> u64 {
        self.role.given.load(Ordering::SeqCst)
    }
}

impl Drop for InstanceMetadata {
    fn drop(&mut self) {
        self.role.is_open.store(false, Ordering::SeqCst);
        // Wakes the thread that accepts; where it cannot be reached it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Role {
    fn answer(&self, mut client: TcpStream) -> io::Result<()> {
        let mut head = [0; 4096];
        let bytes = client.read(&mut head)?;
        let head = String::from_utf8_lossy(&head[..bytes]).into_owned();
        let (status, body) = self.body_of(&head);
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn body_of(&self, head: &str) -> (&'static str, String) {
        const ROLES: &str = "GET /latest/meta-data/iam/security-credentials/";
        if head.starts_with("PUT /latest/api/token ") {
            return ("200 OK", "a-token".to_owned());
        }
        let Some(role) = head.strip_prefix(ROLES) else {
            return ("404 Not Found", String::new());
        };
        if role.starts_with(' ') {
            return ("200 OK", self.name.clone());
        }
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((access, secret)) = keys.as_ref() else {
            return ("404 Not Found", String::new());
        };
        self.given.fetch_add(1, Ordering::SeqCst);
        let body = format!(
            r#"{{"AccessKeyId":"{access}","SecretAccessKey":"{secret}","Token":"","Expiration":"{EXPIRATION}"}}"#
        );
        ("200 OK", body)
    }
}
