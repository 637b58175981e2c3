//! How a ring carries out what was submitted to it: commands by the driver, moves between windows,
//! slots and files at once. It decides nothing about order.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use reactor::{Completion, FileIndex, Op};
use ublk::sys::IoCommand;
use zerocopy::FromBytes;

use super::Ring;

impl Ring {
    pub(super) fn start_op(&mut self, key: u64) {
        let entry = self.ops.get_mut(&key).expect("it is in flight");
        if let Some(Op::Command(command)) = &entry.op {
            let file = command.file();
            let payload = IoCommand::read_from_bytes(command.payload())
                .expect("a payload is as long as a command");
            let (opcode, addr) = (command.opcode(), command.addr().unwrap_or(0));
            let armed = entry.armed;
            let device = self.file(file).and_then(|file| self.driver.device_of(file));
            let Some(device) = device else {
                return match armed {
                    Some(number) => {
                        let end = Completion::ArmedCommand(number, -libc::EOPNOTSUPP);
                        self.complete_op(key, |_| end)
                    }
                    None => self.complete_op(key, |op| failed_completion(op, libc::EOPNOTSUPP)),
                };
            };
            // SAFETY: whoever made the command promised that what it names is sound until it
            // ends, or until the ring is closed.
            unsafe { self.driver.io(self.id, device, opcode, addr, payload, key) };
            return;
        }
        if let Some(Op::Timeout { after }) = entry.op {
            let due = self.now + after;
            return self.timers.push((due, key));
        }
        if self.chance(self.faults.errors) {
            return self.complete_op(key, |op| failed_completion(op, libc::EIO));
        }
        let mut entry = self.ops.remove(&key).expect("it is in flight");
        let op = (entry.op.take()).expect("only its end takes an operation away");
        let completion = self.execute(op);
        self.deliver(entry.source, entry.token, completion);
    }

    fn file(&self, file: FileIndex) -> Option<&Arc<OwnedFd>> {
        let known = |at: &usize| FileIndex::for_test(*at as u32) == file;
        let at = (0..self.files.len()).find(known)?;
        self.files[at].as_ref()
    }

    fn execute(&mut self, op: Op) -> Completion {
        match op {
            Op::Read {
                file,
                offset,
                mut buf,
            } => {
                let result = self.read(file, offset, &mut buf);
                Completion::Read(buf, result)
            }
            Op::Write {
                file,
                offset,
                mut buf,
            } => {
                let result = self.write(file, offset, &mut buf);
                Completion::Write(buf, result)
            }
            Op::ReadFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => {
                let mut bytes = vec![0; len as usize];
                let read = self.read(file, offset, &mut bytes);
                let moved = read.and_then(|()| self.move_fixed(slot, at, true, &mut bytes));
                Completion::Fixed(moved)
            }
            Op::WriteFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => {
                let mut bytes = vec![0; len as usize];
                let moved = self.move_fixed(slot, at, false, &mut bytes);
                Completion::Fixed(moved.and_then(|()| self.write(file, offset, &mut bytes)))
            }
            Op::Sync { .. } => Completion::Sync(Ok(())),
            other => failed_completion(other, libc::EOPNOTSUPP),
        }
    }

    fn move_fixed(&self, slot: u16, at: u32, into: bool, bytes: &mut [u8]) -> io::Result<()> {
        let moved = self.driver.move_fixed(self.id, slot, at, into, bytes);
        moved.map_err(|errno| io::Error::from_raw_os_error(-errno))
    }

    fn read(&self, file: FileIndex, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file(file).ok_or_else(closed)?;
        let read = match self.driver.device_of(file) {
            Some(device) => self.driver.read_window(device, offset, bytes),
            None => return check_full(rustix::io::pread(file, &mut *bytes, offset)?, bytes.len()),
        };
        let read = read.map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        check_full(read, bytes.len())
    }

    fn write(&self, file: FileIndex, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.file(file).ok_or_else(closed)?;
        let written = match self.driver.device_of(file) {
            Some(device) => self.driver.write_window(device, offset, bytes),
            None => return check_full(rustix::io::pwrite(file, bytes, offset)?, bytes.len()),
        };
        let written = written.map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        check_full(written, bytes.len())
    }
}

fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

fn check_full(moved: usize, len: usize) -> io::Result<()> {
    if moved == len {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// An operation that fails with this errno.
pub(super) fn failed_completion(op: Op, errno: i32) -> Completion {
    let error = || io::Error::from_raw_os_error(errno);
    match op {
        Op::Accept { .. } => Completion::Accept(Err(error())),
        Op::Recv { buf, .. } => Completion::Recv(buf, Err(error())),
        Op::Send { parts, .. } => Completion::Send(parts, Err(error())),
        Op::Read { buf, .. } => Completion::Read(buf, Err(error())),
        Op::Write { buf, .. } => Completion::Write(buf, Err(error())),
        Op::ReadFixed { .. } | Op::WriteFixed { .. } => Completion::Fixed(Err(error())),
        Op::Command(_) => Completion::Command(-errno),
        Op::Sync { .. } => Completion::Sync(Err(error())),
        Op::Poll { .. } => Completion::Poll(Err(error())),
        Op::Timeout { .. } => Completion::Timeout(Err(error())),
    }
}
