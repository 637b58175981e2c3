//! The engine takes its locks, atomics and threads from one file, so that its models see all of them.
//!
//! `crates/volume/src/sync.rs` chooses between the standard library's and those of the model checker. A lock from
//! elsewhere compiles and works, and no model ever takes a turn at it.

use super::Source;
use super::uses::{self, tokens};

/// The crate that has models.
const MODELLED: &str = "crates/volume/src/";

/// Files that may name the standard library's, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("sync.rs", "it makes the choice"),
    (
        "log/ring.rs",
        "words of a ring are only touched by who holds the tail's lock, and by the next process",
    ),
    ("golden.rs", "tests alone"),
];

/// Folders of tests, and of the models themselves, whose own bookkeeping is no part of what they check.
const TESTS: &[&str] = &["models/", "/tests/", "tests.rs"];

/// What more than one thread sees, by its path in `std`.
const SHARED: &[&[&str]] = &[
    &["sync", "Barrier"],
    &["sync", "Condvar"],
    &["sync", "Mutex"],
    &["sync", "MutexGuard"],
    &["sync", "RwLock"],
    &["sync", "atomic"],
    &["sync", "mpsc"],
    &["thread", "Builder"],
    &["thread", "park"],
    &["thread", "scope"],
    &["thread", "sleep"],
    &["thread", "spawn"],
    &["thread", "yield_now"],
];

/// The names that break the rule.
pub(super) fn unseen_names(source: &Source) -> Vec<String> {
    let path = source.path.to_string_lossy();
    let Some(file) = path.strip_prefix(MODELLED) else {
        return Vec::new();
    };
    let is_exception = EXCEPTIONS.iter().any(|(exception, _)| file == *exception);
    if !source.is_rust() || is_exception || TESTS.iter().any(|part| file.contains(part)) {
        return Vec::new();
    }
    let imports = uses::read(&source.text).imports.into_iter();
    let mut names: Vec<String> = imports.filter_map(|import| shared(&import.path)).collect();
    let code = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
    let words: Vec<String> = tokens(code)
        .into_iter()
        .filter(|word| word != "::")
        .collect();
    names.extend(words.windows(3).filter_map(shared));
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| format!("{path}: {name} (crate::sync has it)"))
        .collect()
}

/// The name, where a path in `std` leads to what more than one thread sees. A module that is imported as a whole
/// leads to all of it.
fn shared(path: &[String]) -> Option<String> {
    let (first, below) = path.split_first()?;
    let leads = |name: &&&[&str]| below.iter().zip(name.iter()).all(|(a, b)| a == b);
    let found = SHARED.iter().find(leads)?;
    (first == "std" && !below.is_empty()).then(|| format!("std::{}", found.join("::")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(file: &str, text: &str) -> Vec<String> {
        unseen_names(&Source {
            path: format!("{MODELLED}{file}").into(),
            text: text.into(),
        })
    }

    #[test]
    fn locks_atomics_and_threads_of_the_standard_library_are_named_however_they_are_written() {
        for (text, name) in [
            ("use std::sync::Mutex;", "std::sync::Mutex"),
            ("use std::sync::{Arc, Condvar as C};", "std::sync::Condvar"),
            (
                "use std::{fmt, sync::atomic::AtomicU64};",
                "std::sync::atomic",
            ),
            (
                "fn f() { std::thread::spawn(|| ()); }",
                "std::thread::spawn",
            ),
            ("struct S(std::sync::RwLock<u8>);", "std::sync::RwLock"),
        ] {
            let found = violations("log/x.rs", text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains(name), "{text}: {found:?}");
        }
        assert_eq!(
            violations("x.rs", "use std::thread;\nuse std::sync;").len(),
            2
        );
    }

    #[test]
    fn reference_counts_tests_and_exceptions_are_free() {
        let free = "use std::sync::{Arc, OnceLock};\nuse std::thread::panicking;\n#[cfg(test)]\nmod tests {\n    \
                    use std::sync::Mutex;\n}";
        assert_eq!(violations("lock.rs", free), [""; 0]);
        let locks = "use std::sync::Mutex;";
        for file in ["sync.rs", "models/x.rs", "hostlog/tests/x.rs"] {
            assert_eq!(violations(file, locks), [""; 0], "{file}");
        }
    }
}
