//! A queue whose device may leave the server alone: it drains, and then resumes or is released.

use zerocopy::FromBytes;

use super::*;
use crate::sys::IoCommand;

fn events_of<H: Handler>(rig: &Rig<H>) -> Vec<String> {
    rig.observer.0.lock().unwrap().clone()
}

fn wake<H: Handler>(rig: &mut Rig<H>, key: u64) {
    rig.with(|source, port| source.on_wake(port, key));
}

#[test]
fn a_queue_rests_when_it_has_answered_what_it_had_and_takes_nothing_up() {
    let handler = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, handler.clone());
    rig.come(0, READ, 8);
    wake(&mut rig, KEY_DRAIN);
    rig.come(1, READ, 8);
    assert_eq!(events_of(&rig), [""; 0], "it has a request");
    handler.next().answer(Answer::Done);
    rig.deliver_returned();
    assert_eq!(events_of(&rig), ["drained 0"]);
    assert_eq!(rig.committed(0), 4096);
    rig.come(2, READ, 8);
    assert!(handler.kept.lock().unwrap().is_empty(), "taken up");
    assert_eq!(events_of(&rig), ["drained 0"], "told once");
    assert!(!rig.is_detached());
}

#[test]
fn what_came_to_a_queue_that_rested_is_served_when_it_goes_on() {
    for flags in [COPY_BY_USER, sys::F_PER_IO_TASK] {
        let handler = KeepingHandler::default();
        let mut rig = Rig::new(flags, 3, handler.clone());
        wake(&mut rig, KEY_DRAIN);
        for tag in [1, 0, 2] {
            rig.come(tag, WRITE, 8 + 8 * u32::from(tag));
        }
        wake(&mut rig, KEY_RESUME);
        for tag in [1, 0, 2] {
            let request = handler.next();
            assert_eq!(request.tag(), tag, "in the order in which they came");
            assert_eq!(request.bytes(), 4096 + 4096 * u32::from(tag));
            request.answer(Answer::Done);
        }
        rig.deliver_returned();
        assert_eq!(rig.committed(2), 3 * 4096);
        assert_eq!(rig.stats().abandoned, 0);
        assert!(!rig.is_detached());
    }
}

#[test]
fn a_write_that_was_announced_to_a_queue_that_rested_is_fetched_when_it_goes_on() {
    let flags = sys::F_NEED_GET_DATA | sys::F_PER_IO_TASK;
    let mut rig = Rig::new(flags, 1, KeepingHandler::answering(Answer::Done));
    wake(&mut rig, KEY_DRAIN);
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    assert!(rig.port.armed.is_empty(), "nothing is handed over");
    wake(&mut rig, KEY_RESUME);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_queue_that_is_let_go_leaves_with_its_last_idle_tag() {
    let handler = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 3, handler.clone());
    wake(&mut rig, KEY_DRAIN);
    rig.come(1, READ, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    assert_eq!(
        events_of(&rig),
        ["drained 0"],
        "the handler is not told before"
    );
    wake(&mut rig, KEY_RELEASE);
    assert!(!rig.is_detached(), "a tag is with the driver");
    rig.come(2, READ, 8);
    assert!(rig.is_detached());
    assert!(handler.kept.lock().unwrap().is_empty(), "taken up");
    assert_eq!(rig.stats().abandoned, 2);
    assert_eq!(events_of(&rig), ["drained 0", "aborted 0"]);
}

#[test]
fn a_device_that_is_stopped_while_its_queue_rests_has_what_came_answered() {
    let mut rig = Rig::new(COPY_BY_USER, 2, KeepingHandler::answering(Answer::Done));
    wake(&mut rig, KEY_DRAIN);
    rig.come(0, READ, 8);
    rig.answer(CommandKind::Fetch, 1, sys::RESULT_ABORT);
    wake(&mut rig, KEY_RESUME);
    assert_eq!(rig.committed(0), 4096);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_ABORT);
    assert!(rig.is_detached());
}

#[test]
fn a_reactor_that_stops_leaves_what_came_to_a_queue_that_rests() {
    let handler = KeepingHandler::default();
    let mut rig = Rig::new(COPY_BY_USER, 2, handler.clone());
    wake(&mut rig, KEY_DRAIN);
    rig.come(0, READ, 8);
    rig.with(|source, port| source.on_stop(port));
    assert!(rig.is_detached());
    assert_eq!(rig.stats().abandoned, 1);
    assert!(handler.kept.lock().unwrap().is_empty(), "taken up");
}

#[test]
fn pages_that_the_driver_put_into_a_slot_are_taken_out_where_a_queue_is_let_go() {
    let auto = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_USER_COPY | sys::F_PER_IO_TASK;
    let mut rig = Rig::new(auto, 3, KeepingHandler::default());
    wake(&mut rig, KEY_DRAIN);
    rig.come(0, READ, 8);
    rig.come(1, READ | sys::IO_NEED_REGISTER_BUFFER, 8);
    rig.come(2, u32::from(sys::OP_FLUSH), 0);
    wake(&mut rig, KEY_RELEASE);
    let sent: Vec<_> = rig.port.ops.drain(..).collect();
    let [(token, Op::Command(command))] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(command.opcode(), sys::IO_UNREGISTER_BUFFER);
    let of = IoCommand::read_from_bytes(command.payload()).unwrap();
    assert_eq!((of.tag, of.addr), (0, 0), "of the first tag and slot");
    let token = *token;
    rig.with(|source, port| source.on_completion(port, token, Completion::Command(0)));
    assert!(rig.is_detached());
}
