//! Where the workspace is, and how its cargo is called.
//!
//! Builds that differ in their flags get target directories of their own below `target/`:
//! otherwise each would throw away what the other compiled.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root directory.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the workspace")
}

/// The directory for everything that is built: `target/`, or what the user chose.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// Directories that a guest has for itself, so that nothing of this machine's is seen below them.
const GUESTS_OWN: [&str; 4] = ["/run", "/dev", "/proc", "/sys"];

/// Whether the workspace is where this program was built for, and where guests can see it; what to
/// do where it is not.
pub(crate) fn check_place(root: &Path, target: &Path) -> Result<(), String> {
    if !root.join("Cargo.toml").exists() {
        return Err(format!(
            "this program was built for a tree at {}, which is not there any more; where it is now, \
             run `cargo clean -p xtask` and then `cargo xtask` again",
            root.display()
        ));
    }
    let own = GUESTS_OWN.iter().find_map(|own| {
        let hidden = [root, target]
            .into_iter()
            .find(|path| path.starts_with(own));
        hidden.map(|path| (own, path))
    });
    match own {
        Some((own, path)) => Err(format!(
            "{} is below {own}, of which guests have their own: what is built there cannot be run \
             in them; clone, or set CARGO_TARGET_DIR, elsewhere",
            path.display()
        )),
        None if root == Path::new("/tmp") || target == Path::new("/tmp") => {
            Err("a guest has a /tmp of its own: clone into a directory below it".to_owned())
        }
        None => Ok(()),
    }
}

/// `cargo ARGS` in the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root()).args(args);
    command
}

/// `cargo SUBCOMMAND` for the whole workspace with the switch for planted bugs: all steps of the tests
/// have one set of features, so that none compiles what another has compiled.
pub(crate) fn cargo_for_tests(subcommand: &str) -> Command {
    cargo([subcommand, "--workspace", "--features", "firn/planted"])
}

/// A program as it is packaged, built with the profile `dist`: what is measured.
pub(crate) fn packaged(program: &str) -> PathBuf {
    target().join("dist").join(program)
}

/// Makes a build of its own out of `command`: with these compiler flags, in `target/NAME`.
pub(crate) fn build_apart(command: &mut Command, name: &str, rustflags: &str) {
    command
        .env("CARGO_TARGET_DIR", target().join(name))
        .env("RUSTFLAGS", rustflags);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_was_moved_or_that_guests_cannot_see_is_told_as_such() {
        let place = |root: &str| check_place(Path::new(root), Path::new("/tmp/target"));
        assert!(check_place(root(), Path::new("/tmp/target")).is_ok());
        let moved = place("/nowhere/firn").unwrap_err();
        assert!(moved.contains("/nowhere/firn"), "{moved}");
        let hidden = check_place(root(), Path::new("/run/user/0/target")).unwrap_err();
        assert!(hidden.contains("CARGO_TARGET_DIR"), "{hidden}");
        assert!(check_place(root(), Path::new("/tmp")).is_err());
    }

    /// What the profile of the workspace's manifest says of single crates.
    fn crates_of(profile: &str) -> toml::Table {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        manifest["profile"][profile]["package"]
            .as_table()
            .unwrap()
            .clone()
    }

    #[test]
    fn crates_that_a_profile_names_are_there() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        for profile in ["dev", "release", "dist", "sim"] {
            for name in crates_of(profile).keys().filter(|name| *name != "*") {
                let is_there = lock.contains(&format!("name = \"{name}\"\n"));
                assert!(is_there, "{name} of {profile}: cargo would only warn");
            }
        }
    }

    #[test]
    fn a_quick_build_optimizes_every_crate_that_a_request_passes_through() {
        let manifest = root().join("crates/transports/Cargo.toml");
        let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
        let below = manifest["dependencies"].as_table().unwrap().keys();
        let release = crates_of("release");
        for name in below.map(String::as_str).chain(["transports"]) {
            let of = release.get(name).unwrap_or_else(|| {
                panic!("{name} is on the path of a request: optimize it in profile.release")
            });
            assert_eq!(of["opt-level"].as_integer(), Some(3), "{name}");
            assert_eq!(of["codegen-units"].as_integer(), Some(1), "{name}");
        }
    }

    #[test]
    fn what_is_packaged_is_optimized_where_a_quick_build_is_not() {
        let level = |of: &toml::Value| of["opt-level"].as_integer();
        let packaged = crates_of("dist");
        for (name, quick) in crates_of("release") {
            let inherited = packaged.get(&name).unwrap_or(&quick);
            assert_eq!(level(inherited), Some(3), "{name}");
        }
    }
}
