//! What each operation does to files, sockets and time, and how it ends, on both drivers.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use reactor::{Completion, Cx, Op, SendPart, Source, Token, memfd};

use crate::support::*;

#[test]
fn what_is_written_is_read_back_and_synced() {
    for (_reactor, probe) in each_driver() {
        let file = probe.register(memfd(c"disk", 1 << 20).unwrap());
        probe.submit(1, write(file, 4096, buf(300_000, 7)));
        assert!(matches!(probe.completion(1), Completion::Write(_, Ok(()))));
        probe.submit(
            2,
            Op::Sync {
                file,
                data_only: true,
            },
        );
        assert!(matches!(probe.completion(2), Completion::Sync(Ok(()))));
        probe.submit(3, read(file, 4096, 300_000));
        let Completion::Read(read, Ok(())) = probe.completion(3) else {
            panic!("no read")
        };
        assert!(read.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_read_over_the_end_and_an_operation_on_a_closed_file_are_errors() {
    for (_reactor, probe) in each_driver() {
        let file = probe.register(memfd(c"disk", 4096).unwrap());
        probe.submit(1, read(file, 2048, 4096));
        let Completion::Read(_, Err(error)) = probe.completion(1) else {
            panic!("no error")
        };
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        probe.run(move |cx| cx.close(file));
        probe.submit(2, read(file, 0, 10));
        let Completion::Read(_, Err(error)) = probe.completion(2) else {
            panic!("no error")
        };
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}

#[test]
fn a_closed_file_is_closed_in_the_kernel_too() {
    for (_reactor, probe) in each_driver() {
        let (ours, file) = probe.socket_pair();
        probe.submit(1, recv(file, 10));
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
    for (_reactor, probe) in each_driver() {
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
        probe.submit(4, recv(file, 10));
        assert!(matches!(probe.completion(4), Completion::Recv(_, Ok(0))));
    }
}

#[test]
fn an_exact_receive_fills_its_buffer_or_fails() {
    for (_reactor, probe) in each_driver() {
        let (mut client, file) = probe.socket_pair();
        probe.submit(1, recv_exact(file, 200_000));
        for _ in 0..200 {
            client.write_all(&[5; 1000]).unwrap();
        }
        let Completion::Recv(got, Ok(200_000)) = probe.completion(1) else {
            panic!("short")
        };
        assert!(got.iter().all(|&byte| byte == 5));
        probe.submit(2, recv_exact(file, 100));
        client.write_all(&[5; 10]).unwrap();
        drop(client);
        assert!(matches!(probe.completion(2), Completion::Recv(_, Err(_))));
    }
}

#[test]
fn more_operations_than_the_ring_has_entries_all_complete_once() {
    for (_reactor, probe) in each_driver() {
        let file = probe.register(memfd(c"disk", 1 << 20).unwrap());
        probe.run(move |cx| {
            for token in 0..500 {
                let op = write(file, token * 512, buf(512, token as u8));
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
    for (_reactor, probe) in each_driver() {
        let began = Instant::now();
        probe.run(|cx| {
            let never = cx.submit(Token(9), timeout_ms(3_600_000));
            cx.submit(Token(2), timeout_ms(40));
            cx.submit(Token(1), timeout_ms(10));
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
            cx.submit(Token(0), timeout_ms(1));
        }
        fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, _: Completion) {
            self.0 += 1;
            if self.0 < 20 {
                cx.submit(Token(0), timeout_ms(1));
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
    for (_reactor, probe) in each_driver() {
        let (_client, file) = probe.socket_pair();
        probe.run(move |cx| {
            let op = recv(file, 10);
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
fn one_file_may_be_registered_with_several_reactors() {
    let fd = Arc::new(memfd(c"disk", 4096).unwrap());
    for (_reactor, probe) in each_driver() {
        let shared = Arc::clone(&fd);
        let file = probe.run(move |cx| cx.register(shared));
        probe.submit(1, write(file, 0, buf(512, 3)));
        assert!(matches!(probe.completion(1), Completion::Write(_, Ok(()))));
        probe.run(move |cx| cx.close(file));
    }
    let mut file = File::from(Arc::into_inner(fd).expect("the reactors let go"));
    let mut bytes = [0; 512];
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [3; 512]);
}

#[test]
fn readiness_can_be_waited_for() {
    for (_reactor, probe) in each_driver() {
        let (mut client, file) = probe.socket_pair();
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
    for (_reactor, probe) in each_driver() {
        let (mut client, file) = probe.socket_pair();
        let events = libc::POLLRDHUP as u32;
        probe.submit(1, Op::Poll { file, events });
        probe.submit(2, recv(file, 10));
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
