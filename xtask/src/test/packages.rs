//! Programs that some tests need and Debian has: installed where that is allowed, else named.

use std::path::Path;
use std::process::Command;

use super::count::Counts;
use crate::process;

/// A program, and Debian's package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("psktool", "gnutls-bin"),
    ("fusermount3", "fuse3"),
    ("fuse2fs", "fuse2fs"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("fsck.xfs", "xfsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("sfdisk", "fdisk"),
    ("blockdev", "util-linux"),
    ("g++", "g++"),
    ("unshare", "util-linux"),
    ("losetup", "mount"),
    ("dmsetup", "dmsetup"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("rados", "ceph-common"),
    ("bc", "bc"),
    ("chromium", "chromium"),
    ("systemd-analyze", "systemd"),
    ("setpriv", "util-linux"),
    ("nft", "nftables"),
];

/// Installs what is missing, or says what is skipped for it.
pub(super) fn install_missing() -> Counts {
    let mut packages: Vec<&str> = missing().iter().map(|(_, package)| *package).collect();
    packages.dedup();
    if !packages.is_empty() && may_install() {
        println!("missing: {}", packages.join(" "));
        let mut update = Command::new("apt-get");
        update.args(["-qq", "update"]);
        let mut install = Command::new("apt-get");
        install
            .args(["-qq", "install", "-y", "--no-install-recommends"])
            .args(&packages)
            .env("DEBIAN_FRONTEND", "noninteractive");
        for command in [&mut update, &mut install] {
            // Its failure shows below, as a program that is still missing.
            if let Err(error) = process::run(command) {
                println!("{error}");
            }
        }
    }
    let mut counts = Counts::default();
    let missing = missing();
    counts.passed = (PROGRAMS.len() - missing.len()) as u64;
    for (program, package) in missing {
        counts.skipped.push(format!(
            "tests with {program}: it is not installed (Debian's package {package})"
        ));
    }
    counts
}

fn missing() -> Vec<&'static (&'static str, &'static str)> {
    PROGRAMS
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .collect()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

fn may_install() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/usr/bin/apt-get").is_file()
}
