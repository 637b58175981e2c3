//! The proxy: connections, and what each exchange on them meets.
//!
//! It keeps connections open as the two sides do, so that what a client's pool of connections
//! saves is saved here too. Latency is added to answers, not to requests: the body of a PUT streams
//! meanwhile, as it does on a long line. Where a fault breaks a connection, both of its sides break.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::fault::{Fault, FaultRule};
use crate::http::{BodyEnd, Head, copy_body};
use crate::line::Line;
use crate::traffic::{Exchange, ObjectRead, Traffic, TrafficCounter};

/// Capacity of a connection's receive buffer here.
const BUFFER_BYTES: usize = 128 << 10;
/// The date that a client with a wrong clock sends.
const OLD_DATE: &str = "20200101T000000Z";

/// A proxy on a port of its own; it ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where clients connect to.
    pub address: SocketAddr,
    network: Arc<Network>,
    acceptor: Option<JoinHandle<()>>,
}

/// What all connections share.
#[derive(Debug)]
struct Network {
    upstream: SocketAddr,
    up: Line,
    down: Line,
    latency_us: AtomicU64,
    rules: Mutex<Vec<FaultRule>>,
    traffic: TrafficCounter,
    is_open: AtomicBool,
    /// One handle of each live connection's client side, to break them.
    clients: Mutex<Vec<TcpStream>>,
    /// Told when silence ends.
    changed: Condvar,
}

impl Network {
    fn rules(&self) -> MutexGuard<'_, Vec<FaultRule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw_fault(&self, method: &str) -> Option<Fault> {
        let fault = self.rules().iter().find_map(|rule| rule.draw(method))?;
        self.traffic.note_fault();
        Some(fault)
    }

    /// Waits as long as a rule of silence is there.
    fn wait_for_noise(&self) {
        let mut rules = self.rules();
        while self.is_open.load(Ordering::SeqCst)
            && rules.iter().any(|rule| rule.fault == Fault::Silence)
        {
            rules = self
                .changed
                .wait(rules)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close_connections(&self) {
        for client in self.clients().drain(..) {
            // It may have ended by itself.
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// A proxy in front of `upstream` that does nothing yet but pass on.
    pub fn start(upstream: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut proxy = Proxy {
            address: listener.local_addr()?,
            network: Arc::new(Network {
                upstream,
                up: Line::new(),
                down: Line::new(),
                latency_us: AtomicU64::new(0),
                rules: Mutex::default(),
                traffic: TrafficCounter::default(),
                is_open: AtomicBool::new(true),
                clients: Mutex::default(),
                changed: Condvar::new(),
            }),
            acceptor: None,
        };
        proxy.accept_on(listener);
        Ok(proxy)
    }

    fn accept_on(&mut self, listener: TcpListener) {
        let network = Arc::clone(&self.network);
        self.acceptor = Some(spawn(move || {
            for client in listener.incoming().flatten() {
                if !network.is_open.load(Ordering::SeqCst) {
                    return;
                }
                let network = Arc::clone(&network);
                spawn(move || serve(client, &network));
            }
        }));
    }

    /// Bytes a second in each direction, over all connections.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.network.up.set_rate(bytes_per_second);
        self.network.down.set_rate(bytes_per_second);
    }

    /// What every answer takes longer.
    pub fn set_latency(&self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.network.latency_us.store(us, Ordering::SeqCst);
    }

    /// What goes wrong from the next request on; the first rule that meets a request counts.
    pub fn set_faults(&self, rules: &[FaultRule]) {
        *self.network.rules() = rules.to_vec();
        self.network.changed.notify_all();
    }

    /// Ends all connections and refuses new ones.
    pub fn stop(&mut self) {
        self.network.is_open.store(false, Ordering::SeqCst);
        self.network.changed.notify_all();
        // Wakes the thread that accepts; where it cannot be reached it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.network.close_connections();
    }

    /// Accepts connections again, at the same address.
    pub fn restart(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind(self.address)?;
        self.network.is_open.store(true, Ordering::SeqCst);
        self.accept_on(listener);
        Ok(())
    }

    /// What has passed since the last [`Proxy::take_traffic`].
    pub fn traffic(&self) -> Traffic {
        self.network.traffic.snapshot()
    }

    /// What has passed, and begins to count anew.
    pub fn take_traffic(&self) -> Traffic {
        self.network.traffic.take()
    }

    /// Whether each read is recorded with its range.
    pub fn record_reads(&self, on: bool) {
        self.network.traffic.record_reads(on);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One client's connection, and the one to the store that goes with it.
struct Connection<'a> {
    network: &'a Network,
    client: BufReader<TcpStream>,
    client_out: TcpStream,
    store: Option<(BufReader<TcpStream>, TcpStream)>,
}

/// Whether the connection can carry another exchange.
#[derive(PartialEq, Eq)]
enum After {
    Stays,
    Ends,
}

fn serve(client: TcpStream, network: &Network) {
    let handles = (client.try_clone(), client.try_clone(), client.try_clone());
    let (Ok(client_out), Ok(registered), Ok(last)) = handles else {
        return;
    };
    // Without it every answer waits for the acknowledgement of its head.
    let _ = client.set_nodelay(true);
    {
        let mut clients = network.clients();
        clients.retain(|client| client.peer_addr().is_ok());
        clients.push(registered);
    }
    let mut connection = Connection {
        network,
        client: BufReader::with_capacity(BUFFER_BYTES, client),
        client_out,
        store: None,
    };
    // An error ends the connection, which is what an error is to both sides.
    while let Ok(After::Stays) = connection.exchange() {}
    let _ = last.shutdown(Shutdown::Both);
}

impl Connection<'_> {
    fn exchange(&mut self) -> io::Result<After> {
        let Some(mut request) = Head::read(&mut self.client)? else {
            return Ok(After::Ends);
        };
        let started = Instant::now();
        let fault = self.network.draw_fault(request.method());
        match fault {
            Some(Fault::Refuse { status, code }) => {
                return self.refuse(&request, status, code, started);
            }
            Some(Fault::Silence) => {
                self.network.wait_for_noise();
                return Ok(After::Ends);
            }
            Some(Fault::OldDate) => request.replace_header("x-amz-date", OLD_DATE),
            _ => {}
        }
        let sent = self.send(&request, fault)?;
        if fault == Some(Fault::CutRequest) {
            return Ok(After::Ends);
        }
        self.answer(&request, fault, sent, started)
    }

    /// Passes a request on to the store; how many bytes its body had.
    fn send(&mut self, request: &Head, fault: Option<Fault>) -> io::Result<u64> {
        if self.store.is_none() {
            let store = TcpStream::connect(self.network.upstream)?;
            store.set_nodelay(true)?;
            let reader = BufReader::with_capacity(BUFFER_BYTES, store.try_clone()?);
            self.store = Some((reader, store));
        }
        let Some((_, store)) = &mut self.store else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        request.write(store)?;
        let end = request.request_end();
        let limit = match (fault, end) {
            (Some(Fault::CutRequest), BodyEnd::Length(length)) => length / 2,
            (Some(Fault::CutRequest), _) => 1,
            _ => u64::MAX,
        };
        let up = |bytes| self.network.up.pass(bytes);
        copy_body(&mut self.client, store, end, limit, &up)
    }

    /// Passes the store's answer back.
    fn answer(
        &mut self,
        request: &Head,
        fault: Option<Fault>,
        sent: u64,
        started: Instant,
    ) -> io::Result<After> {
        let Some((store, _)) = &mut self.store else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let head = loop {
            let Some(head) = Head::read(store)? else {
                return Ok(After::Ends);
            };
            if !matches!(head.status(), 100..=199) {
                break head;
            }
            head.write(&mut self.client_out)?;
        };
        let latency = self.network.latency_us.load(Ordering::Relaxed);
        sleep(Duration::from_micros(latency));
        if fault == Some(Fault::LoseAnswer) {
            return Ok(After::Ends);
        }
        let end = head.answer_end(request.method());
        let cut = match (fault, end) {
            // Nothing to cut. To close the connection behind it would break the client's next request,
            // which may be on it already.
            (Some(Fault::CutAnswer), BodyEnd::Length(0)) => None,
            (Some(Fault::CutAnswer), BodyEnd::Length(length)) => Some(length / 2),
            (Some(Fault::CutAnswer), _) => Some(1),
            _ => None,
        };
        head.write(&mut self.client_out)?;
        let down = |bytes| self.network.down.pass(bytes);
        let limit = cut.unwrap_or(u64::MAX);
        let received = copy_body(store, &mut self.client_out, end, limit, &down)?;
        self.network.traffic.note(Exchange {
            method: request.method(),
            path: request.path(),
            status: head.status(),
            sent,
            received,
            took: started.elapsed(),
            read: (request.method() == "GET" && head.status() < 300).then(|| ObjectRead {
                path: request.path().to_owned(),
                range: request.range(),
            }),
        });
        let ends = cut.is_some() || end == BodyEnd::Closed || head.closes() || request.closes();
        Ok(if ends { After::Ends } else { After::Stays })
    }

    /// Answers in the store's place. The request's body is read first: who is still writing would
    /// otherwise see a broken connection instead of the answer.
    fn refuse(
        &mut self,
        request: &Head,
        status: u16,
        code: &str,
        started: Instant,
    ) -> io::Result<After> {
        let end = request.request_end();
        let sent = copy_body(&mut self.client, &mut io::sink(), end, u64::MAX, &|_| {})?;
        let body = format!("<Error><Code>{code}</Code><Message>planned</Message></Error>");
        let head = format!(
            "HTTP/1.1 {status} Refused\r\nConnection: close\r\nContent-Type: application/xml\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.client_out.write_all(head.as_bytes())?;
        self.network.traffic.note(Exchange {
            method: request.method(),
            path: request.path(),
            status,
            sent,
            received: body.len() as u64,
            took: started.elapsed(),
            read: None,
        });
        Ok(After::Ends)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// What a store answers to a HEAD: a length, and no body of it.
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";

    #[test]
    fn an_answer_without_a_body_is_not_cut_and_its_connection_goes_on() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = store.local_addr().unwrap();
        let answering = spawn(move || {
            let (mut connection, _) = store.accept().unwrap();
            let mut requests = BufReader::new(connection.try_clone().unwrap());
            while let Ok(Some(_)) = Head::read(&mut requests) {
                connection.write_all(ANSWER).unwrap();
            }
        });
        let proxy = Proxy::start(address).unwrap();
        proxy.set_faults(&[FaultRule::always(Fault::CutAnswer)]);
        let mut client = TcpStream::connect(proxy.address).unwrap();
        for _ in 0..2 {
            client.write_all(b"HEAD /b/k HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = [0; ANSWER.len()];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, ANSWER);
        }
        drop((client, proxy));
        answering.join().unwrap();
    }
}
