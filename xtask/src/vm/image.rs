//! What a guest is made of: a kernel with its modules, and the tools that boot it.
//!
//! Each part is a folder of the cache that appears under its name only when it is whole, so an
//! interrupted download is done again and never used. Parts that are there are taken without the
//! network; deleting one fetches it anew. One process prepares at a time.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::shell_quote;
use super::packages::{self, Apt, BACKPORTS, SUITE, find_versioned, run_for_output};
use super::source;
use super::uml::{self, UserMode};
use crate::Failure;

/// The program that assembles the guest's start; pinned, for its options change.
const VIRTME: &str = "virtme-ng==1.42";

/// The kernels that firn is tested under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernel {
    /// The kernel of a Debian release: ublk without zero-copy
    Stable,
    /// The newest kernel that Debian backports to that release: ublk with everything
    Recent,
    /// The recent kernel with PREEMPT_RT
    RealTime,
    /// The recent kernel as User-Mode Linux, built here once: for measuring
    #[value(name = "uml")]
    UserMode,
}

impl Kernel {
    /// What it is called on the command line, and its folder. The names are roles: versions come
    /// and go with the archive.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Recent => "recent",
            Self::RealTime => "real-time",
            Self::UserMode => "uml",
        }
    }

    /// Debian's suite and flavour. `None`: it is built and not fetched.
    fn source(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Stable => (SUITE, "amd64"),
            Self::Recent => (BACKPORTS, "amd64"),
            Self::RealTime => (BACKPORTS, "rt-amd64"),
            Self::UserMode => return None,
        })
    }
}

/// What a guest can be made of.
#[derive(Debug)]
pub(crate) enum Machine {
    /// One of Debian's kernels, for QEMU.
    Packaged(Image),
    /// A kernel that is a program.
    UserMode {
        /// The kernel.
        kernel: UserMode,
        /// The program that turns the guest off.
        busybox: PathBuf,
    },
}

/// A kernel and the tools to boot it, all in the cache.
#[derive(Debug)]
pub(crate) struct Image {
    /// What `uname -r` will say.
    pub(super) release: String,
    /// The folder its packages were unpacked in.
    root: PathBuf,
    /// The kernel's file, beside its modules.
    pub(super) vmlinuz: PathBuf,
    /// The program that starts the guest.
    pub(super) virtme: PathBuf,
    /// Emulator and module tools; first on the path, here and in the guest.
    pub(super) bin: PathBuf,
    /// A shell for the first moments of the guest.
    pub(super) busybox: PathBuf,
}

impl Image {
    /// Writes a `modprobe` that finds this kernel's modules wherever the cache is. A guest whose
    /// host has no /lib/modules has no such directory either, and no way to make one.
    pub(super) fn module_loader(&self, file: &Path) -> Result<(), Failure> {
        let modprobe = shell_quote(&self.bin.join("modprobe").display().to_string());
        let root = shell_quote(&self.root.display().to_string());
        program(file, &format!("exec {modprobe} -d {root} \"$@\""))
    }
}

/// Fetches what is missing and answers where everything is.
pub(super) fn prepare(cache: &Path, kernel: Kernel) -> Result<Machine, Failure> {
    fs::create_dir_all(cache)
        .map_err(|error| format!("cannot make the cache {}: {error}", cache.display()))?;
    let cache = cache.canonicalize()?;
    let lock = File::create(cache.join("lock"))?;
    if lock.try_lock().is_err() {
        eprintln!("vm: another run prepares the cache; waiting for it");
        lock.lock()?;
    }
    let tools = cache.join("tools");
    create_whole(&tools, |new| fetch_tools(&cache, &tools, new))?;
    let busybox = tools.join("root/bin/busybox");
    let Some((suite, flavour)) = kernel.source() else {
        let kernel = uml::prepare(&cache, &cache.join("kernels/uml"))?;
        return Ok(Machine::UserMode { kernel, busybox });
    };
    let virtme = cache.join("virtme");
    if !virtme.join("whole").exists() {
        install_virtme(&virtme)?;
    }
    let folder = cache.join("kernels").join(kernel.name());
    let depmod = tools.join("bin/depmod");
    create_whole(&folder, |new| {
        fetch_kernel(&cache, &depmod, new, (suite, flavour))
    })?;
    let release = fs::read_to_string(folder.join("release"))?;
    let root = folder.join("root");
    Ok(Machine::Packaged(Image {
        vmlinuz: root.join("lib/modules").join(&release).join("vmlinuz"),
        root,
        release,
        virtme: virtme.join("bin/virtme-run"),
        bin: tools.join("bin"),
        busybox,
    }))
}

/// The kernel tree's own ublk server, built unless it is there.
pub(super) fn kublk(cache: &Path) -> Result<PathBuf, Failure> {
    let folder = peer(cache, "kublk", source::build_peer)?;
    Ok(folder.join("kublk"))
}

/// The folder of libublk's examples, built unless they are there.
pub(super) fn libublk(cache: &Path) -> Result<PathBuf, Failure> {
    let folder = peer(cache, "libublk", |_, new| source::build_libublk(new))?;
    Ok(folder.join("bin"))
}

/// The folder of a peer, filled unless it is there.
fn peer(
    cache: &Path,
    name: &str,
    build: impl FnOnce(&Path, &Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    fs::create_dir_all(cache.join("peers"))?;
    let cache = cache.canonicalize()?;
    let lock = File::create(cache.join("lock"))?;
    lock.lock()?;
    let folder = cache.join("peers").join(name);
    create_whole(&folder, |new| build(&cache, new))?;
    Ok(folder)
}

/// Makes `folder` unless it is there: filled under another name first, then renamed.
fn create_whole(
    folder: &Path,
    fill: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if folder.exists() {
        return Ok(());
    }
    let mut new = folder.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    fs::create_dir_all(&new)?;
    fill(&new)?;
    Ok(fs::rename(&new, folder)?)
}

/// The emulator, the module tools and a shell, from this machine's suite and its backports.
fn fetch_tools(cache: &Path, at: &Path, new: &Path) -> Result<(), Failure> {
    eprintln!("vm: fetching the emulator");
    let own = packages::host_suite()?;
    let backports = format!("{own}-backports");
    let apt = Apt::open(&cache.join("apt-tools"), &[&own, &backports])?;
    let wanted = ["qemu-system-x86", "kmod", "busybox-static"];
    let archives = apt.download_closure(&backports, &wanted)?;
    let root = new.join("root");
    packages::unpack(&archives, &root)?;
    // From here on paths are those after the rename.
    let kept = at.join("root");
    let triple = "lib/x86_64-linux-gnu";
    let libraries = format!("{0}/usr/{triple}:{0}/{triple}", kept.display());
    let (bin, named) = (new.join("bin"), new.join("named"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&named)?;
    let kmod = ["bin/kmod", "usr/bin/kmod"]
        .into_iter()
        .find(|path| root.join(path).exists())
        .ok_or("the package kmod has no program kmod")?;
    for tool in ["modprobe", "depmod"] {
        // kmod goes by the name it is called by.
        symlink(kept.join(kmod), named.join(tool))?;
        let target = at.join("named").join(tool);
        wrapper(&bin.join(tool), &libraries, (&[], None), &target)?;
    }
    let emulator = kept.join("usr/bin/qemu-system-x86_64");
    let data = ["qemu", "seabios"].map(|name| kept.join("usr/share").join(name));
    let modules = kept.join("usr").join(triple).join("qemu");
    wrapper(
        &bin.join("qemu-system-x86_64"),
        &libraries,
        (&data, Some(&modules)),
        &emulator,
    )
}

/// A script that calls an unpacked program with the libraries it was unpacked with; an emulator with its data and
/// its modules, too, because those of one that is installed are of another build.
fn wrapper(
    file: &Path,
    libraries: &str,
    (data, modules): (&[PathBuf], Option<&Path>),
    program_file: &Path,
) -> Result<(), Failure> {
    let quoted_path = |path: &Path| shell_quote(&path.display().to_string());
    let data: String = data
        .iter()
        .map(|path| format!(" -L {}", quoted_path(path)))
        .collect();
    let quoted_program = quoted_path(program_file);
    let modules = modules.map_or(String::new(), |modules| {
        format!("QEMU_MODULE_DIR={} ", quoted_path(modules))
    });
    let libraries = shell_quote(libraries);
    program(
        file,
        &format!("LD_LIBRARY_PATH={libraries} {modules}exec {quoted_program}{data} \"$@\""),
    )
}

/// Writes a shell script of one line.
pub(super) fn program(file: &Path, line: &str) -> Result<(), Failure> {
    write_executable(file, &format!("#!/bin/sh\n{line}\n"))
}

/// Writes a file that can be run.
pub(super) fn write_executable(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text)?;
    Ok(fs::set_permissions(
        file,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// A virtual environment cannot be renamed, so a file says that it is whole.
fn install_virtme(folder: &Path) -> Result<(), Failure> {
    eprintln!("vm: fetching {VIRTME}");
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(folder);
    run_for_output(
        &mut make,
        "make a Python environment (package python3-venv)",
    )?;
    let mut install = Command::new(folder.join("bin/pip"));
    install.args(["install", "--quiet", VIRTME]);
    run_for_output(&mut install, &format!("install {VIRTME}"))?;
    Ok(fs::write(folder.join("whole"), VIRTME)?)
}

/// A kernel's packages, unpacked, with the index of its modules.
fn fetch_kernel(
    cache: &Path,
    depmod: &Path,
    new: &Path,
    (suite, flavour): (&str, &str),
) -> Result<(), Failure> {
    let apt = Apt::open(&cache.join("apt-kernels"), &[SUITE, BACKPORTS])?;
    let metapackage = format!("linux-image-{flavour}");
    let image = find_versioned(&apt.depends(&metapackage, suite)?, "linux-image-")
        .ok_or_else(|| format!("Debian's {metapackage} of {suite} names no kernel"))?;
    let release = image.trim_start_matches("linux-image-").to_owned();
    eprintln!("vm: fetching Linux {release}");
    let mut parts = apt.depends(&image, suite)?;
    parts.retain(|name| name.starts_with("linux-") && name.ends_with(&format!("-{release}")));
    parts.push(image);
    let downloads = new.join("archives");
    let archives = apt.download(&downloads, &parts)?;
    let root = new.join("root");
    packages::unpack(&archives, &root)?;
    fs::remove_dir_all(&downloads)?;
    if !root.join("lib").exists() {
        symlink("usr/lib", root.join("lib"))?;
    }
    let modules = root.join("lib/modules").join(&release);
    let boot = root.join(format!("boot/vmlinuz-{release}"));
    if boot.exists() {
        fs::copy(boot, modules.join("vmlinuz"))?;
    }
    if !modules.join("vmlinuz").exists() {
        return Err(format!("the packages {} hold no kernel", parts.join(" ")).into());
    }
    let mut index = Command::new(depmod);
    index.arg("-b").arg(&root).arg(&release);
    run_for_output(&mut index, "index the kernel's modules")?;
    Ok(fs::write(new.join("release"), release)?)
}
