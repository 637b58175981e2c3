//! Driver commands and a completion queue that is too small, on this host's kernel.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "what a driver takes for an address is its own affair"
)]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};

use reactor::{
    BackendChoice, BackendKind, Command, Completion, Config, Cx, FileIndex, Op, Reactor, Source,
    Token,
};

use crate::support::*;

/// How many bytes wait in a socket, asked of its driver (Linux 6.7).
const SOCKET_URING_OP_SIOCINQ: u32 = 0;

fn command(file: FileIndex, opcode: u32) -> Command {
    // SAFETY: a socket takes nothing of these commands for an address.
    unsafe { Command::new(file, opcode, [0; 16]) }
}

fn answer(probe: &Remote, command: Command) -> i32 {
    probe.submit(1, Op::Command(command));
    match probe.completion(1) {
        Completion::Command(raw) => raw,
        other => panic!("saw {other:?}"),
    }
}

#[test]
fn a_command_reaches_the_driver_of_its_file_and_its_answer_comes_back_as_it_is() {
    for kind in backends() {
        let reactor = start(kind);
        let probe = Remote::attach(&reactor, false);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = probe.register(listener.accept().unwrap().0);
        client.write_all(b"seventeen bytes..").unwrap();
        let ready = Op::Poll {
            file: socket,
            events: libc::POLLIN as u32,
        };
        probe.submit(2, ready);
        probe.completion(2);
        let plain = probe.register(reactor::memfd(c"file", 0).unwrap());
        let gone = probe.register(reactor::memfd(c"file", 0).unwrap());
        probe.run(move |cx| cx.close(gone));
        let raw = answer(&probe, command(socket, SOCKET_URING_OP_SIOCINQ));
        match kind {
            BackendKind::IoUring if raw == -libc::EINVAL || raw == -libc::EOPNOTSUPP => {
                println!("skipped: sockets take no commands before Linux 6.7");
            }
            BackendKind::IoUring => assert_eq!(raw, 17),
            _ => assert_eq!(raw, -libc::EOPNOTSUPP),
        }
        let no_such = |file| command(file, 0xffff);
        assert_eq!(answer(&probe, no_such(socket)), -libc::EOPNOTSUPP);
        assert_eq!(answer(&probe, no_such(plain)), -libc::EOPNOTSUPP);
        // An armed one is refused like any other.
        probe.arm(7, no_such(gone));
        match probe.completion(7) {
            Completion::Command(raw) => assert_eq!(raw, -libc::EBADF),
            other => panic!("saw {other:?}"),
        }
        assert_eq!(probe.run(|cx| cx.stats().armed_commands), 0);
    }
}

#[test]
fn a_flood_loses_nothing_on_a_completion_queue_that_is_far_too_small() {
    const FLOOD: u64 = 1000;
    if !backends().contains(&BackendKind::IoUring) {
        return;
    }
    let reactor = Reactor::start(Config {
        backend: BackendChoice::Only(BackendKind::IoUring),
        entries: 8,
        completions: 16,
        ..Config::default()
    })
    .unwrap();
    let probe = Remote::attach(&reactor, false);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let file = probe.register(OwnedFd::from(theirs));
    for round in 0..3 {
        probe.run(move |cx| {
            for token in 0..FLOOD {
                let events = libc::POLLIN as u32;
                cx.submit(Token(token), Op::Poll { file, events });
            }
        });
        // All of them end at once, and so do these that have nothing to wait for.
        ours.write_all(b"x").unwrap();
        probe.run(move |cx| {
            for token in FLOOD..2 * FLOOD {
                let op = Op::Sync {
                    file,
                    data_only: true,
                };
                cx.submit(Token(token), op);
            }
        });
        let mut seen = vec![0; 2 * FLOOD as usize];
        for _ in 0..2 * FLOOD {
            let Event::Completion(token, completion) = probe.next() else {
                panic!("something else")
            };
            match completion {
                Completion::Poll(Ok(_)) => assert!(token < FLOOD),
                // A socket cannot be synced, which its completion says.
                Completion::Sync(Err(_)) => assert!(token >= FLOOD),
                other => panic!("saw {other:?}"),
            }
            seen[token as usize] += 1;
        }
        assert!(seen.iter().all(|&times| times == 1), "round {round}");
        probe.submit(0, recv(file, 10));
        assert!(matches!(probe.completion(0), Completion::Recv(_, Ok(1))));
    }
    assert_eq!(probe.run(|cx| cx.stats().ops_in_flight), 0);
}

#[test]
fn what_is_begun_in_one_turn_is_handed_over_with_one_enter() {
    if !backends().contains(&BackendKind::IoUring) {
        return;
    }
    let reactor = Reactor::start(Config::default()).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (enters, ended) = channel();
    let attached = reactor.handle().attach(move |cx| {
        let file = cx.register(OwnedFd::from(theirs));
        // It is writable, so these end in the call that hands them over.
        let events = libc::POLLOUT as u32;
        for token in 0..100 {
            cx.submit(Token(token), Op::Poll { file, events });
        }
        EnterCount {
            begun_at: cx.stats().enters,
            enters,
        }
    });
    attached.unwrap();
    for _ in 0..100 {
        assert_eq!(ended.recv_timeout(DEADLINE), Ok(1));
    }
}

/// Reports how many enters lie between its operations' begin and the end of each.
struct EnterCount {
    begun_at: u64,
    enters: Sender<u64>,
}

impl Source for EnterCount {
    fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, _: Completion) {
        let enters = cx.stats().enters - self.begun_at;
        self.enters.send(enters).unwrap();
    }
}
