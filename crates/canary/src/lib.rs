//! Canaries: bugs planted on purpose, so that tests can prove that they would see the real ones.
//!
//! Owns the one switch for all of them. Code asks [`active!`] at the place of the bug; that is the
//! constant `false` unless the asking crate is built as its own test or this one with the feature `planted`, so
//! nothing of a canary reaches a program that ships. One build serves all canaries: which of them
//! is on is chosen at run time, for a thread ([`plant`], [`with`]) or by the environment variable
//! [`VARIABLE`] for the whole process. The tests that look for canaries keep the list of their names.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The environment variable that names the canary of a whole process.
pub const VARIABLE: &str = "FIRN_CANARY";

thread_local! {
    static OF_THREAD: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Whether canaries can be planted in every crate of this build, not only in the one under test.
pub const PLANTED: bool = cfg!(feature = "planted");

/// Whether the canary of this name is planted here. Always false outside tests and builds with the
/// feature `planted`.
#[macro_export]
macro_rules! active {
    ($name:literal) => {
        (cfg!(test) || $crate::PLANTED) && $crate::is_active($name)
    };
}

/// Plants a canary for this thread, or none.
pub fn plant(name: Option<&'static str>) {
    OF_THREAD.set(name);
}

/// Runs `work` with a canary planted for this thread.
pub fn with<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            plant(None);
        }
    }
    plant(Some(name));
    let _reset = Reset;
    work()
}

/// Runs each test with the bug planted that it must see.
///
/// # Panics
/// If a test passes all the same.
pub fn each_is_seen(planted: &[(&'static str, fn())]) {
    let is_unseen = |(name, test): &&(&'static str, fn())| {
        std::panic::catch_unwind(|| with(name, *test)).is_ok()
    };
    let unseen = planted.iter().filter(is_unseen).map(|(name, _)| *name);
    let unseen: Vec<&str> = unseen.collect();
    assert!(unseen.is_empty(), "planted and not seen: {unseen:?}");
}

/// The canary that the environment names for the whole process, read once.
pub fn of_process() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
}

/// What [`active!`] asks; code that ships calls only the macro.
pub fn is_active(name: &str) -> bool {
    OF_THREAD.get().or_else(of_process) == Some(name)
}

/// The canaries that Rust sources below `folder` ask for and `listed` lacks: a canary that nobody
/// hunts proves nothing.
///
/// # Panics
/// If a file there cannot be read.
pub fn unlisted(folder: impl AsRef<Path>, listed: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            names.extend(unlisted(path, listed));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).expect("a source file is text");
            let asked = text.split("canary::active!(\"").skip(1);
            let asked = asked.filter_map(|after| after.split('"').next());
            names.extend(
                asked
                    .filter(|name| !listed.contains(name))
                    .map(str::to_owned),
            );
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_active_only_on_its_thread_and_only_while_it_is_planted() {
        assert!(!active!("drop_fua"));
        with("drop_fua", || {
            assert!(active!("drop_fua"));
            assert!(!active!("skip_sync"));
            let elsewhere = std::thread::spawn(|| active!("drop_fua"));
            assert!(!elsewhere.join().expect("it does not panic"));
        });
        assert!(!active!("drop_fua"));
    }

    #[test]
    #[should_panic(expected = "planted and not seen: [\"skip_sync\"]")]
    fn a_planted_bug_that_its_test_does_not_see_is_named() {
        let sees = || assert!(!active!("drop_fua"));
        each_is_seen(&[("drop_fua", sees), ("skip_sync", sees)]);
    }

    #[test]
    fn a_canary_that_nobody_hunts_is_found_in_the_sources() {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../blkmq/src");
        let all = unlisted(sources, &[]);
        assert!(all.iter().any(|name| name == "tag_top_set_first"));
        let rest = unlisted(sources, &["tag_top_set_first"]);
        assert!(rest.len() < all.len() && !rest.is_empty());
    }
}
