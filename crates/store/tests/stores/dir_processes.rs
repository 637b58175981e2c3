//! The directory store among several processes, some of which are killed.
//!
//! The test binary starts itself: [`child`] is the children's entry point and does nothing unless
//! its environment says what to do.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{DirStore, Kind, Store};

const ROLE: &str = "FIRN_STORE_TEST_ROLE";
const DIR: &str = "FIRN_STORE_TEST_DIR";
const NAME: &str = "FIRN_STORE_TEST_NAME";
const DEADLINE: Duration = Duration::from_secs(30);

/// A child that is killed when the test ends, however it ends.
struct Helper(Child);

impl Helper {
    fn start(role: &str, dir: &Path, name: &str) -> Helper {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dir_processes::child", "--nocapture"])
            .env(ROLE, role)
            .env(DIR, dir)
            .env(NAME, name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Helper(child)
    }

    /// The lines that the child prints for its parent.
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let output = BufReader::new(self.0.stdout.take().unwrap());
        // The test harness prints on the same line as the first of ours.
        output
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("child: ").map(|(_, text)| text.to_owned()))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let dir = std::env::var(DIR).unwrap();
    let name = std::env::var(NAME).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = DirStore::open(Path::new(&dir)).unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "race" => race(&store, &name).await,
            "write" => write_forever(&store).await,
            "fill" => fill(&store).await,
            other => panic!("unknown role {other}"),
        }
    });
}

const ROUNDS: u32 = 60;
const RACERS: usize = 4;

/// Increments the counter `n` whenever it can until it has reached [`ROUNDS`], and says which
/// increments it won. All contents name the winner.
async fn race(store: &DirStore, name: &str) {
    store
        .put(&format!("ready/{name}"), Bytes::new())
        .await
        .unwrap();
    let deadline = Instant::now() + DEADLINE;
    while store.list("ready/").await.unwrap().len() < RACERS {
        assert!(Instant::now() < deadline, "the other racers did not start");
        tokio::task::yield_now().await;
    }
    loop {
        let (content, version) = store.get("n").await.unwrap();
        let text = String::from_utf8(content.to_vec()).unwrap();
        let n: u32 = text.split(' ').next().unwrap().parse().unwrap();
        if n == ROUNDS {
            return;
        }
        match store
            .update("n", format!("{} {name}", n + 1).into(), &version)
            .await
        {
            Ok(_) => println!("child: {}", n + 1),
            Err(error) => assert_eq!(error.kind(), Kind::PreconditionFailed),
        }
    }
}

#[test]
fn of_racing_processes_exactly_one_wins_each_round() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = DirStore::open(&root).unwrap();
    runtime
        .block_on(store.create("n", Bytes::from("0 nobody")))
        .unwrap();

    let mut helpers: Vec<Helper> = (0..4)
        .map(|n| Helper::start("race", &root, &format!("racer{n}")))
        .collect();
    let mut won: Vec<u32> = Vec::new();
    let mut winners = 0;
    for helper in &mut helpers {
        let wins: Vec<u32> = helper.lines().map(|line| line.parse().unwrap()).collect();
        winners += usize::from(!wins.is_empty());
        won.extend(wins);
        assert!(helper.0.wait().unwrap().success());
    }
    won.sort_unstable();
    assert_eq!(
        won,
        (1..=ROUNDS).collect::<Vec<_>>(),
        "each increment was won exactly once"
    );
    assert!(winners > 1, "the processes did race");
}

const CONTENT: usize = 200_000;

/// A content that says which one it is in every byte's place.
fn content(n: u64) -> Bytes {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..CONTENT).map(|at| (n as usize).wrapping_mul(31).wrapping_add(at) as u8));
    bytes.into()
}

/// Updates `n` for ever, and after each success says so.
async fn write_forever(store: &DirStore) {
    let (bytes, mut version) = store.get("n").await.unwrap();
    let mut n = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    loop {
        n += 1;
        version = store.update("n", content(n), &version).await.unwrap();
        store
            .put(&format!("packs/{}", n % 4), content(n))
            .await
            .unwrap();
        println!("child: {n}");
    }
}

#[test]
fn a_killed_writer_leaves_old_or_new_content_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = DirStore::open(&root).unwrap();
    runtime.block_on(store.create("n", content(0))).unwrap();
    let mut leftovers = 0;
    let deadline = Instant::now() + DEADLINE;
    // Until some rounds did meet a writer with a file in its hands: it has none only in between.
    for round in 0_u64.. {
        if round >= 12 && leftovers >= 3 {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "no round was killed in the middle of a write"
        );
        let mut helper = Helper::start("write", &root, "writer");
        let mut lines = helper.lines();
        let mut acknowledged: u64 = lines.next().expect("it writes").parse().unwrap();
        // A different moment of its work each round, without a clock in the verdict.
        std::thread::sleep(Duration::from_micros(731 * (round % 12)));
        helper.0.kill().unwrap();
        helper.0.wait().unwrap();
        acknowledged = lines
            .map(|line| line.parse().unwrap())
            .last()
            .unwrap_or(acknowledged);

        let (bytes, _) = runtime.block_on(store.get("n")).unwrap();
        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, content(found), "content {found} is whole");
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "{found} {acknowledged}"
        );
        for (key, _) in runtime.block_on(store.list("packs/")).unwrap() {
            let (bytes, _) = runtime.block_on(store.get(&key)).unwrap();
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, content(found), "{key} is whole");
        }
        let tmp = root.join(".firn-store/tmp");
        leftovers += std::fs::read_dir(&tmp).unwrap().count();
        let _ = DirStore::open(&root).unwrap();
        assert_eq!(
            std::fs::read_dir(&tmp).unwrap().count(),
            0,
            "leftovers are removed"
        );
    }
    assert!(
        leftovers > 0,
        "no round was killed in the middle of a write"
    );
}

#[test]
fn opening_a_store_leaves_the_temporary_files_of_the_living_alone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = DirStore::open(&root).unwrap();
    runtime.block_on(store.create("n", content(0))).unwrap();
    let mut helper = Helper::start("write", &root, "writer");
    let mut lines = helper.lines();
    let deadline = Instant::now() + DEADLINE;
    // The writer panics, and so stops printing, if a cleaner takes its file away.
    for _ in 0..20 {
        DirStore::open(&root).unwrap();
        assert!(lines.next().is_some() && Instant::now() < deadline);
    }
}

/// Writes until the file system is full, then checks what the error says and what remains.
async fn fill(store: &DirStore) {
    store.create("root", Bytes::from("precious")).await.unwrap();
    let mut written = 0_u64;
    let error = loop {
        match store
            .put(&format!("packs/{written}"), vec![7; 65_536].into())
            .await
        {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the file system should be full by now");
    };
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(
        error
            .to_string()
            .contains("file system is full; free space"),
        "{error}"
    );
    assert_eq!(store.list("packs/").await.unwrap().len() as u64, written);
    assert_eq!(store.get("root").await.unwrap().0, Bytes::from("precious"));
    store.delete("packs/0").await.unwrap();
    store
        .put("packs/again", vec![7; 65_536].into())
        .await
        .unwrap();
    println!("child: full");
}

#[test]
fn a_full_file_system_is_a_clear_error_that_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$0" || exit 99; exec "$1" --exact dir_processes::child --nocapture"#;
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, "fill")
        .env(DIR, dir.path().join("store"))
        .env(NAME, "filler")
        .output();
    match output {
        Err(error) => println!("skipped: unshare(1) is not here: {error}"),
        Ok(output) if output.status.code() == Some(99) || output.stdout.is_empty() => {
            println!(
                "skipped: no private mount here: {}",
                output.stderr.escape_ascii()
            );
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("child: full"),
                "{text}"
            );
        }
    }
}
