//! Protocol cores inside crates that do I/O elsewhere name no clock, no thread, no socket, no file
//! and no randomness.
//!
//! A whole crate without I/O has its fence in a `clippy.toml` of its own. Clippy knows no fence for
//! a module: this rule reads the words of its files instead.

use super::Source;
use super::uses::tokens;

/// The folders of the cores.
const CORES: &[&str] = &[
    "crates/nbd/src/codec",
    "crates/messenger/src/frame",
    "crates/messenger/src/session",
    "crates/messenger/src/control",
    "crates/messenger/src/node",
];

/// Names that say I/O, a clock or randomness wherever they come from.
const NAMES: &[&str] = &[
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixListener",
    "UnixStream",
    "Condvar",
    "getrandom",
    "fastrand",
    "tokio",
];

/// Modules of the standard library that a core does not need.
const MODULES: &[&str] = &["env", "fs", "os", "process", "thread"];

/// The names that break the rule.
pub(super) fn outside_names(source: &Source) -> Vec<String> {
    let path = source.path.to_string_lossy();
    let in_core = CORES.iter().any(|core| path.starts_with(core));
    if !in_core || !source.is_rust() || path.ends_with("tests.rs") {
        return Vec::new();
    }
    let code = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
    let tokens = tokens(code);
    let named = tokens.iter().filter(|word| NAMES.contains(&word.as_str()));
    let modules = tokens
        .windows(3)
        .filter(|path| path[0] == "std" && path[1] == "::")
        .map(|path| &path[2])
        .filter(|module| MODULES.contains(&module.as_str()));
    let mut names: Vec<&String> = named.chain(modules).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| format!("{path}: {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(path: &str, text: &str) -> Vec<String> {
        outside_names(&Source {
            path: path.into(),
            text: text.into(),
        })
    }

    #[test]
    fn a_clock_a_thread_and_a_socket_in_a_core_are_named() {
        let core = "crates/nbd/src/codec/x.rs";
        let text =
            "use std::time::Instant;\nfn f() { std::thread::yield_now() }\nuse net::TcpStream;";
        assert_eq!(violations(core, text).len(), 3);
        assert_eq!(violations("crates/nbd/src/server/x.rs", text), [""; 0]);
    }

    #[test]
    fn durations_comments_and_tests_are_free() {
        let core = "crates/messenger/src/session/x.rs";
        let text = "use std::time::Duration; // no Instant here\n#[cfg(test)]\nuse std::fs;";
        assert_eq!(violations(core, text), [""; 0]);
    }
}
