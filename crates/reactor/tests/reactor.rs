//! The reactor's contract, checked on both drivers.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;
use std::time::{Duration, Instant};

use reactor::{
    BackendKind, BufferPurpose, Completion, Core, Cx, Op, SendPart, Source, Token, memfd,
};

mod support;

use support::*;

#[test]
fn what_is_written_is_read_back_and_synced() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let file = probe.register(memfd(c"disk", 1 << 20).unwrap());
        probe.submit(
            1,
            Op::Write {
                file,
                offset: 4096,
                buf: buf(300_000, 7),
            },
        );
        assert!(matches!(probe.completion(1), Completion::Write(_, Ok(()))));
        probe.submit(
            2,
            Op::Sync {
                file,
                data_only: true,
            },
        );
        assert!(matches!(probe.completion(2), Completion::Sync(Ok(()))));
        probe.submit(
            3,
            Op::Read {
                file,
                offset: 4096,
                buf: buf(300_000, 0),
            },
        );
        let Completion::Read(read, Ok(())) = probe.completion(3) else {
            panic!("no read")
        };
        assert!(read.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_read_over_the_end_and_an_operation_on_a_closed_file_are_errors() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let file = probe.register(memfd(c"disk", 4096).unwrap());
        probe.submit(
            1,
            Op::Read {
                file,
                offset: 2048,
                buf: buf(4096, 0),
            },
        );
        let Completion::Read(_, Err(error)) = probe.completion(1) else {
            panic!("no error")
        };
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        probe.run(move |cx| cx.close(file));
        probe.submit(
            2,
            Op::Read {
                file,
                offset: 0,
                buf: buf(10, 0),
            },
        );
        let Completion::Read(_, Err(error)) = probe.completion(2) else {
            panic!("no error")
        };
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}

#[test]
fn a_closed_file_is_closed_in_the_kernel_too() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        probe.submit(
            1,
            Op::Recv {
                file,
                buf: buf(10, 0),
                at: 0,
                exact: false,
            },
        );
        probe.run(move |cx| cx.close(file));
        let Completion::Recv(_, Err(_)) = probe.completion(1) else {
            panic!("not cancelled")
        };
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(
            (&ours).read(&mut [0; 1]).unwrap(),
            0,
            "the peer sees the end"
        );
        let stats = probe.run(|cx| cx.stats());
        assert_eq!((stats.files, stats.ops_in_flight), (0, 0));
    }
}

#[test]
fn connections_are_accepted_and_bytes_flow_both_ways() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = probe.register(UnixListener::bind(&path).unwrap());
        probe.submit(1, Op::Accept { file: listener });
        let mut client = UnixStream::connect(&path).unwrap();
        let Completion::Accept(Ok(socket)) = probe.completion(1) else {
            panic!("no accept")
        };
        let file = probe.register(socket);

        probe.submit(
            2,
            Op::Recv {
                file,
                buf: buf(100, 0),
                at: 10,
                exact: false,
            },
        );
        client.write_all(b"hello").unwrap();
        let Completion::Recv(got, Ok(5)) = probe.completion(2) else {
            panic!("no bytes")
        };
        assert_eq!(got[10..15], *b"hello");

        let parts = vec![
            SendPart::Bytes(b"head".to_vec()),
            SendPart::Bytes(vec![]),
            SendPart::Buf(buf(1 << 20, 9)),
        ];
        probe.submit(3, Op::Send { file, parts });
        let mut answer = vec![0; 4 + (1 << 20)];
        client.read_exact(&mut answer).unwrap();
        assert!(answer[..4] == *b"head" && answer[4..].iter().all(|&byte| byte == 9));
        let Completion::Send(parts, Ok(())) = probe.completion(3) else {
            panic!("not sent")
        };
        assert_eq!(parts.len(), 3);

        drop(client);
        probe.submit(
            4,
            Op::Recv {
                file,
                buf: buf(10, 0),
                at: 0,
                exact: false,
            },
        );
        assert!(matches!(probe.completion(4), Completion::Recv(_, Ok(0))));
    }
}

#[test]
fn an_exact_receive_fills_its_buffer_or_fails() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (mut client, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        probe.submit(
            1,
            Op::Recv {
                file,
                buf: buf(200_000, 0),
                at: 0,
                exact: true,
            },
        );
        for _ in 0..200 {
            client.write_all(&[5; 1000]).unwrap();
        }
        let Completion::Recv(got, Ok(200_000)) = probe.completion(1) else {
            panic!("short")
        };
        assert!(got.iter().all(|&byte| byte == 5));
        probe.submit(
            2,
            Op::Recv {
                file,
                buf: buf(100, 0),
                at: 0,
                exact: true,
            },
        );
        client.write_all(&[5; 10]).unwrap();
        drop(client);
        assert!(matches!(probe.completion(2), Completion::Recv(_, Err(_))));
    }
}

#[test]
fn more_operations_than_the_ring_has_entries_all_complete_once() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let file = probe.register(memfd(c"disk", 1 << 20).unwrap());
        probe.run(move |cx| {
            for token in 0..500 {
                let op = Op::Write {
                    file,
                    offset: token * 512,
                    buf: buf(512, token as u8),
                };
                cx.submit(Token(token), op);
            }
        });
        let mut seen = vec![0; 500];
        for _ in 0..500 {
            match probe.next() {
                Event::Completion(token, Completion::Write(_, Ok(()))) => seen[token as usize] += 1,
                other => panic!("saw {other:?}"),
            }
        }
        assert!(seen.iter().all(|&times| times == 1));
    }
}

#[test]
fn timers_fire_in_order_and_a_cancelled_one_says_so() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let began = Instant::now();
        probe.run(|cx| {
            let never = cx.submit(
                Token(9),
                Op::Timeout {
                    after: Duration::from_secs(3600),
                },
            );
            cx.submit(
                Token(2),
                Op::Timeout {
                    after: Duration::from_millis(40),
                },
            );
            cx.submit(
                Token(1),
                Op::Timeout {
                    after: Duration::from_millis(10),
                },
            );
            cx.cancel(never);
        });
        assert!(matches!(probe.completion(9), Completion::Timeout(Err(_))));
        assert!(matches!(probe.completion(1), Completion::Timeout(Ok(()))));
        assert!(matches!(probe.completion(2), Completion::Timeout(Ok(()))));
        assert!(began.elapsed() >= Duration::from_millis(40));
    }
}

#[test]
fn a_timer_set_by_a_completion_ends_the_wait_that_follows() {
    struct Chain(u64, Sender<()>);
    impl Source for Chain {
        fn on_attached(&mut self, cx: &mut Cx<'_>) {
            cx.submit(
                Token(0),
                Op::Timeout {
                    after: Duration::from_millis(1),
                },
            );
        }
        fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, _: Completion) {
            self.0 += 1;
            if self.0 < 20 {
                cx.submit(
                    Token(0),
                    Op::Timeout {
                        after: Duration::from_millis(1),
                    },
                );
            } else {
                self.1.send(()).unwrap();
            }
        }
    }
    for kind in backends() {
        let reactor = start(kind);
        let (to, from) = channel();
        reactor.handle().attach(move |_| Chain(0, to)).unwrap();
        from.recv_timeout(DEADLINE).unwrap();
    }
}

#[test]
fn a_cancelled_receive_and_accept_end_with_an_error() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (_client, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        probe.run(move |cx| {
            let op = Op::Recv {
                file,
                buf: buf(10, 0),
                at: 0,
                exact: false,
            };
            let recv = cx.submit(Token(1), op);
            cx.cancel(recv);
        });
        let Completion::Recv(_, Err(error)) = probe.completion(1) else {
            panic!("no error")
        };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    }
}

#[test]
fn wakes_reach_their_source_with_their_key_however_many_threads_wake() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
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
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let waker = probe.run(|cx| cx.waker(3));
        for _ in 0..2000 {
            waker.wake_by_ref();
            assert!(matches!(probe.next(), Event::Wake(3)));
        }
    }
}

#[test]
fn a_requested_turn_comes_once_after_the_calls_of_the_turn() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        probe.run(|cx| {
            cx.request_turn();
            cx.request_turn();
            cx.submit(
                Token(1),
                Op::Timeout {
                    after: Duration::from_millis(30),
                },
            );
        });
        assert!(matches!(probe.next(), Event::Turn));
        assert!(matches!(probe.completion(1), Completion::Timeout(Ok(()))));
    }
}

#[test]
fn a_dry_pool_parks_in_order_and_the_reserve_keeps_the_started_going() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
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
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let watcher = Remote::attach(&reactor, false);
        let file = probe.register(memfd(c"disk", 64 << 20).unwrap());
        probe.run(move |cx| {
            for token in 0..20 {
                cx.submit(
                    Token(token),
                    Op::Write {
                        file,
                        offset: 0,
                        buf: buf(1 << 20, 1),
                    },
                );
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
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        reactor
            .handle()
            .attach(|cx| {
                let file = cx.register(OwnedFd::from(theirs));
                let recv = Op::Recv {
                    file,
                    buf: buf(10, 0),
                    at: 0,
                    exact: false,
                };
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
        let (_client, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        probe.submit(
            1,
            Op::Recv {
                file,
                buf: buf(10, 0),
                at: 0,
                exact: false,
            },
        );
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

#[test]
fn one_file_may_be_registered_with_several_reactors() {
    let kinds = backends();
    let fd = Arc::new(memfd(c"disk", 4096).unwrap());
    for kind in kinds {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let shared = Arc::clone(&fd);
        let file = probe.run(move |cx| cx.register(shared));
        probe.submit(
            1,
            Op::Write {
                file,
                offset: 0,
                buf: buf(512, 3),
            },
        );
        assert!(matches!(probe.completion(1), Completion::Write(_, Ok(()))));
        probe.run(move |cx| cx.close(file));
    }
    let mut file = File::from(Arc::into_inner(fd).expect("the reactors let go"));
    let mut bytes = [0; 512];
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [3; 512]);
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
fn readiness_can_be_waited_for() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (mut client, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        probe.submit(
            1,
            Op::Poll {
                file,
                events: libc::POLLIN as u32,
            },
        );
        client.write_all(b"x").unwrap();
        let Completion::Poll(Ok(events)) = probe.completion(1) else {
            panic!("not polled")
        };
        assert!(events & libc::POLLIN as u32 != 0);
    }
}

#[test]
fn the_peers_end_is_seen_beside_a_waiting_receive_and_with_bytes_unread() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let (mut client, theirs) = UnixStream::pair().unwrap();
        let file = probe.register(theirs);
        let events = libc::POLLRDHUP as u32;
        probe.submit(1, Op::Poll { file, events });
        probe.submit(
            2,
            Op::Recv {
                file,
                buf: buf(10, 0),
                at: 0,
                exact: false,
            },
        );
        client.write_all(b"x").unwrap();
        assert!(matches!(probe.completion(2), Completion::Recv(_, Ok(1))));
        client.write_all(b"unread").unwrap();
        drop(client);
        let Completion::Poll(Ok(seen)) = probe.completion(1) else {
            panic!("not polled")
        };
        assert!(seen & events != 0);
    }
}

#[test]
fn a_source_whose_making_panics_leaves_nothing_behind() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
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
