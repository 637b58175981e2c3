//! What the procedures cost, in requests to the store: docs/store-protocol.md "What it costs".

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::world::Shared;
use super::{first_root, volume_id, volume_name};
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::hostlog::names::{Digest, Position, SessionName, record_key};
use crate::hostlog::notes::LogState;
use crate::hostlog::port::{LocalLogUnavailable, LogPort};
use crate::hostlog::publisher::{Batch, Publisher};
use crate::hostlog::record::{Content, Record, RecordPack, RecordSlice};
use crate::hostlog::stop::Stop;
use crate::hostlog::taker::{TakeError, TakeRequest, Taker};
use crate::object::root::Root;
use crate::object::root_key;
use crate::units::{Epoch, HostId, LogSession, Lsn, Span};

/// Answers at once, and counts.
#[derive(Debug, Default)]
struct CountingPort {
    store: Mutex<Shared>,
    asked: Mutex<(u32, u32)>,
    noted: Mutex<LogState>,
}

impl CountingPort {
    fn carry_out(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.carry_out(op)
    }

    /// PUTs and GETs since the last call.
    fn count(&self) -> (u32, u32) {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LogPort for &CountingPort {
    async fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match op {
            StoreOp::Get { .. } | StoreOp::GetRange { .. } => asked.1 += 1,
            _ => asked.0 += 1,
        }
        drop(asked);
        self.carry_out(op)
    }

    async fn sleep(&self, _: u64) {}

    fn pause_ns(&self) -> u64 {
        1
    }

    async fn persist_state(&self, state: LogState) -> Result<(), LocalLogUnavailable> {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(())
    }

    fn stage_state(&self, _: LogState) {}
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits although every answer is there"),
    }
}

fn session(host: u8) -> SessionName {
    SessionName {
        host: HostId([host; 16]),
        session: LogSession {
            number: 1,
            random: u64::from(host),
        },
    }
}

fn taker<'a>(port: &'a &'a CountingPort, host: u8) -> Taker<'a, &'a CountingPort> {
    Taker {
        port,
        own: session(host),
        label: "host",
        mark: Position::default(),
        unix_ms: 0,
    }
}

fn take_requests(volumes: u8) -> Vec<TakeRequest> {
    let wanted = (0..volumes).map(|number| TakeRequest {
        name: volume_name(volume_id(number)),
        above: Epoch(0),
        take_over: true,
        judged: None,
        continues: None,
        maintains: false,
    });
    wanted.collect()
}

/// A store with volumes that nobody has opened yet.
fn with_volumes(count: u8) -> CountingPort {
    let port = CountingPort::default();
    for number in 0..count {
        let root = first_root(number);
        let op = StoreOp::Create {
            key: root_key(&root.name),
            data: root.encode(),
        };
        port.carry_out(op).expect("the store is empty");
    }
    port
}

/// A batch with one commit of each volume, all in one pack, which it writes.
fn batch(port: &CountingPort, own: SessionName, volumes: u8, number: u64) -> Batch {
    let data = format!("pack {number}").into_bytes();
    let digest = Digest::of(&data);
    let key = own.pack_key(number);
    now(port.store(StoreOp::Create { key, data })).expect("its name is new");
    let slice = |volume| RecordSlice {
        volume,
        pack: 0,
        first: Lsn(number),
        count: 1,
        span: Span::new(0, 8),
    };
    Batch {
        packs: vec![RecordPack {
            number,
            is_kept: false,
            footer_offset: 0,
            footer_bytes: 0,
            digest,
        }],
        volumes: (0..volumes)
            .map(|number| (volume_id(number), Epoch(1)))
            .collect(),
        slices: (0..u16::from(volumes)).map(slice).collect(),
        ..Batch::default()
    }
}

/// Host 1 takes the volumes and publishes two records of all of them.
fn publish_two(port: &CountingPort, volumes: u8) {
    let taken = now(taker(&port, 1).take(&take_requests(volumes)));
    assert!(taken.values().all(|taken| taken.is_ok()));
    let own = session(1);
    let mut publisher = Publisher::new(port, own, LogSession::default(), LogState::default());
    for number in 0..volumes {
        let volume = volume_id(number);
        publisher.attach(volume, volume_name(volume), Epoch(1));
    }
    for number in 1..=2 {
        port.count();
        let ready = batch(port, own, volumes, number);
        let progress = now(publisher.publish(ready)).expect("nothing happened to it");
        assert_eq!(progress.published[0].volumes.len(), usize::from(volumes));
        let costs = port.count();
        let first = number == 1;
        // The first makes the low mark, has no record before it, and looks at each root.
        let expected = match first {
            true => (3, 2 + u32::from(volumes)),
            false => (2, 3),
        };
        assert_eq!(costs, expected, "record {number}");
    }
}

#[test]
fn a_record_costs_two_puts_and_three_gets_of_however_many_volumes() {
    publish_two(&with_volumes(1), 1);
    publish_two(&with_volumes(3), 3);
}

#[test]
fn three_volumes_of_one_host_are_taken_with_one_scan_and_one_fence() {
    let port = with_volumes(3);
    publish_two(&port, 3);
    port.count();
    let taken = now(taker(&&port, 2).take(&take_requests(3)));
    for taken in taken.values() {
        let root = &taken.as_ref().expect("it is taken").root;
        assert_eq!(
            (root.epoch, root.lsn, root.deltas.len()),
            (Epoch(2), Lsn(2), 2)
        );
        assert_eq!(
            root.owner.as_ref().map(|owner| owner.host),
            Some(HostId([2; 16]))
        );
    }
    // Three claims, a fence, three adoptions; roots, the low mark twice, two records and the end, six looks
    // behind it.
    let (puts, gets) = port.count();
    assert_eq!(puts, 7);
    assert!(gets <= 3 + 2 + 2 + 2 + 6, "{gets}");
    let fence = port.carry_out(StoreOp::Get {
        key: record_key(HostId([1; 16]), Position(3)),
    });
    let Ok(StoreReply::Object { data, .. }) = fence else {
        panic!("no fence: {fence:?}")
    };
    let fence = Record::decode(&data).expect("a record");
    assert!(matches!(fence.content, Content::Fence(fenced) if fenced.len() == 3));
}

#[test]
fn hosts_with_poisoned_logs_take_volumes_of_one_host_after_each_other() {
    let taken = || {
        let port = with_volumes(3);
        publish_two(&port, 3);
        let port = &port;
        let mut takers = [(2, 0), (3, 1), (4, 2)].into_iter();
        takers.all(|(host, volume)| {
            let mut taker = taker(&port, host);
            taker.own.session = LogSession::default();
            let taken = now(taker.take(&take_requests(3)[volume..=volume]));
            let mut taken = taken.into_values();
            taken.all(|taken| taken.is_ok_and(|taken| taken.root.deltas.len() == 2))
        })
    };
    assert!(taken());
    assert!(
        !canary::with("sessions_of_fences_are_learned", taken),
        "the planted bug is seen"
    );
}

#[test]
fn a_host_whose_newest_record_is_gone_does_not_bring_its_packs_into_a_root() {
    let port = with_volumes(1);
    let found = |port: &CountingPort| {
        let own = session(1);
        let mut publisher = Publisher::new(port, own, LogSession::default(), LogState::default());
        publisher.attach(volume_id(0), volume_name(volume_id(0)), Epoch(1));
        let ready = batch(port, own, 1, 1);
        now(publisher.publish(ready)).expect("nothing happened to it");
        assert_eq!(now(publisher.mark()), Ok(Position(1)));
        let key = record_key(own.host, Position(1));
        port.carry_out(StoreOp::Delete { key })
            .expect("it is there");
        now(publisher.mark())
    };
    let taken = now(taker(&&port, 1).take(&take_requests(1)));
    assert!(taken.values().all(|taken| taken.is_ok()));
    assert!(matches!(found(&port), Err(Stop::SetBack(_))));

    let port = with_volumes(1);
    let taken = now(taker(&&port, 1).take(&take_requests(1)));
    assert!(taken.values().all(|taken| taken.is_ok()));
    let blind = canary::with("fold_believes_its_log", || found(&port));
    assert_eq!(blind, Ok(Position(1)), "the planted bug is seen");
}

/// Whether host `host`, which knows that the log of host 1 went on up to `known`, takes nothing from it across
/// the lost record at `position`, puts nothing into the hole, and all once the record is back.
fn is_refused_until_it_is_back(host: u8, known: Position, position: Position) -> bool {
    let port = with_volumes(3);
    publish_two(&port, 3);
    let key = record_key(HostId([1; 16]), position);
    let get = || port.carry_out(StoreOp::Get { key: key.clone() });
    let Ok(StoreReply::Object { data, .. }) = get() else {
        panic!("no record")
    };
    let gone = StoreOp::Delete { key: key.clone() };
    port.carry_out(gone).expect("it is there");
    let port_of = &&port;
    let mut taker = taker(port_of, host);
    taker.mark = known;
    let is_missing = |taken: &Result<_, TakeError>| matches!(taken, Err(TakeError::Log(why)) if why.0.contains(&key));
    let refused = now(taker.take(&take_requests(3))).values().all(is_missing);
    if !refused || get().is_ok() {
        return false;
    }
    let back = StoreOp::Create {
        key: key.clone(),
        data,
    };
    port.carry_out(back).expect("nothing stands there");
    let taken = now(taker.take(&take_requests(3))).into_values();
    let has_all = |root: &Root| (root.lsn, root.deltas.len()) == (Lsn(2), 2);
    taken
        .into_iter()
        .all(|taken| taken.is_ok_and(|taken| has_all(&taken.root)))
}

#[test]
fn nothing_is_taken_or_fenced_across_a_record_that_is_gone_and_was_followed() {
    let another = || is_refused_until_it_is_back(2, Position::default(), Position(1));
    assert!(another());
    assert!(
        !canary::with("hole_is_the_end", another),
        "the planted bug is seen"
    );
    // The newest one: only its own host knows that it stood there.
    assert!(is_refused_until_it_is_back(1, Position(2), Position(2)));
}

#[test]
fn a_mark_is_noted_durably_before_a_root_has_it() {
    let noted = || {
        let port = with_volumes(1);
        let taken = now(taker(&&port, 1).take(&take_requests(1)));
        assert!(taken.values().all(|taken| taken.is_ok()));
        let own = session(1);
        let (before, state) = (LogSession::default(), LogState::default());
        let mut publisher = Publisher::new(&port, own, before, state);
        publisher.attach(volume_id(0), volume_name(volume_id(0)), Epoch(1));
        let ready = batch(&port, own, 1, 1);
        now(publisher.publish(ready)).expect("nothing happened to it");
        let next = || {
            port.noted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next
        };
        assert_eq!(
            next(),
            Position(1),
            "the create was noted, its answer not yet"
        );
        let mark = now(publisher.mark()).expect("nothing happened to it");
        mark < next()
    };
    assert!(noted());
    assert!(
        !canary::with("mark_is_not_noted", noted),
        "the planted bug is seen"
    );
}
