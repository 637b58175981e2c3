//! A queue on a port that only records: what it sends, and what it makes of each answer.

mod buffers;
mod draining;
mod pools;
mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use reactor::{Buf, Completion, Op, Port};

use super::token::{self, CommandKind, KEY_DRAIN, KEY_RELEASE, KEY_RESUME, OpKind, command_number};
use super::*;
use crate::sys;

use rig::KeepingHandler;
pub(crate) use rig::Rig;

const READ: u32 = sys::OP_READ as u32;
const WRITE: u32 = sys::OP_WRITE as u32;
const COPY_BY_USER: u64 = sys::F_USER_COPY | sys::F_PER_IO_TASK;

#[test]
fn results_are_what_the_driver_understands() {
    let done = |flags, answer, op| {
        let mut rig = Rig::new(flags, 1, KeepingHandler::answering(answer));
        rig.come(0, op, 8);
        rig.committed(0)
    };
    let user_copy = |answer, op| done(COPY_BY_USER, answer, op);
    assert_eq!(user_copy(Answer::Done, READ), 4096);
    assert_eq!(user_copy(Answer::Done, u32::from(sys::OP_FLUSH)), 0);
    assert_eq!(user_copy(Answer::Done, u32::from(sys::OP_DISCARD)), 0);
    let copy = |answer, op| done(sys::F_PER_IO_TASK, answer, op);
    assert_eq!(copy(Answer::Part(512), READ), 512);
    // The kernel would take these for the whole request.
    assert_eq!(copy(Answer::Part(512), WRITE), -libc::EIO);
    assert_eq!(user_copy(Answer::Part(512), READ), -libc::EIO);
    assert_eq!(user_copy(Answer::Part(4096), WRITE), 4096);
    assert_eq!(user_copy(Answer::Failed(28), WRITE), -28);
    for senseless in [
        Answer::Part(0),
        Answer::Part(512),
        Answer::Part(100),
        Answer::Part(8192),
        Answer::Failed(-5),
        Answer::Failed(i32::MAX),
    ] {
        assert_eq!(user_copy(senseless, WRITE), -libc::EIO, "{senseless:?}");
    }
    assert_eq!(user_copy(Answer::Done, 0x44), -libc::EOPNOTSUPP);
    // A read that brings nothing, where a buffer must come.
    let get_data = done(sys::F_NEED_GET_DATA, Answer::Done, READ);
    assert_eq!(get_data, -libc::EIO);
}

#[test]
fn a_request_of_no_bytes_or_too_many_is_not_handed_out() {
    for sectors in [0, 4096, u32::MAX] {
        let mut rig = Rig::new(COPY_BY_USER, 1, KeepingHandler::answering(Answer::Done));
        rig.come(0, READ, sectors);
        assert_eq!(rig.committed(0), -libc::EIO);
        assert_eq!(rig.counters.stats().requests, 0);
    }
}

#[test]
fn results_go_to_the_driver_in_the_order_of_the_answers() {
    let mut rig = Rig::new(COPY_BY_USER, 4, KeepingHandler::answering(Answer::Done));
    for tag in [2, 0, 3, 1] {
        rig.come(tag, WRITE, 8);
    }
    let sent = rig.port.armed.iter();
    let order: Vec<u16> = sent.map(|&(number, _)| number as u16).collect();
    assert_eq!(order, [2, 0, 3, 1]);
}

#[test]
fn a_refused_result_is_sent_again_and_in_the_end_fails() {
    let mut rig = Rig::new(COPY_BY_USER, 1, KeepingHandler::answering(Answer::Done));
    rig.come(0, WRITE, 8);
    for _ in 0..3 {
        assert_eq!(rig.committed(0), 4096);
        rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
        rig.end(OpKind::RetryTimer, 0, 0);
    }
    assert_eq!(rig.committed(0), 4096);
    rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.committed(0), -libc::EIO);
    rig.come(0, WRITE, 16);
    assert_eq!(rig.committed(0), 8192, "the tag serves again");
    let stats = rig.counters.stats();
    assert_eq!((stats.retries, stats.commits_lost, stats.aborts), (4, 1, 0));
}

#[test]
fn a_refused_fetch_is_told_once_and_sent_again() {
    let mut rig = Rig::new(COPY_BY_USER, 2, KeepingHandler::answering(Answer::Done));
    for _ in 0..2 {
        rig.answer(CommandKind::Fetch, 1, -libc::EBUSY);
        rig.end(OpKind::RetryTimer, 1, 0);
    }
    assert_eq!(rig.issued(CommandKind::Fetch, 1).0, sys::IO_FETCH);
    assert_eq!(*rig.observer.0.lock().unwrap(), ["fetch 0 16"]);
}

#[test]
fn a_queue_leaves_when_all_its_tags_are_retired_and_answered() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, keep.clone());
    rig.come(1, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    rig.answer(CommandKind::Fetch, 2, sys::RESULT_ABORT);
    let stats = rig.counters.stats();
    assert_eq!((stats.aborts, stats.owned_at_abort), (2, 1));
    assert!(!rig.port.detached, "a request is at hand");
    keep.next().complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(1), 4096);
    rig.answer(CommandKind::Fetch, 1, sys::RESULT_ABORT);
    assert!(rig.port.detached);
    rig.source = None;
    assert_eq!(*rig.observer.0.lock().unwrap(), ["aborted 0", "detached 0"]);
}

#[test]
fn a_tag_that_a_quiesced_driver_keeps_does_not_hold_the_queue_for_ever() {
    let mut rig = Rig::new(COPY_BY_USER, 2, KeepingHandler::default());
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    assert!(!rig.port.detached);
    rig.end(OpKind::GraceTimer, 0, 0);
    assert!(rig.port.detached);
}

#[test]
fn a_server_that_stops_finishes_what_it_has_and_leaves_the_rest() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, keep.clone());
    rig.come(0, WRITE, 8);
    rig.with(|source, port| source.on_stop(port));
    rig.come(1, WRITE, 8);
    assert!(!rig.port.detached);
    assert_eq!(rig.counters.stats().abandoned, 1);
    keep.next().complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(0), 4096);
    assert!(rig.port.detached);
}

#[test]
fn before_linux_6_16_a_stopping_server_keeps_one_tag_idle() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(sys::F_USER_COPY, 2, keep.clone());
    rig.come(0, WRITE, 8);
    rig.with(|source, port| source.on_stop(port));
    // The last idle tag: its request is served, else the driver would miss the exit.
    rig.come(1, WRITE, 8);
    assert_eq!(rig.counters.stats().abandoned, 0);
    keep.next().complete();
    keep.next().complete();
    rig.deliver_returned();
    assert!(rig.port.detached);
}

#[test]
fn a_share_of_a_queue_has_its_tags_and_leaves_with_them() {
    let share = Share { first: 1, step: 3 };
    let mut rig = Rig::with_share(0, (8, share), KeepingHandler::answering(Answer::Done));
    let sent = |tag: &u16| {
        let number = command_number(CommandKind::Fetch, *tag);
        rig.port.armed.iter().any(|(own, _)| *own == number)
    };
    let fetched: Vec<u16> = (0..8).filter(sent).collect();
    assert_eq!(fetched, [1, 4, 7]);
    for tag in fetched {
        assert!(!rig.is_detached(), "before its last tag");
        rig.answer(CommandKind::Fetch, tag, sys::RESULT_ABORT);
    }
    assert!(rig.is_detached());
    assert_eq!(rig.stats().aborts, 3);
}

#[test]
fn a_panic_costs_its_request() {
    let mut rig = Rig::new(
        COPY_BY_USER,
        1,
        KeepingHandler::answering(Answer::Failed(0)),
    );
    rig.come(0, WRITE, 8);
    rig.deliver_returned();
    assert_eq!(rig.committed(0), -libc::EIO);
    let stats = rig.counters.stats();
    assert_eq!((stats.panics, stats.dropped), (1, 1));
}

/// Panics over writes of nine sectors; all else is done.
struct NineSectorPanicHandler;

impl Handler for NineSectorPanicHandler {
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        assert!(request.bytes() != 9 * 512, "planted");
        queue.complete(request);
    }
}

#[test]
fn requests_that_come_together_with_one_that_is_panicked_over_are_served() {
    let mut rig = Rig::new(COPY_BY_USER, 4, NineSectorPanicHandler);
    for (tag, sectors) in [8, 9, 16, 9].into_iter().enumerate() {
        rig.describe(tag as u16, WRITE, sectors);
    }
    rig.port.armed.clear();
    let mut ends = (0..4).map(|tag| (command_number(CommandKind::Fetch, tag), sys::RESULT_OK));
    rig.with(|source, port| source.on_armed_completions(port, |_| ends.next()));
    assert_eq!((rig.committed(0), rig.committed(2)), (4096, 8192));
    assert_eq!(rig.port.armed.len(), 2);
    rig.deliver_returned();
    for tag in [1, 3] {
        assert_eq!(rig.committed(tag), -libc::EIO);
    }
    assert_eq!((rig.stats().panics, rig.stats().dropped), (2, 2));
}

#[test]
fn a_panic_of_the_queue_itself_is_not_taken_for_its_handlers() {
    let mut rig = Rig::new(COPY_BY_USER, 1, NineSectorPanicHandler);
    rig.port.armed.clear();
    let mut ends = [(command_number(CommandKind::Fetch, 7), sys::RESULT_OK)].into_iter();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        rig.with(|source, port| source.on_armed_completions(port, |_| ends.next()));
    }));
    assert!(caught.is_err(), "there is no tag 7");
    assert_eq!(rig.stats().panics, 0);
}
