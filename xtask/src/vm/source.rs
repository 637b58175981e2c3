//! Peers to measure against, from their packages: the kernel tree's own ublk server, out of
//! Debian's packaged source of the kernel, and the examples of `libublk`.
//!
//! They are built here and run, and nothing of them is part of this project.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{Apt, BACKPORTS, SUITE, find_versioned, host_suite, run_for_output, unpack};
use crate::Failure;

/// The metapackage that stands for the newest kernel's source.
const SOURCE: &str = "linux-source";

/// What building needs of this machine: a program, and the package that has it.
pub(super) const BUILDERS: [(&str, &str); 6] = [
    ("gcc", "gcc"),
    ("make", "make"),
    ("bc", "bc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("xz", "xz-utils"),
];

/// Where the kernel tree keeps its own ublk server.
const PEER: &str = "tools/testing/selftests/ublk";

/// The other peer, and which of its releases.
const LIBUBLK: [&str; 2] = ["libublk", "0.4.8"];

/// Folders below a part of the cache that is being made; none is kept.
const TEMPORARY: [&str; 3] = ["archives", "unpacked", "tree"];

/// Fetches the source and extracts it below `new`, or only the directory `part` of it.
pub(super) fn tree(cache: &Path, new: &Path, part: Option<&str>) -> Result<PathBuf, Failure> {
    let apt = apt(cache)?;
    let source = find_versioned(&apt.depends(SOURCE, BACKPORTS)?, "linux-source-")
        .ok_or_else(|| format!("Debian's {SOURCE} of {BACKPORTS} names no source"))?;
    let package = format!("{source}/{BACKPORTS}");
    let archives = apt.download(&new.join("archives"), &[package])?;
    unpack(&archives, &new.join("unpacked"))?;
    let tree = new.join("tree");
    fs::create_dir(&tree)?;
    let mut extract = Command::new("tar");
    extract.args(["--strip-components=1", "-xf"]);
    extract.arg(new.join(format!("unpacked/usr/src/{source}.tar.xz")));
    extract.arg("-C").arg(&tree);
    extract.args(part.map(|part| format!("{source}/{part}")));
    run_for_output(&mut extract, "extract the kernel's source")?;
    Ok(tree)
}

/// The version of the package that was fetched: its file is NAME_VERSION_ARCHITECTURE.deb.
fn version(archives: &Path) -> Result<String, Failure> {
    fs::read_dir(archives)?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|name| {
            let (_, rest) = name.strip_prefix(SOURCE)?.split_once('_')?;
            Some(rest.rsplit_once('_')?.0.to_owned())
        })
        .ok_or_else(|| "the package of the kernel's source has no version in its name".into())
}

/// Removes what [`tree`] made.
pub(super) fn remove_temporary(new: &Path) -> Result<(), Failure> {
    for left in TEMPORARY {
        fs::remove_dir_all(new.join(left))?;
    }
    Ok(())
}

fn apt(cache: &Path) -> Result<Apt, Failure> {
    Apt::open(&cache.join("apt-kernels"), &[SUITE, BACKPORTS])
}

/// Builds the kernel tree's ublk server in `new`, with that kernel's headers and no shared
/// liburing, for the one of this machine may be too old.
pub(super) fn build_peer(cache: &Path, new: &Path) -> Result<(), Failure> {
    eprintln!("vm: building the kernel tree's ublk server, once");
    let tree = tree(cache, new, Some(PEER))?;
    let version = version(&new.join("archives"))?;
    let wanted = [
        format!("liburing-dev/{SUITE}"),
        format!("linux-libc-dev={version}"),
    ];
    let headers = new.join("unpacked/headers");
    let archives = apt(cache)?.download(&new.join("archives/headers"), &wanted)?;
    unpack(&archives, &headers)?;
    let mut sources = Vec::new();
    for entry in fs::read_dir(tree.join(PEER))? {
        let path = entry?.path();
        let other_program = path.ends_with("metadata_size.c");
        if path.extension().is_some_and(|extension| extension == "c") && !other_program {
            sources.push(path);
        }
    }
    let include = headers.join("usr/include");
    let mut compile = Command::new("gcc");
    compile.args(["-O3", "-D_GNU_SOURCE", "-isystem"]);
    compile.arg(&include);
    compile
        .arg("-isystem")
        .arg(include.join("x86_64-linux-gnu"));
    compile.args(sources).arg("-o").arg(new.join("kublk"));
    compile.arg(headers.join("usr/lib/x86_64-linux-gnu/liburing.a"));
    run_for_output(
        compile.args(["-lpthread", "-lm"]),
        "build the kernel tree's ublk server",
    )?;
    remove_temporary(new)
}

/// Builds the examples of `libublk` in `new/bin`. It needs libclang to build, which is fetched for
/// this alone and is not kept.
pub(super) fn build_libublk(new: &Path) -> Result<(), Failure> {
    let [name, version] = LIBUBLK;
    eprintln!("vm: building the examples of {name} {version}, once");
    let own = host_suite()?;
    let apt = Apt::open(&new.join("apt"), &[&own])?;
    let archives = apt.download_closure(&own, &["libclang-dev"])?;
    let root = new.join("unpacked");
    unpack(&archives, &root)?;
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut install = Command::new("cargo");
    install.args(["install", "--quiet", "--locked", name, "--version", version]);
    install.args(["--example", "null", "--example", "loop", "--root"]);
    install.arg(new).arg("--target-dir").arg(new.join("target"));
    // Not this project's own settings for cargo.
    install.current_dir(new);
    install.env("LIBCLANG_PATH", &libraries);
    install.env("LD_LIBRARY_PATH", &libraries);
    let builtin = builtin_headers(&root)?;
    let argument = format!("-isystem {}", builtin.display());
    install.env("BINDGEN_EXTRA_CLANG_ARGS", argument);
    run_for_output(&mut install, &format!("build the examples of {name}"))?;
    for left in ["apt", "unpacked", "target"] {
        fs::remove_dir_all(new.join(left))?;
    }
    Ok(())
}

/// Where the compiler's own headers were unpacked to.
fn builtin_headers(root: &Path) -> Result<PathBuf, Failure> {
    let within = |folder: PathBuf| -> Result<Vec<PathBuf>, Failure> {
        let entries = fs::read_dir(folder)?.flatten();
        Ok(entries.map(|entry| entry.path()).collect())
    };
    for compiler in within(root.join("usr/lib"))? {
        for release in within(compiler.join("lib/clang")).unwrap_or_default() {
            if release.join("include/stddef.h").exists() {
                return Ok(release.join("include"));
            }
        }
    }
    Err("the package of libclang has no headers".into())
}
