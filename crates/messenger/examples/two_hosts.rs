//! Two hosts in one process: a lossless session with a shared secret, one message each way.
//!
//!     cargo run -p messenger --example two_hosts
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an application does I/O"
)]
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use messenger::auth::{ClusterSecret, Credentials};
use messenger::{Config, Connection, Event, Message, Messenger, Target};

fn credentials(name: &str) -> Result<Credentials, Box<dyn Error>> {
    let secret = ClusterSecret::new(b"both hosts read it from a file")?;
    let name = name.to_owned();
    Ok(Credentials::Secret { name, secret })
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = Messenger::start(Config::default(), credentials("server")?)?;
    let echo = |connection: &Connection, event: Event| {
        if let Event::Message(message) = event {
            let peer = connection.peer().map(|peer| peer.name.clone());
            println!("server: message {} from {peer:?}", message.tid);
            // A handler must not block: try_send, never send.
            let answer = Message::data(2, message.tid, message.payload.data);
            if let Err(error) = connection.try_send(answer) {
                println!("server: {error}");
            }
        }
    };
    let addr = server.listen("127.0.0.1:0".parse()?, Arc::new(echo))?;

    let client = Messenger::start(Config::default(), credentials("client")?)?;
    let (answers, answered) = mpsc::channel();
    let record = move |_: &Connection, event: Event| {
        if let Event::Message(message) = event {
            // The receiver is gone only when the example ends.
            let _ = answers.send(message.payload.data);
        }
    };
    let session = client.open(Target::lossless(addr), Arc::new(record))?;
    session.send(Message::data(1, 42, &b"hello"[..]))?;
    let answer = answered.recv_timeout(Duration::from_secs(10))?;
    println!("client: {}", String::from_utf8_lossy(&answer));

    session.close();
    client.shutdown();
    server.shutdown();
    Ok(())
}
