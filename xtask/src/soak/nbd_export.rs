//! A volume over NBD: a client of its own, which shares no code with the server, and which goes on over its restarts.
//!
//! A request that is cut off is sent again until it is answered, as the kernel does with those of a disk whose server
//! died. Nothing is retried that the server refused. Where there are several hosts, it follows the volume to the one that has it.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::world::lock;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const FLAG_FUA: u16 = 1;

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// The server is told to stop; the next one answers.
const ESHUTDOWN: u32 = 108;

/// How long a request is sent again: longer than the watchdog looks on.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(50);

/// What a request brings or takes.
enum Payload<'a> {
    None,
    Write(&'a [u8]),
    Read(&'a mut [u8]),
}

struct Request<'a> {
    command: u16,
    flags: u16,
    at: u64,
    length: u32,
    payload: Payload<'a>,
}

/// A volume, and connections to it that nobody uses just now.
#[derive(Debug)]
pub(super) struct NbdExport {
    /// Of all hosts; none is without one.
    sockets: Vec<PathBuf>,
    /// The one that had the volume last.
    last: AtomicUsize,
    name: String,
    idle: Mutex<Vec<UnixStream>>,
}

impl NbdExport {
    /// A volume that the host of this number has.
    pub(super) fn new(sockets: Vec<PathBuf>, host: usize, name: &str) -> NbdExport {
        NbdExport {
            sockets,
            last: AtomicUsize::new(host),
            name: name.to_owned(),
            idle: Mutex::default(),
        }
    }

    pub(super) fn read(&self, at: u64, data: &mut [u8]) -> Result<()> {
        self.request(Request {
            command: READ,
            flags: 0,
            at,
            length: length_of(data.len() as u64)?,
            payload: Payload::Read(data),
        })
    }

    pub(super) fn write(&self, at: u64, data: &[u8], forced: bool) -> Result<()> {
        self.request(Request {
            command: WRITE,
            flags: if forced { FLAG_FUA } else { 0 },
            at,
            length: length_of(data.len() as u64)?,
            payload: Payload::Write(data),
        })
    }

    pub(super) fn zero(&self, at: u64, bytes: u64) -> Result<()> {
        self.without_payload(WRITE_ZEROES, at, bytes)
    }

    pub(super) fn discard(&self, at: u64, bytes: u64) -> Result<()> {
        self.without_payload(TRIM, at, bytes)
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.without_payload(FLUSH, 0, 0)
    }

    fn without_payload(&self, command: u16, at: u64, bytes: u64) -> Result<()> {
        self.request(Request {
            command,
            flags: 0,
            at,
            length: length_of(bytes)?,
            payload: Payload::None,
        })
    }

    /// Sends a request until it is answered.
    fn request(&self, mut request: Request<'_>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let taken = lock(&self.idle).pop();
            let stream = match taken {
                Some(stream) => Ok(stream),
                None => self.connect(),
            };
            let answered = stream.and_then(|mut stream| {
                let code = exchange(&mut stream, &mut request)?;
                Ok((stream, code))
            });
            let cut_off = match answered {
                Ok((stream, 0)) => {
                    lock(&self.idle).push(stream);
                    return Ok(());
                }
                Ok((_, ESHUTDOWN)) => Error::from(ErrorKind::ConnectionAborted),
                Ok((_, code)) => return Err(Error::other(format!("NBD error {code}"))),
                Err(error) => error,
            };
            if Instant::now() > until {
                return Err(cut_off);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Connects to the host that has the volume: the one that had it last, or another one.
    fn connect(&self) -> Result<UnixStream> {
        let last = self.last.load(Ordering::Relaxed);
        let mut refused = Error::from(ErrorKind::NotFound);
        for step in 0..self.sockets.len() {
            let host = (last + step) % self.sockets.len();
            match self.connect_to(&self.sockets[host]) {
                Ok(stream) => {
                    self.last.store(host, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The fixed newstyle handshake up to the transmission phase.
    fn connect_to(&self, socket: &Path) -> Result<UnixStream> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(Error::other("no NBD server is there"));
        }
        // Fixed newstyle, no padding.
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        let name = length_of(self.name.len() as u64)?;
        bytes.extend(b"IHAVEOPT");
        bytes.extend(OPTION_GO.to_be_bytes());
        bytes.extend((name + 6).to_be_bytes());
        bytes.extend(name.to_be_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(0_u16.to_be_bytes());
        stream.write_all(&bytes)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let mut body = vec![0; word(&head, 16) as usize];
            stream.read_exact(&mut body)?;
            match word(&head, 12) {
                REPLY_ACK => return Ok(stream),
                REPLY_INFO => {}
                other => return Err(Error::other(format!("refused with {other:#x}"))),
            }
        }
    }
}

/// Sends a request and takes its answer: the server's error code.
fn exchange(stream: &mut UnixStream, request: &mut Request<'_>) -> Result<u32> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(request.flags.to_be_bytes());
    bytes.extend(request.command.to_be_bytes());
    // One request at a time: any number will do.
    bytes.extend(request.at.to_be_bytes());
    bytes.extend(request.at.to_be_bytes());
    bytes.extend(request.length.to_be_bytes());
    if let Payload::Write(data) = request.payload {
        bytes.extend(data);
    }
    stream.write_all(&bytes)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    if word(&reply, 0) != REPLY_MAGIC || reply[8..] != request.at.to_be_bytes() {
        return Err(Error::other(format!("the answer is {reply:x?}")));
    }
    let code = word(&reply, 4);
    if let (0, Payload::Read(data)) = (code, &mut request.payload) {
        stream.read_exact(data)?;
    }
    Ok(code)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..].iter().take(4);
    four.fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn length_of(bytes: u64) -> Result<u32> {
    u32::try_from(bytes).map_err(Error::other)
}
