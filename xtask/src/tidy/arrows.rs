//! Rules about rooms: who may depend on whom (docs/ARCHITECTURE.md), and where a runtime may be.

use std::path::Path;

use super::{Finding, Source};

/// The rooms, and which rooms each may see. What a room's tests use is not an arrow.
const ARROWS: &[(&str, &[&str])] = &[
    ("canary", &[]),
    ("blkmq", &["canary"]),
    ("store", &["canary"]),
    ("messenger", &["canary"]),
    ("volume", &["blkmq", "canary"]),
    ("reactor", &["blkmq"]),
    ("serve", &["blkmq", "reactor"]),
    ("nbd", &["blkmq", "canary", "reactor", "serve"]),
    ("nbd-psk", &["nbd", "reactor"]),
    ("ublk", &["blkmq", "reactor", "serve"]),
    (
        "transports",
        &["blkmq", "nbd", "reactor", "serve", "ublk", "volume"],
    ),
    // For tests alone: no room of the product may see it.
    ("oracle", &[]),
    // For tests and benchmarks alone: a real S3 server, and a network that fails.
    ("s3-testbed", &[]),
    // The driver without a kernel: no room may see it, so that it is in tests and fuzz targets only.
    ("ublk-fake", &["blkmq", "oracle", "reactor", "ublk"]),
    (
        "firn",
        &[
            "blkmq",
            "canary",
            "nbd",
            "nbd-psk",
            "reactor",
            "store",
            "transports",
            "ublk",
            "volume",
        ],
    ),
    ("sim", &["blkmq", "canary", "volume"]),
    ("xtask", &["oracle", "s3-testbed"]),
];

/// Rooms in which a runtime may be used: the edges; and one that has tokio's traits for its library alone.
const EDGES: &[&str] = &["firn", "store", "nbd-psk"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let manifests = || {
        sources.iter().filter(|source| {
            source
                .path
                .file_name()
                .is_some_and(|name| name == "Cargo.toml")
                && !source.path.starts_with("fuzz")
        })
    };
    vec![
        (
            "rooms see only the rooms below them",
            manifests().flat_map(wrong_arrows).collect(),
        ),
        (
            "a runtime is at the edges only",
            manifests().filter_map(runtime_inside).collect(),
        ),
        (
            "the binary's test programs have names of their own",
            duplicate_names(sources),
        ),
    ]
}

/// The name of a package, and what its own code depends on.
fn dependencies(source: &Source) -> Option<(String, Vec<String>)> {
    let manifest: toml::Table = source.text.parse().ok()?;
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    let mut tables = vec![
        manifest.get("dependencies"),
        manifest.get("build-dependencies"),
    ];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flat_map(|targets| targets.values()) {
        tables.push(target.get("dependencies"));
    }
    let tables = tables
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_table);
    let names = tables.flat_map(|table| table.keys().cloned()).collect();
    Some((name, names))
}

fn wrong_arrows(source: &Source) -> Vec<String> {
    let Some((package, dependencies)) = dependencies(source) else {
        return Vec::new();
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(room, _)| *room == package) else {
        return vec![format!(
            "{package} is no room: it needs a place among the arrows"
        )];
    };
    dependencies
        .into_iter()
        .filter(|dependency| {
            let room = ARROWS.iter().any(|(room, _)| room == dependency);
            room && !allowed.contains(&dependency.as_str())
        })
        .map(|dependency| format!("{package} must not see {dependency}"))
        .collect()
}

fn runtime_inside(source: &Source) -> Option<String> {
    let (package, dependencies) = dependencies(source)?;
    let inside = !EDGES.contains(&package.as_str());
    (inside && dependencies.iter().any(|name| name == "tokio"))
        .then(|| format!("{package} must not know tokio"))
}

/// Test programs are chosen by name for the whole workspace, and the binary's have their own step.
fn duplicate_names(sources: &[Source]) -> Vec<String> {
    let (firn, rooms): (Vec<&Path>, Vec<&Path>) = sources
        .iter()
        .map(|source| source.path.as_path())
        .filter(|path| {
            path.parent()
                .is_some_and(|parent| parent.ends_with("tests"))
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .partition(|path| path.starts_with("crates/firn/tests"));
    let same = |path: &&&Path| {
        rooms
            .iter()
            .any(|room| room.file_name() == path.file_name())
    };
    firn.iter()
        .filter(same)
        .map(|path| format!("{} is also a room's", path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_violations(path: &str, text: &str) -> usize {
        let source = Source {
            path: path.into(),
            text: text.into(),
        };
        check(&[source])
            .iter()
            .map(|(_, places)| places.len())
            .sum()
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let volume = |dependency: &str| {
            let text =
                format!("[package]\nname = \"volume\"\n[dependencies]\n{dependency} = \"1\"\n");
            count_violations("crates/volume/Cargo.toml", &text)
        };
        assert_eq!(volume("blkmq"), 0);
        assert_eq!(volume("nbd"), 1);
        assert_eq!(volume("tokio"), 1);
        assert_eq!(
            count_violations("crates/x/Cargo.toml", "[package]\nname = \"x\"\n"),
            1
        );
    }
}
