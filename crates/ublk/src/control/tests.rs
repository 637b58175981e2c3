//! Commands over a port that answers as its script says: retries, deadlines, errnos, cancellation.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::IntoBytes;

use super::port::OnCompletion;
use super::*;
use crate::error::ErrorKind;
use crate::sys::Params;

#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Vec<u8>, Failure>>>,
    asked: Mutex<Vec<Command>>,
    tickets: AtomicU64,
}

/// Answers from a list; where it is empty, commands wait until they are cancelled.
#[derive(Debug, Default)]
struct ScriptPort {
    script: Script,
    waiting: Mutex<Vec<(Ticket, WaitingCommand)>>,
}

struct WaitingCommand(OnCompletion);

impl std::fmt::Debug for WaitingCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WaitingCommand")
    }
}

impl ScriptPort {
    fn with(features: u64, answers: Vec<Result<Vec<u8>, Failure>>) -> Arc<ScriptPort> {
        let port = ScriptPort::default();
        let mut all = port.script.answers.lock().unwrap();
        all.push_back(Ok(features.as_bytes().to_vec()));
        all.extend(answers);
        drop(all);
        Arc::new(port)
    }

    fn commands(&self) -> Vec<Command> {
        self.script.asked.lock().unwrap().clone()
    }
}

impl ControlPort for ScriptPort {
    fn submit(&self, command: Command, _deadline: Instant, done: OnCompletion) -> Ticket {
        let ticket = Ticket(self.script.tickets.fetch_add(1, Ordering::SeqCst));
        let argument = command.argument.clone();
        self.script.asked.lock().unwrap().push(command);
        let answer = self.script.answers.lock().unwrap().pop_front();
        match answer {
            Some(Ok(bytes)) if bytes.is_empty() => done(Ok(Reply {
                result: 0,
                argument,
            })),
            Some(Ok(bytes)) => done(Ok(Reply {
                result: 0,
                argument: Argument::Bytes(bytes),
            })),
            Some(Err(failure)) => done(Err(failure)),
            None => self
                .waiting
                .lock()
                .unwrap()
                .push((ticket, WaitingCommand(done))),
        }
        ticket
    }

    fn cancel(&self, ticket: Ticket) {
        let mut waiting = self.waiting.lock().unwrap();
        if let Some(at) = waiting.iter().position(|(one, _)| *one == ticket) {
            let (_, WaitingCommand(done)) = waiting.swap_remove(at);
            drop(waiting);
            done(Err(Failure::Errno(libc::EINTR)));
        }
    }

    fn open_char(&self, _device: u32) -> io::Result<Arc<OwnedFd>> {
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        Ok(vec![3])
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn control(answers: Vec<Result<Vec<u8>, Failure>>) -> (ControlDevice, Arc<ScriptPort>) {
    let port = ScriptPort::with(0xf_ffff, answers);
    let control = ControlDevice::with_port(port.clone(), u64::MAX).unwrap();
    (control, port)
}

#[test]
fn an_interrupted_command_is_repeated_with_the_same_argument() {
    let interrupted = || Err(Failure::Errno(libc::EINTR));
    let (control, port) = control(vec![interrupted(), interrupted(), Ok(vec![])]);
    let params = Params {
        len: 136,
        ..Params::default()
    };
    control.set_params(4, &params).unwrap();
    let asked = port.commands();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[1], asked[3]);
    assert_eq!(asked[3].argument.bytes(), params.as_bytes());
}

#[test]
fn a_deletion_that_was_interrupted_and_then_finds_nothing_is_done() {
    let (control, _) = control(vec![
        Err(Failure::Errno(libc::EINTR)),
        Err(Failure::Errno(libc::ENODEV)),
    ]);
    assert_eq!(control.delete(4, SECOND), Ok(()));
}

#[test]
fn a_deletion_of_nothing_is_an_error() {
    let (control, _) = control(vec![Err(Failure::Errno(libc::ENODEV))]);
    let error = control.delete(4, SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn the_kernels_errno_is_told_and_nothing_is_tried_instead() {
    let (control, port) = control(vec![Err(Failure::Errno(libc::EEXIST))]);
    let error = control
        .start(4, 1, SECOND, &CancelToken::new())
        .unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    assert_eq!(error.device(), Some(4));
    assert_eq!(port.commands().len(), 2);
}

#[test]
fn a_command_that_is_late_or_stuck_says_so() {
    let (control, _) = control(vec![Err(Failure::TimedOut), Err(Failure::Stuck)]);
    assert_eq!(
        control.stop(4, SECOND).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    let error = control.stop(4, SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stuck);
    assert!(error.remedy().contains("kernel log"), "{error}");
}

#[test]
fn a_start_that_waits_for_a_tag_is_cancelled_from_another_thread() {
    let (control, port) = control(vec![]);
    let cancel = CancelToken::new();
    let other = cancel.clone();
    let waits = Arc::clone(&port);
    let canceller = std::thread::spawn(move || {
        while waits.waiting.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        other.cancel();
    });
    let error = control.start(4, 1, 60 * SECOND, &cancel).unwrap_err();
    canceller.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn what_was_cancelled_before_it_began_ends_at_once() {
    let (control, _) = control(vec![]);
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = control.start(4, 1, 60 * SECOND, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn a_command_that_the_kernel_lacks_is_refused_with_the_kernel_that_has_it() {
    let port = ScriptPort::with(0x1fe, vec![]);
    let control = ControlDevice::with_port(port.clone(), u64::MAX).unwrap();
    for (error, since) in [
        (control.update_size(4, 8).unwrap_err(), "6.16"),
        (control.quiesce(4, SECOND).unwrap_err(), "6.16"),
        (control.try_stop(4, SECOND).unwrap_err(), "7.0"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.remedy().contains(since), "{error}");
    }
    assert_eq!(port.commands().len(), 1, "the kernel was not asked");
}

#[test]
fn a_driver_without_features_is_too_old() {
    let port = ScriptPort::default();
    let answers = [Err(Failure::Errno(libc::ENODEV))];
    port.script.answers.lock().unwrap().extend(answers);
    let error = ControlDevice::with_port(Arc::new(port), u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.remedy().contains("6.5"), "{error}");
}

#[test]
fn without_the_driver_opening_says_how_to_load_it() {
    if std::path::Path::new(sys::CONTROL_PATH).exists() {
        println!("skipped: {} is there", sys::CONTROL_PATH);
        return;
    }
    let error = ControlDevice::open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDriver);
    assert!(error.to_string().contains("modprobe ublk_drv"), "{error}");
}
