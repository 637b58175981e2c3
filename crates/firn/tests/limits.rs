//! What a server asks of the system that started it.

#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use rustix::process::{Resource, getrlimit, setrlimit};

/// The soft and the hard limit of a server's open files.
fn limits(world: &World, cache: &str) -> (String, String) {
    let server = world.serve(cache, &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    (words[3].to_owned(), words[4].to_owned())
}

#[test]
fn a_server_may_open_as_many_files_as_it_is_allowed_to_and_with_the_privilege_more() {
    let given = getrlimit(Resource::Nofile);
    let mut limit = given;
    // As most systems start a program; a child gets what its parent has.
    limit.current = Some(512);
    setrlimit(Resource::Nofile, limit).unwrap();
    let world = World::new();
    let (soft, hard) = limits(&world, "first");
    assert_eq!(soft, hard);
    assert_ne!(soft, "512");

    limit.maximum = Some(2048);
    setrlimit(Resource::Nofile, limit).unwrap();
    let (soft, hard) = limits(&world, "second");
    assert_eq!(soft, hard);
    // Whoever may raise it again could have raised it there.
    let privileged = setrlimit(Resource::Nofile, given).is_ok();
    let least = if privileged { 65_536 } else { 2048 };
    assert_eq!(soft.parse(), Ok(least));
}
