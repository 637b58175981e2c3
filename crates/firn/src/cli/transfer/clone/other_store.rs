//! The way to the other store: a server of the command's own, on a directory for the time of the command.
//!
//! The engine is the only writer of stores, also here. The server listens on sockets in its directory alone, and stops when
//! the command's end of its standard input is closed, however the command ends. The directory stays until the copy is
//! whole: what it has not uploaded is in its log.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::command_lock::CommandLock;
use super::progress_note::ProgressNote;
use crate::cli::args::{ApiArgs, CloneArgs};
use crate::cli::client::Client;
use crate::cli::volume_io::Undo;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::VolumeList;

/// How long it may take to come up.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Sizes of its local files: what is copied passes through, and is read once.
const LOG_SIZE: &str = "256MiB";
const CACHE_SIZE: &str = "64MiB";

/// The server on the other store.
pub(super) struct OtherStore {
    client: Client,
    server: Arc<Server>,
    /// Nobody else works in the directory.
    _lock: CommandLock,
}

struct Server {
    child: Mutex<Option<Child>>,
    dir: PathBuf,
    /// Something is in the store that a later command goes on with.
    is_begun: AtomicBool,
    /// The directory was made by this command: one that was there may be of an earlier one, or of one that still runs.
    is_own_dir: bool,
}

impl OtherStore {
    /// Starts it, for a copy of this name.
    pub(super) fn open(args: &CloneArgs, name: &str) -> Result<OtherStore> {
        let dir = work_dir(args, name);
        let cannot = |error: io::Error| Failure::io("make the directory", &dir, &error);
        let is_own_dir = dir.symlink_metadata().is_err();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&dir).map_err(cannot)?;
        check_own(&dir)?;
        let lock = CommandLock::take(&dir)?;
        finish_removal(&dir)
            .map_err(|error| Failure::io("remove what is left in", &dir, &error))?;
        builder.create(dir.join("rings")).map_err(cannot)?;
        let log = dir.join("server.log");
        // Of this command alone: the server of one that was killed may still be there, and removes its own at its end.
        let number = fastrand::u32(..);
        let socket = |what: &str| {
            format!(
                "unix:{}",
                dir.join(format!("{what}-{number:08x}")).display()
            )
        };
        let (api, nbd) = (socket("api"), socket("nbd"));
        let messages = File::create(&log).map_err(cannot)?;
        let child = command(args, &dir)?
            .args(["--api", &api, "--nbd", &nbd])
            .stderr(messages)
            .spawn()
            .map_err(|error| Failure::internal(format!("cannot start a server: {error}")))?;
        let server = Arc::new(Server {
            child: Mutex::new(Some(child)),
            dir,
            is_begun: AtomicBool::new(false),
            is_own_dir,
        });
        let client = server.wait_ready(&api, &log);
        match client {
            Ok(client) => Ok(OtherStore {
                client,
                server,
                _lock: lock,
            }),
            Err(failure) => {
                server.stop();
                Err(failure)
            }
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Where the names are of what the command attached.
    pub(super) fn held_file(&self) -> PathBuf {
        self.server.dir.join("held")
    }

    pub(super) fn note(&self) -> ProgressNote {
        ProgressNote::new(&self.server.dir)
    }

    /// If the command does not come to its end, the server stops; a copy that was begun keeps the directory.
    pub(super) fn stop_with(&self, undo: &Undo) {
        let server = Arc::clone(&self.server);
        undo.add(move || server.stop());
    }

    /// From now on the copy is there.
    pub(super) fn begin(&self) {
        self.server.is_begun.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_begun(&self) -> bool {
        self.server.is_begun.load(Ordering::SeqCst)
    }

    /// The copy is whole and in the store: ends the server.
    pub(super) fn finish(&self) {
        self.server.stop();
    }

    /// Removes the directory; the note of it last, for without it the copy is any volume.
    pub(super) fn remove(&self) {
        // What cannot be removed stays: the copy is whole, and a later command removes it.
        let _ = remove_work_dir(&self.server.dir);
    }
}

impl Server {
    fn wait_ready(&self, api: &str, log: &Path) -> Result<Client> {
        let client = Client::new(&ApiArgs {
            api: vec![api.to_owned()],
            token_file: None,
        })?;
        let begun = Instant::now();
        loop {
            if client.get::<VolumeList>("/v1/volumes?limit=1").is_ok() {
                return Ok(client);
            }
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten());
            drop(child);
            if ended.is_some() || begun.elapsed() > START_TIMEOUT {
                return Err(Failure::new(
                    FailureCode::StoreUnavailable,
                    format!("the store of the copy cannot be used: {}", last_words(log)),
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Has it bring what it has to the store, waits for its end, and removes what nobody goes on with.
    fn stop(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = child.take() {
            drop(child.stdin.take());
            let begun = Instant::now();
            while let Ok(None) = child.try_wait() {
                if begun.elapsed() > STOP_TIMEOUT {
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        if self.is_own_dir && !self.is_begun.load(Ordering::SeqCst) {
            let _ = remove_work_dir(&self.dir);
        }
    }
}

/// The server's files as they are removed. They have this name first: a command that is killed in between must not
/// leave a part of them where the next server takes it for another's directory.
const REMOVED_CACHE: &str = "cache.removed";

/// Removes the directory. A command that is killed at any time in it leaves the server's files whole, or none.
fn remove_work_dir(dir: &Path) -> io::Result<()> {
    finish_removal(dir)?;
    absent_is_done(fs::rename(dir.join("cache"), dir.join(REMOVED_CACHE)))?;
    finish_removal(dir)?;
    absent_is_done(fs::remove_dir_all(dir.join("rings")))?;
    // The note of the copy is the last: without it the copy is any volume, and a command that is killed here has nothing to
    // go on with.
    let note = ProgressNote::new(dir);
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !note.is_at(&path) {
            absent_is_done(fs::remove_file(&path))?;
        }
    }
    fs::remove_dir_all(dir)
}

/// Removes what a command left that was killed as it removed its files.
fn finish_removal(dir: &Path) -> io::Result<()> {
    absent_is_done(fs::remove_dir_all(dir.join(REMOVED_CACHE)))
}

fn absent_is_done(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Its name can be guessed, so somebody else may have made it: then its sockets would be his.
fn check_own(dir: &Path) -> Result<()> {
    let cannot = |error: io::Error| Failure::io("look at the directory", dir, &error);
    let found = dir.symlink_metadata().map_err(cannot)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::new(
            FailureCode::NoPermission,
            format!(
                "{} is another user's: name another directory with --cache",
                dir.display()
            ),
        ));
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(cannot)
}

/// Where its files are: a command that goes on finds them, and no other directory is ever removed.
fn work_dir(args: &CloneArgs, name: &str) -> PathBuf {
    let hash = blake3::hash(format!("{name} {}", args.to).as_bytes()).to_hex();
    let parent = args.cache.as_deref().unwrap_or(Path::new("./firn-data"));
    parent.join(format!("clone-{}", &hash[..16]))
}

fn command(args: &CloneArgs, dir: &Path) -> Result<Command> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--stop-with-stdin", "--gc", "off"])
        .args(["--log-size", LOG_SIZE, "--cache-size", CACHE_SIZE])
        .args(["--store", &args.to])
        .arg("--cache")
        .arg(dir.join("cache"))
        .arg("--ring-dir")
        .arg(dir.join("rings"))
        .env_remove("FIRN_API")
        .env_remove("FIRN_TOKEN_FILE")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A terminal's signals are the command's.
        .process_group(0);
    if args.single_writer {
        command.arg("--single-writer");
    }
    Ok(command)
}

/// What a server that ended said at last.
fn last_words(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines = || said.lines().rev().filter(|line| !line.trim().is_empty());
    let own = lines().find_map(|line| line.strip_prefix("firn: "));
    let last = own.or_else(|| lines().next());
    last.unwrap_or("its server did not come up in time")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        dir
    }

    #[test]
    fn a_removal_that_fails_in_between_leaves_the_servers_files_whole_or_none() {
        // A file where a directory is expected: the removal stops at it, as one that is killed there does.
        let dir = dir_with(&["cache/format", "cache/attached", REMOVED_CACHE]);
        remove_work_dir(dir.path()).unwrap_err();
        assert!(dir.path().join("cache/format").exists());
        assert!(dir.path().join("cache/attached").exists());
    }

    #[test]
    fn what_a_killed_removal_left_is_removed_by_the_next_command() {
        let left = format!("{REMOVED_CACHE}/attached");
        let dir = dir_with(&[&left, "note"]);
        finish_removal(dir.path()).unwrap();
        assert!(!dir.path().join(REMOVED_CACHE).exists());
        assert!(dir.path().join("note").exists());
        finish_removal(dir.path()).unwrap();

        let dir = dir_with(&[&left, "cache/format", "rings/ring", "note"]);
        remove_work_dir(dir.path()).unwrap();
        assert!(!dir.path().exists());
    }
}
