//! The page at the API's root, as a browser gets it and as it runs it.
//!
//! What needs a browser says "skipped" where Chromium is not installed.

use std::process::Command;

use crate::common::{Server, World, message};

/// What the page looks like to Chromium after some seconds of its own time, with `fragment` behind its address; none
/// without Chromium.
fn rendered(world: &World, server: &Server, fragment: &str) -> Option<String> {
    let profile = world.path("browser");
    let output = Command::new("timeout")
        .args([
            "60",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args(["--no-first-run", "--disable-quic", "--disable-sync"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=6000", "--dump-dom"])
        .arg(format!("{}/{fragment}", server.api.trim_end_matches('/')))
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        println!("skipped: chromium is not installed");
        return None;
    }
    assert!(output.status.success(), "{}", message(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_page_runs_its_own_scripts_only_and_asks_for_a_token() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let load = || {
        // Whoever reaches the API gets it.
        let mut answer = ureq::get(&server.api).call().unwrap();
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next();
        let nonce = nonce.unwrap().to_owned();
        for part in [
            "default-src 'none'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let text = answer.body_mut().read_to_string().unwrap();
        assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert!(!text.contains("demo"), "it says nothing by itself");
        nonce
    };
    assert_ne!(load(), load());
    let Some(page) = rendered(&world, &server, "") else {
        return;
    };
    assert!(
        page.contains("<section id=\"login\" aria-labelledby"),
        "{page}"
    );
    assert!(page.contains("<div id=\"all\" hidden=\"\">"), "{page}");
    assert!(!page.contains("demo"), "{page}");
}

#[test]
fn the_page_shows_the_volumes_and_what_the_caller_may_do_with_them() {
    let world = World::new();
    let volumes = ["--volume", "demo=8MiB", "--volume", "other=8MiB"];
    let server = world.serve("cache", &[&volumes[..], &["--insecure", "api"]].concat());
    world.expect_success(&server, &["sync", "demo"]);
    let Some(page) = rendered(&world, &server, "") else {
        return;
    };
    for part in [
        "<strong>demo</strong><small>8.0 MiB, blocks of 512</small>",
        "<strong>other</strong>",
        "all is well",
        "aria-label=\"Sync demo\"",
        "aria-label=\"Detach other\"",
        "<section id=\"create\" aria-labelledby",
        "<td>POST /v1/volumes/demo/sync</td>",
        "anybody from 127.0.0.1",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn the_page_lists_the_snapshots_of_a_volume_and_offers_what_may_be_made_of_them() {
    let world = World::new();
    let volumes = ["--volume", "demo=8MiB", "--volume", "other=8MiB"];
    let server = world.serve("cache", &[&volumes[..], &["--insecure", "api"]].concat());
    let take = ["snapshot", "create", "demo@first", "--label", "why=<test>"];
    world.expect_success(&server, &take);
    let Some(page) = rendered(&world, &server, "#snapshots=demo") else {
        return;
    };
    for part in [
        "aria-label=\"Snapshots of other\" aria-expanded=\"false\"",
        "aria-label=\"Snapshots of demo\" aria-expanded=\"true\"",
        "<div>demo@first</div>",
        "<div>why=&lt;test&gt;</div>",
        "aria-label=\"Attach demo@first\"",
        "aria-label=\"New snapshot of demo\"",
        "<option value=\"demo@first\">demo@first</option>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn the_page_shows_the_beginning_of_a_long_list_and_whatever_a_link_names() {
    let world = World::new();
    let server = world.serve("cache", &["--insecure", "api"]);
    for number in 0..205 {
        let body = format!(r#"{{"name":"v{number:03}","size_bytes":8388608}}"#);
        let created = ureq::post(format!("{}/v1/volumes", server.api))
            .header("content-type", "application/json")
            .send(body);
        assert_eq!(created.unwrap().status(), 201);
    }
    let Some(page) = rendered(&world, &server, "#snapshots=v204") else {
        return;
    };
    for part in [
        "<strong>v199</strong>",
        "<p id=\"more\" class=\"more\"><button type=\"button\">More volumes</button></p>",
        "aria-label=\"Snapshots of v204\" aria-expanded=\"true\"",
        "No snapshot yet.",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<strong>v200</strong>"), "{page}");
}
