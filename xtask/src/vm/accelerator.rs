//! Whether the guests can run on this machine's hardware, found out by a boot.
//!
//! That `/dev/kvm` is there says little: inside many virtual machines it opens, makes processors,
//! and then starts no ordinary kernel. So a kernel is booted to the point where it looks for its
//! root; only that counts. Emulation is what remains, and nothing here may fail a run.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What runs the guest's processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// KVM: it has booted this very kernel.
    Hardware,
    /// The emulator, and why.
    Emulation(String),
}

/// How long a boot may take until the kernel looks for its root; on hardware it is a second.
const BOOT_TIMEOUT: Duration = Duration::from_secs(15);

/// What a kernel that got through its whole boot says when it is given no root.
const BOOTED_MESSAGE: &str = "Unable to mount root fs";

/// The file of the cache that remembers the answer until this machine starts anew.
const RECORD_FILE: &str = "accelerator";

/// Finds out, or remembers.
pub(super) fn probe(cache: &Path, emulator: &Path, vmlinuz: &Path) -> Accelerator {
    let device = File::options().read(true).write(true).open("/dev/kvm");
    if let Err(error) = device {
        return Accelerator::Emulation(format!("/dev/kvm: {error}"));
    }
    let file = cache.join(RECORD_FILE);
    let this_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let remembered = fs::read_to_string(&file).unwrap_or_default();
    if let Some(answer) = parse_record(&remembered, this_boot.trim()) {
        return answer;
    }
    let answer = if boots(emulator, vmlinuz) {
        Accelerator::Hardware
    } else {
        Accelerator::Emulation("/dev/kvm is there and boots no kernel".to_owned())
    };
    // Without the file the next run asks again.
    let _ = fs::write(&file, record(&answer, this_boot.trim()));
    answer
}

/// What is kept: the machine's start, then the reason for emulation, or nothing.
fn record(answer: &Accelerator, this_boot: &str) -> String {
    match answer {
        Accelerator::Hardware => format!("{this_boot}\n"),
        Accelerator::Emulation(why) => format!("{this_boot}\n{why}\n"),
    }
}

/// The answer that was recorded since the machine's start, if one was.
fn parse_record(remembered: &str, this_boot: &str) -> Option<Accelerator> {
    let (start, why) = remembered.split_once('\n')?;
    if start != this_boot || start.is_empty() {
        return None;
    }
    Some(match why.trim() {
        "" => Accelerator::Hardware,
        why => Accelerator::Emulation(why.to_owned()),
    })
}

/// Ends a probe's emulator with the probe.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the kernel without a root and reads how far it gets.
fn boots(emulator: &Path, vmlinuz: &Path) -> bool {
    let mut command = Command::new(emulator);
    command
        .args(["-accel", "kvm", "-cpu", "host", "-m", "512"])
        .args(["-nodefaults", "-display", "none", "-serial", "stdio"])
        .args(["-no-reboot", "-append", "console=ttyS0 panic=-1"])
        .arg("-kernel")
        .arg(vmlinuz)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        return false;
    };
    let mut child = KillOnDrop(child);
    let Some(output) = child.0.stdout.take() else {
        return false;
    };
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let until = Instant::now() + BOOT_TIMEOUT;
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if String::from_utf8_lossy(&line).contains(BOOTED_MESSAGE) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_remembered_until_the_machine_starts_anew() {
        for answer in [
            Accelerator::Hardware,
            Accelerator::Emulation("boots no kernel".to_owned()),
        ] {
            let kept = record(&answer, "first");
            assert_eq!(parse_record(&kept, "first"), Some(answer));
            assert_eq!(parse_record(&kept, "second"), None);
        }
    }

    #[test]
    fn what_is_no_record_is_no_answer() {
        for text in ["", "first", "\n", "\nwhy\n"] {
            assert_eq!(parse_record(text, ""), None, "{text:?}");
        }
        assert_eq!(parse_record("first", "first"), None);
    }

    #[test]
    fn an_emulator_that_dies_or_says_something_else_boots_nothing() {
        assert!(!boots(Path::new("/nonexistent"), Path::new("kernel")));
        assert!(!boots(Path::new("/bin/false"), Path::new("kernel")));
        assert!(!boots(Path::new("/bin/echo"), Path::new("kernel")));
    }

    #[test]
    fn a_kernel_that_looks_for_its_root_has_booted() {
        // The stand-in prints its last argument.
        assert!(boots(Path::new("/bin/echo"), Path::new(BOOTED_MESSAGE)));
    }
}
