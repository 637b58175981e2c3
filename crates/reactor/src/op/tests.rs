//! What raw results lead to.

use super::*;
use crate::call::FixedDirection;

/// What a raw result led to.
enum Verdict {
    Again(Work),
    Done(Completion),
}

fn on_result(mut work: Work, raw: i32, stop: bool) -> Verdict {
    match work.on_result(raw, stop) {
        Some(completion) => Verdict::Done(completion),
        None => Verdict::Again(work),
    }
}

fn read_of(len: usize) -> Work {
    Work::Read {
        buf: Buf::allocate(len).unwrap(),
        offset: 100,
        done: 0,
    }
}

#[test]
fn a_short_read_is_continued_where_it_stopped() {
    let Verdict::Again(mut work) = on_result(read_of(1000), 300, false) else {
        panic!("finished early")
    };
    let Call::Read { len, offset, .. } = work.call() else {
        panic!("another call")
    };
    assert_eq!((len, offset), (700, 400));
    assert!(matches!(
        on_result(work, 700, false),
        Verdict::Done(Completion::Read(_, Ok(())))
    ));
}

#[test]
fn a_short_write_is_continued_where_it_stopped_and_one_that_stops_is_an_error() {
    let write = || Work::Write {
        buf: Buf::allocate(1000).unwrap(),
        offset: 100,
        done: 0,
    };
    let Verdict::Again(mut work) = on_result(write(), 300, false) else {
        panic!("finished early")
    };
    let Call::Write { len, offset, .. } = work.call() else {
        panic!("another call")
    };
    assert_eq!((len, offset), (700, 400));
    let Verdict::Done(Completion::Write(_, Err(error))) = on_result(work, 0, false) else {
        panic!("taken for success")
    };
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[test]
fn a_short_move_of_a_slot_is_continued_in_file_and_slot_and_one_that_stops_is_an_error() {
    for (direction, none) in [
        (FixedDirection::Read, io::ErrorKind::UnexpectedEof),
        (FixedDirection::Write, io::ErrorKind::WriteZero),
    ] {
        let fixed = Work::Fixed(FixedTransfer::new(direction, 8192, 7, 512, 4096));
        let Verdict::Again(mut rest) = on_result(fixed, 1024, false) else {
            panic!("{direction:?}: a part was taken for all")
        };
        let Call::Fixed {
            offset,
            slot,
            at,
            len,
            ..
        } = rest.call()
        else {
            panic!("another call")
        };
        assert_eq!((offset, slot, at, len), (9216, 7, 1536, 3072));
        let Verdict::Again(rest) = on_result(rest, -libc::EAGAIN, false) else {
            panic!("{direction:?}: given up")
        };
        let Verdict::Again(rest) = on_result(rest, 3071, false) else {
            panic!("{direction:?}: a byte is missing")
        };
        let Verdict::Done(Completion::Fixed(Err(error))) = on_result(rest, 0, false) else {
            panic!("{direction:?}: nothing was taken for the rest")
        };
        assert_eq!(error.kind(), none);
        let whole = on_result(
            Work::Fixed(FixedTransfer::new(direction, 0, 0, 0, 4096)),
            4096,
            false,
        );
        assert!(matches!(whole, Verdict::Done(Completion::Fixed(Ok(())))));
    }
}

#[test]
fn the_end_of_a_file_inside_a_read_is_an_error() {
    let Verdict::Done(Completion::Read(_, Err(error))) = on_result(read_of(10), 0, false) else {
        panic!("taken for success")
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_cancelled_operation_is_not_continued() {
    for raw in [300, -libc::EINTR] {
        let verdict = on_result(read_of(1000), raw, true);
        let Verdict::Done(Completion::Read(_, Err(error))) = verdict else {
            panic!("continued after cancel")
        };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    }
}

#[test]
fn a_short_send_leaves_out_what_was_sent() {
    let parts = vec![
        SendPart::Bytes(vec![1; 10]),
        SendPart::Bytes(vec![]),
        SendPart::Buf(Buf::allocate(100).unwrap()),
    ];
    let work = Work::Send(SendTransfer::new(parts));
    let Verdict::Again(Work::Send(mut sending)) = on_result(work, 40, false) else {
        panic!("finished early")
    };
    assert_eq!((sending.next, sending.iov[1].iov_len), (1, 70));
    sending.message();
    assert_eq!(sending.msg.msg_iovlen, 1);
    let Verdict::Done(Completion::Send(parts, Ok(()))) = on_result(Work::Send(sending), 70, false)
    else {
        panic!("not finished")
    };
    assert_eq!(parts.len(), 3);
}

#[test]
fn a_receive_says_how_much_came_and_an_exact_one_fills_up() {
    let recv = |exact| Work::Recv {
        buf: Buf::allocate(100).unwrap(),
        filled: 20,
        exact,
        received: 0,
    };
    let Verdict::Done(Completion::Recv(_, Ok(30))) = on_result(recv(false), 30, false) else {
        panic!("another count")
    };
    let Verdict::Again(rest) = on_result(recv(true), 30, false) else {
        panic!("cut short")
    };
    assert!(matches!(
        on_result(rest, 50, false),
        Verdict::Done(Completion::Recv(_, Ok(80)))
    ));
}

#[test]
fn a_sync_that_failed_for_whatever_reason_is_never_made_again() {
    for data_only in [false, true] {
        for errno in [libc::EINTR, libc::EAGAIN, libc::EIO] {
            for stop in [false, true] {
                let sync = Work::Sync { data_only };
                let Verdict::Done(Completion::Sync(Err(error))) = on_result(sync, -errno, stop)
                else {
                    panic!("errno {errno} is lost")
                };
                assert_eq!(error.raw_os_error(), Some(errno));
            }
        }
    }
}
