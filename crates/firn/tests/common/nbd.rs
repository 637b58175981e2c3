//! A small NBD client: one request at a time, over a Unix socket.
//!
//! Written from the protocol's description, so that it shares no code with the server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;

/// A connection to one export.
pub struct Client {
    stream: UnixStream,
    handle: u64,
    pub size: u64,
    /// What the server offers, as transmission flags.
    pub flags: u16,
}

/// What the server answered to a request that failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub u32);

type Answer<T> = Result<T, Refused>;

impl Client {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(super::DEADLINE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no padding.
        stream.write_all(&3_u32.to_be_bytes())?;
        let mut option = b"IHAVEOPT".to_vec();
        option.extend(OPTION_GO.to_be_bytes());
        option.extend((export.len() as u32 + 6).to_be_bytes());
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        option.extend(0_u16.to_be_bytes());
        stream.write_all(&option)?;
        let mut client = Client {
            stream,
            handle: 0,
            size: 0,
            flags: 0,
        };
        loop {
            let mut head = [0; 20];
            client.stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut body = vec![0; word(16) as usize];
            client.stream.read_exact(&mut body)?;
            match word(12) {
                REPLY_ACK => return Ok(client),
                REPLY_INFO if body[..2] == [0, 0] => {
                    client.size = u64::from_be_bytes(body[2..10].try_into().unwrap());
                    client.flags = u16::from_be_bytes(body[10..12].try_into().unwrap());
                }
                REPLY_INFO => {}
                other => return Err(io::Error::other(format!("refused with {other:#x}"))),
            }
        }
    }

    fn request(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<u32> {
        self.handle += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.handle.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], self.handle.to_be_bytes());
        Ok(u32::from_be_bytes(reply[4..8].try_into().unwrap()))
    }

    /// A share of the connection's stream, for a test that sends and receives by itself.
    pub fn stream(&self) -> UnixStream {
        self.stream.try_clone().unwrap()
    }

    /// A write as it is sent.
    pub fn write_request(handle: u64, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(handle.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn answer(code: u32) -> Answer<()> {
        if code == 0 {
            Ok(())
        } else {
            Err(Refused(code))
        }
    }

    /// An error of the connection itself is a panic here; see [`Client::try_write`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Answer<()> {
        Self::answer(self.try_write(offset, data).unwrap())
    }

    /// The server's error code, or how the connection ended.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> io::Result<u32> {
        self.request(1, offset, data.len() as u32, data)
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Answer<Vec<u8>> {
        Self::answer(self.request(0, offset, len as u32, &[]).unwrap())?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        Ok(data)
    }

    pub fn trim(&mut self, offset: u64, len: u32) -> Answer<()> {
        let code = self.request(4, offset, len, &[]).unwrap();
        Client::answer(code)
    }

    pub fn flush(&mut self) -> Answer<()> {
        Self::answer(self.request(3, 0, 0, &[]).unwrap())
    }
}
