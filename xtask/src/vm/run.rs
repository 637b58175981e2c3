//! One guest from boot to end: started, streamed, judged, and never left behind.
//!
//! The guest lives in a process group of its own under a small shell that holds the reading end of
//! a pipe. When the writing end closes, be it dropped at the deadline, by a panic, or by the
//! kernel because this process was killed, the shell removes the run's files and kills that group.
//! User-Mode Linux makes a session of its own, so the guest's group is killed beside the shell's.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::console::{SETUP_FAILED_PREFIX, Scanner};
use super::guest::{self, Lane};
use super::host_files::{self, Programs};
use super::image::{self, Image, Machine};
use super::packages::run_for_output;
use super::uml;
use crate::{Failure, workspace};

/// The shell above the guest: $1 is the folder of the run, the rest starts the guest.
const GUARD: &str = r#"
folder=$1; shift
exec 3<&0 < /dev/null
"$@" 3<&- &
guest=$!
( read -r _ <&3; rm -rf "$folder"; kill -s KILL -- "-$guest"; kill -s KILL 0 ) 2> /dev/null &
guard=$!
exec 3<&-
wait "$guest"
kill "$guard"
rm -rf "$folder"
"#;

/// How long the guest may take to power off once the command has ended.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(60);

/// What to run, and in which guest.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) machine: &'a Machine,
    pub(super) command: &'a [String],
    pub(super) cpus: u32,
    /// Those that are there but not started; fewer than `cpus` mean none.
    pub(super) possible_cpus: u32,
    pub(super) memory: &'a str,
    pub(super) scratch_bytes: u64,
    pub(super) no_journal: bool,
    pub(super) icount: bool,
    /// Whether the guest finds this machine at [`guest::HOST`].
    pub(super) network: bool,
    /// Whether KVM is to run it.
    pub(super) hardware: bool,
    pub(super) console: bool,
    pub(super) deadline: Duration,
}

/// How a run went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The command ended with this status and the kernel had nothing to complain of.
    Ended(u8),
    /// The kernel complained this many times, whatever the command's status.
    Complained(usize),
    /// The guest ended without a status; the console's last lines.
    Died(String),
    /// The emulator found a fault in itself before the command had said anything; the console's last lines.
    EmulatorFailed(String),
    /// The deadline passed; the console's last lines.
    DeadlinePassed(String),
}

/// Runs a job to its end or its deadline.
pub(super) fn run(cache: &Path, job: &Job) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let folder = Folder::new(cache)?;
    let programs = Programs::named_in(job.command);
    let mut command = start(cache, &folder.0, job)?;
    let mut group = Group::spawn(&folder.0, &mut command)?;
    let output = group.take_output()?;
    let printing = thread::spawn(move || print(output));
    let console = group.take_console()?;
    let (lines, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut line = Vec::new();
        while console.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            if lines.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });
    let mut scanner = Scanner::default();
    let mut end = started + job.deadline;
    let late = loop {
        match heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let unready = line.contains(SETUP_FAILED_PREFIX);
                if scanner.line(&line) || unready || job.console {
                    eprintln!("guest: {}", line.trim_end());
                }
                if scanner.status().is_some() {
                    end = end.min(Instant::now() + POWER_OFF_TIMEOUT);
                }
            }
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    drop(group);
    let has_begun = printing
        .join()
        .map_err(|_| "the thread that prints the guest's output panicked")?;
    programs.check_unchanged()?;
    Ok(outcome_of(&scanner, late, has_begun))
}

/// What a console and the clock together mean. A guest that only failed to power off in time has
/// run its command all the same.
fn outcome_of(scanner: &Scanner, late: bool, has_begun: bool) -> Outcome {
    match (scanner.complaints(), scanner.status()) {
        (0, Some(status)) => Outcome::Ended(status),
        (0, None) if late => Outcome::DeadlinePassed(scanner.tail()),
        (0, None) => {
            let tail = scanner.tail();
            let is_emulators = |line: &str| {
                line.trim_start().starts_with("qemu-system-") && line.contains(": Assertion `")
            };
            match tail.lines().any(is_emulators) && !has_begun {
                true => Outcome::EmulatorFailed(tail),
                false => Outcome::Died(tail),
            }
        }
        (count, _) => Outcome::Complained(count),
    }
}

/// Passes the guest's output on as it comes; whether there was any.
fn print(mut output: impl Read) -> bool {
    let mut buffer = [0; 4096];
    let mut was_any = false;
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        was_any = true;
        let mut stdout = std::io::stdout().lock();
        // Nobody may be listening any more; the run's verdict does not depend on it.
        let _ = stdout
            .write_all(&buffer[..length])
            .and_then(|()| stdout.flush());
    }
    was_any
}

/// The command that starts the guest, with its script and its disk made ready.
fn start(cache: &Path, folder: &Path, job: &Job) -> Result<Command, Failure> {
    let script = folder.join("guest.sh");
    let here = std::env::current_dir()?;
    let bin = folder.join("bin");
    fs::create_dir(&bin)?;
    let modprobe = bin.join("modprobe");
    let target = workspace::target();
    let mut tools = vec![bin.as_path()];
    let lane = match job.machine {
        Machine::Packaged(image) => {
            image.module_loader(&modprobe)?;
            tools.push(&image.bin);
            Lane::Packaged {
                icount: job.icount,
                network: job.network,
            }
        }
        Machine::UserMode { busybox, .. } => {
            // All that commands load is built in.
            image::program(&modprobe, "exit 0")?;
            Lane::UserMode { busybox }
        }
    };
    let mut needed = vec![&here, workspace::root(), &target, cache];
    needed.dedup();
    let task = guest::Task {
        command: job.command,
        directory: &here,
        tools: &tools,
        needed: &needed,
    };
    let text = guest::script(lane, &task);
    image::write_executable(&script, &text)?;
    let disk = folder.join("scratch");
    fs::File::create(&disk)?.set_len(job.scratch_bytes)?;
    let mut format = Command::new("mkfs.ext4");
    let path = std::env::var("PATH").unwrap_or_default();
    format.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let without: &[&str] = if job.no_journal {
        &["-O", "^has_journal"]
    } else {
        &[]
    };
    format.args(["-q", "-F"]).args(without).arg(&disk);
    run_for_output(&mut format, "format the scratch disk")?;
    Ok(match job.machine {
        Machine::Packaged(image) => emulator(folder, job, image, &script, &disk),
        Machine::UserMode { kernel, .. } => {
            let start = uml::Start {
                script: &script,
                disk: &disk,
                memory: job.memory,
                cpus: job.cpus,
                possible_cpus: job.possible_cpus,
                console: job.console,
            };
            uml::start(kernel, folder, &start)
        }
    })
}

/// The command that starts a packaged kernel in QEMU.
fn emulator(folder: &Path, job: &Job, image: &Image, script: &Path, disk: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(&image.virtme);
    command
        .env("PATH", format!("{}:{path}", image.bin.display()))
        .env("HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .env("TMPDIR", folder)
        .arg("--kimg")
        .arg(&image.vmlinuz)
        .args(["--mods", "auto", "--force-9p"])
        .arg("--busybox")
        .arg(&image.busybox)
        .arg("--qemu-bin")
        .arg(image.bin.join("qemu-system-x86_64"))
        .args(["--cpus", &job.cpus.max(job.possible_cpus).to_string()])
        .args(["--memory", job.memory])
        // The others are never started, and cost nothing.
        .args(["--kopt", &format!("maxcpus={}", job.cpus)])
        .args(["--show-boot-console", "--kopt", "printk.devkmsg=on"])
        // Warnings and worse; a serial line is too slow to show a whole boot always.
        .args([
            "--kopt",
            if job.console {
                "loglevel=7"
            } else {
                "loglevel=5"
            },
        ])
        .arg("--script-sh")
        .arg(format!(
            "sh {}",
            guest::shell_quote(&script.display().to_string())
        ));
    if !job.hardware {
        // A busy machine gives the emulator no time in the few ticks in which a kernel looks whether its timer
        // works, and it panics then.
        command.args(["--disable-kvm", "--kopt", "no_timer_check"]);
    }
    // This option takes all that follows it.
    command.args(["--qemu-opts", "-drive"]);
    command.arg(format!("file={},format=raw,if=virtio", disk.display()));
    command.args(["-chardev", "file,id=firn,path=/proc/self/fd/1"]);
    command.args(["-device", "virtio-serial-pci", "-device"]);
    command.arg(format!("virtserialport,chardev=firn,name={}", guest::PORT));
    command.args(host_files::emulator_arguments());
    if job.network {
        command.args(["-netdev", "user,id=firn-net,net=10.0.2.0/24"]);
        command.args(["-device", "virtio-net-pci,netdev=firn-net"]);
    }
    if job.icount {
        // The emulator then runs its processors on one thread by itself.
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    command
}

/// The folder of one run, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(cache: &Path) -> Result<Self, Failure> {
        let path = cache.join("runs").join(std::process::id().to_string());
        fs::create_dir_all(&path)?;
        Ok(Self(path.canonicalize()?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Mostly the guard was first.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process group and the pipe whose end is its end.
struct Group(Child);

impl Group {
    fn spawn(folder: &Path, command: &mut Command) -> Result<Self, Failure> {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "firn-vm"]).arg(folder);
        guard.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                guard.env(name, value);
            }
        }
        let child = guard
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the guest: {error}"))?;
        Ok(Self(child))
    }

    fn take_output(&mut self) -> Result<impl Read + Send + use<>, Failure> {
        Ok(self.0.stdout.take().ok_or("the guest's output is taken")?)
    }

    fn take_console(&mut self) -> Result<impl Read + Send + use<>, Failure> {
        Ok(self.0.stderr.take().ok_or("the guest's console is taken")?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(lines: &[&str]) -> Scanner {
        let mut scanner = Scanner::default();
        for line in lines {
            scanner.line(line);
        }
        scanner
    }

    const ENDED_3: &str = "[    9.000000] firn-vm: the command ended with 3";

    #[test]
    fn a_complaint_fails_a_run_whatever_the_command_says() {
        let zero = "[    9.000000] firn-vm: the command ended with 0";
        let scanner = scan(&["[    8.000000] BUG: planted", zero]);
        assert_eq!(outcome_of(&scanner, false, true), Outcome::Complained(1));
    }

    #[test]
    fn a_status_counts_even_where_the_guest_would_not_power_off() {
        let ended = |late| outcome_of(&scan(&[ENDED_3]), late, true);
        assert_eq!(ended(false), Outcome::Ended(3));
        assert_eq!(ended(true), Outcome::Ended(3));
    }

    #[test]
    fn no_status_is_never_a_success() {
        let nothing = |late| outcome_of(&scan(&[]), late, false);
        assert!(matches!(nothing(false), Outcome::Died(_)));
        assert!(matches!(nothing(true), Outcome::DeadlinePassed(_)));
    }

    #[test]
    fn a_fault_of_the_emulator_is_its_own_only_before_the_command_says_anything() {
        let fault = "qemu-system-x86_64: physmem.c:1: iotlb_to_section: Assertion `i < n' failed.";
        let outcome = |line, has_begun| outcome_of(&scan(&[line]), false, has_begun);
        assert!(matches!(outcome(fault, false), Outcome::EmulatorFailed(_)));
        assert!(matches!(outcome(fault, true), Outcome::Died(_)));
        let module = "qemu-system-x86_64: failed to open module";
        assert!(matches!(outcome(module, false), Outcome::Died(_)));
    }

    /// Whether a process is there and is not a corpse that nobody has collected.
    fn alive(process: &str) -> bool {
        fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// A stand-in for a guest: two processes of which the second outlives the first's attention.
    fn group_of_two(folder: &Path) -> (Group, Vec<String>) {
        run_in_group(folder, Command::new("sh"))
    }

    fn run_in_group(folder: &Path, mut command: Command) -> (Group, Vec<String>) {
        command.args(["-c", "sleep 300 & echo $!; echo $$; wait"]);
        let mut group = Group::spawn(folder, &mut command).unwrap();
        let output = BufReader::new(group.take_output().unwrap());
        let processes: Vec<_> = output.lines().take(2).map(Result::unwrap).collect();
        assert!(processes.iter().all(|process| alive(process)));
        (group, processes)
    }

    fn wait_until_gone(processes: &[String]) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if !processes.iter().any(|process| alive(process)) {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    #[test]
    fn dropping_a_run_ends_every_process_of_it_and_removes_its_folder() {
        let folder = std::env::temp_dir().join(format!("firn-vm-drop-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (group, processes) = group_of_two(&folder);
        drop(group);
        assert!(wait_until_gone(&processes));
        assert!(!folder.exists());
    }

    #[test]
    fn a_guest_that_makes_a_session_of_its_own_ends_with_its_run() {
        let folder = std::env::temp_dir().join(format!("firn-vm-session-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("setsid");
        command.arg("sh");
        let (group, processes) = run_in_group(&folder, command);
        drop(group);
        assert!(wait_until_gone(&processes));
    }

    #[test]
    fn a_panic_ends_every_process_of_a_run() {
        let folder = std::env::temp_dir().join(format!("firn-vm-panic-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (sender, receiver) = mpsc::channel();
        let at = folder.clone();
        let result = thread::spawn(move || {
            let (_group, processes) = group_of_two(&at);
            sender.send(processes).unwrap();
            panic!("planted");
        })
        .join();
        assert!(result.is_err());
        assert!(wait_until_gone(&receiver.recv().unwrap()));
    }

    #[test]
    fn a_group_that_ends_by_itself_leaves_no_guard() {
        let folder = std::env::temp_dir().join(format!("firn-vm-end-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut group = Group::spawn(&folder, &mut Command::new("true")).unwrap();
        let mut output = group.take_output().unwrap();
        // The pipe ends only when everybody who holds it is gone, the guard among them.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(group.0.wait().unwrap().success());
        assert!(!folder.exists());
    }
}
