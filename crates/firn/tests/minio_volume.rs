//! The shipped binary on a real S3 server: what was synced is read back from the bucket alone.

#![allow(clippy::unwrap_used)]

mod common;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{World, eventually, message};
use s3_testbed::{
    ForwardProxy, IdentityProvider, InstanceMetadata, Minio, MinioConfig, ROLE_ARN,
    make_certificates,
};

/// `None`, and says so, where there is no MinIO to start.
fn start_minio() -> Option<Minio> {
    Some(Minio::start(MinioConfig::from_environment()?).unwrap())
}

/// Content that differs from block to block.
fn pattern(seed: u8) -> Vec<u8> {
    (0..4 << 20)
        .map(|at: usize| seed ^ (at / 4096) as u8 ^ (at % 251) as u8)
        .collect()
}

#[test]
fn a_volume_in_a_bucket_survives_the_loss_of_the_cache() {
    let Some(minio) = start_minio() else { return };
    let url = minio.url();
    let world = World::new();
    let server = world.serve("cache", &["--store", &url, "--volume", "demo=64MiB"]);
    let mut client = server.connect("demo");
    for (at, seed) in [(0, 1), (8 << 20, 2), (60 << 20, 3)] {
        client.write(at, &pattern(seed)).unwrap();
    }
    drop(client);
    world.expect_success(&server, &["sync", "demo"]);
    assert!(server.stop().success());
    std::fs::remove_dir_all(world.path("cache")).unwrap();

    let server = world.serve("other", &["--store", &url, "--volume", "demo=64MiB"]);
    let mut client = server.connect("demo");
    for (at, seed) in [(0, 1), (8 << 20, 2), (60 << 20, 3)] {
        assert!(
            client.read(at, 4 << 20).unwrap() == pattern(seed),
            "at {at}"
        );
    }
    assert!(
        client
            .read(32 << 20, 4096)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn a_wrong_secret_or_bucket_is_refused_at_once_and_no_secret_is_shown() {
    let Some(minio) = start_minio() else { return };
    let url = minio.url();
    let world = World::new();
    let refused = |url: &str, secret: &str| {
        let output = world.run_with(
            &[
                "serve",
                "--store",
                url,
                "--cache",
                "c",
                "--api",
                "127.0.0.1:0",
            ],
            &[("AWS_SECRET_ACCESS_KEY", secret)],
        );
        assert_eq!(output.status.code(), Some(1), "{}", message(&output));
        assert!(!Path::new(&world.path("c")).join("log").exists());
        message(&output)
    };
    let said = refused(&url, "hunter2hunter2");
    assert!(said.contains("secret key is wrong"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    let said = refused(&url.replace("//firn/", "//none/"), "firn-secret");
    assert!(said.contains("create it"), "{said}");
    let said = refused("s3://KEY:hunter2@firn/x", "firn-secret");
    assert!(said.contains("must not hold credentials"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn doctor_measures_a_bucket_estimates_its_bill_and_leaves_nothing_behind() {
    let Some(minio) = start_minio() else { return };
    let world = World::new();
    let url = minio.url();
    let doctor = ["doctor", "--store", &url, "--measure", "400ms"];
    let output = world.run_with(&doctor, &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", message(&output));
    for words in ["conditional PUT works", "store speed", "an estimate"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let left = std::fs::read_dir(minio.data().join("firn")).unwrap();
    assert_eq!(left.count(), 0);
}

/// A MinIO with TLS that takes tokens of a provider, and what a server has in its environment to bring one; without
/// keys of its own.
fn start_minio_with_identities(
    world: &World,
    provider: &IdentityProvider,
) -> Option<(Minio, Vec<(&'static str, String)>)> {
    let mut config = MinioConfig::from_environment()?;
    config.environment = provider.settings();
    // The shortest that it gives.
    let duration = ("MINIO_STS_DURATION".to_owned(), "900s".to_owned());
    config.environment.push(duration);
    let with_certificates = |dir: &Path| make_certificates(dir).is_ok();
    let minio = Minio::start_with(config, with_certificates).unwrap();
    let environment = vec![
        (
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            world.path("token").display().to_string(),
        ),
        ("AWS_ROLE_ARN", ROLE_ARN.to_owned()),
        ("AWS_ENDPOINT_URL_STS", format!("https://{}", minio.address)),
        (
            "AWS_CA_BUNDLE",
            minio.dir.path().join("ca.pem").display().to_string(),
        ),
        ("HOME", world.path("").display().to_string()),
    ];
    Some((minio, environment))
}

#[test]
fn a_server_without_keys_uses_a_web_identity_also_through_a_proxy() {
    let (world, provider) = (World::new(), IdentityProvider::start().unwrap());
    let Some((minio, environment)) = start_minio_with_identities(&world, &provider) else {
        return;
    };
    let forward = ForwardProxy::start(minio.address).unwrap();
    std::fs::write(world.path("token"), provider.token().unwrap()).unwrap();
    let proxy = ("HTTPS_PROXY", format!("http://{}", forward.address));
    let named = [
        ("minio.test", vec![proxy]),
        (&minio.address.ip().to_string(), Vec::new()),
    ];
    for (round, (host, proxy)) in named.into_iter().enumerate() {
        let url = format!(
            "s3://firn/test?endpoint=https://{host}:{}",
            minio.address.port()
        );
        let args = ["--store", &url, "--volume", "demo=64MiB"];
        let server = world.serve_as(&format!("cache{round}"), &args, |command| {
            command.envs(environment.clone()).envs(proxy);
            command
                .env_remove("AWS_ACCESS_KEY_ID")
                .env_remove("AWS_SECRET_ACCESS_KEY");
        });
        let mut client = server.connect("demo");
        if round == 0 {
            client.write(0, &pattern(1)).unwrap();
            world.expect_success(&server, &["sync", "demo"]);
        }
        assert!(client.read(0, 4 << 20).unwrap() == pattern(1));
        drop(client);
        assert!(server.stop().success());
    }
    let asked = forward.asked();
    assert!(
        asked.iter().any(|name| name.starts_with("minio.test:")),
        "{asked:?}"
    );
}

/// The role is called as the bucket is: what the metadata service lacks is no object that the store lacks.
#[test]
fn keys_of_an_instance_change_while_the_server_runs_and_a_missing_role_is_no_missing_object() {
    let Some(minio) = start_minio() else { return };
    let world = World::new();
    let metadata = InstanceMetadata::start("firn").unwrap();
    metadata.set_keys(Some(("firn", "firn-secret")));
    let url = minio.url();
    let args = ["--store", &url, "--volume", "demo=64MiB", "--rpo", "200ms"];
    let server = world.serve_as("cache", &args, |command| {
        let endpoint = format!("http://{}", metadata.address);
        command.env("AWS_METADATA_ENDPOINT", endpoint);
        command.env("HOME", world.path(""));
        command
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY");
    });
    let log = || world.server_log();
    let mut client = server.connect("demo");
    client.write(0, &pattern(1)).unwrap();
    world.expect_success(&server, &["sync", "demo"]);
    for (seed, keys, words) in [
        (2, Some(("firn", "another")), "the secret key is wrong"),
        (3, None, "there are no credentials"),
    ] {
        metadata.set_keys(keys);
        client.write(0, &pattern(seed)).unwrap();
        eventually(words, || log().contains(words));
        metadata.set_keys(Some(("firn", "firn-secret")));
        world.expect_success(&server, &["sync", "demo"]);
    }
    assert!(metadata.given() > 3);
    assert!(!log().contains("is lost"), "{}", log());
    drop(client);
    assert!(server.stop().success());
    std::fs::remove_dir_all(world.path("cache")).unwrap();
    let server = world.serve("other", &["--store", &url, "--volume", "demo=64MiB"]);
    assert!(server.connect("demo").read(0, 4 << 20).unwrap() == pattern(3));
}

#[test]
fn a_web_identity_that_nobody_vouches_for_is_refused_and_not_shown() {
    let (world, provider) = (World::new(), IdentityProvider::start().unwrap());
    let Some((minio, environment)) = start_minio_with_identities(&world, &provider) else {
        return;
    };
    let stranger = IdentityProvider::start().unwrap();
    let token = stranger.token().unwrap();
    let url = format!("s3://firn/test?endpoint=https://{}", minio.address);
    for (content, words) in [(Some(&token), "verification error"), (None, "No such file")] {
        let _ = std::fs::remove_file(world.path("token"));
        if let Some(content) = content {
            std::fs::write(world.path("token"), content).unwrap();
        }
        let mut command = world.serve_command("c", &["--store", &url]);
        command.envs(environment.clone());
        command
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY");
        let output = command.output().unwrap();
        let said = message(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("AWS_WEB_IDENTITY_TOKEN_FILE"), "{said}");
        assert!(said.contains(words), "{said}");
        let signature = token.rsplit('.').next().unwrap();
        assert!(!said.contains(signature), "{said}");
    }
}

/// Two servers, of which one finds a token that nobody vouches for when its credentials are to be renewed.
#[test]
#[ignore = "credentials are good for fifteen minutes; docs/stores.md has the command"]
fn credentials_of_a_web_identity_are_renewed_before_they_expire_or_the_log_says_what_refuses() {
    let (world, provider) = (World::new(), IdentityProvider::start().unwrap());
    let Some((minio, environment)) = start_minio_with_identities(&world, &provider) else {
        return;
    };
    let token = provider.token().unwrap();
    let strange = IdentityProvider::start().unwrap().token().unwrap();
    let serve = |name: &str| {
        let file = world.path(&format!("{name}.token"));
        std::fs::write(&file, &token).unwrap();
        let url = format!("s3://firn/{name}?endpoint=https://{}", minio.address);
        let flags = [
            "--store",
            &url,
            "--volume",
            &format!("{name}=64MiB"),
            "--rpo",
            "1s",
        ];
        world.serve_as(name, &flags, |command| {
            command
                .envs(environment.clone())
                .env("AWS_WEB_IDENTITY_TOKEN_FILE", file)
                .env_remove("AWS_ACCESS_KEY_ID")
                .env_remove("AWS_SECRET_ACCESS_KEY");
        })
    };
    let log = |name: &str| std::fs::read_to_string(world.path(&format!("{name}.stderr"))).unwrap();
    let servers = ["renewed", "refused"].map(|name| (name, serve(name)));
    let mut clients = servers
        .each_ref()
        .map(|(name, server)| server.connect(name));
    for (name, server) in &servers {
        world.expect_success(server, &["sync", name]);
    }
    std::fs::write(world.path("refused.token"), &strange).unwrap();
    let began = Instant::now();
    let (mut seed, mut refused_after) = (0, None);
    while began.elapsed() < Duration::from_secs(17 * 60) {
        seed = seed % 250 + 1;
        for client in &mut clients {
            client.write(0, &pattern(seed)[..64 << 10]).unwrap();
        }
        if refused_after.is_none() && log("refused").contains("verification error") {
            refused_after = Some(began.elapsed());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    println!("the other's token was refused after {refused_after:?}");
    assert!(refused_after.is_some(), "{}", log("refused"));
    assert!(!log("renewed").contains("degraded"), "{}", log("renewed"));

    std::fs::write(world.path("refused.token"), &token).unwrap();
    for (name, server) in &servers {
        world.expect_success(server, &["sync", name]);
        let shown = log(name);
        for token in [&token, &strange] {
            assert!(!shown.contains(token.rsplit('.').next().unwrap()));
        }
    }
    drop(clients);
    for (name, server) in servers {
        assert!(server.stop().success(), "{name}");
        let url = format!("s3://firn/{name}?endpoint=https://{}", minio.address);
        let volume = format!("{name}=64MiB");
        let flags = ["--store", &url, "--volume", &volume];
        let server = world.serve_as(&format!("{name} again"), &flags, |command| {
            command.env("AWS_CA_BUNDLE", minio.dir.path().join("ca.pem"));
        });
        let found = server.connect(name).read(0, 64 << 10).unwrap();
        assert!(found == pattern(seed)[..64 << 10]);
    }
}
