//! Connections to a volume, by the URIs that its server gives.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use nbd::client::{Client, ClientError};
use url::Url;

use super::failed;
use crate::failure::{Failure, Result};

pub(in crate::cli) type Connection = Client<Wire>;

/// A socket whose small reads come out of a buffer; large ones go past it.
#[derive(Debug)]
pub(in crate::cli) struct Wire(BufReader<Socket>);

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Socket {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(data),
            Socket::Tcp(stream) => stream.read(data),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        self.0.read(data)
    }
}

impl Write for Wire {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.0.get_mut() {
            Socket::Unix(stream) => stream.write(data),
            Socket::Tcp(stream) => stream.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Several connections to a volume, by the first URI that leads to it.
pub(in crate::cli) fn connect(uris: &[String], count: usize) -> Result<Vec<Connection>> {
    let mut why = "it has no NBD listener; start it with --nbd".to_owned();
    for uri in uris {
        match (0..count).map(|_| connect_once(uri)).collect() {
            Ok(connections) => return Ok(connections),
            Err(failure) => why = failure.detail,
        }
    }
    Err(failed(format!("cannot reach the volume over NBD: {why}")))
}

fn connect_once(uri: &str) -> Result<Connection> {
    let (socket, name) = open(uri)?;
    Client::connect(Wire(BufReader::new(socket)), &name)
        .map_err(|error| failed(format!("{uri}: {error}")))
}

/// The socket that a URI names, and the export in it.
fn open(uri: &str) -> Result<(Socket, String)> {
    let bad = |why: String| failed(format!("{uri}: {why}"));
    let parsed = Url::parse(uri).map_err(|error| bad(error.to_string()))?;
    let name = parsed.path().trim_start_matches('/').to_owned();
    let socket = match parsed.scheme() {
        "nbd+unix" => {
            let mut pairs = parsed.query_pairs();
            let path = pairs.find(|(key, _)| key == "socket");
            let path = path.ok_or_else(|| bad("it names no socket".into()))?.1;
            UnixStream::connect(&*path).map(Socket::Unix)
        }
        "nbd" => {
            let addresses = parsed
                .socket_addrs(|| Some(10809))
                .map_err(|error| bad(error.to_string()))?;
            TcpStream::connect(&*addresses)
                .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
                .map(Socket::Tcp)
        }
        "nbds" | "nbds+unix" => {
            return Err(bad(
                "the listener requires TLS, which this command does not speak; give the server \
                 one more listener, --nbd unix:PATH without TLS, or copy with nbdcopy"
                    .into(),
            ));
        }
        other => return Err(bad(format!("{other} is not a way to reach a volume"))),
    };
    let socket = socket.map_err(|error| bad(format!("cannot connect: {error}")))?;
    Ok((socket, name))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_that_leads_nowhere_is_an_error_with_its_name() {
        for (uri, says) in [
            ("nbd+unix:///demo?socket=/nowhere/a%20b", "No such file"),
            ("nbd+unix:///demo", "no socket"),
            ("nbds://127.0.0.1:1/demo", "TLS"),
            ("ftp://127.0.0.1/demo", "ftp"),
            ("demo", "relative"),
        ] {
            let said = connect(&[uri.to_owned()], 1).expect_err(uri).detail;
            assert!(said.contains(uri) && said.contains(says), "{said}");
        }
        let said = connect(&[], 1).expect_err("no URI").detail;
        assert!(said.contains("--nbd"), "{said}");
    }
}
