//! Memory that a command holds until the kernel has taken it, and sources that wait for buffers.

use super::*;
use crate::aligned::NO_MEMORY;

#[test]
fn a_buffer_held_until_taken_is_freed_by_the_enter_that_took_its_command_and_by_no_other() {
    let (mut core, kernel, source, file) = world();
    kernel.borrow_mut().takes = false;
    let buf = lend(&core);
    core.hold_until_submitted(buf);
    core.arm(source, 1, command(file));
    let op = last_begun(&kernel);
    enter(&mut core);
    assert_eq!(core.pool().stats().lent, 4096, "the kernel has not read it");
    kernel.borrow_mut().takes = true;
    enter(&mut core);
    assert_eq!(core.pool().stats().lent, 0);
    assert_eq!(
        core.stats().armed_commands,
        1,
        "the command goes on without it"
    );
    let end = answer(&mut core, &kernel, op, 3);
    assert!(matches!(end, Completion::ArmedCommand(1, 3)));
    assert_eq!(core.stats().armed_commands, 0);
}

#[test]
fn a_command_begun_by_the_results_of_an_enter_was_not_taken_by_it() {
    let (mut core, kernel, source, file) = world();
    let read = Op::Read {
        file,
        offset: 0,
        buf: Buf::allocate(4096).unwrap(),
    };
    let read = core.submit(source, Token(1), read);
    enter(&mut core);
    let buf = lend(&core);
    core.hold_until_submitted(buf);
    core.submit(source, Token(2), Op::Command(command(file)));
    // The short read is continued, which queues a call behind that enter.
    kernel.borrow_mut().results.push((read.0, 100));
    enter(&mut core);
    assert_eq!(core.pool().stats().lent, 0, "what was before it is taken");
    let buf = lend(&core);
    core.hold_until_submitted(buf);
    core.submit(source, Token(3), Op::Command(command(file)));
    assert_eq!(core.pool().stats().lent, 4096);
}

#[test]
fn an_enter_that_frees_what_somebody_waits_for_does_not_wait() {
    let (mut core, _kernel, source, file) = world();
    let all = core.pool().take(1 << 20, BufferPurpose::Fresh).unwrap();
    core.hold_until_submitted(all);
    core.arm(source, 1, command(file));
    assert!(!core.enter_frees_buffers(), "no source waits");
    assert!(
        core.request_buffer(source, Token(2), 4096, BufferPurpose::Fresh)
            .is_none()
    );
    assert!(core.enter_frees_buffers());
    enter(&mut core);
    core.grant_buffers();
    let (token, granted) = next(&mut core).expect("the buffer that was waited for");
    assert!(token == Token(2) && matches!(granted, Completion::Buffer(_)));
}

#[test]
fn a_source_that_waits_for_its_own_buffers_is_waited_for_by_no_other() {
    let (mut core, _kernel, parked, _file) = world();
    let other = core.attach(|_| Idle);
    let mut ask =
        |source, token| core.request_buffer(source, Token(token), 128 << 10, BufferPurpose::Held);
    let held: Vec<_> = (0..9).map_while(|token| ask(parked, token)).collect();
    assert_eq!(held.len(), 2, "half of what may be held; the third waits");
    let own = ask(other, 4).expect("it has none");
    assert!(ask(other, 5).is_none());
    assert!(ask(other, 6).is_none());
    core.grant_buffers();
    assert!(next(&mut core).is_none());
    drop(own);
    core.grant_buffers();
    let (token, granted) = next(&mut core).expect("its own came back");
    assert_eq!(token, Token(5), "in the order of asking");
    core.grant_buffers();
    assert!(next(&mut core).is_none());
    drop((held, granted));
    core.grant_buffers();
    let mut rest = [next(&mut core), next(&mut core)].map(|one| one.unwrap().0.0);
    rest.sort_unstable();
    assert_eq!(rest, [2, 6]);
    assert!(!core.has_buffer_waiters());
}

#[test]
fn who_waits_while_the_system_has_no_memory_is_looked_after_again_soon() {
    let (mut core, _kernel, source, _file) = world();
    NO_MEMORY.set(true);
    for need in [BufferPurpose::Fresh, BufferPurpose::Held] {
        assert!(core.request_buffer(source, Token(1), 4096, need).is_none());
    }
    core.grant_buffers();
    assert!(core.buffer_retry_delay().is_some());
    NO_MEMORY.set(false);
    core.grant_buffers();
    assert!(next(&mut core).is_some() && next(&mut core).is_some());
    assert!(core.buffer_retry_delay().is_none());
}

#[test]
fn an_enter_that_frees_memory_of_another_pool_does_not_wait() {
    let (mut core, _kernel, source, file) = world();
    let other = BufferPool::new(1 << 20, 4096).unwrap();
    for (buf, frees) in [
        (lend(&core), false),
        (Buf::allocate(4096).unwrap(), false),
        (other.take(4096, BufferPurpose::Fresh).unwrap(), true),
    ] {
        core.hold_until_submitted(buf);
        core.arm(source, 1, command(file));
        assert_eq!(core.enter_frees_buffers(), frees);
        enter(&mut core);
        assert!(!core.enter_frees_buffers());
    }
    assert_eq!(other.stats().lent, 0);
}

#[test]
fn closing_hands_out_what_the_kernel_has_not_taken_instead_of_freeing_it() {
    let (mut core, kernel, source, file) = world();
    kernel.borrow_mut().takes = false;
    let buf = lend(&core);
    core.hold_until_submitted(buf);
    core.arm(source, 1, command(file));
    enter(&mut core);
    let (memory, rest) = core.close_ring();
    assert_eq!(memory.len(), 1);
    drop(rest);
}
