//! What the reactor does for its sources, and what is left of them, on both drivers: wakes, turns, buffers,
//! detaching, panics, the stop.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::task::Waker;
use std::time::{Duration, Instant};

use reactor::{BackendKind, BufferPurpose, Completion, Core, Cx, Op, Source, Token, memfd};

use crate::support::*;

#[test]
fn wakes_reach_their_source_with_their_key_however_many_threads_wake() {
    for (_reactor, probe) in each_driver() {
        let wakers: Vec<Waker> = probe.run(|cx| (0..4).map(|key| cx.waker(key)).collect());
        let threads: Vec<_> = wakers
            .into_iter()
            .map(|waker| std::thread::spawn(move || (0..1000).for_each(|_| waker.wake_by_ref())))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        // The last wake of each key is delivered after the last call of its thread, so seeing
        // all four after the threads ended shows that none was lost for good.
        let mut seen = [false; 4];
        while seen != [true; 4] {
            let Event::Wake(key) = probe.next() else {
                panic!("something else")
            };
            seen[key as usize] = true;
        }
    }
}

#[test]
fn a_wake_from_another_thread_ends_the_wait_each_time() {
    for (_reactor, probe) in each_driver() {
        let waker = probe.run(|cx| cx.waker(3));
        for _ in 0..2000 {
            waker.wake_by_ref();
            assert!(matches!(probe.next(), Event::Wake(3)));
        }
    }
}

#[test]
fn a_requested_turn_comes_once_after_the_calls_of_the_turn() {
    for (_reactor, probe) in each_driver() {
        probe.run(|cx| {
            cx.request_turn();
            cx.request_turn();
            cx.submit(Token(1), timeout_ms(30));
        });
        assert!(matches!(probe.next(), Event::Turn));
        assert!(matches!(probe.completion(1), Completion::Timeout(Ok(()))));
    }
}

#[test]
fn a_dry_pool_parks_in_order_and_the_reserve_keeps_the_started_going() {
    for (_reactor, probe) in each_driver() {
        let all = probe
            .run(|cx| cx.request_buffer(Token(0), 64 << 10, BufferPurpose::Fresh))
            .unwrap();
        probe.run(|cx| {
            assert!(
                cx.request_buffer(Token(1), 4096, BufferPurpose::Fresh)
                    .is_none()
            );
            assert!(
                cx.request_buffer(Token(2), 64 << 10, BufferPurpose::Fresh)
                    .is_none()
            );
            assert!(
                cx.request_buffer(Token(3), 4096, BufferPurpose::Fresh)
                    .is_none()
            );
            let reserve = cx.request_buffer(Token(4), 8192, BufferPurpose::Progress);
            assert!(reserve.is_some(), "the reserve is there");
        });
        // Nothing else happens on the reactor: whatever thread gives a buffer back wakes it.
        drop(all);
        let Completion::Buffer(first) = probe.completion(1) else {
            panic!("another order")
        };
        assert_eq!(first.len(), 4096);
        probe.run(|_| ());
        assert!(
            probe.seen.try_recv().is_err(),
            "the third overtook the second"
        );
        drop(first);
        let Completion::Buffer(second) = probe.completion(2) else {
            panic!("another order")
        };
        drop(second);
        assert!(matches!(probe.completion(3), Completion::Buffer(_)));
    }
}

#[test]
fn a_buffer_given_back_on_another_thread_reaches_who_waits_however_the_two_meet() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (to, from) = channel::<reactor::Buf>();
        // A little later each time, so that it falls into every part of the reactor's turn.
        let dropper = std::thread::spawn(move || {
            for (round, buf) in from.into_iter().enumerate() {
                (0..round % 97 * 7).for_each(|_| std::hint::spin_loop());
                drop(buf);
            }
        });
        let mut all = probe
            .run(|cx| cx.request_buffer(Token(0), 64 << 10, BufferPurpose::Fresh))
            .unwrap();
        let mut waited = 0;
        for round in 0..20_000 {
            to.send(all).unwrap();
            let asked = probe
                .run(move |cx| cx.request_buffer(Token(round), 64 << 10, BufferPurpose::Fresh));
            all = asked.unwrap_or_else(|| {
                waited += 1;
                let Completion::Buffer(buf) = probe.completion(round) else {
                    panic!("another completion")
                };
                buf
            });
        }
        println!("{kind:?}: waited {waited} times");
        drop(to);
        dropper.join().unwrap();
    }
}

#[test]
fn a_detached_source_is_dropped_only_after_its_operations_ended() {
    for (reactor, probe) in each_driver() {
        let watcher = Remote::attach(&reactor, false);
        let file = probe.register(memfd(c"disk", 64 << 20).unwrap());
        probe.run(move |cx| {
            for token in 0..20 {
                cx.submit(Token(token), write(file, 0, buf(1 << 20, 1)));
            }
            cx.detach();
        });
        assert!(
            matches!(probe.next(), Event::Dropped),
            "a completion reached a detached source"
        );
        let stats = watcher.run(|cx| cx.stats());
        assert_eq!((stats.ops_in_flight, stats.sources), (0, 1));
    }
}

#[test]
fn a_panicking_source_is_detached_with_its_files_and_disturbs_no_other() {
    struct PanickingSource;
    impl Source for PanickingSource {
        fn on_completion(&mut self, _: &mut Cx<'_>, _: Token, _: Completion) {
            panic!("planted");
        }
    }
    for (reactor, probe) in each_driver() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        reactor
            .handle()
            .attach(|cx| {
                let file = cx.register(OwnedFd::from(theirs));
                let recv = recv(file, 10);
                cx.submit(Token(0), recv);
                // A second receive could take the byte: which comes first is the kernel's choice.
                let events = libc::POLLRDHUP as u32;
                cx.submit(Token(1), Op::Poll { file, events });
                PanickingSource
            })
            .unwrap();
        ours.write_all(b"x").unwrap();
        let until = Instant::now() + DEADLINE;
        while probe.run(|cx| cx.stats().sources) != 1 {
            assert!(Instant::now() < until, "the panicked source stays");
        }
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(ours.read(&mut [0; 1]).unwrap(), 0, "its socket stays open");
        assert_eq!(probe.run(|cx| cx.stats().files), 0);
        drop(probe);
        assert_eq!(reactor.stop(DEADLINE).panics, 1);
    }
}

#[test]
fn a_source_that_does_not_detach_is_cut_off_at_the_deadline() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, true);
        let (_client, file) = probe.socket_pair();
        probe.submit(1, recv(file, 10));
        let report = reactor.stop(Duration::from_millis(50));
        assert_eq!((report.sources_forced, report.ops_abandoned), (1, 0));
        assert!(matches!(probe.next(), Event::Dropped));
    }
}

#[test]
fn a_stopped_reactor_refuses_messages_and_leaves_no_descriptor() {
    for kind in backends() {
        let reactor = start(kind);
        let handle = reactor.handle().clone();
        let probe = Remote::attach(&reactor, false);
        let (ours, theirs) = UnixStream::pair().unwrap();
        probe.register(theirs);
        assert_eq!(reactor.stop(DEADLINE).sources_forced, 0);
        assert!(handle.post(|_: &mut Core| ()).is_err());
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!((&ours).read(&mut [0; 1]).unwrap(), 0);
    }
}

#[cfg(debug_assertions)]
#[test]
fn what_may_block_panics_on_the_reactors_thread() {
    let reactor = start(BackendKind::Epoll);
    let probe = Remote::attach(&reactor, false);
    let caught = probe.run(|_| std::panic::catch_unwind(|| blkmq::may_block("a test")).is_err());
    assert!(caught);
}

#[test]
fn a_source_whose_making_panics_leaves_nothing_behind() {
    for (reactor, probe) in each_driver() {
        reactor
            .handle()
            .attach(|cx| -> Probe {
                cx.register(memfd(c"file", 0).unwrap());
                panic!("planted");
            })
            .unwrap();
        let until = Instant::now() + DEADLINE;
        loop {
            let stats = probe.run(|cx| cx.stats());
            if (stats.files, stats.sources, stats.panics) == (0, 1, 1) {
                break;
            }
            assert!(Instant::now() < until, "left behind: {stats:?}");
        }
        drop(probe);
        assert_eq!(reactor.stop(DEADLINE).ops_abandoned, 0);
    }
}
