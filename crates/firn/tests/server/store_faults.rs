//! A real server over a store that fails as planned: what is told, and what comes back by itself.

use std::fs;

use crate::common::{Server, World, eventually, message};

#[test]
fn planned_store_faults_are_loud_counted_and_never_there_unasked() {
    let world = World::new();
    let help = String::from_utf8(world.firn(&["serve", "--help"]).stdout).unwrap();
    assert!(!help.contains("planned"), "{help}");
    fs::write(
        world.path("firn.toml"),
        "planned-store-faults = \"refuse=1\"",
    )
    .unwrap();
    let output = world.firn(&["serve", "--config", "firn.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    let metrics = |server: &Server| server.get("/metrics").1;
    let server = world.serve("cache", &[]);
    assert!(!metrics(&server).contains("planned"));
    drop(server);
    let plan = "seed=1,refuse=200,lose-answer=200,delay=1000,delay-max=1ms";
    let server = world.serve("cache", &["--planned-store-faults", plan]);
    for name in 0..8 {
        // Some are refused and some answers are lost: that is the plan.
        let name = format!("v{name}");
        world.run(&server, &["volume", "create", &name, "--size", "1MiB"]);
    }
    let counted = metrics(&server);
    for kind in ["refused", "lost_answer", "delayed"] {
        let none = format!("firn_planned_store_faults_total{{kind=\"{kind}\"}} 0\n");
        assert!(
            counted.contains(kind) && !counted.contains(&none),
            "{counted}"
        );
    }
    let said = world.server_log();
    assert!(said.contains("STORE FAULTS ARE PLANNED"), "{said}");
}

#[test]
fn a_volume_is_served_however_many_requests_are_lost_while_the_server_comes_up() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 4096]).unwrap();
    server.kill();
    let plan = "seed=3,lose-request=600";
    let server = world.serve("cache", &["--planned-store-faults", plan]);
    eventually("the opening", || {
        world.show(&server, "demo")["state"] == "open"
    });
    let mut client = server.connect("demo");
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
}

/// Far enough apart that nothing is read ahead, each in a chunk of its own.
const STRIDE: u64 = 1 << 20;
const ROUNDS: u64 = 16;

#[test]
fn a_write_that_lands_while_its_neighbours_are_fetched_is_what_is_read() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=16MiB"]);
    let mut client = server.connect("demo");
    for round in 0..ROUNDS {
        client.write(round * STRIDE, &vec![1; 65536]).unwrap();
    }
    drop(client);
    world.expect_success(&server, &["detach", "demo"]);
    server.kill();
    // On a host that has nothing of it, and waits for the store.
    let plan = "seed=1,delay=1000,delay-max=200ms";
    let server = world.serve("cold", &["--planned-store-faults", plan]);
    world.expect_success(&server, &["attach", "demo", "--transport", "nbd"]);
    let (mut reader, mut writer) = (server.connect("demo"), server.connect("demo"));
    for round in 0..ROUNDS {
        let at = round * STRIDE;
        std::thread::scope(|scope| {
            let cold = scope.spawn(|| reader.read(at, 4096).unwrap());
            writer.write(at + 8192, &[2; 4096]).unwrap();
            assert_eq!(cold.join().unwrap(), [1; 4096]);
        });
        let found = writer.read(at + 4096, 12288).unwrap();
        let blocks: Vec<u8> = found.chunks(4096).map(|block| block[0]).collect();
        assert_eq!(blocks, [1, 2, 1], "block by block in round {round}");
    }
}
