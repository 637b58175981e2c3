//! Lists of volumes, snapshots and the trash: told in parts, walked by the command line, printed as they come.

use serde_json::{Value, json};

use crate::common::{Server, World, message};

/// In order; in the order of keys of the store `a-1` would stand before `a`.
const NAMES: [&str; 5] = ["a", "a-1", "b", "c", "d"];

fn get(server: &Server, path: &str) -> Value {
    let (status, text) = server.get(path);
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

fn names(list: &Value, what: &str) -> Vec<String> {
    let entries = list[what].as_array().unwrap().iter();
    entries
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

fn with_volumes(world: &World) -> Server {
    let server = world.serve("cache", &[]);
    for name in ["d", "a-1", "c", "a", "b"] {
        world.expect_success(&server, &["volume", "create", name, "--size", "8MiB"]);
    }
    server
}

#[test]
fn parts_of_two_show_each_of_five_volumes_once_and_in_order_whatever_comes_and_goes() {
    let world = World::new();
    let server = with_volumes(&world);
    let walk = |between: &dyn Fn(usize)| {
        let (mut found, mut path, mut parts) = (Vec::new(), "/v1/volumes?limit=2".to_owned(), 0);
        loop {
            let part = get(&server, &path);
            let listed = names(&part, "volumes");
            assert!(listed.len() <= 2, "{part}");
            found.extend(listed);
            parts += 1;
            between(parts);
            match part["next"].as_str() {
                Some(next) => path = format!("/v1/volumes?limit=2&after={next}"),
                None => return found,
            }
        }
    };
    assert_eq!(walk(&|_| ()), NAMES);
    let between = |parts| {
        if parts == 1 {
            world.expect_success(&server, &["volume", "delete", "a-1"]);
            world.expect_success(&server, &["volume", "delete", "c"]);
            world.expect_success(&server, &["volume", "create", "b2", "--size", "8MiB"]);
        }
    };
    assert_eq!(walk(&between), ["a", "a-1", "b", "b2", "d"]);
    let last = get(&server, "/v1/volumes?after=b2");
    assert_eq!(
        (names(&last, "volumes"), &last["next"]),
        (vec!["d".to_owned()], &Value::Null)
    );
}

#[test]
fn a_part_that_cannot_be_is_refused_with_what_a_part_is() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    for list in ["/v1/volumes", "/v1/volumes/demo/snapshots", "/v1/trash"] {
        for limit in ["0", "1001", "-1", "all", ""] {
            let (status, said) = server.get(&format!("{list}?limit={limit}"));
            assert_eq!(status, 400, "{list} {limit}: {said}");
            assert!(said.contains("1 to 1000 entries"), "{list} {limit}: {said}");
        }
        for wrong in ["after=..%2Fx", "page=2"] {
            let (status, said) = server.get(&format!("{list}?{wrong}"));
            assert_eq!(status, 400, "{list} {wrong}: {said}");
            assert!(said.contains("\"invalid\""), "{said}");
        }
    }
    for command in [
        &["volume", "list"][..],
        &["snapshot", "list", "demo"],
        &["trash", "list"],
    ] {
        let output = world.run(&server, &[command, &["--limit", "0"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    }
}

#[test]
fn a_list_is_printed_as_far_as_it_is_asked_for_and_says_where_it_goes_on() {
    let world = World::new();
    let server = with_volumes(&world);
    let print = |args: &[&str]| {
        let output = world.run(&server, args);
        assert!(output.status.success(), "{}", message(&output));
        (
            String::from_utf8(output.stdout.clone()).unwrap(),
            message(&output),
        )
    };
    let first_words = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(1);
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(first_words(&print(&["volume", "list"]).0), NAMES);
    let (some, said) = print(&["volume", "list", "--after", "a", "--limit", "2"]);
    assert_eq!(first_words(&some), ["a-1", "b"]);
    assert_eq!(said, "firn: there are more: --after b\n");
    let (rest, said) = print(&["volume", "list", "--after", "b", "--limit", "2"]);
    assert_eq!(
        (first_words(&rest), said),
        (vec!["c".into(), "d".into()], String::new())
    );
    let (document, _) = print(&["volume", "list", "--limit", "1", "--json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        (names(&document, "volumes"), &document["next"]),
        (vec!["a".into()], &json!("a"))
    );

    for snapshot in ["b@two", "b@one", "b@three"] {
        world.expect_success(&server, &["snapshot", "create", snapshot]);
    }
    assert_eq!(
        first_words(&print(&["snapshot", "list", "b"]).0),
        ["b@one", "b@three", "b@two"]
    );
    for after in ["one", "b@one"] {
        let (some, said) = print(&["snapshot", "list", "b", "--after", after, "--limit", "1"]);
        assert_eq!(first_words(&some), ["b@three"]);
        assert_eq!(said, "firn: there are more: --after b@three\n");
    }
    let empty = print(&["snapshot", "list", "a", "--json"]).0;
    assert_eq!(empty, "{\n  \"snapshots\": []\n}\n");
    let said = world.expect_failure(&server, &["snapshot", "list", "none", "--json"]);
    assert!(said.contains("no volume named none"), "{said}");

    for name in ["c", "a"] {
        world.expect_success(&server, &["volume", "delete", name]);
    }
    world.expect_success(&server, &["volume", "create", "a", "--size", "8MiB"]);
    let (some, said) = print(&["trash", "list", "--limit", "1"]);
    assert_eq!(
        first_words(&some),
        ["c"],
        "whose name another took stands behind"
    );
    let after = said.trim().rsplit(' ').next().unwrap();
    let (rest, said) = print(&["trash", "list", "--after", after]);
    assert_eq!(
        (first_words(&rest), said),
        (vec!["a".into()], String::new())
    );
    world.expect_success(&server, &["trash", "empty"]);
    assert_eq!(first_words(&print(&["trash", "list"]).0), [""; 0]);
}

#[test]
fn a_list_of_more_than_a_part_is_printed_whole() {
    let world = World::new();
    let server = world.serve("cache", &[]);
    let numbers = (0..1_005).map(|number| format!("v{number:04}"));
    let made: Vec<String> = numbers.chain(["zebra".to_owned()]).collect();
    std::thread::scope(|scope| {
        for names in made.chunks(made.len().div_ceil(8)) {
            let server = &server;
            scope.spawn(move || {
                for name in names {
                    let body = json!({"name": name, "size_bytes": 8 << 20}).to_string();
                    let created = ureq::post(format!("{}/v1/volumes", server.api))
                        .header("authorization", format!("Bearer {}", server.token))
                        .header("content-type", "application/json")
                        .send(body);
                    assert_eq!(created.unwrap().status(), 201);
                }
            });
        }
    });
    assert_eq!(get(&server, "/v1/volumes")["next"], "v0999");
    assert_eq!(world.volume_names(&server), made);
    let table = world.expect_success(&server, &["volume", "list"]);
    assert_eq!(table.lines().count(), made.len() + 1);
    // A name that is not there is looked for further down, too.
    let said = world.expect_failure(&server, &["volume", "show", "zbera"]);
    assert!(said.contains("did you mean zebra?"), "{said}");
}
