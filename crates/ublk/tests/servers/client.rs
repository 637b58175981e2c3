//! Clients of block devices: fio, file systems, and the programs that look at disks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::world::{DEADLINE, is_block, wait_until};

/// Runs a program that must succeed, and answers what it printed.
pub fn run(program: &str, args: &[&str]) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(args)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{out}\n{errors}",
        output.status
    );
    out
}

/// A load of fio. Its exit status is what counts, and it is looked at.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    pub devices: Vec<PathBuf>,
    pub pattern: &'a str,
    pub block: &'a str,
    pub depth: u32,
    /// MiB of each device that are used.
    pub mib: u64,
    pub extra_args: Vec<&'a str>,
}

impl<'a> Load<'a> {
    /// Random writes of mixed sizes whose data is read back and compared.
    pub fn verified(devices: Vec<PathBuf>) -> Load<'a> {
        let extra_args = vec![
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--bsrange=4k-64k",
        ];
        Load {
            devices,
            pattern: "randwrite",
            block: "4k",
            depth: 16,
            mib: 4,
            extra_args,
        }
    }

    /// The same at a measured pace, so that it is still under way when something happens.
    pub fn paced(devices: Vec<PathBuf>) -> Load<'a> {
        let mut load = Load {
            mib: 8,
            ..Load::verified(devices)
        };
        load.extra_args.push("--rate_iops=100");
        load
    }

    /// A load that goes on until it is ended, or its device goes.
    pub fn endless(devices: Vec<PathBuf>) -> Load<'a> {
        let extra_args = vec!["--time_based", "--runtime=600", "--norandommap"];
        Load {
            devices,
            pattern: "randrw",
            block: "4k",
            depth: 16,
            mib: 8,
            extra_args,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("fio");
        command.args([
            "--ioengine=libaio",
            "--direct=1",
            "--thread",
            "--group_reporting",
        ]);
        command.args(["--minimal", "--exitall_on_error"]);
        // A client that is slow to start may find its device gone: it would use a file of that name.
        command.arg("--allow_file_create=0");
        command.arg(format!("--rw={}", self.pattern));
        command.arg(format!("--bs={}", self.block));
        command.arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--size={}m", self.mib));
        command.args(&self.extra_args);
        for (number, device) in self.devices.iter().enumerate() {
            assert!(is_block(device), "{} is no block device", device.display());
            command.arg(format!("--name=job{number}"));
            command.arg(format!("--filename={}", device.display()));
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs it to its end; it must succeed.
    pub fn run(&self) {
        self.start().expect_success();
    }

    /// Starts it.
    pub fn start(&self) -> RunningLoad {
        let log = tempfile::NamedTempFile::new().expect("a file for what fio says");
        let mut command = self.command();
        // One open file for both, or they would write over each other.
        let output = log.reopen().expect("the file is there");
        command.stdout(output.try_clone().expect("a descriptor"));
        command.stderr(output);
        RunningLoad {
            child: command.spawn().expect("fio"),
            log,
        }
    }
}

/// A load that runs; ended when dropped.
pub struct RunningLoad {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl RunningLoad {
    fn text(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// Waits for its end; it must have succeeded.
    pub fn expect_success(mut self) {
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "fio: {status}\n{}", self.text());
    }

    /// Waits for its end; it must have failed, for its device is gone.
    pub fn expect_failure(mut self) {
        let status = self.child.wait().expect("a child");
        assert!(!status.success(), "fio did not notice:\n{}", self.text());
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many requests a block device has completed, by the kernel's count.
pub fn completed(device: &Path) -> u64 {
    let name = device.file_name().expect("a name").to_string_lossy();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default();
    let fields: Vec<u64> = stat
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    fields.first().unwrap_or(&0) + fields.get(4).unwrap_or(&0)
}

/// Waits until a block device has completed so many requests more: until a load is under way, or goes on.
pub fn wait_for_requests(device: &Path, more: u64) {
    let before = completed(device);
    wait_until("the load goes on", DEADLINE, || {
        completed(device) >= before + more
    });
}

/// A mounted file system; unmounted when dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(device: &Path, at: PathBuf) -> Mounted {
        std::fs::create_dir_all(&at).expect("a directory to mount on");
        run("mount", &[text(device), text(&at)]);
        Mounted(at)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Unmounts, and says so if that fails.
    pub fn unmount(self) {
        run("umount", &[text(&self.0)]);
        drop(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a failure, and for nothing after `unmount`.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

/// A path that is text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}
