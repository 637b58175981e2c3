//! Steps in which clients ask and the server answers.

use ublk::sys;
use ublk_fake::{ClientOp, ClientRequest};

use super::super::{Addr, Ask, KEPT, Mode, Patience, SECTOR, Step};
use super::{Arrived, CLIENT_BYTES, Done, Run, expect, named, pattern};

impl Run<'_> {
    pub(super) fn step_client(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        match *step {
            Step::Client(name, ask) => {
                let op = match ask {
                    Ask::Read => ClientOp::Read(CLIENT_BYTES as u32),
                    Ask::Write | Ask::WriteFua => ClientOp::Write(pattern(ask, CLIENT_BYTES)),
                    Ask::Flush => ClientOp::Flush,
                    Ask::Discard => ClientOp::Discard(CLIENT_BYTES as u32),
                    Ask::Zeroes => ClientOp::WriteZeroes(CLIENT_BYTES as u32),
                };
                let call = self.world.client(ClientRequest {
                    op,
                    sector: SECTOR,
                    fua: ask == Ask::WriteFua,
                });
                self.clients.insert(name, (call, ask));
                Ok(())
            }
            Step::Ended(name, want) => {
                let (call, ask) = self.clients.remove(&name).ok_or("no such client")?;
                let answer = self.until(|run| run.world.client_result(call, Patience::No))?;
                let result = answer.as_ref().err().copied().unwrap_or(0);
                expect("the client's result", result, want.on(kernel))?;
                match answer {
                    Ok(bytes) if ask == Ask::Read && bytes != pattern(ask, CLIENT_BYTES) => {
                        Err("the client read something else".into())
                    }
                    _ => Ok(()),
                }
            }
            Step::Pending(name) => {
                let (call, _) = self.clients[&name];
                self.pump()?;
                match self.world.client_result(call, Patience::No) {
                    None => Ok(()),
                    Some(answer) => Err(format!("it ended with {:?}", answer.map(|_| ()))),
                }
            }
            Step::DiskOpen(open) => {
                let result = self.world.disk_open(open);
                result.map_err(named)
            }
            Step::Comes(op, want) => {
                let arrived = self.until(|run| run.arrived.pop_front())?;
                self.now = Some(arrived);
                expect("the operation", arrived.descriptor.op().into(), op.into())?;
                expect("the result", arrived.result, want.on(kernel))
            }
            Step::Flags(wanted, unwanted) => {
                let descriptor = self.now()?.descriptor;
                if descriptor.op_flags & wanted != wanted || descriptor.op_flags & unwanted != 0 {
                    return Err(format!("the flags are {:#x}", descriptor.op_flags));
                }
                Ok(())
            }
            Step::Extent(sectors, behind) => {
                let Arrived { queue, tag, .. } = self.now()?;
                let descriptor = self.world.descriptor(queue, tag);
                expect("the length", descriptor.sectors as i32, sectors as i32)?;
                let got = descriptor.sector as i32 - SECTOR as i32;
                expect("the place", got, behind as i32)
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table, not steps")]
    pub(super) fn step_serve(&mut self, step: &Step) -> Done {
        let kernel = self.world.kernel();
        let now = self.now;
        match *step {
            Step::Moves => self.moves(),
            Step::Commit(result, addr, want) => {
                let now = self.now()?;
                let got = self.commit(now, result, addr);
                expect("COMMIT", got, want.on(kernel))
            }
            Step::CommitBy(task, result, want) => {
                let now = self.now()?;
                let got = self.commit(Arrived { task, ..now }, result, Addr::Proper);
                expect("COMMIT", got, want.on(kernel))
            }
            Step::CommitTag(tag, want) => {
                let opcode = sys::IO_COMMIT_AND_FETCH;
                let got = self.give(0, opcode, 0, tag, 0, Addr::Proper);
                expect("COMMIT", got, want.on(kernel))
            }
            Step::GetData(addr, want) => {
                let Arrived {
                    task, queue, tag, ..
                } = self.now()?;
                let mut got = self.give(task, sys::IO_NEED_GET_DATA, queue, tag, 0, addr);
                if got == KEPT.new && want.on(kernel) == 0 {
                    // Older kernels copy the data a little later.
                    got = self.until(|run| {
                        run.arrived
                            .iter()
                            .any(|other| other.tag == tag)
                            .then_some(0)
                    })?;
                    self.arrived.clear();
                }
                expect("NEED_GET_DATA", got, want.on(kernel))
            }
            Step::Register(slot, want) => {
                let Arrived {
                    task, queue, tag, ..
                } = self.now()?;
                let got = self.raw(task, sys::IO_REGISTER_BUFFER, queue, tag, slot);
                expect("REGISTER", got, want.on(kernel))
            }
            Step::Unregister(slot, want) => {
                let task = now.map_or(0, |now| now.task);
                let got = self.raw(task, sys::IO_UNREGISTER_BUFFER, 0, 0, slot);
                expect("UNREGISTER", got, want.on(kernel))
            }
            Step::Window(into, at, len, want) => {
                let Arrived { queue, tag, .. } = self.now()?;
                let mut bytes = vec![0; len];
                let offset = sys::data_offset(queue, tag, at);
                let got = self.world.window(offset, into, &mut bytes);
                let got = got.map_or_else(|errno| errno, |moved| moved as i32);
                expect("the window", got, want.on(kernel))
            }
            Step::WindowOf(queue, tag, want) => {
                let offset = sys::data_offset(queue, tag, 0);
                let got = self.world.window(offset, false, &mut [0; 512]);
                let got = got.map_or_else(|errno| errno, |moved| moved as i32);
                expect("the window", got, want.on(kernel))
            }
            Step::Fixed(slot, into, at, want) => {
                let task = now.map_or(0, |now| now.task);
                let got = self.world.fixed(task, slot, at, into, &mut [7; 512]);
                expect(
                    "the fixed operation",
                    got.err().unwrap_or(0),
                    want.on(kernel),
                )
            }
            _ => unreachable!("not a step of this part"),
        }
    }

    /// Moves the data of the request as the mode does it.
    pub(super) fn moves(&mut self) -> Done {
        let Arrived {
            task, queue, tag, ..
        } = self.now()?;
        let descriptor = self.world.descriptor(queue, tag);
        let read = descriptor.op() == sys::OP_READ;
        let ask = if read { Ask::Read } else { Ask::Write };
        let from = (descriptor.sector - SECTOR) as usize * 512;
        let len = descriptor.sectors as usize * 512;
        let wanted = pattern(ask, CLIENT_BYTES)[from..from + len].to_vec();
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
                moved.map_err(named)?;
            }
            Mode::Auto => {
                let moved = self.world.fixed(task, tag, 0, read, &mut bytes);
                moved.map_err(named)?;
            }
        }
        if bytes == wanted {
            Ok(())
        } else {
            Err("the request's data are wrong".into())
        }
    }
}
