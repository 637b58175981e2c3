//! The steps, in order of cost, each with its bound.

use std::process::Command;
use std::time::Duration;

use super::count::Counts;
use super::step::{Kind, Output, Step, test_programs};
use super::{guest, packages};
use crate::{fuzz, minio, models, package, process, sim, tidy, workspace};

/// Test programs of the binary that drive whole servers.
const END_TO_END: &str = "crates/firn/tests";
/// End-to-end tests with a step of their own.
const ROUNDS: [&str; 2] = ["kill_rounds", "ext4"];
/// Asks a server that somebody names by hand (docs/stores.md): no step has one.
const NAMED_SERVER: &str = "server_contract";

/// All steps. What is built for the tests comes first, so that the background has work beside the
/// long builds of the others.
pub(super) fn all() -> Vec<Step> {
    let mut steps = fast_steps();
    steps.push(minio_build_step());
    steps.extend(test_steps());
    steps.push(minio_step());
    steps.push(guest::step());
    steps.push(soak_step());
    steps.push(package_step());
    steps.extend(round_steps());
    steps.extend(source_steps());
    steps.push(fuzz_step());
    steps.extend(proof_steps());
    steps.extend(simulator_steps());
    steps
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn fast_steps() -> Vec<Step> {
    vec![
        Step {
            name: "packages",
            what: "programs that tests need, from Debian where they may be installed",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(10),
            run: Box::new(|_| Kind::Inside(packages::install_missing())),
        },
        Step {
            name: "tidy",
            what: "the house rules that a compiler does not know",
            quick: true,
            background: false,
            output: Output::All,
            limit: minutes(1),
            run: Box::new(|_| Kind::Inside(tidy_counts())),
        },
        Step {
            name: "fmt",
            what: "formatting",
            quick: true,
            background: false,
            output: Output::All,
            limit: minutes(2),
            run: Box::new(|_| Kind::Commands(vec![workspace::cargo(["fmt", "--all", "--check"])])),
        },
    ]
}

fn test_steps() -> Vec<Step> {
    vec![
        Step {
            name: "tests",
            what: "unit tests, and tests of each room on its own",
            quick: true,
            background: false,
            output: Output::Tests,
            limit: minutes(25),
            run: Box::new(|_| Kind::Commands(vec![crate_tests()])),
        },
        Step {
            name: "e2e",
            what: "the shipped binary: bad input, HTTP, foreign clients, crash, loss, take-over",
            quick: false,
            background: false,
            output: Output::Tests,
            limit: minutes(10),
            run: Box::new(|_| {
                let mut names = test_programs(&workspace::root().join(END_TO_END));
                names.retain(|name| {
                    !ROUNDS.contains(&name.as_str())
                        && !name.starts_with(guest::PREFIX)
                        && !name.starts_with(minio::TESTS)
                });
                Kind::Commands(vec![end_to_end(&names, 1)])
            }),
        },
    ]
}

/// Begins before everything that is compiled here, and takes only the processor time that this leaves: tests that
/// wait leave much.
fn minio_build_step() -> Step {
    Step {
        name: "minio-build",
        what: "MinIO from its source, where it is missing",
        quick: false,
        background: true,
        output: Output::All,
        limit: minutes(40),
        run: Box::new(|_| match std::env::current_exe() {
            Ok(myself) if minio::is_available() => {
                let mut build = Command::new("nice");
                build.args(["-n", "19"]).arg(myself).arg("minio");
                Kind::Commands(vec![build])
            }
            // The step `minio` says what is missing.
            _ => Kind::Inside(Counts::default()),
        }),
    }
}

fn minio_step() -> Step {
    Step {
        name: "minio",
        what: "the store and the binary on MinIO, a real S3 server",
        quick: false,
        background: true,
        output: Output::Tests,
        limit: minutes(25),
        run: Box::new(|_| {
            if !minio::is_available() {
                return Kind::Inside(Counts {
                    skipped: vec!["tests with MinIO: go is not installed".to_owned()],
                    ..Counts::default()
                });
            }
            let mut tests = workspace_tests();
            tests.args(["--test", "minio", "--test", "minio_volume"]);
            tests.args(["--test", "minio_outages"]);
            tests.args(["--", "--show-output"]);
            minio::set_environment(&mut tests);
            Kind::Commands(vec![tests])
        }),
    }
}

fn round_steps() -> Vec<Step> {
    vec![
        Step {
            name: "e2e-kill",
            what: "50 rounds of kill -9 under load: every acknowledgement is found",
            quick: false,
            background: true,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| {
                Kind::Commands(vec![end_to_end(&[ROUNDS[0].into()], 50 * times)])
            }),
        },
        Step {
            name: "e2e-ext4",
            what: "50 rounds of kill -9 below a mounted ext4: journal replay and e2fsck",
            quick: false,
            background: true,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| {
                Kind::Commands(vec![end_to_end(&[ROUNDS[1].into()], 50 * times)])
            }),
        },
    ]
}

/// What is said of the sources without running them, and the examples in them.
fn source_steps() -> Vec<Step> {
    vec![
        Step {
            name: "clippy",
            what: "lints of all targets, warnings are errors",
            quick: true,
            background: false,
            output: Output::All,
            limit: minutes(15),
            run: Box::new(|_| {
                let mut clippy = workspace::cargo(["clippy", "--quiet", "--workspace"]);
                clippy.args(["--all-targets", "--", "-D", "warnings"]);
                Kind::Commands(vec![clippy])
            }),
        },
        Step {
            name: "rustdoc",
            what: "the documentation of all crates, warnings are errors",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(10),
            run: Box::new(|_| {
                let mut rustdoc = workspace::cargo(["doc", "--quiet", "--workspace", "--no-deps"]);
                rustdoc.env("RUSTDOCFLAGS", "-D warnings");
                Kind::Commands(vec![rustdoc])
            }),
        },
        Step {
            name: "doc",
            what: "examples in the documentation",
            quick: true,
            background: false,
            output: Output::Tests,
            limit: minutes(10),
            run: Box::new(|_| {
                let mut doc = workspace::cargo_for_tests("test");
                doc.args(["--doc", "--no-fail-fast", "--", "--show-output"]);
                Kind::Commands(vec![doc])
            }),
        },
    ]
}

fn soak_step() -> Step {
    Step {
        name: "soak",
        what: "four disks in use for ten seconds in a guest: store faults, kill -9, every read judged",
        quick: false,
        background: true,
        output: Output::GuestStatus,
        limit: minutes(15),
        run: Box::new(|times| {
            let mut build = workspace::cargo_for_tests("build");
            build.args(["--quiet", "--bin", "firn"]);
            let program = workspace::target().join("debug/firn");
            let soak = std::env::current_exe().map(|myself| {
                let mut soak = Command::new(myself);
                soak.args(["soak", "--kernel", "recent", "--devices", "4"]);
                soak.args(["--seconds", &(10 * times).to_string()]);
                soak.args(["--rate", "1", "--span", "8", "--program"])
                    .arg(program);
                soak
            });
            match soak {
                Ok(soak) => Kind::Commands(vec![build, soak]),
                Err(error) => Kind::Inside(Counts {
                    failed: vec![format!("soak: {error}")],
                    ..Counts::default()
                }),
            }
        }),
    }
}

fn package_step() -> Step {
    Step {
        name: "package",
        what: "the Debian package under a systemd of its own: installed, killed, upgraded, purged",
        quick: false,
        background: true,
        output: Output::All,
        limit: minutes(6),
        run: Box::new(|_| {
            let skipped = |why: &str| {
                Kind::Inside(Counts {
                    skipped: vec![format!("the package's trial: {why}")],
                    ..Counts::default()
                })
            };
            if let Some(why) = package::missing_for_trial() {
                return skipped(why);
            }
            let Ok(myself) = std::env::current_exe() else {
                return skipped("this program does not know its own path");
            };
            let mut build = workspace::cargo_for_tests("build");
            build.args(["--quiet", "--bin", "firn"]);
            let mut package = Command::new(myself);
            package.args(["package", "--trial", "--program"]);
            package.arg(workspace::target().join("debug/firn"));
            Kind::Commands(vec![build, package])
        }),
    }
}

fn fuzz_step() -> Step {
    Step {
        name: "fuzz",
        what: "every decoder for some seconds, from the committed seeds",
        quick: false,
        background: true,
        output: Output::Log,
        limit: minutes(20),
        run: Box::new(|times| fuzz_commands(5 * times)),
    }
}

fn proof_steps() -> Vec<Step> {
    vec![
        Step {
            name: "blkmq",
            what: "the multi-queue core: ten million random steps, shuttle, loom, planted bugs",
            quick: false,
            background: false,
            output: Output::Tests,
            limit: minutes(20),
            run: Box::new(|times| model_commands("blkmq", times)),
        },
        Step {
            name: "engine-models",
            what: "threads inside one host under shuttle: group commit, segments, waiters; planted bugs",
            quick: false,
            background: false,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| model_commands("volume", times)),
        },
        Step {
            name: "messenger",
            what: "sessions on a simulated bad network; the out-queue under loom",
            quick: false,
            background: false,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| model_commands("messenger", 20_000 * times)),
        },
    ]
}

fn simulator_steps() -> Vec<Step> {
    vec![
        Step {
            name: "sim-seeds",
            what: "simulated worlds: crashes, torn writes, store faults; every fault kind fires",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(30),
            // Bounded by a count too: what is judged must not depend on how fast the machine is.
            run: Box::new(|times| {
                let (seconds, seeds) = ((60 * times).to_string(), (5000 * times).to_string());
                simulator(&["--seconds", &seconds, "--seeds", &seeds])
            }),
        },
        Step {
            name: "sim-exhaustive",
            what: "all small workloads with a crash after every event; short schedules",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(30),
            run: Box::new(|times| {
                simulator(&["--exhaustive", "--seconds", &(60 * times).to_string()])
            }),
        },
        Step {
            name: "sim-protocol",
            what: "the model of the store protocol: every small world, every rule taken out, walks",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(10),
            // Bounded by a count, as the seeds above; the time is for a machine that hangs.
            run: Box::new(|times| {
                let (seconds, walks) = ((480 * times).to_string(), (250_000 * times).to_string());
                simulator(&["--protocol", "--seconds", &seconds, "--seeds", &walks])
            }),
        },
        Step {
            name: "sim-canaries",
            what: "each planted bug is caught",
            quick: false,
            background: false,
            output: Output::All,
            limit: minutes(30),
            run: Box::new(|times| {
                simulator(&["--canaries", "--seconds", &(120 * times).to_string()])
            }),
        },
    ]
}

fn tidy_counts() -> Counts {
    let mut counts = Counts::default();
    for (rule, broken) in tidy::check() {
        if broken.is_empty() {
            counts.passed += 1;
        }
        for place in broken {
            println!("{rule}: {place}");
            counts.failed.push(format!("tidy: {rule}: {place}"));
        }
    }
    counts
}

fn workspace_tests() -> Command {
    let mut tests = workspace::cargo_for_tests("test");
    tests.arg("--no-fail-fast");
    tests
}

fn crate_tests() -> Command {
    let mut command = workspace_tests();
    command.args(["--lib", "--bins"]);
    let rooms = std::fs::read_dir(workspace::root().join("crates"));
    let mut directories: Vec<_> = rooms
        .into_iter()
        .flatten()
        .flatten()
        .map(|room| room.path().join("tests"))
        .collect();
    directories.push(workspace::root().join("sim/tests"));
    directories.retain(|directory| !directory.ends_with(END_TO_END));
    directories.sort();
    for name in directories
        .iter()
        .flat_map(|directory| test_programs(directory))
        .filter(|name| !name.starts_with(guest::PREFIX) && !name.starts_with(minio::TESTS))
        .filter(|name| name != NAMED_SERVER)
    {
        command.args(["--test", &name]);
    }
    command.args(["--", "--show-output"]);
    command
}

fn end_to_end(names: &[String], rounds: u64) -> Command {
    let mut command = workspace_tests();
    for name in names {
        command.args(["--test", name]);
    }
    command.args(["--", "--show-output"]);
    if rounds > 1 {
        command.env("FIRN_KILL_ROUNDS", rounds.to_string());
    }
    command
}

fn model_commands(package: &str, messenger_seeds: u64) -> Kind {
    let models = models::models(&models::Arguments {
        messenger_seeds,
        ..models::Arguments::default()
    });
    let ours = models.into_iter().filter(|model| model.package == package);
    let with_output = ours.map(|model| {
        let mut command = model.command;
        command.args(["--", "--show-output"]);
        command
    });
    Kind::Commands(with_output.collect())
}

fn simulator(arguments: &[&str]) -> Kind {
    let arguments: Vec<_> = arguments.iter().map(Into::into).collect();
    Kind::Commands(vec![sim::command(&arguments)])
}

/// The targets are built here, and only run by the step's commands.
fn fuzz_commands(seconds: u64) -> Kind {
    let fuzz = || {
        process::run(&mut fuzz::build_command())?;
        let targets = fuzz::targets()?;
        let commands = targets.iter().map(|target| fuzz::command(target, seconds));
        commands.collect::<Result<Vec<_>, crate::Failure>>()
    };
    match fuzz() {
        Ok(commands) => Kind::Commands(commands),
        Err(error) => Kind::Inside(Counts {
            failed: vec![format!("fuzz: {error}")],
            ..Counts::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_own_tests_run_without_those_that_need_a_server() {
        let command = crate_tests();
        let names: Vec<_> = command
            .get_args()
            .filter_map(|name| name.to_str())
            .collect();
        assert!(names.contains(&"probe"), "{names:?}");
        for absent in ["minio", NAMED_SERVER] {
            let program = workspace::root().join(format!("crates/store/tests/{absent}.rs"));
            assert!(program.is_file(), "{absent} has another name now");
            assert!(!names.contains(&absent), "{names:?}");
        }
    }
}
