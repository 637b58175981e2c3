//! What transports and the control side may rely on, said with the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive the core with threads and clocks"
)]
#![cfg(not(any(feature = "loom", feature = "shuttle")))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier as Rendezvous, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::{
    Admission, AdmittedRequest, Completer, Device, DeviceOptions, Kick, ParkReason, Queue,
    SleepLock, SmallLock, enter_ring_thread, may_block,
};

const SOON: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Transport {
    kicks: AtomicUsize,
    done: Mutex<Vec<(u32, Result<(), ErrorKind>)>>,
}

impl Completer<u32> for Transport {
    fn complete(&self, number: u32, result: Result<(), ErrorKind>) {
        self.done.lock().unwrap().push((number, result));
    }
}

impl Kick for Transport {
    fn kick(&self) {
        self.kicks.fetch_add(1, SeqCst);
    }
}

fn queue(device: &Arc<Device>, depth: u16) -> (Arc<Transport>, Queue<u32>) {
    let transport = Arc::new(Transport::default());
    let queue = device.add_queue(
        depth,
        Arc::clone(&transport) as _,
        Arc::clone(&transport) as _,
    );
    (transport, queue)
}

fn device() -> Arc<Device> {
    Device::new("vol0", DeviceOptions::default())
}

fn run(admit: Admission<u32>) -> AdmittedRequest<u32> {
    match admit {
        Admission::Run(request) => request,
        other => panic!("expected to run, got {other:?}"),
    }
}

#[test]
fn a_quiesce_that_times_out_reports_what_is_still_in_flight() {
    let device = device();
    let (_one, mut busy) = queue(&device, 8);
    let (_two, _idle) = queue(&device, 8);
    let (a, b) = (run(busy.admit(1)), run(busy.admit(2)));
    a.complete(Ok(()));
    let quiesced = device.quiesce();
    let still = quiesced.wait(SOON).expect_err("a request is in flight");
    assert_eq!(still.len(), 1, "the idle queue is not blamed");
    assert_eq!((still[0].queue, still[0].in_flight), (0, 1));
    assert_eq!(still[0].tags, [b.tag()]);
    b.complete(Ok(()));
    assert_eq!(quiesced.wait(DEADLINE), Ok(()));
}

#[test]
fn quiesces_nest_and_the_gate_opens_with_the_last_guard() {
    let device = device();
    let (transport, mut queue) = queue(&device, 8);
    let (outer, inner) = (device.quiesce(), device.quiesce());
    assert!(matches!(queue.admit(1), Admission::Parked));
    drop(outer);
    queue.run(|_| panic!("one guard is left"));
    drop(inner);
    assert_eq!(transport.kicks.load(SeqCst), 1);
    assert_eq!(queue.run(|request| request.complete(Ok(()))), 1);
    assert_eq!(
        device.counts().grace_periods,
        1,
        "the nested one needed none"
    );
}

struct Notify(AtomicUsize);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn async_code_is_woken_by_the_last_completion() {
    let device = device();
    let (_transport, mut queue) = queue(&device, 8);
    let request = run(queue.admit(1));
    let quiesced = device.quiesce();
    let notify = Arc::new(Notify(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&notify));
    let mut context = Context::from_waker(&waker);
    let mut drained = pin!(quiesced.drain());
    assert!(drained.as_mut().poll(&mut context).is_pending());
    request.complete(Ok(()));
    assert_eq!(notify.0.load(SeqCst), 1);
    assert_eq!(drained.as_mut().poll(&mut context), Poll::Ready(()));
}

#[test]
fn a_cold_read_does_not_hold_up_a_quiesce_nor_the_requests_behind_it() {
    let device = device();
    let (transport, mut queue) = queue(&device, 8);
    run(queue.admit(1)).park(ParkReason::Fetch);
    run(queue.admit(2)).complete(Ok(()));
    let quiesced = device.quiesce();
    assert_eq!(quiesced.wait(DEADLINE), Ok(()));
    drop(quiesced);
    device.cancel(ErrorKind::Fenced);
    queue.run(|_| panic!("a cancelled request does not run"));
    let done = transport.done.lock().unwrap().clone();
    assert_eq!(done, [(2, Ok(())), (1, Err(ErrorKind::Fenced))]);
}

#[test]
fn a_flush_that_waits_for_durability_is_in_flight_until_it_is_done() {
    let device = device();
    let (_transport, mut queue) = queue(&device, 8);
    let flush = run(queue.admit(1));
    let waker = flush.waker().clone();
    flush.park(ParkReason::Sync);
    let quiesced = device.quiesce();
    device.cancel(ErrorKind::Closed);
    assert!(quiesced.wait(SOON).is_err(), "a flush was promised");
    waker.wake();
    assert_eq!(
        queue.run(|flush| flush.complete(Ok(()))),
        1,
        "neither gate nor cancel stops it"
    );
    assert_eq!(quiesced.wait(DEADLINE), Ok(()));
}

#[test]
fn writes_that_wait_for_space_go_on_in_the_order_they_came() {
    let device = device();
    let (_transport, mut queue) = queue(&device, 8);
    let mut wakers = Vec::new();
    for number in 1..=3 {
        let request = run(queue.admit(number));
        wakers.push(request.waker().clone());
        request.park(ParkReason::Space);
    }
    // Space for one: the engine wakes somebody, and the oldest gets it.
    wakers[2].wake_by_ref();
    let mut order = Vec::new();
    queue.run(|request| {
        order.push(*request.payload());
        if order.len() == 1 {
            request.complete(Ok(()))
        } else {
            request.park(ParkReason::Space)
        }
    });
    assert_eq!(
        order,
        [1, 2],
        "the third is not tried: the second found no room"
    );
    // All wakers but the second's are used up; it stands for those behind it.
    wakers[1].wake_by_ref();
    order.clear();
    queue.run(|request| {
        order.push(*request.payload());
        request.complete(Ok(()));
    });
    assert_eq!(order, [2, 3]);
}

#[test]
fn parked_requests_time_out_only_where_the_device_says_so() {
    let patient = device();
    let (_transport, mut queue_of_patient) = queue(&patient, 8);
    run(queue_of_patient.admit(1)).park(ParkReason::Fetch);
    assert_eq!(queue_of_patient.expire(Duration::ZERO), 0);
    assert_eq!(queue_of_patient.expire(Duration::from_secs(1_000_000)), 0);

    let limit = Some(Duration::from_secs(5));
    let hasty = Device::new(
        "hasty",
        DeviceOptions {
            park_timeout: limit,
            ..Default::default()
        },
    );
    let (transport, mut queue) = queue(&hasty, 8);
    run(queue.admit(1)).park(ParkReason::Fetch);
    assert_eq!(
        queue.expire(Duration::from_secs(10)),
        0,
        "its clock starts now"
    );
    assert_eq!(queue.expire(Duration::from_secs(14)), 0);
    assert_eq!(queue.expire(Duration::from_secs(15)), 1);
    assert_eq!(
        *transport.done.lock().unwrap(),
        [(1, Err(ErrorKind::TimedOut))]
    );
}

/// The published case: 24 queues of a dying device, each of which calls for the cancel.
#[test]
fn twenty_four_queues_that_die_together_cost_one_grace_period() {
    let device = device();
    let rendezvous = Rendezvous::new(24);
    let decided = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let (_transport, _queue) = queue(&device, 16);
                rendezvous.wait();
                if device.cancel(ErrorKind::Closed) {
                    decided.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert_eq!(decided.load(SeqCst), 1);
    assert_eq!(
        (device.counts().cancels, device.counts().grace_periods),
        (1, 1)
    );
}

#[test]
fn a_queue_starts_in_the_state_of_its_device() {
    let device = device();
    let quiesced = device.quiesce();
    let (_one, mut parks) = queue(&device, 1);
    assert!(matches!(parks.admit(1), Admission::Parked));
    drop(quiesced);
    device.cancel(ErrorKind::Fenced);
    let (transport, mut refuses) = queue(&device, 1);
    assert!(matches!(refuses.admit(2), Admission::Refused));
    assert_eq!(
        *transport.done.lock().unwrap(),
        [(2, Err(ErrorKind::Fenced))]
    );
}

#[test]
fn a_tag_comes_back_even_if_the_answer_panics() {
    let device = device();
    let (_transport, mut queue) = queue(&device, 1);
    let request = run(queue.admit(1));
    let panicked = thread::spawn(move || request.complete_with(|_| panic!("on purpose"))).join();
    assert!(panicked.is_err());
    assert!(device.quiesce().is_drained());
    run(queue.admit(2)).complete(Ok(()));
}

/// R1, and its limits: the check is compiled only where debug assertions are.
mod waiting {
    use super::*;

    fn panics(with: impl FnOnce() + Send + 'static) -> bool {
        thread::spawn(with).join().is_err()
    }

    #[test]
    fn nothing_that_may_block_is_called_on_a_ring_thread() {
        if !cfg!(debug_assertions) {
            return println!("skipped: built without debug assertions");
        }
        let on_ring = |with: fn(&Arc<Device>)| {
            let device = device();
            panics(move || {
                let _ring = enter_ring_thread();
                with(&device);
            })
        };
        assert!(on_ring(|_| may_block("a test")));
        assert!(on_ring(|device| drop(device.quiesce())));
        assert!(on_ring(|device| drop(queue(device, 1))));
        assert!(on_ring(|device| {
            device.cancel(ErrorKind::Closed);
        }));
        assert!(!panics(|| drop(enter_ring_thread())));
        assert!(!panics(|| {
            drop(enter_ring_thread());
            may_block("the mark is off again");
        }));
    }

    #[test]
    fn a_ring_thread_admits_completes_parks_and_runs() {
        let device = device();
        let (_transport, mut queue) = queue(&device, 1);
        let _ring = enter_ring_thread();
        run(queue.admit(1)).park(ParkReason::Fetch);
        queue.run(|request| request.complete(Ok(())));
        drop(queue);
    }

    /// A spin lock was once proposed upstream for the slow paths that change the set of queues,
    /// because it is "faster"; two machine-found reports of a sleep in atomic context followed.
    /// Making a queue may wait (for memory); under a small lock the check catches that, under
    /// the sleeping mutex, which is what `Device` uses, it is allowed. Nobody contends for it, so
    /// there is nothing to win.
    #[test]
    fn the_slow_path_may_sleep_under_its_mutex_and_could_not_under_a_small_lock() {
        let device = device();
        let _queue = queue(&device, 1);
        let sleeping = SleepLock::new("a slow path", ());
        let held = sleeping.lock();
        may_block("making a queue");
        drop(held);
        if cfg!(debug_assertions) {
            assert!(panics(|| {
                let small = SmallLock::new("a slow path that spins", ());
                let _held = small.lock();
                may_block("making a queue");
            }));
            assert!(panics(|| {
                let (small, sleeping) = (SmallLock::new("outer", ()), SleepLock::new("inner", ()));
                let _held = small.lock();
                drop(sleeping.lock());
            }));
        }
    }
}
