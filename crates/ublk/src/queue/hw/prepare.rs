//! What a request needs before the handler may see it: a buffer that the driver has copied a write's
//! bytes to (NEED_GET_DATA), or a slot of its own with its pages (REGISTER_IO_BUF). Requests that must
//! wait for a buffer or a slot get it in the order in which they arrived.

use blkmq::io::SECTOR_BYTES;
use reactor::{Buf, Op, Port};

use super::HwQueue;
use crate::queue::descriptors::bytes_of;
use crate::queue::mode::Mode;
use crate::queue::mode::get_data::PoolContext;
use crate::queue::mode::zero_copy::NO_SLOT;
use crate::queue::request::{Data, Request};
use crate::queue::tags::{LastCommand, TagState};
use crate::queue::token::{self, CommandKind, OpKind};
use crate::sys;

impl HwQueue {
    /// Gets a request what it needs before the handler may see it: a buffer with its bytes, or a slot
    /// with its pages.
    pub(super) fn prepare<P: Port>(&mut self, port: &mut P, tag: u16) {
        let of = self.tags.of(tag);
        of.last_command = LastCommand::Prepare;
        match &mut self.mode {
            Mode::GetData(get_data) => {
                let descriptor = self.descriptors.get(tag);
                let bytes = usize::try_from(u64::from(descriptor.sectors) * SECTOR_BYTES);
                let bytes = bytes.unwrap_or(usize::MAX).max(1);
                let context = PoolContext {
                    waker: &self.waker,
                    counters: &self.counters,
                };
                match get_data.take(port, context, tag, bytes) {
                    Some(buf) => self.issue_get_data(port, tag, buf),
                    None => self.mark_waiting(tag),
                }
            }
            Mode::ZeroCopy(zero_copy) => match zero_copy.take_own_slot(tag) {
                Some(slot) => self.issue_register(port, tag, slot),
                None => self.mark_waiting(tag),
            },
            Mode::UserCopy | Mode::Copy(_) => {
                // The driver asks for a step that this mode does not have. It would refuse a commit
                // as well, so this is treated as a refusal.
                self.counters.faults.increment();
                self.on_refused(port, tag, -libc::EPROTO);
            }
        }
    }

    fn mark_waiting(&mut self, tag: u16) {
        self.counters.waits.increment();
        self.tags.set(tag, TagState::Waiting);
    }

    fn issue_get_data<P: Port>(&mut self, port: &mut P, tag: u16, buf: Buf) {
        let commands = self.commands();
        if let Mode::GetData(get_data) = &mut self.mode {
            self.tags.set(tag, TagState::Preparing);
            let command = get_data.build_command(commands, tag, buf);
            port.arm(token::command_number(CommandKind::GetData, tag), command);
        }
    }

    /// A write gets the buffer that it waited for.
    pub(in crate::queue) fn on_buffer<P: Port>(&mut self, port: &mut P, tag: u16, buf: Buf) {
        // A tag that was abandoned meanwhile needs no buffer.
        if self.tags.state(tag) == TagState::Waiting {
            self.issue_get_data(port, tag, buf);
        }
    }

    /// The pause after a failure of the user's pool is over.
    pub(in crate::queue) fn on_pool_timer<P: Port>(&mut self, port: &mut P) {
        if let Mode::GetData(get_data) = &mut self.mode {
            get_data.end_backoff();
        }
        self.on_pool_woken(port);
    }

    /// The user's pool may have memory.
    pub(in crate::queue) fn on_pool_woken<P: Port>(&mut self, port: &mut P) {
        loop {
            let Mode::GetData(get_data) = &mut self.mode else {
                return;
            };
            let context = PoolContext {
                waker: &self.waker,
                counters: &self.counters,
            };
            let Some((tag, buf)) = get_data.next_waiting(port, context) else {
                return;
            };
            self.on_buffer(port, tag, buf);
        }
    }

    /// NEED_GET_DATA has completed: a write's bytes were copied, or the driver says something else about
    /// the tag.
    #[inline]
    pub(in crate::queue) fn on_data_copied<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        let copied = match &mut self.mode {
            Mode::GetData(get_data) => get_data.take_copied(tag),
            _ => None,
        };
        let Some(mut buf) = copied.filter(|_| raw == sys::RESULT_OK) else {
            return self.on_command(port, tag, raw);
        };
        self.tags.on_fetched(tag, TagState::WithHandler);
        if self.abandons_new() {
            self.abandon_tag(port, tag);
            return None;
        }
        // Read again: the driver shortens the length where it could not copy all.
        let descriptor = self.descriptors.get(tag);
        let checked = bytes_of(&descriptor, self.io_bytes_max);
        let bytes = checked.unwrap_or(0);
        self.record_op(tag, descriptor.op(), bytes);
        if bytes == 0 || bytes as usize > buf.len() {
            self.reject(port, tag, libc::EIO);
            return None;
        }
        buf.truncate(bytes as usize);
        Some(self.request(tag, &descriptor, Data::Buffer(buf)))
    }

    fn issue_register<P: Port>(&mut self, port: &mut P, tag: u16, slot: u16) {
        self.tags.set(tag, TagState::Preparing);
        self.tags.of(tag).slot = Some(slot);
        let command = self
            .commands()
            .build(sys::IO_REGISTER_BUFFER, tag, 0, u64::from(slot));
        port.submit(
            token::queue_token(OpKind::Register, tag),
            Op::Command(command),
        );
    }

    /// REGISTER_IO_BUF has completed.
    pub(in crate::queue) fn on_registered<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        raw: i32,
    ) -> Option<Request> {
        let slot = self.tags.of(tag).slot?;
        if raw < 0 {
            tracing::warn!(
                device = self.device,
                queue = self.queue,
                tag,
                slot,
                errno = -raw,
                "ublk: the driver refused REGISTER_IO_BUF; the request fails"
            );
            self.tags.of(tag).slot = None;
            self.on_slot_free(port, slot);
            self.tags.set(tag, TagState::WithHandler);
            self.commit(port, tag, -libc::EIO, None);
            return None;
        }
        self.tags.set(tag, TagState::WithHandler);
        let descriptor = self.descriptors.get(tag);
        Some(self.request(tag, &descriptor, Data::Fixed { slot }))
    }

    /// UNREGISTER_IO_BUF has completed: the next request in line gets the slot.
    pub(in crate::queue) fn on_slot_free<P: Port>(&mut self, port: &mut P, slot: u16) {
        if slot == NO_SLOT {
            // A slot that the driver filled, which tags may share.
            return;
        }
        while let Mode::ZeroCopy(zero_copy) = &mut self.mode
            && let Some(next) = zero_copy.return_own_slot(slot)
        {
            // A tag that was abandoned meanwhile needs no buffer.
            if self.tags.state(next) == TagState::Waiting {
                return self.issue_register(port, next, slot);
            }
        }
    }
}
