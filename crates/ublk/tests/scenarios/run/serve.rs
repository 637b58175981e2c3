//! Steps of the clients and of the server's answers.

use ublk::sys;
use ublk_fake::{ClientOp, ClientRequest};

use super::super::{Addr, Mode, QUEUED, RequestKind, SECTOR, Step, Wait};
use super::{CLIENT_BYTES, FetchedRequest, Run, StepResult, describe, expect, pattern};

impl Run<'_> {
    pub(super) fn step_client(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        match *step {
            Step::Submit(name, kind) => {
                let op = match kind {
                    RequestKind::Read => ClientOp::Read(CLIENT_BYTES as u32),
                    RequestKind::Write | RequestKind::WriteFua => {
                        ClientOp::Write(pattern(kind, CLIENT_BYTES))
                    }
                    RequestKind::Flush => ClientOp::Flush,
                    RequestKind::Discard => ClientOp::Discard(CLIENT_BYTES as u32),
                    RequestKind::Zeroes => ClientOp::WriteZeroes(CLIENT_BYTES as u32),
                };
                let call = self.world.submit(ClientRequest {
                    op,
                    sector: SECTOR,
                    fua: kind == RequestKind::WriteFua,
                });
                self.clients.insert(name, (call, kind));
                Ok(())
            }
            Step::ClientResult(name, expected) => {
                let (call, kind) = self.clients.remove(&name).ok_or("no such client")?;
                let answer = self.wait_until(|run| run.world.client_result(call, Wait::No))?;
                let result = answer.as_ref().err().copied().unwrap_or(0);
                expect("the client's result", result, expected.for_kernel(kernel))?;
                match answer {
                    Ok(bytes)
                        if kind == RequestKind::Read && bytes != pattern(kind, CLIENT_BYTES) =>
                    {
                        Err("the client read something else".into())
                    }
                    _ => Ok(()),
                }
            }
            Step::ClientPending(name) => {
                let (call, _) = self.clients[&name];
                self.pump()?;
                match self.world.client_result(call, Wait::No) {
                    None => Ok(()),
                    Some(answer) => Err(format!("it ended with {:?}", answer.map(|_| ()))),
                }
            }
            Step::DiskOpen(open) => {
                let result = self.world.set_disk_open(open);
                result.map_err(describe)
            }
            Step::Receive(op, expected) => {
                let fetched = self.wait_until(|run| run.fetched.pop_front())?;
                self.current = Some(fetched);
                expect("the operation", fetched.descriptor.op().into(), op.into())?;
                expect("the result", fetched.result, expected.for_kernel(kernel))
            }
            Step::Flags(wanted, unwanted) => {
                let descriptor = self.current()?.descriptor;
                if descriptor.op_flags & wanted != wanted || descriptor.op_flags & unwanted != 0 {
                    return Err(format!("the flags are {:#x}", descriptor.op_flags));
                }
                Ok(())
            }
            Step::Extent(sectors, behind) => {
                let FetchedRequest { queue, tag, .. } = self.current()?;
                let descriptor = self.world.descriptor(queue, tag);
                expect("the length", descriptor.sectors as i32, sectors as i32)?;
                let got = descriptor.sector as i32 - SECTOR as i32;
                expect("the place", got, behind as i32)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table, not steps")]
    pub(super) fn step_server(&mut self, step: &Step) -> StepResult {
        let kernel = self.world.kernel();
        let current = self.current;
        match *step {
            Step::MoveData => self.move_data(),
            Step::Commit(result, addr, expected) => {
                let current = self.current()?;
                let got = self.commit(current, result, addr);
                expect("COMMIT", got, expected.for_kernel(kernel))
            }
            Step::CommitBy(task, result, expected) => {
                let current = self.current()?;
                let got = self.commit(FetchedRequest { task, ..current }, result, Addr::Proper);
                expect("COMMIT", got, expected.for_kernel(kernel))
            }
            Step::CommitTag(tag, expected) => {
                let opcode = sys::IO_COMMIT_AND_FETCH;
                let got = self.submit_command(0, opcode, 0, tag, 0, Addr::Proper);
                expect("COMMIT", got, expected.for_kernel(kernel))
            }
            Step::GetData(addr, expected) => {
                let FetchedRequest {
                    task, queue, tag, ..
                } = self.current()?;
                let mut got = self.submit_command(task, sys::IO_NEED_GET_DATA, queue, tag, 0, addr);
                if got == QUEUED.new && expected.for_kernel(kernel) == 0 {
                    // Older kernels copy the data a little later.
                    got = self.wait_until(|run| {
                        run.fetched
                            .iter()
                            .any(|other| other.tag == tag)
                            .then_some(0)
                    })?;
                    self.fetched.clear();
                }
                expect("NEED_GET_DATA", got, expected.for_kernel(kernel))
            }
            Step::Register(slot, expected) => {
                let FetchedRequest {
                    task, queue, tag, ..
                } = self.current()?;
                let got = self.raw(task, sys::IO_REGISTER_BUFFER, queue, tag, slot);
                expect("REGISTER", got, expected.for_kernel(kernel))
            }
            Step::Unregister(slot, expected) => {
                let task = current.map_or(0, |current| current.task);
                let got = self.raw(task, sys::IO_UNREGISTER_BUFFER, 0, 0, slot);
                expect("UNREGISTER", got, expected.for_kernel(kernel))
            }
            Step::Window(into, at, len, expected) => {
                let FetchedRequest { queue, tag, .. } = self.current()?;
                let mut bytes = vec![0; len];
                let offset = sys::data_offset(queue, tag, at);
                let got = self.world.window(offset, into, &mut bytes);
                let got = got.map_or_else(|errno| errno, |moved| moved as i32);
                expect("the window", got, expected.for_kernel(kernel))
            }
            Step::WindowOf(queue, tag, expected) => {
                let offset = sys::data_offset(queue, tag, 0);
                let got = self.world.window(offset, false, &mut [0; 512]);
                let got = got.map_or_else(|errno| errno, |moved| moved as i32);
                expect("the window", got, expected.for_kernel(kernel))
            }
            Step::Fixed(slot, into, at, expected) => {
                let task = current.map_or(0, |current| current.task);
                let got = self.world.fixed(task, slot, at, into, &mut [7; 512]);
                expect(
                    "the fixed operation",
                    got.err().unwrap_or(0),
                    expected.for_kernel(kernel),
                )
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    /// Moves the data of the request in the way of its mode.
    pub(super) fn move_data(&mut self) -> StepResult {
        let FetchedRequest {
            task, queue, tag, ..
        } = self.current()?;
        let descriptor = self.world.descriptor(queue, tag);
        let read = descriptor.op() == sys::OP_READ;
        let kind = if read {
            RequestKind::Read
        } else {
            RequestKind::Write
        };
        let from = (descriptor.sector - SECTOR) as usize * 512;
        let len = descriptor.sectors as usize * 512;
        let wanted = pattern(kind, CLIENT_BYTES)[from..from + len].to_vec();
        let mut bytes = if read { wanted.clone() } else { vec![0; len] };
        match self.mode {
            Mode::Copy | Mode::GetData if read => {
                self.world.memory(queue, tag)[..len].copy_from_slice(&bytes);
            }
            Mode::Copy | Mode::GetData => {
                bytes.copy_from_slice(&self.world.memory(queue, tag)[..len]);
            }
            Mode::UserCopy => {
                let offset = sys::data_offset(queue, tag, 0);
                let moved = self.world.window(offset, read, &mut bytes);
                expect(
                    "the window",
                    moved.map_or_else(|e| e, |n| n as i32),
                    len as i32,
                )?;
            }
            Mode::ZeroCopy => {
                let got = self.raw(task, sys::IO_REGISTER_BUFFER, queue, tag, 3);
                expect("REGISTER", got, 0)?;
                let moved = self.world.fixed(task, 3, 0, read, &mut bytes);
                let got = self.raw(task, sys::IO_UNREGISTER_BUFFER, queue, tag, 3);
                expect("UNREGISTER", got, 0)?;
                moved.map_err(describe)?;
            }
            Mode::Auto => {
                let moved = self.world.fixed(task, tag, 0, read, &mut bytes);
                moved.map_err(describe)?;
            }
        }
        if bytes == wanted {
            Ok(())
        } else {
            Err("the request's data are wrong".into())
        }
    }
}
