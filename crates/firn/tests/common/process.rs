//! A server's process as the kernel sees it: whether it runs, and how many files it has and may have open.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::Server;

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
