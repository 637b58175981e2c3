//! Cancel and re-arm, and the end of requests: exactly once, on a thread that does not sleep.

use std::sync::Arc;
use std::sync::Mutex;

use loom::thread;

use super::{TestTransport, admit, admit_open, check_model, complete};
use crate::error::ErrorKind;
use crate::{
    Admission, CancelWork, ControlThread, Device, DeviceOptions, ParkReason, enter_ring_thread,
};

/// Two queues die at the same moment and both call for the cancel.
#[test]
fn a_cancel_is_decided_once_however_many_call_for_it() {
    check_model(None, || {
        let device = TestTransport::device();
        let (_first, _queue) = TestTransport::queue(&device, 1);
        let other = {
            let device = Arc::clone(&device);
            thread::spawn(move || device.cancel(ErrorKind::Io))
        };
        let mine = device.cancel(ErrorKind::Closed);
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "one of the two did it");
        let counts = device.counts();
        assert_eq!((counts.cancels, counts.grace_periods), (1, 1));
    });
}

/// The work that ring threads posted.
#[derive(Default)]
struct PostedWork(Mutex<Vec<CancelWork>>);

impl PostedWork {
    /// A device whose ring threads post their work here.
    fn device() -> (Arc<Device>, Arc<PostedWork>) {
        let control = Arc::new(PostedWork::default());
        let options = DeviceOptions {
            control: Some(Arc::clone(&control) as _),
            ..Default::default()
        };
        (Device::new("model", options), control)
    }

    fn run(&self) {
        let work = std::mem::take(&mut *self.0.lock().unwrap());
        work.into_iter().for_each(CancelWork::run);
    }
}

impl ControlThread for PostedWork {
    fn post(&self, work: CancelWork) {
        self.0.lock().unwrap().push(work);
    }
}

#[test]
fn ring_threads_hand_a_cancel_over_once_and_do_not_sleep() {
    check_model(None, || {
        let (device, control) = PostedWork::device();
        let ask = |device: &Arc<Device>| {
            let device = Arc::clone(device);
            thread::spawn(move || {
                let _ring = enter_ring_thread();
                device.request_cancel(ErrorKind::Io)
            })
        };
        let (one, two) = (ask(&device), ask(&device));
        let direct = device.cancel(ErrorKind::Closed);
        let (one, two) = (one.join().unwrap(), two.join().unwrap());
        assert!(!(one && two), "both ring threads won");
        control.run();
        assert!(direct, "nothing was performed before it");
        assert_eq!(
            (device.counts().cancels, device.counts().grace_periods),
            (1, 1)
        );
    });
}

#[test]
fn a_cancel_that_was_asked_for_before_a_rearm_is_void() {
    check_model(None, || {
        let (device, control) = PostedWork::device();
        assert!(device.request_cancel(ErrorKind::Io));
        assert!(device.cancel(ErrorKind::Closed) && device.rearm());
        control.run();
        assert_eq!(device.counts().cancels, 1);
        assert!(
            device.request_cancel(ErrorKind::Io),
            "a new one may be asked for"
        );
    });
}

/// What parks and what arrives during a cancel completes with its error, on two queues.
#[test]
fn a_cancel_completes_what_is_parked_and_what_arrives() {
    check_model(Some(2), || {
        let device = TestTransport::device();
        let (first, mut one) = TestTransport::queue(&device, 1);
        let (second, mut two) = TestTransport::queue(&device, 1);
        let request = admit_open(&mut one, 1);
        let parker = thread::spawn(move || {
            request.park(ParkReason::Fetch);
            one
        });
        let arriver = thread::spawn(move || {
            admit(&mut two, 2, complete);
            two
        });
        device.cancel(ErrorKind::Closed);
        let (mut one, mut two) = (parker.join().unwrap(), arriver.join().unwrap());
        first.run_kicked(&mut one, complete);
        second.run_kicked(&mut two, complete);
        assert_eq!(first.done(), [(1, Err(ErrorKind::Closed))]);
        let done = second.done();
        assert!(
            done == [(2, Ok(()))] || done == [(2, Err(ErrorKind::Closed))],
            "{done:?}"
        );
    });
}

#[test]
fn a_rearm_opens_the_device_and_every_queue() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        device.cancel(ErrorKind::Closed);
        let owner = thread::spawn(move || {
            admit(&mut queue, 1, complete);
            queue
        });
        device.rearm();
        let mut queue = owner.join().unwrap();
        transport.run_kicked(&mut queue, complete);
        let done = transport.done();
        assert!(
            done == [(1, Ok(()))] || done == [(1, Err(ErrorKind::Closed))],
            "{done:?}"
        );
        assert!(
            matches!(queue.admit(2), Admission::Run(_)),
            "the copy of the flag was left behind"
        );
    });
}

#[test]
fn a_dropped_request_completes_once_and_is_counted() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(1);
        let request = admit_open(&mut queue, 1);
        let holder = thread::spawn(move || drop(request));
        holder.join().unwrap();
        assert_eq!(transport.done(), [(1, Err(ErrorKind::Io))]);
        assert_eq!(device.counts().dropped, 1);
        assert!(
            device.quiesce().is_drained(),
            "its place in flight is given back"
        );
    });
}

/// The whole path of a request on a ring thread, with every rare state set, takes small locks
/// only, and none of them is held across something that may sleep.
#[test]
fn no_request_path_sleeps_or_holds_a_small_lock_across_a_sleep() {
    check_model(None, || {
        let (device, transport, mut queue) = TestTransport::device_and_queue(2);
        let (a, b) = match (queue.admit(1), queue.admit(2)) {
            (Admission::Run(a), Admission::Run(b)) => (a, b),
            _ => panic!("the gate is open"),
        };
        let quiesced = device.quiesce();
        let owner = thread::spawn(move || {
            let _ring = enter_ring_thread();
            complete(a);
            b.park(ParkReason::Space);
            assert!(matches!(queue.admit(3), Admission::Parked));
            queue.run(complete);
            queue
        });
        let mut queue = owner.join().unwrap();
        drop(quiesced);
        device.cancel(ErrorKind::Closed);
        transport.run_kicked(&mut queue, complete);
        let closed = Err(ErrorKind::Closed);
        assert_eq!(transport.done(), [(1, Ok(())), (2, closed), (3, closed)]);
    });
}

/// Everything at once on two queues, to a bound.
#[test]
fn two_queues_live_through_quiesce_and_cancel() {
    check_model(Some(1), || {
        let device = TestTransport::device();
        let (first, mut one) = TestTransport::queue(&device, 1);
        let (second, mut two) = TestTransport::queue(&device, 1);
        let handle = one.handle();
        let owner_one = thread::spawn(move || {
            admit(&mut one, 1, complete);
            one.run(complete);
            one
        });
        let owner_two = thread::spawn(move || {
            admit(&mut two, 3, complete);
            two
        });
        let submitter = thread::spawn(move || handle.submit(2));
        let quiesced = device.quiesce();
        loom::future::block_on(quiesced.drain());
        let (before_one, before_two) = (first.done(), second.done());
        thread::yield_now();
        assert_eq!(
            (first.done(), second.done()),
            (before_one, before_two),
            "run while quiesced"
        );
        drop(quiesced);
        device.cancel(ErrorKind::Closed);
        submitter.join().unwrap();
        let (mut one, mut two) = (owner_one.join().unwrap(), owner_two.join().unwrap());
        first.run_kicked(&mut one, complete);
        second.run_kicked(&mut two, complete);
        let numbers = |transport: &TestTransport| {
            transport.done().iter().map(|(n, _)| *n).collect::<Vec<_>>()
        };
        assert_eq!((numbers(&first), numbers(&second)), (vec![1, 2], vec![3]));
        assert_eq!(device.counts().grace_periods, 2);
    });
}
