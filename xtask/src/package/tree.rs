//! What is in the package, and where; packed so that the same contents give the same bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::bill::BillOfMaterials;
use super::program::{Source, output};
use crate::{Failure, process};

/// Files of `packaging/debian`, and their names in the system.
const FILES: [(&str, &str); 7] = [
    ("firn.service", "lib/systemd/system/firn.service"),
    ("nbd-only.conf", "usr/share/doc/firn/nbd-only.conf"),
    ("firn.sysusers", "usr/lib/sysusers.d/firn.conf"),
    ("firn.tmpfiles", "usr/lib/tmpfiles.d/firn.conf"),
    ("60-firn.rules", "lib/udev/rules.d/60-firn.rules"),
    ("modules-load.conf", "usr/lib/modules-load.d/firn.conf"),
    ("default", "etc/default/firn"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// What an administrator may change, so that an upgrade keeps it.
const CONFIGURATION: &str = "/etc/default/firn\n/etc/firn/firn.toml\n";

/// How the packaged server differs from one without configuration.
const SETTINGS: [&str; 7] = [
    "--store=/var/lib/firn/store",
    "--cache=/var/lib/firn/cache",
    "--api-tokens=/var/lib/firn/tokens",
    "--ring-dir=/run/firn",
    "--nbd=unix:/run/firn/nbd.sock",
    "--api=unix:/run/firn/api.sock",
    "--sandbox=auto",
];

/// A package to be written.
pub(super) struct Package<'a> {
    pub(super) source: &'a Source,
    pub(super) program: &'a Path,
    pub(super) bill: &'a BillOfMaterials,
    pub(super) revision: u32,
    /// Whether it is only to be tried: then it is packed quickly.
    pub(super) quickly: bool,
}

impl Package<'_> {
    /// Writes it into a directory; its path.
    pub(super) fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let version = format!("{}-{}", self.bill.version(), self.revision);
        let tree = Tree(out.join(format!("firn_{version}")));
        if tree.0.exists() {
            fs::remove_dir_all(&tree.0)?;
        }
        tree.add("usr/bin/firn", &fs::read(self.program)?, 0o755)?;
        let debian = self.source.root().join("packaging/debian");
        for (name, place) in FILES {
            tree.add(place, &fs::read(debian.join(name))?, 0o644)?;
        }
        // It is for credentials.
        tree.set_mode("etc/default/firn", 0o600)?;
        tree.add(
            "etc/firn/firn.toml",
            self.configuration()?.as_bytes(),
            0o644,
        )?;
        self.add_documents(&tree)?;
        self.add_generated(&tree)?;
        for script in SCRIPTS {
            tree.add(
                &format!("DEBIAN/{script}"),
                &fs::read(debian.join(script))?,
                0o755,
            )?;
        }
        tree.add("DEBIAN/conffiles", CONFIGURATION.as_bytes(), 0o644)?;
        tree.add(
            "DEBIAN/control",
            self.control(&version, &tree)?.as_bytes(),
            0o644,
        )?;
        let package = out.join(format!("firn_{version}_amd64.deb"));
        let mut pack = Command::new("dpkg-deb");
        let compression = if self.quickly { "-Zgzip" } else { "-Zxz" };
        pack.args(["--root-owner-group", "--threads-max=1", compression])
            .args([if self.quickly { "-z1" } else { "-z6" }, "--build"])
            .arg(&tree.0)
            .arg(&package)
            .env("SOURCE_DATE_EPOCH", self.source.epoch());
        process::run(&mut pack)?;
        fs::remove_dir_all(&tree.0)?;
        Ok(package)
    }

    /// The default configuration: every setting, explained by the program itself.
    fn configuration(&self) -> Result<String, Failure> {
        let mut config = Command::new(self.program);
        config.env_clear().arg("config").args(SETTINGS);
        let text = output(&mut config)?;
        let lines = text.lines().map(|line| {
            let line = line.split(" # from ").next().unwrap_or(line);
            line.to_owned() + "\n"
        });
        let head = "# Configuration of firn.service; `firn config check /etc/firn/firn.toml` checks it. Directories\n\
            # other than these must be writable for the service, too: `systemctl edit firn` and\n\
            #     [Service]\n#     ReadWritePaths=/srv/firn\n";
        Ok(head.to_owned() + &lines.collect::<String>())
    }

    fn add_documents(&self, tree: &Tree) -> Result<(), Failure> {
        let root = self.source.root();
        let doc = |name: &str| format!("usr/share/doc/firn/{name}");
        let apache = fs::read_to_string(root.join("LICENSE-APACHE"))?;
        let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
        let copyright = format!(
            "firn is licensed as MIT or Apache-2.0, at your choice. What is linked into it has licences of its \
             own:\nlicences-of-others.txt beside this file, and sbom.cdx.json for programs.\n\n{mit}\n\n{apache}"
        );
        tree.add(&doc("copyright"), copyright.as_bytes(), 0o644)?;
        tree.add(
            &doc("licences-of-others.txt"),
            self.bill.licences()?.as_bytes(),
            0o644,
        )?;
        tree.add(
            &doc("sbom.cdx.json"),
            self.bill.cyclonedx()?.as_bytes(),
            0o644,
        )?;
        tree.add(
            &doc("changelog"),
            &fs::read(root.join("CHANGELOG.md"))?,
            0o644,
        )?;
        for folder in ["docs", "packaging/monitoring"] {
            for entry in fs::read_dir(root.join(folder))? {
                let path = entry?.path();
                if path.is_file() {
                    let name = path.file_name().unwrap_or_default().display().to_string();
                    let kind = folder.rsplit('/').next().unwrap_or(folder);
                    tree.add(&doc(&format!("{kind}/{name}")), &fs::read(&path)?, 0o644)?;
                }
            }
        }
        Ok(())
    }

    /// Manual pages and completions, by the program itself.
    fn add_generated(&self, tree: &Tree) -> Result<(), Failure> {
        let man = tree.0.join("usr/share/man/man1");
        output(Command::new(self.program).env_clear().arg("man").arg(&man))?;
        for page in fs::read_dir(&man)? {
            output(Command::new("gzip").arg("-9n").arg(page?.path()))?;
        }
        tree.set_modes(&man)?;
        for (shell, place) in [
            ("bash", "usr/share/bash-completion/completions/firn"),
            ("zsh", "usr/share/zsh/vendor-completions/_firn"),
            ("fish", "usr/share/fish/vendor_completions.d/firn.fish"),
        ] {
            let script = output(
                Command::new(self.program)
                    .env_clear()
                    .args(["completions", shell]),
            )?;
            tree.add(place, script.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    fn control(&self, version: &str, tree: &Tree) -> Result<String, Failure> {
        let glibc = newest_glibc(&fs::read(self.program)?);
        Ok(format!(
            "Package: firn\nVersion: {version}\nArchitecture: amd64\nMaintainer: the authors of firn <firn@localhost>\n\
             Installed-Size: {}\nDepends: libc6 (>= {glibc}), libgcc-s1\nRecommends: ca-certificates\n\
             Suggests: nbd-client, libnbd-bin, qemu-utils\nSection: admin\nPriority: optional\n\
             Description: local disks whose truth lies in an object store\n \
             A server that gives Linux block devices (ublk) and NBD exports. Writes go to a log on a local\n \
             disk and from there to an object store (a directory, S3, Google, Azure); reads are cached.\n",
            tree.kibibytes()?
        ))
    }
}

/// A directory that becomes the package.
struct Tree(PathBuf);

impl Tree {
    fn add(&self, place: &str, bytes: &[u8], mode: u32) -> Result<(), Failure> {
        let path = self.0.join(place);
        fs::create_dir_all(path.parent().unwrap_or(&self.0))?;
        fs::write(&path, bytes)?;
        self.set_mode(place, mode)?;
        // Whoever builds may have a umask of his own.
        for folder in path
            .ancestors()
            .skip(1)
            .take_while(|at| at.starts_with(&self.0))
        {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    fn set_mode(&self, place: &str, mode: u32) -> Result<(), Failure> {
        fs::set_permissions(self.0.join(place), fs::Permissions::from_mode(mode))?;
        Ok(())
    }

    fn set_modes(&self, folder: &Path) -> Result<(), Failure> {
        for entry in fs::read_dir(folder)? {
            fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o644))?;
        }
        for folder in folder.ancestors().take_while(|at| at.starts_with(&self.0)) {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// The size of all files, which does not depend on the file system.
    fn kibibytes(&self) -> Result<u64, Failure> {
        let mut folders = vec![self.0.clone()];
        let mut sum = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                match metadata.is_dir() {
                    true => folders.push(entry.path()),
                    false => sum += metadata.len().div_ceil(1024),
                }
            }
        }
        Ok(sum)
    }
}

/// The newest version of the C library that a program asks for, as in `2.34`.
fn newest_glibc(program: &[u8]) -> String {
    let mut newest = (2, 17);
    for (at, _) in program
        .windows(8)
        .enumerate()
        .filter(|(_, word)| word == b"GLIBC_2.")
    {
        let digits = program[at + 8..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let minor = digits.fold(0_u32, |sum, digit| {
            sum.saturating_mul(10) + u32::from(digit - b'0')
        });
        if minor < 1000 {
            newest = newest.max((2, minor));
        }
    }
    format!("{}.{}", newest.0, newest.1)
}

/// A file's SHA-256.
pub(super) fn digest(path: &Path) -> Result<String, Failure> {
    let line = output(Command::new("sha256sum").arg(path))?;
    Ok(line
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_asks_for_the_c_library_that_its_program_asks_for() {
        assert_eq!(
            newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_2."),
            "2.34"
        );
        assert_eq!(newest_glibc(b""), "2.17");
    }
}
