//! The kernel tree's server below the same clients: a process for each disk, killed and executed again with its command for recovery.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Failure;
use crate::bench::measure::write_file;
use crate::bench::ublk::servers::{DEPTH, Mode, wait};

/// Numbers of its devices, so that they are not those of others.
const FIRST: usize = 200;

/// Processes that serve a file each, as a disk.
pub(super) struct Kublk {
    program: PathBuf,
    mode: Mode,
    files: Vec<PathBuf>,
    children: Vec<Child>,
}

impl Kublk {
    /// Serves so many files of so many MiB each below `dir`.
    pub(super) fn start(
        program: &Path,
        dir: &Path,
        mode: Mode,
        (count, mib): (usize, u64),
    ) -> Result<Kublk, Failure> {
        let files = (0..count).map(|at| dir.join(format!("served-by-kublk-{at}")));
        let mut kublk = Kublk {
            program: program.to_owned(),
            mode,
            files: files.collect(),
            children: Vec::new(),
        };
        for at in 0..count {
            write_file(&kublk.files[at], mib)?;
            kublk.children.push(kublk.execute("add", at)?);
        }
        wait(&kublk.disks(), true)?;
        Ok(kublk)
    }

    pub(super) fn disks(&self) -> Vec<PathBuf> {
        let disk = |at| PathBuf::from(format!("/dev/ublkb{}", FIRST + at));
        (0..self.files.len()).map(disk).collect()
    }

    /// Kills all processes, and executes those that recover their disks at once. One ends if its disk does not wait for
    /// a server yet, and is executed again.
    pub(super) fn kill_and_recover(&mut self) -> Result<(), Failure> {
        for child in &mut self.children {
            child.kill()?;
        }
        for at in 0..self.children.len() {
            self.children[at].wait()?;
            self.children[at] = self.execute("recover", at)?;
        }
        Ok(())
    }

    /// Executes again what has ended.
    pub(super) fn retry(&mut self) -> Result<(), Failure> {
        for at in 0..self.children.len() {
            if self.children[at].try_wait()?.is_some() {
                self.children[at] = self.execute("recover", at)?;
            }
        }
        Ok(())
    }

    fn execute(&self, what: &str, at: usize) -> Result<Child, Failure> {
        let (id, depth) = ((FIRST + at).to_string(), DEPTH.to_string());
        let mut command = Command::new(&self.program);
        command.args([what, "-t", "loop", "--foreground", "--quiet"]);
        command.args(["-n", &id, "-q", "1", "-d", &depth, "-r", "1", "-i", "1"]);
        command.args(self.mode.of_kublk()).arg(&self.files[at]);
        Ok(command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?)
    }
}

impl Drop for Kublk {
    fn drop(&mut self) {
        // All at once: the kernel takes its time for each.
        let removals = (0..self.files.len()).map(|at| {
            let mut removal = Command::new(&self.program);
            removal.args(["del", "-n", &(FIRST + at).to_string()]);
            removal.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        });
        for mut removal in removals.collect::<Vec<_>>().into_iter().flatten() {
            // Whether it worked is looked at below.
            let _ = removal.wait();
        }
        if let Err(error) = wait(&self.disks(), false) {
            println!("{error}");
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}
