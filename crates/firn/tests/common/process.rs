//! A server's process as the kernel sees it: whether it runs, and how many files it has and may have open; and the command
//! that has it become another program, beside the test.

use std::fs;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{Server, World};

/// `firn upgrade` that goes on beside the test, and ends with it.
pub struct Upgrade(Child);

impl Upgrade {
    pub fn start(world: &World, server: &Server, timeout: &str) -> Upgrade {
        let args = ["--api", &server.api, "upgrade", "--timeout", timeout];
        let mut command = world.command(&args);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Upgrade(command.spawn().unwrap())
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        // It has ended, or nobody needs its answer.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// The state of its process as the kernel names it: `T` is stopped.
    pub fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        after_name.trim_start().chars().next().unwrap()
    }

    pub fn process(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap()
    }

    pub fn open_files(&self) -> u64 {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        files.count() as u64
    }

    /// Sets how many files it may have open; None: as many as it could at its start.
    pub fn limit_files(&self, files: Option<u64>) {
        let most = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit {
            current: files.or(most),
            maximum: most,
        };
        prlimit(Some(self.process()), Resource::Nofile, limit).unwrap();
    }
}
