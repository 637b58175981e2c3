//! What a guest's console says: the kernel's complaints, and how the command ended.
//!
//! Pure: lines in, findings out. A complaint is looked for where the kernel puts it, at the start
//! of a message, so that a program that merely mentions one does not fail a run.

use std::collections::VecDeque;

/// What the guest's script writes to the kernel's log when the command has ended.
pub(super) const STATUS_PREFIX: &str = "firn-vm: the command ended with ";
/// What it writes instead when the guest could not be set up.
pub(super) const SETUP_FAILED_PREFIX: &str = "firn-vm: cannot set up: ";

/// How the kernel begins what must fail a run.
const COMPLAINTS: &[&str] = &[
    "BUG:",
    "BUG ",
    "kernel BUG at",
    "WARNING:",
    "watchdog: BUG:",
    "INFO: task ",
    "INFO: rcu",
    "rcu: INFO:",
    "INFO: lockdep",
    "Oops:",
    "Oops ",
    "general protection fault",
    "Kernel panic",
    "stack segment:",
    "invalid opcode:",
    "divide error:",
    "UBSAN:",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "sched: RT throttling activated",
    "Call Trace:",
];

/// Lines kept to show where a guest stopped.
const TAIL_LINES: usize = 30;

/// Lines of the kernel after a complaint that belong to it: the stacks of who waits and of who is
/// waited for.
const TRACE_LINES: usize = 60;

/// Reads a console line by line and remembers what matters.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    complaints: usize,
    status: Option<u8>,
    tail: VecDeque<String>,
    /// Lines of a trace that may still come.
    trace: usize,
}

impl Scanner {
    /// Takes one line; answers whether it is a complaint, or belongs to one.
    pub(super) fn line(&mut self, line: &str) -> bool {
        let line = line.trim_end_matches(['\r', '\n']);
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
        let message = message(line);
        if let Some(status) = exit_status(message) {
            self.status = Some(status);
        }
        let complaint = COMPLAINTS.iter().any(|start| message.starts_with(start));
        self.complaints += usize::from(complaint);
        if complaint {
            self.trace = TRACE_LINES;
        } else if !message.is_empty() && !message.starts_with(STATUS_PREFIX) {
            let belongs = self.trace > 0;
            self.trace = self.trace.saturating_sub(1);
            return belongs;
        }
        complaint
    }

    /// How many lines were complaints.
    pub(super) fn complaints(&self) -> usize {
        self.complaints
    }

    /// The command's exit status, once the guest has said it.
    pub(super) fn status(&self) -> Option<u8> {
        self.status
    }

    /// The console's last lines.
    pub(super) fn tail(&self) -> String {
        self.tail.iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// The kernel's message without what stands before it: time, and where configured the caller.
/// Empty for a line without a time: that is the emulator or a program, not the kernel.
fn message(line: &str) -> &str {
    let mut rest = line.trim_start();
    let mut timed = false;
    while let Some(inner) = rest.strip_prefix('[') {
        let Some((stamp, after)) = inner.split_once(']') else {
            break;
        };
        let time = stamp.trim().chars().all(|c| c.is_ascii_digit() || c == '.');
        let caller = stamp.trim_start().starts_with(['T', 'C'])
            && stamp.trim()[1..].chars().all(|c| c.is_ascii_digit());
        if !time && !caller {
            break;
        }
        timed |= time && stamp.contains('.');
        rest = after.trim_start();
    }
    if timed { rest } else { "" }
}

/// The status in the line with which the guest's script ends.
fn exit_status(message: &str) -> Option<u8> {
    message.strip_prefix(STATUS_PREFIX)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_complaint(line: &str) -> bool {
        Scanner::default().line(line)
    }

    #[test]
    fn what_a_kernel_complains_of_is_found() {
        for line in [
            "[    5.010203] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[    5.010203] BUG: planted\r",
            "[    5.010203] kernel BUG at fs/ext4/inode.c:2789!",
            "[    5.010203] WARNING: CPU: 1 PID: 77 at kernel/rcu/tree.c:10 foo+0x1/0x2",
            "[    5.010203] WARNING: kernel/fork.c:733 at foo+0x1/0x2, CPU#1: sh/77",
            "[  245.010203] INFO: task fio:99 blocked for more than 120 seconds.",
            "[  245.010203] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[  245.010203] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [fio:99]",
            "[    5.010203] Oops: general protection fault, maybe for address 0x1: 0000 [#1]",
            "[    5.010203][  T77] BUG: sleeping function called from invalid context",
            "[    5.010203] [    C0] BUG: scheduling while atomic: swapper/0/0/0x00010000",
            "[    5.010203] Kernel panic - not syncing: Attempted to kill init!",
        ] {
            assert!(is_complaint(line), "{line}");
        }
    }

    #[test]
    fn a_line_that_only_mentions_a_complaint_passes() {
        for line in [
            "",
            "[",
            "[]",
            "[    5.010203]",
            "[    5.010203] virtme-init: WARNING: failed to restore a link",
            "[    5.010203] traps: test[88] general protection fault ip:1 sp:2 error:0",
            "[    5.010203] x86/bugs: Mitigation of a BUG: in a processor",
            "[    5.010203] INFO: a word of the kernel",
            "WARNING: a word of the emulator",
            "BUG: without a time",
            "[] BUG: with an empty one",
            "[ text ] BUG: not at the start of a message",
        ] {
            assert!(!is_complaint(line), "{line}");
        }
    }

    #[test]
    fn what_follows_a_complaint_is_shown_and_is_none_itself() {
        let mut scanner = Scanner::default();
        assert!(!scanner.line("[    1.000000] before"));
        assert!(scanner.line("[    1.000000] INFO: task fio:9 blocked for more than 60 seconds."));
        for _ in 0..TRACE_LINES {
            assert!(scanner.line("[    1.000000]  blkdev_open+0x1/0x2"));
            assert!(!scanner.line("a program's own words"));
        }
        assert!(!scanner.line("[    2.000000] long after"));
        assert_eq!(scanner.complaints(), 1);
    }

    #[test]
    fn complaints_are_counted() {
        let mut scanner = Scanner::default();
        scanner.line("[    1.000000] BUG: one");
        scanner.line("[    1.000000] harmless");
        scanner.line("[    1.000000] WARNING: two");
        assert_eq!(scanner.complaints(), 2);
    }

    #[test]
    fn the_status_is_what_the_guest_said() {
        for (said, status) in [("0", 0), ("3", 3), ("255\r", 255)] {
            let mut scanner = Scanner::default();
            scanner.line(&format!("[   12.345678] {STATUS_PREFIX}{said}"));
            assert_eq!(scanner.status(), Some(status));
        }
    }

    #[test]
    fn a_status_that_is_cut_or_quoted_is_no_status() {
        for line in [
            "[   12.345678] firn-vm: the command ended with ".to_owned(),
            format!("[   12.345678] {STATUS_PREFIX}256"),
            format!("[   12.345678] {STATUS_PREFIX}x"),
            format!("[   12.345678] audit: {STATUS_PREFIX}0"),
        ] {
            let mut scanner = Scanner::default();
            scanner.line(&line);
            assert_eq!(scanner.status(), None, "{line}");
        }
    }

    #[test]
    fn the_tail_is_bounded_and_keeps_the_end() {
        let mut scanner = Scanner::default();
        for number in 0..1000 {
            scanner.line(&format!("line {number}"));
        }
        let tail = scanner.tail();
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("  line 999\n"));
    }
}
