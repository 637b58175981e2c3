//! What is asked of the driver: bounded for all devices together, whatever it answers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use zerocopy::IntoBytes;

use super::*;
use crate::control::port::{Argument, Command, ControlPort, Failure, OnCompletion, Reply, Ticket};
use crate::sys;

/// What a device answers when it is asked for its state.
#[derive(Clone, Copy, Debug)]
enum StateReply {
    /// It has this server, until it was asked so often.
    Served(i32, u32),
    /// Nothing, ever.
    Silent,
}

#[derive(Debug, Default)]
struct Devices {
    manners: Vec<(StateReply, AtomicU32)>,
    unanswered: Mutex<Vec<UnansweredCommand>>,
    /// What the driver answers when it is to quiesce a device.
    quiesces: Vec<Quiesce>,
    quiescing: Mutex<Vec<(i32, UnansweredCommand)>>,
    busy_until: Mutex<Option<Instant>>,
}

/// What a device answers when it is quiesced.
#[derive(Clone, Copy, Debug)]
enum Quiesce {
    /// This, once all devices wait: a grace period that they share.
    Together(i32),
    /// Success, and whoever is begun meanwhile waits for it: one after the other, each of them takes
    /// this long.
    InTurn(Duration),
    /// Nothing, ever.
    Silent,
}

struct UnansweredCommand(OnCompletion);

impl std::fmt::Debug for UnansweredCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UnansweredCommand")
    }
}

impl Devices {
    fn quiesce(&self, device: u32, done: OnCompletion) {
        let result = match self.quiesces[device as usize] {
            Quiesce::Together(result) => result,
            Quiesce::InTurn(takes) => return self.in_turn(takes, done),
            Quiesce::Silent => {
                let mut unanswered = self.unanswered.lock().unwrap();
                return unanswered.push(UnansweredCommand(done));
            }
        };
        let mut quiescing = self.quiescing.lock().unwrap();
        quiescing.push((result, UnansweredCommand(done)));
        let together = |one: &&Quiesce| matches!(one, Quiesce::Together(_));
        if quiescing.len() < self.quiesces.iter().filter(together).count() {
            return;
        }
        for (result, UnansweredCommand(done)) in quiescing.drain(..) {
            let argument = Argument::None;
            done(match result {
                0.. => Ok(Reply { result, argument }),
                _ => Err(Failure::Errno(-result)),
            });
        }
    }
}

impl Devices {
    fn in_turn(&self, takes: Duration, done: OnCompletion) {
        let now = Instant::now();
        let mut busy = self.busy_until.lock().unwrap();
        let end = busy.unwrap_or(now).max(now) + takes;
        *busy = Some(end);
        std::thread::spawn(move || {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let argument = Argument::None;
            done(Ok(Reply {
                result: 0,
                argument,
            }));
        });
    }
}

impl ControlPort for Devices {
    fn submit(&self, command: Command, _deadline: Instant, done: OnCompletion) -> Ticket {
        let bytes = if command.opcode == sys::GET_FEATURES {
            0_u64.as_bytes().to_vec()
        } else if command.opcode == sys::QUIESCE_DEVICE {
            self.quiesce(command.header.device, done);
            return Ticket(0);
        } else {
            let (manner, asked) = &self.manners[command.header.device as usize];
            let asked = asked.fetch_add(1, Ordering::Relaxed);
            let StateReply::Served(pid, times) = *manner else {
                let mut unanswered = self.unanswered.lock().unwrap();
                unanswered.push(UnansweredCommand(done));
                return Ticket(0);
            };
            let info = DeviceInfo {
                state: if asked < times {
                    sys::STATE_LIVE
                } else {
                    sys::STATE_QUIESCED
                },
                server_pid: pid,
                ..DeviceInfo::default()
            };
            info.as_bytes().to_vec()
        };
        done(Ok(Reply {
            result: 0,
            argument: Argument::Bytes(bytes),
        }));
        Ticket(0)
    }

    fn cancel(&self, _ticket: Ticket) {}

    fn open_char(&self, _device: u32) -> io::Result<Arc<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        Ok(Vec::new())
    }
}

fn wait(
    manners: Vec<StateReply>,
    limits: ExitTimeouts,
) -> (BTreeMap<u32, UnconfirmedReason>, Duration) {
    let ids: Vec<u32> = (0..manners.len() as u32).collect();
    let devices = Devices {
        manners: manners
            .into_iter()
            .map(|one| (one, AtomicU32::new(0)))
            .collect(),
        ..Devices::default()
    };
    let control = ControlDevice::with_port(Arc::new(devices), u64::MAX).unwrap();
    let begun = Instant::now();
    (confirm_exit(&control, &ids, limits), begun.elapsed())
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

const SHORT: ExitTimeouts = ExitTimeouts {
    drain: Duration::ZERO,
    quiesce: None,
    probe: Duration::from_millis(40),
    confirm: Duration::from_millis(300),
};

#[test]
fn a_device_is_asked_until_it_has_no_server() {
    let limits = ExitTimeouts {
        confirm: Duration::from_secs(60),
        ..SHORT
    };
    let late = (0..128).map(|at| StateReply::Served(own_pid(), at % 5));
    let (unseen, took) = wait(late.collect(), limits);
    assert_eq!(unseen, BTreeMap::new());
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_successor_that_was_quicker_is_not_waited_for() {
    let (unseen, _) = wait(vec![StateReply::Served(own_pid() + 1, u32::MAX)], SHORT);
    assert_eq!(unseen, BTreeMap::new());
}

#[test]
fn devices_that_stay_are_told_when_the_time_for_all_of_them_is_up() {
    let devices = [
        StateReply::Served(own_pid(), u32::MAX),
        StateReply::Served(-1, u32::MAX),
    ];
    let (unseen, took) = wait(devices.repeat(64), SHORT);
    assert_eq!(unseen.len(), 128);
    assert!(
        unseen
            .values()
            .all(|why| *why == UnconfirmedReason::StillLive(DeviceState::Live))
    );
    assert!(took >= SHORT.confirm, "{took:?}");
    assert!(took < 20 * SHORT.confirm, "{took:?}");
}

#[test]
fn thousands_of_devices_have_no_more_time_than_one() {
    let limits = ExitTimeouts {
        confirm: Duration::from_secs(1),
        ..SHORT
    };
    let many = 16 * CONCURRENT_COMMANDS_MAX;
    let (unseen, took) = wait(vec![StateReply::Served(own_pid(), u32::MAX); many], limits);
    assert_eq!(unseen.len(), many);
    assert!(took < 5 * limits.confirm, "{took:?}");
}

#[test]
fn a_driver_that_does_not_answer_holds_nobody_beyond_the_time() {
    let (unseen, took) = wait(vec![StateReply::Silent; 64], SHORT);
    assert_eq!(unseen.len(), 64);
    assert!(unseen.values().all(
        |why| matches!(why, UnconfirmedReason::NoReply(error) if error.kind() == ErrorKind::TimedOut)
    ));
    assert!(took < 20 * SHORT.confirm, "{took:?}");
}

fn quiesce_all(quiesces: Vec<Quiesce>, within: Duration) -> (Vec<(u32, Error)>, Duration) {
    let ids: Vec<u32> = (0..quiesces.len() as u32).collect();
    let devices = Devices {
        quiesces,
        ..Devices::default()
    };
    let control = ControlDevice::with_port(Arc::new(devices), u64::MAX).unwrap();
    let begun = Instant::now();
    (quiesce_devices(&control, &ids, within), begun.elapsed())
}

#[test]
fn devices_are_quiesced_side_by_side() {
    let (refused, took) = quiesce_all(vec![Quiesce::Together(0); 128], Duration::from_secs(60));
    assert!(refused.is_empty(), "{refused:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_device_that_is_busy_is_quiesced_and_one_that_refuses_is_told() {
    let answers = [
        0,
        -libc::EBUSY,
        -libc::EINTR,
        -libc::ENODEV,
        -libc::EOPNOTSUPP,
    ];
    let quiesces = answers.map(Quiesce::Together).to_vec();
    let (refused, _) = quiesce_all(quiesces, Duration::from_secs(60));
    let errnos: Vec<_> = refused
        .iter()
        .map(|(device, error)| (*device, error.errno()))
        .collect();
    assert_eq!(
        errnos,
        [(3, Some(libc::ENODEV)), (4, Some(libc::EOPNOTSUPP))]
    );
}

#[test]
fn a_driver_that_does_not_quiesce_holds_nobody_beyond_the_time() {
    let devices = [Quiesce::Silent, Quiesce::Together(0)].repeat(32);
    let (refused, took) = quiesce_all(devices, SHORT.confirm);
    assert_eq!(refused.len(), 32);
    assert!(
        refused
            .iter()
            .all(|(_, error)| error.kind() == ErrorKind::TimedOut)
    );
    assert!(took < 20 * SHORT.confirm, "{took:?}");
}

#[test]
fn the_many_have_more_time_to_be_quiesced_than_the_few() {
    // Each share of them needs half of the time that a share has.
    let takes = Duration::from_millis(4);
    let within = 2 * takes * CONCURRENT_COMMANDS_MAX as u32;
    let many = 3 * CONCURRENT_COMMANDS_MAX;
    let (refused, took) = quiesce_all(vec![Quiesce::InTurn(takes); many], within);
    assert!(refused.is_empty(), "{refused:?}");
    assert!(took > within, "{took:?}");
}

#[test]
fn of_many_devices_that_a_driver_does_not_quiesce_only_a_share_is_waited_for() {
    let many = 20 * CONCURRENT_COMMANDS_MAX;
    let (refused, took) = quiesce_all(vec![Quiesce::Silent; many], SHORT.confirm);
    assert_eq!(refused.len(), many);
    assert!(
        refused
            .iter()
            .all(|(_, error)| error.kind() == ErrorKind::TimedOut)
    );
    assert!(took < 20 * SHORT.confirm, "{took:?}");
}
