//! Commands for people at a terminal: what is live, what is configured, what a report of a bug needs.

use serde_json::Value;

use crate::common::{World, message};

#[test]
fn a_volume_is_created_once_however_often_a_script_asks() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let create = ["volume", "create", "demo", "--if-missing", "--size"];
    let sized = |size: &'static str| [&create[..], &[size]].concat();
    assert_eq!(world.expect_success(&server, &sized("8MiB")), "demo\n");
    assert_eq!(world.expect_success(&server, &sized("8MiB")), "demo\n");
    let refused = world.expect_failure(&server, &sized("16MiB"));
    assert!(
        refused.contains("8MiB") && refused.contains("16MiB"),
        "{refused}"
    );
    let refused = world.expect_failure(&server, &["volume", "create", "demo", "--size", "8MiB"]);
    assert!(refused.contains("demo"), "{refused}");
}

#[test]
fn a_misspelt_volume_is_answered_with_the_one_that_was_meant() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "database=8MiB"]);
    for command in [
        &["volume", "show", "databse"][..],
        &["attach", "databse"],
        &["sync", "databse"],
        &["volume", "resize", "databse", "16MiB"],
    ] {
        let said = world.expect_failure(&server, command);
        assert!(
            said.contains("did you mean database?"),
            "{command:?}: {said}"
        );
    }
    let said = world.expect_failure(&server, &["volume", "show", "kitchen"]);
    assert!(!said.contains("did you mean"), "{said}");
}

#[test]
fn top_and_watch_show_a_volume_as_often_as_asked() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    let top = world.expect_success(&server, &["top", "--interval", "100ms", "--count", "2"]);
    assert_eq!(top.matches("VOLUME").count(), 2, "{top}");
    assert_eq!(top.matches("\ndemo ").count(), 2, "{top}");
    assert!(!top.contains('\x1b'), "a pipe is no terminal: {top:?}");
    let json = world.expect_success(&server, &["--json", "top", "--count", "1"]);
    let activity: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(activity["volumes"][0]["ops"][0]["requests"], 1);
    let watch = [
        "volume",
        "show",
        "demo",
        "--watch",
        "--interval",
        "100ms",
        "--count",
        "3",
    ];
    let shown = world.expect_success(&server, &watch);
    assert_eq!(shown.matches("acknowledged  LSN 1 ").count(), 3, "{shown}");
}

#[test]
fn a_report_of_a_bug_holds_the_state_and_no_secret() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let cache = world.path("cache");
    let report = world.expect_success(&server, &["support", "--cache", cache.to_str().unwrap()]);
    let document: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        document["server"]["/v1/volumes"]["volumes"][0]["name"],
        "demo"
    );
    assert!(
        document["server"]["/metrics"]
            .as_str()
            .unwrap()
            .contains("firn_build_info")
    );
    assert!(document["findings"].as_array().unwrap().len() > 4);
    let files = document["cache_dir"]["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["name"] == "log"), "{files:?}");
    for role in ["read", "attach", "admin"] {
        let token = world.token(role);
        assert!(token.is_none_or(|token| !report.contains(token.trim())));
    }
}

#[test]
fn the_settings_are_printed_with_where_they_are_from_and_a_file_is_checked() {
    let world = World::new();
    let file = world.path("firn.toml");
    std::fs::write(&file, "log-size = \"2GiB\"\nrpo = \"5s\"\n").unwrap();
    let file = file.to_str().unwrap();
    let run = |args: &[&str]| {
        let output = world.firn(args);
        let code = output.status.code().unwrap();
        (
            code,
            String::from_utf8(output.stdout.clone()).unwrap(),
            message(&output),
        )
    };
    let (code, text, _) = run(&["config", "--config", file, "--rpo", "7s"]);
    assert_eq!(code, 0);
    assert!(
        text.contains(&format!("\nlog-size = \"2GiB\" # from {file}\n")),
        "{text}"
    );
    assert!(
        text.contains("\nrpo = \"7s\" # from the command line"),
        "{text}"
    );
    // How much depends on the space that is free here.
    assert!(text.contains("\n#cache-size = \""), "{text}");
    assert!(text.contains("\n#gc = \"6h\"\n"), "{text}");
    let printed = world.path("printed.toml");
    std::fs::write(&printed, text).unwrap();
    let (code, said, _) = run(&["config", "check", printed.to_str().unwrap()]);
    assert_eq!((code, said.ends_with(": ok\n")), (0, true), "{said}");
    std::fs::write(&printed, "log-sise = \"2GiB\"\n").unwrap();
    let (code, _, said) = run(&["config", "check", printed.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(said.contains("log-sise"), "{said}");
}
