//! A blocking NBD client for tests: it can also send what no good client would.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::DEADLINE;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const FUA: u16 = 1;

pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub struct Client {
    stream: Box<dyn Stream>,
    pub size: u64,
    pub flags: u16,
}

impl Client {
    /// A raw connection: only the greeting was read.
    pub fn raw(path: &Path) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Client::greeted(Box::new(stream))
    }

    pub fn unix(path: &Path, export: &str) -> Client {
        let mut client = Client::raw(path);
        client.export_name(export).unwrap();
        client
    }

    /// A socket in the transmission phase, for a caller that reads replies itself.
    pub fn unix_socket(path: &Path, export: &str) -> UnixStream {
        let stream = UnixStream::connect(path).unwrap();
        let mut client = Client::greeted(Box::new(stream.try_clone().unwrap()));
        client.export_name(export).unwrap();
        stream
    }

    pub fn tcp(address: SocketAddr, export: &str) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut client = Client::greeted(Box::new(stream));
        client.export_name(export).unwrap();
        client
    }

    /// A client that begins TLS, and enters the transmission phase in it.
    pub fn tls(
        path: &Path,
        export: &str,
        config: std::sync::Arc<rustls::ClientConfig>,
    ) -> io::Result<Client> {
        let mut client = Client {
            stream: Box::new(Client::tls_stream(path, config)?),
            size: 0,
            flags: 0,
        };
        client.enter(export)?;
        Ok(client)
    }

    /// A stream in which TLS is due.
    pub fn tls_stream(
        path: &Path,
        config: std::sync::Arc<rustls::ClientConfig>,
    ) -> io::Result<rustls::StreamOwned<rustls::ClientConnection, UnixStream>> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0")?;
        let mut reply = [0; 20];
        stream.read_exact(&mut reply)?;
        assert_eq!(reply[12..16], 1_u32.to_be_bytes(), "STARTTLS is taken");
        let server = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let tls = rustls::ClientConnection::new(config, server).map_err(io::Error::other)?;
        Ok(rustls::StreamOwned::new(tls, stream))
    }

    fn greeted(stream: Box<dyn Stream>) -> Client {
        let mut client = Client {
            stream,
            size: 0,
            flags: 0,
        };
        assert_eq!(&client.bytes(18).unwrap()[..16], b"NBDMAGICIHAVEOPT");
        client
    }

    fn export_name(&mut self, name: &str) -> io::Result<()> {
        self.send(&3_u32.to_be_bytes())?;
        self.enter(name)
    }

    fn enter(&mut self, name: &str) -> io::Result<()> {
        let mut hello = b"IHAVEOPT\0\0\0\x01".to_vec();
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name.as_bytes());
        self.send(&hello)?;
        let answer = self.bytes(10)?;
        self.size = u64::from_be_bytes(answer[..8].try_into().unwrap());
        self.flags = u16::from_be_bytes(answer[8..].try_into().unwrap());
        Ok(())
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; count];
        self.stream.read_exact(&mut out)?;
        Ok(out)
    }

    /// Whether the server closed the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
            || matches!(self.stream.read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::ConnectionReset)
    }

    pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out
    }

    /// Sends a request and does not wait for its reply.
    pub fn start(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&Client::header(command, flags, cookie, offset, length))
            .unwrap();
    }

    /// Sends a write and does not wait for its reply.
    pub fn start_write(&mut self, flags: u16, cookie: u64, offset: u64, data: &[u8]) {
        let mut bytes = Client::header(WRITE, flags, cookie, offset, data.len() as u32);
        bytes.extend(data);
        self.send(&bytes).unwrap();
    }

    /// The next reply's cookie and error. A read's data must be taken with [`Client::bytes`].
    pub fn reply(&mut self) -> (u64, u32) {
        let head = self.bytes(16).unwrap();
        assert_eq!(
            head[..4],
            0x6744_6698_u32.to_be_bytes(),
            "not a simple reply"
        );
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        (u64::from_be_bytes(head[8..].try_into().unwrap()), error)
    }

    fn finish(&mut self) -> Result<(), u32> {
        match self.reply() {
            (7, 0) => Ok(()),
            (7, error) => Err(error),
            (cookie, _) => panic!("reply to {cookie}"),
        }
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.start_write(flags, 7, offset, data);
        self.finish()
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.start(READ, 0, 7, offset, length);
        self.finish()?;
        Ok(self.bytes(length as usize).unwrap())
    }

    pub fn simple(&mut self, command: u16, flags: u16, at: u64, length: u32) -> Result<(), u32> {
        self.start(command, flags, 7, at, length);
        self.finish()
    }
}
