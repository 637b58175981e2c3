//! A TCP echo server on a reactor, and one client that uses it.
//!
//!     cargo run -p reactor --example echo
//!
//! The listener and each connection are sources. A connection has one operation in flight at a time:
//! it waits for a buffer, receives into it, and sends it back.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use reactor::{
    Buf, BufferPurpose, Completion, Config, Cx, FileIndex, Op, Reactor, SendPart, Source, Token,
};

/// Each source has one operation in flight, so its token says nothing.
const ONLY: Token = Token(0);

const BUFFER_BYTES: usize = 16 << 10;

struct Listener {
    socket: FileIndex,
}

impl Source for Listener {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        cx.submit(ONLY, Op::Accept { file: self.socket });
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, completion: Completion) {
        match completion {
            Completion::Accept(Ok(client)) => {
                cx.attach(|cx| Connection {
                    socket: cx.register(client),
                });
                cx.submit(ONLY, Op::Accept { file: self.socket });
            }
            Completion::Accept(Err(error)) => {
                eprintln!("cannot accept a connection: {error}; the listener ends");
                cx.detach();
            }
            _ => {}
        }
    }
}

struct Connection {
    socket: FileIndex,
}

impl Connection {
    /// Asks for a buffer: it comes now, or as a completion.
    fn next(&mut self, cx: &mut Cx<'_>) {
        if let Some(buf) = cx.request_buffer(ONLY, BUFFER_BYTES, BufferPurpose::Client) {
            self.receive(cx, buf);
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, buf: Buf) {
        let op = Op::Recv {
            file: self.socket,
            buf,
            at: 0,
            exact: false,
        };
        cx.submit(ONLY, op);
    }
}

impl Source for Connection {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.next(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, completion: Completion) {
        match completion {
            Completion::Buffer(buf) => self.receive(cx, buf),
            Completion::Recv(mut buf, Ok(len)) if len > 0 => {
                buf.truncate(len);
                let op = Op::Send {
                    file: self.socket,
                    parts: vec![SendPart::Buf(buf)],
                };
                cx.submit(ONLY, op);
            }
            // The parts are dropped here, which gives the buffer back to the pool.
            Completion::Send(_, Ok(())) => self.next(cx),
            // The client has closed the connection, or it is broken. Detaching closes the socket.
            _ => cx.detach(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let reactor = Reactor::start(Config::default())?;
    println!("backend: {:?}", reactor.backend());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    reactor.handle().attach(move |cx| Listener {
        socket: cx.register(OwnedFd::from(listener)),
    })?;

    let mut client = TcpStream::connect(address)?;
    client.write_all(b"all bytes lie at a file extent")?;
    client.shutdown(Shutdown::Write)?;
    let mut echo = String::new();
    client.read_to_string(&mut echo)?;
    println!("echo: {echo}");

    let report = reactor.stop(Duration::from_secs(5));
    println!("stopped after {:?}", report.drain_time + report.close_time);
    Ok(())
}
