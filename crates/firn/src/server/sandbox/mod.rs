//! Gives up access to files that the server does not need, by the kernel's Landlock.
//!
//! Owns the list of what it needs. What is given up is so for good, also for the programs that take this one's place in
//! upgrades: they run in the same process. So it lists directories, which last, and not files, which are replaced. Must be
//! called before the first thread starts: the kernel restricts the thread that asks, and those that it starts.

mod store_place;

use std::env;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError,
};

use self::store_place::StorePlace;
use super::handover;
use crate::cli::args::Sandbox;
use crate::config::{ApiListen, Settings};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd_access::NbdProof;

/// The newest rights to files that are given up. What an older kernel does not know stays as it is.
const RIGHTS: ABI = ABI::V5;

/// Programs and what they load. A package replaces files there, and a new program is executed from there.
const PROGRAMS: [&str; 7] = [
    "/usr",
    "/opt",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix/store",
];

/// What a program of the system reads: names, certificates, the time zone, and itself. In /etc files are replaced by
/// others of their name, so single ones cannot be listed.
const SYSTEM: [&str; 7] = [
    "/etc",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/run/nscd",
];

/// Files of the system that are links to elsewhere on some systems.
const LINKED: [&str; 5] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
];

/// Files of credentials and certificates that are named by the environment, and read again when they are replaced.
const FILE_VARIABLES: [&str; 11] = [
    "AWS_CA_BUNDLE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SERVICE_ACCOUNT",
    "SSL_CERT_FILE",
];

/// Where such files are when nothing names them, below the home directory.
const HOME_DIRS: [&str; 3] = [".aws", ".azure", ".config/gcloud"];

/// Directories that many use.
const SHARED: [&str; 9] = [
    "/tmp", "/var/tmp", "/run", "/var", "/var/lib", "/home", "/root", "/srv", "/mnt",
];

/// What may be done below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Read,
    ReadAndExecute,
    /// Files and sockets, of the server's own.
    Write,
    /// The same, and nodes: disks come and go.
    WriteDevices,
}

impl Right {
    fn access(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let all = AccessFs::from_all(RIGHTS) & !BitFlags::from(AccessFs::Execute);
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
        match self {
            Right::Read => read,
            Right::ReadAndExecute => read | AccessFs::Execute,
            Right::Write => all & !devices,
            Right::WriteDevices => all,
        }
    }
}

/// Restricts this process as the settings say.
pub(super) fn enter(settings: &Settings) -> Result<()> {
    if settings.sandbox == Sandbox::Off {
        return Ok(());
    }
    let why = match try_enter(settings) {
        Ok(directories) => {
            tracing::info!(
                directories,
                "files that the server does not need are out of its reach (Landlock)"
            );
            return Ok(());
        }
        Err(why) => why,
    };
    if settings.sandbox == Sandbox::Require {
        return Err(Failure::new(
            FailureCode::NoSandbox,
            format!("the server cannot restrict itself, as --sandbox require says: {why}"),
        ));
    }
    tracing::warn!(why, "the server keeps access to all files of its user");
    Ok(())
}

/// How many directories are left, or why nothing was given up.
fn try_enter(settings: &Settings) -> std::result::Result<usize, String> {
    // Without this right the kernel refuses all renames from one directory to another.
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)
        .map_err(|_| {
            "the kernel has no Landlock, or it is switched off; it is there since Linux 5.19, unless lsm= on the \
             kernel's command line leaves it out"
                .to_owned()
        })?;
    make_missing(settings);
    let store = store_place::find(settings);
    if let Some(doubt) = store.as_ref().and_then(|store| store.doubt.as_ref()) {
        if settings.sandbox == Sandbox::Auto {
            return Err(format!(
                "{doubt}; a start with the store there restricts it"
            ));
        }
        tracing::warn!(
            doubt,
            "what is mounted for the store from now on may be refused until the server is started again (--sandbox)"
        );
    }
    let needed = needed(settings, store);
    for (dir, _) in &needed {
        match describe_excess(dir) {
            Some(Excess::All(why)) => return Err(why),
            Some(Excess::Much(why)) => {
                tracing::warn!(why, "more than its own stays in the server's reach")
            }
            None => {}
        }
    }
    restrict(ruleset, &needed).map_err(|error| error.to_string())?;
    Ok(needed.len())
}

/// What a rule leaves in reach beyond what it is for.
enum Excess {
    All(String),
    Much(String),
}

/// Whether a directory is everybody's, or somebody's home. Below one that is named for a file in it is everything beside it, too.
fn describe_excess(dir: &Path) -> Option<Excess> {
    let found = dir.canonicalize().ok()?;
    let shown = found.display();
    if found == Path::new("/") {
        let why = "a file or directory of the settings is right in /: then all is needed; name one in a directory of its own";
        return Some(Excess::All(why.to_owned()));
    }
    let home = env::var_os("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
    let is_home = home.as_ref() == Some(&found) || found.parent() == Some(Path::new("/home"));
    let is_shared = SHARED.iter().any(|shared| found == Path::new(shared));
    (is_home || is_shared).then(|| {
        Excess::Much(format!(
            "something of the settings is right in {shown}, so all of it is needed; a directory of its own is better"
        ))
    })
}

/// What the program before gave up, this one does not have. Where that was nothing it stays so: if this program has to give its
/// place back, the one before needs what it had.
pub(super) fn check_inherited(settings: &Settings) {
    if settings.sandbox != Sandbox::Off && !is_in_force() {
        tracing::warn!(
            "the server keeps access to all files of its user, for the program before had it; --sandbox takes a stop and a \
             start, and a kernel with Landlock"
        );
    }
}

/// Whether this process is restricted, by this program or one before it.
pub(super) fn is_in_force() -> bool {
    // No restricted server needs the root directory, which is everybody's to list.
    let listed = std::fs::read_dir("/");
    listed.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn restrict(
    ruleset: Ruleset,
    needed: &[(PathBuf, Right)],
) -> std::result::Result<(), RulesetError> {
    let mut rules = ruleset
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RIGHTS))?
        .create()?;
    for (dir, right) in needed {
        // What is not there cannot be reached, nor made.
        if let Ok(dir) = PathFd::new(dir) {
            rules = rules.add_rule(PathBeneath::new(dir, right.access()))?;
        }
    }
    rules.restrict_self().map(drop)
}

/// The directories that a server with these settings needs.
fn needed(settings: &Settings, store: Option<StorePlace>) -> Vec<(PathBuf, Right)> {
    let mut all = Vec::new();
    let mut add = |dir: PathBuf, right| all.push((dir, right));
    for dir in program_dirs() {
        add(dir, Right::ReadAndExecute);
    }
    for dir in SYSTEM {
        add(dir.into(), Right::Read);
    }
    for dir in linked_dirs(&LINKED) {
        add(dir, Right::Read);
    }
    add("/dev".into(), Right::WriteDevices);
    for socket in socket_paths(settings) {
        add(parent(&socket), Right::Write);
    }
    add(settings.cache.clone(), Right::Write);
    add(settings.ring_dir.clone(), Right::Write);
    if has_tokens(settings) {
        add(settings.api.tokens.clone(), Right::Write);
    }
    if let Some(store) = store {
        add(store.dir, Right::Write);
    }
    if let Some(tls) = &settings.nbd_tls {
        match &tls.proof {
            NbdProof::Certificates(dir) => add(dir.clone(), Right::Read),
            NbdProof::Keys(file) => add(parent(file), Right::Read),
        }
        if let Some(list) = &tls.access {
            add(parent(list), Right::Read);
        }
    }
    if let Some(file) = &settings.file {
        add(parent(file), Right::Read);
    }
    for file in store::files_of_url(&settings.store) {
        add(parent(&file), Right::Read);
    }
    for file in FILE_VARIABLES.iter().filter_map(env::var_os) {
        add(parent(Path::new(&file)), Right::Read);
    }
    if let Some(dir) = env::var_os("SSL_CERT_DIR") {
        add(dir.into(), Right::Read);
    }
    if let Some(home) = env::var_os("HOME") {
        for dir in HOME_DIRS {
            add(Path::new(&home).join(dir), Right::Read);
        }
    }
    all
}

/// Where these files really are, if they are links. A target may be missing yet: whoever makes it makes it there.
fn linked_dirs(files: &[&str]) -> Vec<PathBuf> {
    let target = |file: &&str| {
        let link = Path::new(file).read_link().ok()?;
        let target = parent(Path::new(file)).join(link);
        Some(target.canonicalize().unwrap_or(target))
    };
    let targets = files.iter().filter_map(target);
    targets.map(|target| parent(&target)).collect()
}

/// Where a program may be that takes this one's place.
fn program_dirs() -> Vec<PathBuf> {
    let own = handover::own_program().ok();
    let own = own.and_then(|own| own.parent().map(Path::to_owned));
    PROGRAMS.iter().map(PathBuf::from).chain(own).collect()
}

/// Why the kernel refuses a program, if that is the reason.
pub(super) fn describe_refusal(program: &Path) -> Option<String> {
    let is_within = |dir: PathBuf| program.starts_with(dir);
    let is_likely = is_in_force() && !program_dirs().into_iter().any(is_within);
    is_likely.then(|| {
        "this server was started with --sandbox: a new program has to be below /usr or /opt, or in the directory of the \
         one that runs"
            .to_owned()
    })
}

fn socket_paths(settings: &Settings) -> Vec<PathBuf> {
    let api = settings
        .api
        .listen
        .iter()
        .filter_map(|listen| match listen {
            ApiListen::Unix(path) => Some(path.clone()),
            ApiListen::Tcp(_) => None,
        });
    let nbd = settings.nbd.iter().filter_map(|listen| match listen {
        nbd::server::Listen::Unix(path) => Some(path.clone()),
        nbd::server::Listen::Tcp(_) => None,
    });
    api.chain(nbd).collect()
}

/// Where a file is. One named without a directory is in this one.
fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(dir) if dir.as_os_str().is_empty() => ".".into(),
        Some(dir) => dir.to_owned(),
        None => "/".into(),
    }
}

fn has_tokens(settings: &Settings) -> bool {
    let mut listens = settings.api.listen.iter();
    !settings.api.insecure && listens.any(|listen| matches!(listen, ApiListen::Tcp(_)))
}

/// The server makes its directories as it comes to need them, with these modes; here that is too late. An error shows
/// when it does. That of `--ring-dir` has to be there: nobody makes one that is misspelt.
fn make_missing(settings: &Settings) {
    let sockets = socket_paths(settings).into_iter();
    let sockets = sockets.map(|socket| (parent(&socket), 0o755));
    let cache = [(settings.cache.clone(), 0o700)];
    let tokens = has_tokens(settings).then(|| (settings.api.tokens.clone(), 0o700));
    for (dir, mode) in sockets.chain(cache).chain(tokens) {
        let _ = DirBuilder::new().recursive(true).mode(mode).create(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::ServeArgs;

    fn settings_in(dir: &Path) -> Settings {
        let flags = ServeArgs {
            cache: Some(dir.join("cache")),
            store: Some(dir.join("store").display().to_string()),
            ring_dir: Some(dir.join("rings")),
            api_tokens: Some(dir.join("tokens")),
            nbd: vec![format!("unix:{}", dir.join("nbd/socket").display())],
            sandbox: Some(Sandbox::Require),
            ..ServeArgs::default()
        };
        let api = format!("unix:{}", dir.join("api/socket").display());
        Settings::new(&[api, "127.0.0.1:0".to_owned()], flags).unwrap()
    }

    /// The kernel restricts a thread, so that the tests beside it go on.
    #[test]
    fn what_a_systems_file_links_to_is_reached_also_before_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for at in ["etc", "there"] {
            std::fs::create_dir(base.join(at)).unwrap();
        }
        std::fs::write(base.join("there/real"), "").unwrap();
        std::fs::write(base.join("etc/plain"), "").unwrap();
        let names = [
            ("a", "../there/real"),
            ("b", "/nowhere/run/resolv.conf"),
            ("plain", ""),
        ];
        for (name, target) in &names[..2] {
            std::os::unix::fs::symlink(target, base.join("etc").join(name)).unwrap();
        }
        let files = names.map(|(name, _)| base.join("etc").join(name));
        let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
        let dirs = linked_dirs(&files);
        assert_eq!(dirs, [base.join("there"), "/nowhere/run".into()]);
    }

    #[test]
    fn the_server_reaches_what_its_settings_name_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("secret"), "of somebody else").unwrap();
        let settings = settings_in(dir.path());
        std::fs::create_dir(dir.path().join("rings")).unwrap();
        let restricted = std::thread::spawn(move || {
            if let Err(failure) = enter(&settings) {
                println!("skipped: {failure}");
                return;
            }
            for own in ["cache", "store", "rings", "tokens", "nbd", "api"] {
                let folder = dir.path().join(own).join("folder");
                std::fs::create_dir(&folder).unwrap();
                std::fs::write(folder.join("new"), "content").unwrap();
                let renamed = dir.path().join(own).join("file");
                std::fs::rename(folder.join("new"), &renamed).unwrap();
                assert_eq!(std::fs::read(&renamed).unwrap(), b"content", "{own}");
            }
            for read in ["/proc/meminfo", "/etc/passwd", "/dev/null"] {
                std::fs::read(read).unwrap_or_else(|error| panic!("{read}: {error}"));
            }
            let is_refused = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
            let secret = other.path().join("secret");
            assert!(std::fs::read(&secret).is_err_and(is_refused));
            assert!(std::fs::read_dir(other.path()).is_err_and(is_refused));
            assert!(std::fs::write(other.path().join("new"), "").is_err_and(is_refused));
            assert!(std::fs::remove_file(&secret).is_err_and(is_refused));
            assert!(std::fs::write("/etc/firn-was-here", "").is_err_and(is_refused));
            assert!(std::fs::write(dir.path().join("beside"), "").is_err_and(is_refused));
        });
        restricted.join().unwrap();
    }

    #[test]
    fn a_store_that_was_replaced_after_the_start_is_refused_with_what_that_takes() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings_in(dir.path());
        let store = dir.path().join("store");
        let (entered, is_entered) = std::sync::mpsc::channel();
        let (replaced, is_replaced) = std::sync::mpsc::channel();
        let path = store.clone();
        let restricted = std::thread::spawn(move || {
            let entering = enter(&settings);
            entered.send(()).unwrap();
            is_replaced.recv().unwrap();
            entering.map(|()| store::open_url(&path.display().to_string()))
        });
        is_entered.recv().unwrap();
        std::fs::rename(&store, dir.path().join("before")).unwrap();
        store::open_url(&store.display().to_string()).unwrap();
        replaced.send(()).unwrap();
        match restricted.join().unwrap() {
            Err(failure) => println!("skipped: {failure}"),
            Ok(opened) => {
                let said = opened.unwrap_err().chain();
                assert!(said.contains("mounted or replaced after"), "{said}");
                assert!(said.contains("start the server again"), "{said}");
            }
        }
    }

    #[test]
    fn what_lies_beside_a_named_file_is_reached() {
        assert_eq!(parent(Path::new("firn.toml")), Path::new("."));
        assert_eq!(
            parent(Path::new("/etc/firn/firn.toml")),
            Path::new("/etc/firn")
        );
    }
}
