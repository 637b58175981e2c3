//! Debian's packages without Debian's installer: a private apt that only fetches.
//!
//! It takes mirror and keyring from what this machine has configured and asks them for another
//! suite, with lists, state and downloads in the cache folder. It must never touch the machine's
//! own apt configuration or install anything, and it needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Failure;

/// The Debian release that the kernels are from, and the suite of its backports.
pub(super) const SUITE: &str = "trixie";
pub(super) const BACKPORTS: &str = "trixie-backports";

/// Where Debian keeps the keys of its archive; used where the configuration names none.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Why this machine cannot fetch or run guests, if it cannot. `more` are programs needed beside
/// the usual ones, each with Debian's package that has it.
pub(super) fn missing_requirement(more: &[(&str, &str)]) -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the guests are for Linux on x86-64".to_owned());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if find_value(&release, "ID").as_deref() != Some("debian") {
        return Some(
            "the kernels are fetched from Debian's packages; this is not Debian".to_owned(),
        );
    }
    const ALWAYS_NEEDED: [(&str, &str); 5] = [
        ("apt-get", "apt"),
        ("apt-cache", "apt"),
        ("dpkg", "dpkg"),
        ("mkfs.ext4", "e2fsprogs"),
        ("python3", "python3"),
    ];
    let missing: Vec<_> = ALWAYS_NEEDED
        .iter()
        .chain(more)
        .filter(|(program, _)| !is_installed(program))
        .collect();
    let (first, _) = missing.first()?;
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Some(format!(
        "{first} is not installed; `apt-get install {}` brings what is missing",
        packages.join(" ")
    ))
}

/// Whether a program is on the path or where only root looks.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).exists())
}

/// This machine's own suite, such as "bookworm".
pub(super) fn host_suite() -> Result<String, Failure> {
    let release = fs::read_to_string("/etc/os-release")?;
    find_value(&release, "VERSION_CODENAME")
        .ok_or_else(|| "/etc/os-release names no VERSION_CODENAME".into())
}

/// A variable of a file of shell assignments.
fn find_value(file: &str, name: &str) -> Option<String> {
    let line = file
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(line.trim_matches('"').to_owned())
}

/// An apt of its own below one folder of the cache, for one set of suites.
#[derive(Debug)]
pub(super) struct Apt {
    options: Vec<String>,
    downloads: PathBuf,
}

impl Apt {
    /// Sets the folder up and fetches the lists of `suites`.
    pub(super) fn open(home: &Path, suites: &[&str]) -> Result<Self, Failure> {
        let downloads = home.join("archives");
        for directory in ["lists/partial", "archives/partial", "state"] {
            fs::create_dir_all(home.join(directory))
                .map_err(|error| format!("cannot make {}: {error}", home.display()))?;
        }
        let (mirror, keyring) = mirror_and_keyring(&host_suite()?)?;
        let sources = home.join("debian.sources");
        let text = format!(
            "Types: deb\nURIs: {mirror}\nSuites: {}\nComponents: main\nArchitectures: amd64\n\
             Signed-By: {keyring}\n",
            suites.join(" ")
        );
        fs::write(&sources, text)?;
        let home = home.display();
        let options = [
            format!("Dir::State={home}/state"),
            format!("Dir::State::lists={home}/lists"),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={home}"),
            format!("Dir::Cache::archives={home}/archives"),
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // Without it an update that reached no mirror counts as done.
            "APT::Update::Error-Mode=any".to_owned(),
            // The user that apt downloads as could not write here.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let apt = Self {
            options: options
                .iter()
                .flat_map(|o| ["-o".to_owned(), o.clone()])
                .collect(),
            downloads,
        };
        apt.get(&["update"], "fetch Debian's package lists")?;
        Ok(apt)
    }

    /// Downloads packages and whatever they need that this machine has not installed.
    pub(super) fn download_closure(
        &self,
        prefer: &str,
        packages: &[&str],
    ) -> Result<Vec<PathBuf>, Failure> {
        let mut words = vec!["--yes", "--download-only", "-t", prefer];
        // An installed package would be left out; the guest's tools are the cache's own.
        words.extend(["--reinstall", "install"]);
        words.extend(packages);
        self.get(&words, "download the emulator")?;
        list_archives(&self.downloads)
    }

    /// Downloads exactly these packages into `folder`.
    pub(super) fn download(
        &self,
        folder: &Path,
        packages: &[String],
    ) -> Result<Vec<PathBuf>, Failure> {
        fs::create_dir_all(folder)?;
        let mut command = self.command("apt-get");
        command.arg("download").args(packages).current_dir(folder);
        run_for_output(&mut command, &format!("download {}", packages.join(" ")))?;
        list_archives(folder)
    }

    /// What a package depends on, by name.
    pub(super) fn depends(&self, package: &str, suite: &str) -> Result<Vec<String>, Failure> {
        let package = format!("{package}/{suite}");
        let mut command = self.command("apt-cache");
        command.args(["--no-all-versions", "show"]).arg(&package);
        let shown = run_for_output(&mut command, &format!("look {package} up"))?;
        Ok(parse_depends(&shown))
    }

    fn get(&self, words: &[&str], what: &str) -> Result<(), Failure> {
        let mut command = self.command("apt-get");
        command.arg("--quiet").args(words);
        run_for_output(&mut command, what).map(drop)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).env("LC_ALL", "C");
        command
    }
}

/// Unpacks packages below `root`, running nothing of theirs.
pub(super) fn unpack(archives: &[PathBuf], root: &Path) -> Result<(), Failure> {
    fs::create_dir_all(root)?;
    for archive in archives {
        let mut command = Command::new("dpkg");
        command.arg("-x").arg(archive).arg(root);
        run_for_output(&mut command, &format!("unpack {}", archive.display()))?;
    }
    Ok(())
}

/// Runs a program for its output; where it fails its words are the error.
pub(super) fn run_for_output(command: &mut Command, what: &str) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot {what}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().take(5).collect::<Vec<_>>();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    Err(format!("cannot {what} (is the network there?): {last}").into())
}

fn list_archives(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Mirror and keyring from which this machine gets `suite`.
fn mirror_and_keyring(suite: &str) -> Result<(String, String), Failure> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "Created-By: Packages"]);
    let targets = run_for_output(&mut command, "read apt's configuration")?;
    let (mirror, entry) = find_target(&targets, suite).ok_or_else(|| {
        format!("apt is configured for no mirror of {suite}: add one to sources.list.d")
    })?;
    let keyring = entry
        .rsplit_once(':')
        .and_then(|(file, number)| {
            let number = number.parse().ok()?;
            find_keyring(&fs::read_to_string(file).ok()?, number)
        })
        .unwrap_or_else(|| KEYRING.to_owned());
    Ok((mirror, keyring))
}

/// The mirror and the place of the configuration entry in apt's list of index targets.
fn find_target(targets: &str, suite: &str) -> Option<(String, String)> {
    targets.split("\n\n").find_map(|target| {
        let field = |name: &str| {
            let start = format!("{name}: ");
            target
                .lines()
                .find_map(|line| line.strip_prefix(start.as_str()))
        };
        let wanted = field("Release") == Some(suite) && field("Component") == Some("main");
        wanted.then_some(())?;
        Some((
            field("Repo-URI")?.to_owned(),
            field("Sourcesentry")?.to_owned(),
        ))
    })
}

/// The keyring of the entry that apt calls `number`: a stanza, or a line in the old form.
fn find_keyring(sources: &str, number: usize) -> Option<String> {
    let index = number.checked_sub(1)?;
    let old = sources
        .lines()
        .nth(index)
        .filter(|line| line.starts_with("deb"));
    if let Some(line) = old {
        let (_, named) = line.split_once("signed-by=")?;
        return named.split([' ', ']', ',']).next().map(str::to_owned);
    }
    let stanza = sources.split("\n\n").nth(index)?;
    let named = stanza
        .lines()
        .find_map(|line| line.strip_prefix("Signed-By:"))?;
    named
        .trim()
        .starts_with('/')
        .then(|| named.trim().to_owned())
}

/// The names in the first "Depends" field of a package's description.
fn parse_depends(shown: &str) -> Vec<String> {
    let field = shown
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "));
    field
        .unwrap_or_default()
        .split([',', '|'])
        .filter_map(|word| word.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The package that a metapackage stands for: the first of its dependencies with a version behind `start`.
pub(super) fn find_versioned(depends: &[String], start: &str) -> Option<String> {
    let versioned = |name: &&String| {
        let version = name.strip_prefix(start);
        version.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    depends.iter().find(versioned).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_taken_from_the_suite_asked_for() {
        let targets = "Component: main\nRelease: one\nRepo-URI: http://mirror/one/\n\
                       Sourcesentry: /etc/apt/a.sources:1\n\nComponent: main\nRelease: two\n\
                       Repo-URI: http://mirror/two/\nSourcesentry: /etc/apt/a.sources:2\n";
        let found = find_target(targets, "two");
        let expected = (
            "http://mirror/two/".to_owned(),
            "/etc/apt/a.sources:2".to_owned(),
        );
        assert_eq!(found, Some(expected));
        assert_eq!(find_target(targets, "three"), None);
    }

    #[test]
    fn a_keyring_is_found_in_both_forms_of_configuration() {
        let stanzas = "Types: deb\nSigned-By: /keys/a.gpg\n\nTypes: deb\nSigned-By: /keys/b.gpg\n";
        assert_eq!(find_keyring(stanzas, 2).as_deref(), Some("/keys/b.gpg"));
        let lines = "# comment\ndeb [arch=amd64 signed-by=/keys/c.gpg] http://mirror one main\n";
        assert_eq!(find_keyring(lines, 2).as_deref(), Some("/keys/c.gpg"));
        assert_eq!(find_keyring(lines, 0), None);
        assert_eq!(
            find_keyring("Types: deb\nSigned-By:\n -----BEGIN PGP", 1),
            None
        );
    }

    #[test]
    fn dependencies_are_names_without_versions() {
        let shown = "Package: x\nDepends: a (= 1), b | c (>= 2), d\nDescription: e\n";
        assert_eq!(parse_depends(shown), ["a", "b", "c", "d"]);
        assert!(parse_depends("Package: x\n").is_empty());
    }

    #[test]
    fn a_metapackage_stands_for_the_version_that_it_depends_on() {
        let owned =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let kernel = owned(&[
            "linux-base",
            "linux-image-extra",
            "linux-image-7.3.4+deb13-amd64",
        ]);
        let image = find_versioned(&kernel, "linux-image-");
        assert_eq!(image.as_deref(), Some("linux-image-7.3.4+deb13-amd64"));
        let source = find_versioned(&owned(&["linux-source-7.3"]), "linux-source-");
        assert_eq!(source.as_deref(), Some("linux-source-7.3"));
        assert_eq!(
            find_versioned(&owned(&["linux-image-amd64"]), "linux-image-"),
            None
        );
    }
}
