//! What a server asks of the system that started it.

#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn a_server_may_open_as_many_files_as_it_is_allowed_to() {
    let mut limit = getrlimit(Resource::Nofile);
    // As most systems start a program; a child gets what its parent has.
    limit.current = Some(512);
    setrlimit(Resource::Nofile, limit).unwrap();
    let world = World::new();
    let server = world.serve("cache", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line:?}");
    assert_ne!(words[3], "512");
}
