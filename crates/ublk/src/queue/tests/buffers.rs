//! Requests whose data are copied through buffers: get-data and copy mode.

use super::*;

#[test]
fn a_write_is_fetched_before_it_is_handed_out_and_may_have_become_shorter() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        1,
        KeepingHandler::answering(Answer::Done),
    );
    rig.describe(0, WRITE, 16);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    assert_eq!(rig.issued(CommandKind::GetData, 0).0, sys::IO_NEED_GET_DATA);
    assert_eq!(rig.port.armed.len(), 1, "nothing else is legal now");
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), 4096);
    // Longer than was announced: what came is not all, and is not believed.
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    rig.describe(0, WRITE, 64);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), -libc::EIO);
}

#[test]
fn a_refused_fetch_of_data_is_tried_again_with_nothing_else() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        1,
        KeepingHandler::answering(Answer::Done),
    );
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    rig.answer(CommandKind::GetData, 0, -libc::EFAULT);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.issued(CommandKind::GetData, 0).0, sys::IO_NEED_GET_DATA);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!(rig.committed(0), 4096);
}

#[test]
fn a_dry_pool_parks_a_write_until_its_buffer_comes() {
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        2,
        KeepingHandler::answering(Answer::Done),
    );
    rig.port.dry = true;
    rig.describe(0, WRITE, 8);
    rig.answer(CommandKind::Fetch, 0, sys::RESULT_NEED_GET_DATA);
    let (token, len) = rig.port.wanted.remove(0);
    assert_eq!(len, 4096, "exactly what was announced");
    let buf = Completion::Buffer(Buf::allocate(len).unwrap());
    rig.with(|source, port| source.on_completion(port, token, buf));
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!((rig.committed(0), rig.counters.stats().waits), (4096, 1));
}

#[test]
fn a_refused_read_whose_buffer_is_gone_fails() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(sys::F_NEED_GET_DATA, 1, keep.clone());
    rig.come(0, READ, 8);
    let mut request = keep.next();
    request.set_buffer(Buf::allocate(4096).unwrap());
    request.complete();
    rig.deliver_returned();
    assert_eq!(rig.committed(0), 4096);
    rig.answer(CommandKind::Fetch, 0, -libc::EINVAL);
    rig.end(OpKind::RetryTimer, 0, 0);
    rig.end(OpKind::RetryTimer, 0, 0);
    assert_eq!(rig.committed(0), -libc::EIO);
}

#[test]
fn a_copy_buffer_travels_with_its_request_and_keeps_its_room() {
    let keep = KeepingHandler::default();
    let mut rig = Rig::new(0, 1, keep.clone());
    for (sectors, bytes) in [(1, 512), (2048, 1 << 20), (8, 4096)] {
        rig.come(0, READ, sectors);
        let mut request = keep.next();
        assert_eq!(request.buffer_mut().map(|buf| buf.len()), Some(bytes));
        request.complete();
        rig.deliver_returned();
        assert_eq!(rig.committed(0), bytes as i32);
    }
    // One that is lost is replaced, and a buffer of another size is copied from.
    rig.come(0, READ, 8);
    let mut request = keep.next();
    drop(request.take_buffer());
    let mut other = Buf::allocate(4096).unwrap();
    other.fill(7);
    request.set_buffer(other);
    request.complete();
    rig.deliver_returned();
    rig.come(0, READ, 8);
    let mut request = keep.next();
    let buf = request.buffer_mut().unwrap();
    assert!(buf.iter().all(|&byte| byte == 7));
    assert!(buf.capacity() >= 1 << 20);
}
