//! Writes of a get-data queue whose memory comes from a pool of the user's, and what waits for
//! something when the server leaves.

use super::*;

/// What a pool has, and what it does wrong.
#[derive(Default)]
struct PoolState {
    bytes: usize,
    panics: bool,
    short: bool,
    waker: Option<Waker>,
    asked: usize,
}

#[derive(Clone, Default)]
struct TestPool(Arc<Mutex<PoolState>>);

impl TestPool {
    fn with<R>(&self, call: impl FnOnce(&mut PoolState) -> R) -> R {
        call(
            &mut self
                .0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }
}

impl Pool for TestPool {
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf> {
        self.with(|state| {
            state.asked += 1;
            state.waker = Some(waker.clone());
            assert!(!state.panics, "planted");
            state.bytes = state.bytes.checked_sub(bytes)?;
            Buf::allocate(if state.short { bytes - 1 } else { bytes })
        })
    }
}

fn rig(pool: &TestPool, keep: &KeepingHandler) -> Rig<KeepingHandler> {
    let tags = (4, Share::WHOLE);
    let pool = Some(Box::new(pool.clone()) as Box<dyn Pool>);
    let flags = sys::F_NEED_GET_DATA | sys::F_PER_IO_TASK;
    Rig::with_pool(flags, tags, pool, keep.clone())
}

impl<H: Handler> Rig<H> {
    fn announce(&mut self, tag: u16, sectors: u32) {
        self.describe(tag, WRITE, sectors);
        self.answer(CommandKind::Fetch, tag, sys::RESULT_NEED_GET_DATA);
    }

    /// Tags whose bytes are asked for, in the order of asking.
    fn fetching(&self) -> Vec<u16> {
        let sent = self.port.armed.iter();
        let fetched = sent.map(|&(number, _)| token::parse_command_number(number));
        let fetching = fetched.filter(|(kind, _)| *kind == CommandKind::GetData);
        fetching.map(|(_, tag)| tag).collect()
    }
}

#[test]
fn a_dry_pool_of_the_users_is_waited_for_in_order() {
    let pool = TestPool::default();
    let mut rig = rig(&pool, &KeepingHandler::default());
    rig.announce(3, 16);
    rig.announce(1, 1);
    assert_eq!(rig.stats().waits, 2);
    rig.deliver_returned();
    // Enough for the second, which does not overtake.
    pool.with(|state| state.bytes = 512);
    rig.deliver_returned();
    rig.announce(0, 1);
    assert!(rig.fetching().is_empty());
    pool.with(|state| state.bytes = 9216);
    rig.deliver_returned();
    assert_eq!(rig.fetching(), [3, 1, 0]);
}

#[test]
fn a_pool_that_panics_is_taken_for_dry_and_asked_again_after_a_pause() {
    let pool = TestPool::default();
    let mut rig = rig(&pool, &KeepingHandler::answering(Answer::Done));
    pool.with(|state| state.panics = true);
    rig.announce(2, 8);
    rig.announce(0, 8);
    rig.deliver_returned();
    assert_eq!((rig.stats().panics, pool.with(|state| state.asked)), (1, 1));
    rig.end(OpKind::PoolTimer, 0, 0);
    assert_eq!(rig.stats().panics, 2, "asked once a pause");
    pool.with(|state| (state.panics, state.bytes) = (false, 8192));
    rig.end(OpKind::PoolTimer, 0, 0);
    assert_eq!(rig.fetching(), [2, 0]);
    rig.answer(CommandKind::GetData, 2, sys::RESULT_OK);
    assert_eq!(rig.committed(2), 4096);
}

#[test]
fn the_driver_never_writes_to_a_buffer_that_is_too_short() {
    let pool = TestPool::default();
    let mut rig = rig(&pool, &KeepingHandler::answering(Answer::Done));
    pool.with(|state| (state.short, state.bytes) = (true, 1 << 20));
    rig.announce(0, 8);
    assert!(rig.fetching().is_empty());
    assert_eq!(rig.stats().faults, 1);
    pool.with(|state| state.short = false);
    rig.end(OpKind::PoolTimer, 0, 0);
    assert_eq!(rig.fetching(), [0]);
}

#[test]
fn what_waits_for_a_slot_when_the_server_leaves_is_left_and_not_handed_out_after_that() {
    let keep = KeepingHandler::default();
    // Without a window one slot is there for all that find theirs taken.
    let flags = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_PER_IO_TASK;
    let mut rig = Rig::new(flags, 4, keep.clone());
    for tag in [0, 1, 2] {
        rig.come(tag, WRITE | sys::IO_NEED_REGISTER_BUFFER, 8);
    }
    rig.end(OpKind::Register, 0, 0);
    assert_eq!(rig.stats().waits, 2);
    rig.with(|source, port| source.on_stop(port));
    assert_eq!(rig.stats().abandoned, 2);
    keep.next().complete();
    rig.deliver_returned();
    rig.end(OpKind::Unregister, 0, 0);
    assert_eq!(rig.stats().requests, 1);
    let registers =
        |op: &Op| matches!(op, Op::Command(command) if command.opcode() == sys::IO_REGISTER_BUFFER);
    assert!(!rig.port.ops.iter().any(|(_, op)| registers(op)));
    assert!(rig.is_detached());
}

#[test]
fn a_request_in_shared_memory_fails_and_is_counted() {
    for flags in [0, COPY_BY_USER, sys::F_ZERO_COPY | sys::F_AUTO_BUFFER] {
        let mut rig = Rig::new(flags, 1, KeepingHandler::answering(Answer::Done));
        for (round, op) in [READ, WRITE].into_iter().enumerate() {
            rig.come(0, op | sys::IO_SHARED, 8);
            assert_eq!(rig.committed(0), -libc::EIO);
            assert_eq!(rig.stats().faults, round as u64 + 1);
        }
        assert_eq!(rig.stats().requests, 0);
    }
    let mut rig = Rig::new(
        sys::F_NEED_GET_DATA,
        1,
        KeepingHandler::answering(Answer::Done),
    );
    rig.announce(0, 8);
    rig.describe(0, WRITE | sys::IO_SHARED, 8);
    rig.answer(CommandKind::GetData, 0, sys::RESULT_OK);
    assert_eq!((rig.committed(0), rig.stats().faults), (-libc::EIO, 1));
}
