//! A command that is followed line by line, and ended with all that it started when its time is over.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::Failure;

/// A running command whose output comes through one pipe, in the order in which it was written.
pub(crate) struct RunningCommand {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// It leads a process group of its own, which can be ended as a whole. Not at a terminal:
    /// there, ^C must reach everything.
    leads: bool,
    /// Known once it has ended.
    pub(crate) cpu: Duration,
}

impl RunningCommand {
    pub(crate) fn start(
        command: &mut Command,
        what: &str,
        leads: bool,
    ) -> Result<RunningCommand, Failure> {
        let (output, input) = io::pipe()?;
        command.stdin(std::process::Stdio::null());
        command.stdout(input.try_clone()?).stderr(input);
        if leads {
            command.process_group(0);
        }
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start {what}: {error}"))?;
        // The command holds the pipe's other ends until it is dropped or changed.
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let (sender, lines) = mpsc::channel();
        // Ends with the last process that holds the pipe, or when nobody listens any more.
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while matches!(output.read_until(b'\n', &mut line), Ok(bytes) if bytes > 0) {
                let text = String::from_utf8_lossy(&line);
                if sender
                    .send(text.trim_end_matches(['\n', '\r']).to_owned())
                    .is_err()
                {
                    return;
                }
                line.clear();
            }
        });
        Ok(RunningCommand {
            child,
            lines,
            leads,
            cpu: Duration::ZERO,
        })
    }

    /// Hands each line over until the command ends; `None` if it had to be ended.
    pub(crate) fn follow(
        &mut self,
        until: Instant,
        mut each: impl FnMut(&str),
    ) -> Result<Option<ExitStatus>, Failure> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_millis(200));
            match &line {
                Ok(line) => each(line),
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(self.wait()?)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // After a line, too: what prints all the time has a deadline like what is silent.
            if Instant::now() > until {
                self.end();
                self.wait()?;
                self.lines.try_iter().for_each(|line| each(&line));
                return Ok(None);
            }
            // Something it left behind may hold the pipe: its own end counts.
            if line.is_err() && self.has_ended(WaitIdOptions::NOHANG)? {
                let status = self.wait()?;
                self.lines.try_iter().for_each(|line| each(&line));
                return Ok(Some(status));
            }
        }
    }

    /// Whether it has ended; its status and times stay to be read.
    fn has_ended(&self, options: WaitIdOptions) -> io::Result<bool> {
        let child = WaitId::Pid(Pid::from_child(&self.child));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | options;
        let ended = rustix::io::retry_on_intr(|| rustix::process::waitid(child.clone(), options))?;
        Ok(ended.is_some())
    }

    /// Waits for its end, and notes what it took.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        self.has_ended(WaitIdOptions::empty())?;
        self.cpu = cpu_time(self.child.id());
        self.child.wait()
    }

    fn end(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match group.filter(|_| self.leads) {
            Some(group) => {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            None => {
                let _ = self.child.kill();
            }
        }
    }
}

/// Processor time of a process and of those that it has waited for.
fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name in parentheses; fields 14 to 17 of the whole line, in hundredths.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(10 * ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What became of a shell's words that are given so long, and how many lines they printed.
    fn follow(words: &str, given: Duration) -> (Option<ExitStatus>, usize) {
        let mut command = Command::new("sh");
        command.args(["-c", words]);
        let mut running = RunningCommand::start(&mut command, words, true).unwrap();
        let mut lines = 0;
        let status = running
            .follow(Instant::now() + given, |_| lines += 1)
            .unwrap();
        (status, lines)
    }

    #[test]
    fn a_command_that_prints_all_the_time_is_ended_at_its_deadline_like_a_silent_one() {
        // Both end by themselves, so that a deadline that is missed fails here and does not hang.
        for words in [
            "for i in $(seq 200); do echo line; sleep 0.05; done",
            "sleep 10",
        ] {
            let (status, _) = follow(words, Duration::from_millis(300));
            assert_eq!(status, None, "{words}");
        }
    }

    #[test]
    fn a_command_that_ends_in_time_is_heard_to_its_last_line() {
        let (status, lines) = follow("echo a; echo b; exit 3", Duration::from_secs(60));
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert_eq!(lines, 2);
    }
}
