//! Driver commands (`IORING_OP_URING_CMD`): what a file's driver is asked to do beyond reading
//! and writing, with its raw result.
//!
//! Nothing is interpreted here and nothing is repeated: which errno means what is the driver's
//! affair. What this file owns is the memory of a command, because only the reactor knows when
//! the kernel is done with it.

use crate::buf::Buf;
use crate::driver::Call;
use crate::files::FileIndex;
use crate::op::Completion;

/// How long a command keeps its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until the command has ended; the buffer comes back in its completion.
    UntilDone,
    /// Until the kernel has taken the command: for drivers that read the buffer while the
    /// command is submitted and may then keep it for long. The buffer is dropped after that
    /// enter, or with the command, and never comes back.
    UntilTaken,
}

#[derive(Debug)]
struct Lent {
    buf: Buf,
    payload_at: usize,
    hold: Hold,
}

/// A driver command on a registered file.
#[derive(Debug)]
pub struct Command {
    file: FileIndex,
    opcode: u32,
    payload: [u8; Command::PAYLOAD_BYTES],
    sqe_addr: Option<u64>,
    lent: Option<Lent>,
    armed: bool,
}

impl Command {
    /// Bytes of a command's payload: the space of an ordinary submission entry.
    pub const PAYLOAD_BYTES: usize = 16;

    /// A command of the driver behind `file`, with the driver's own opcode and payload.
    ///
    /// # Safety
    ///
    /// Where the driver takes something in the payload or in [`Command::sqe_addr`] for an
    /// address or for another resource of this process, what it does there must be sound until
    /// the command has ended. Memory given by [`Command::buffer`] is held by the reactor as its
    /// [`Hold`] says; that this is long enough, and that `buf` is as large as the driver believes,
    /// is the caller's promise too. For an armed command ([`Command::armed`]) that means a driver
    /// which touches the memory in the thread that submitted the command, and nowhere else: the
    /// kernel goes on cancelling for a moment after that thread has ended.
    pub unsafe fn new(
        file: FileIndex,
        opcode: u32,
        payload: [u8; Command::PAYLOAD_BYTES],
    ) -> Command {
        Command {
            file,
            opcode,
            payload,
            sqe_addr: None,
            lent: None,
            armed: false,
        }
    }

    /// The address field of the submission entry, which some drivers give a meaning of its own.
    #[must_use]
    pub fn sqe_addr(mut self, value: u64) -> Command {
        self.sqe_addr = Some(value);
        self
    }

    /// Gives the command a buffer, whose address is written into the eight bytes of the payload
    /// from `payload_at` on when the command is submitted.
    #[must_use]
    pub fn buffer(mut self, buf: Buf, payload_at: usize, hold: Hold) -> Command {
        assert!(
            payload_at <= Command::PAYLOAD_BYTES - size_of::<u64>(),
            "an address at byte {payload_at} is not within the payload"
        );
        self.lent = Some(Lent {
            buf,
            payload_at,
            hold,
        });
        self
    }

    /// Marks a command that ends when its driver wills, or with the ring. It does not keep a
    /// stopping reactor, it cannot be cancelled by itself (drivers know no such thing), and its
    /// memory is freed when the driver has answered, or after the ring is closed and its thread
    /// has ended.
    #[must_use]
    pub fn armed(mut self) -> Command {
        self.armed = true;
        self
    }

    /// The file it goes to.
    pub fn file(&self) -> FileIndex {
        self.file
    }

    /// The driver's opcode.
    pub fn opcode(&self) -> u32 {
        self.opcode
    }

    /// The payload, without the address of a buffer.
    pub fn payload(&self) -> &[u8; Command::PAYLOAD_BYTES] {
        &self.payload
    }

    /// The address field of the submission entry, where one was set.
    pub fn addr(&self) -> Option<u64> {
        self.sqe_addr
    }

    /// Whether it ends by its driver's will only.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Its buffer, as the driver sees it.
    pub fn buffer_mut(&mut self) -> Option<&mut Buf> {
        self.lent.as_mut().map(|lent| &mut lent.buf)
    }

    /// Its end with the driver's raw answer, for doubles of drivers.
    #[cfg(any(test, feature = "fake"))]
    pub fn end(self, raw: i32) -> Completion {
        let sent = self.send().1;
        sent.map_or(Completion::Commanded(None, raw), |mut sent| sent.ended(raw))
    }

    /// Its call, and the memory that stays here while the kernel has it, where it has some. The
    /// call's address is good for as long as that is not freed.
    #[inline(always)]
    pub(crate) fn send(self) -> (Call, Option<Sent>) {
        let Command {
            opcode,
            mut payload,
            sqe_addr,
            lent,
            ..
        } = self;
        let sent = match lent {
            None => None,
            Some(mut lent) => {
                let address = lent.buf.raw() as u64;
                payload[lent.payload_at..][..size_of::<u64>()]
                    .copy_from_slice(&address.to_ne_bytes());
                Some(Sent {
                    buf: Some(lent.buf),
                    hold: lent.hold,
                })
            }
        };
        let call = Call::Command {
            opcode,
            payload,
            sqe_addr,
        };
        (call, sent)
    }
}

/// The memory of a command that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    buf: Option<Buf>,
    hold: Hold,
}

impl Sent {
    /// The command's end in place. A buffer that does not come back stays until `self` goes.
    pub(crate) fn ended(&mut self, raw: i32) -> Completion {
        let kept = self.buf.take_if(|_| self.hold == Hold::UntilDone);
        Completion::Commanded(kept, raw)
    }

    /// Whether it is held only until the kernel has taken the command.
    pub(crate) fn held_until_taken(&self) -> bool {
        self.hold == Hold::UntilTaken
    }

    /// Lets go of what was held only until the kernel took the command.
    pub(crate) fn taken(&mut self) {
        self.buf.take_if(|_| self.hold == Hold::UntilTaken);
    }

    /// The memory, for who must outlive the kernel's use of it.
    pub(crate) fn into_memory(self) -> Option<Buf> {
        self.buf
    }
}
