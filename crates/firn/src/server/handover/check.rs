//! Whether a program can take the place of this one: asked of the program itself, before anything stops.
//!
//! The program is run beside the server, as it would be executed, with one more flag: it reads its
//! configuration, says what it knows, and ends. It must touch nothing.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{PROTOCOL, RECORD_VARIABLE, STOPPED_VARIABLE};
use crate::cli::args::Sandbox;
use crate::cli::output;
use crate::config::Settings;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::attached_file;

/// The flag of `serve` that asks for it.
const FLAG: &str = "--handover-check";

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A program that said it can go on here.
#[derive(Debug)]
pub(in crate::server) struct CheckedProgram {
    pub(in crate::server) path: PathBuf,
    pub(super) file: File,
}

/// What a program says of itself.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    protocol: u32,
    version: String,
    /// Versions of superblock, segment header, frame and ring, which it reads and writes.
    log_formats: Vec<u16>,
    /// Version of the file `attached`.
    attached_format: u32,
    cache: PathBuf,
    ring_dir: PathBuf,
    store: String,
    /// Whether it wants files to be out of its reach that the server before has to have given up.
    #[serde(default)]
    requires_sandbox: bool,
}

impl Answer {
    fn of(settings: &Settings) -> Answer {
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Answer {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            log_formats: volume::LOG_FORMATS.to_vec(),
            attached_format: attached_file::VERSION,
            cache: absolute(&settings.cache),
            ring_dir: absolute(&settings.ring_dir),
            store: settings.store.clone(),
            requires_sandbox: settings.sandbox == Sandbox::Require,
        }
    }

    /// Why the program that said this cannot follow one that would say `own`.
    fn describe_incompatibility(&self, own: &Answer) -> Option<String> {
        if self.protocol != own.protocol {
            return Some(format!(
                "it hands over by protocol {}, this server by {}",
                self.protocol, own.protocol
            ));
        }
        // It would not read what is acknowledged here, nor would this one what it writes, if it gives back.
        if self.log_formats != own.log_formats {
            return Some(format!(
                "it has other formats of the log and its rings ({:?}) than this server ({:?}): bring all to the \
                 store with `firn sync`, stop this server and start that one",
                self.log_formats, own.log_formats
            ));
        }
        if self.attached_format != own.attached_format {
            return Some(format!(
                "it has another format of the file `attached` ({}) than this server ({}): stop this server and start \
                 that one",
                self.attached_format, own.attached_format
            ));
        }
        let differ = [
            ("--cache", self.cache != own.cache),
            ("--ring-dir", self.ring_dir != own.ring_dir),
            ("--store", self.store != own.store),
        ];
        let differ = differ.iter().find(|(_, differs)| *differs)?;
        Some(format!(
            "the configuration has another {} than this server; that needs a stop and a start",
            differ.0
        ))
    }

    /// Why a server that is restricted or not cannot give what the configuration requires.
    fn describe_lack(&self, is_restricted: bool) -> Option<String> {
        (self.requires_sandbox && !is_restricted).then(|| {
            "the configuration has --sandbox require, and this server has access to all files of its user, which an \
             upgrade does not change: stop this server and start it again"
                .to_owned()
        })
    }
}

/// What `firn serve … --handover-check` prints.
pub(crate) fn print_check(settings: &Settings) -> Result<()> {
    output::json(&Answer::of(settings))
}

/// What is now at the path that this program was started from.
pub(in crate::server) fn own_program() -> Result<PathBuf> {
    let own = std::fs::read_link("/proc/self/exe");
    let own = own.map_err(|source| Failure::io("read", Path::new("/proc/self/exe"), &source))?;
    // The kernel says so of a file that was replaced.
    let text = own.to_string_lossy();
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or(own.clone(), PathBuf::from))
}

/// Asks a program, which would go on as `is_restricted` as this one. Blocks for as long as it takes, up to `timeout`.
pub(in crate::server) fn check_program(
    path: &Path,
    settings: &Settings,
    is_restricted: bool,
    timeout: Duration,
) -> Result<CheckedProgram> {
    let refused = |why: String| {
        Failure::new(
            FailureCode::UpgradeRefused,
            format!(
                "{} cannot take over: {why}; this server goes on",
                path.display()
            ),
        )
    };
    let file = open_program(path).map_err(&refused)?;
    let answer = run_check(&file, timeout).map_err(&refused)?;
    let own = Answer::of(settings);
    let lack = || answer.describe_lack(is_restricted);
    match answer.describe_incompatibility(&own).or_else(lack) {
        Some(why) => Err(refused(why)),
        None => Ok(CheckedProgram {
            path: path.to_owned(),
            file,
        }),
    }
}

/// A program that nobody but this server's user or root could have put there.
fn open_program(path: &Path) -> std::result::Result<File, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
        return Err("it is not a program".to_owned());
    }
    if (metadata.uid() != 0 && metadata.uid() != user) || metadata.mode() & 0o002 != 0 {
        return Err("others than root and this server's user may write to it".to_owned());
    }
    Ok(file)
}

fn run_check(program: &File, timeout: Duration) -> std::result::Result<Answer, String> {
    let mut arguments = std::env::args_os();
    let _ = arguments.next();
    let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .args(arguments)
        .arg(FLAG)
        .env_remove(RECORD_VARIABLE)
        .env_remove(STOPPED_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("it cannot be executed: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let said = std::thread::spawn(move || text_of(stdout));
    let complained = std::thread::spawn(move || text_of(stderr));
    let status = wait_within(&mut child, timeout).map_err(|error| error.to_string());
    let Some(status) = status? else {
        return Err(format!(
            "it did not say within {} s whether it can",
            timeout.as_secs_f64()
        ));
    };
    let said = said.join().unwrap_or_default();
    let complained = complained.join().unwrap_or_default();
    match serde_json::from_str(&said) {
        Ok(answer) if status.success() => Ok(answer),
        _ if complained.trim().is_empty() => Err(format!(
            "it does not say that it can ({status}); is it a firn with `firn upgrade`?"
        )),
        _ => Err(format!("it said ({status}): {}", complained.trim())),
    }
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Waits for a child; one that takes longer is killed.
fn wait_within(
    child: &mut Child,
    timeout: Duration,
) -> io::Result<Option<std::process::ExitStatus>> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Answer {
            protocol: PROTOCOL,
            version: "1".to_owned(),
            log_formats: volume::LOG_FORMATS.to_vec(),
            attached_format: attached_file::VERSION,
            cache: "/c".into(),
            ring_dir: "/r".into(),
            store: "file:/s".to_owned(),
            requires_sandbox: false,
        }
    }

    #[test]
    fn a_program_with_another_format_of_the_file_attached_is_refused_newer_or_older() {
        for version in [attached_file::VERSION - 1, attached_file::VERSION + 1] {
            let other = Answer {
                attached_format: version,
                ..answer()
            };
            let why = other.describe_incompatibility(&answer()).unwrap();
            assert!(why.contains("`attached`"), "{why}");
        }
    }

    #[test]
    fn a_program_with_any_other_format_of_log_or_rings_is_refused_newer_or_older() {
        assert_eq!(answer().describe_incompatibility(&answer()), None);
        for at in 0..volume::LOG_FORMATS.len() {
            for change in [u16::wrapping_add, u16::wrapping_sub] {
                let mut other = answer();
                other.log_formats[at] = change(other.log_formats[at], 1);
                assert!(
                    other.describe_incompatibility(&answer()).is_some(),
                    "{other:?}"
                );
            }
        }
    }
}
