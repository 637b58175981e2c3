//! The steps, in order of cost, each with its bound.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::count::Counts;
use super::step::{Kind, Lane, Output, Step, test_programs};
use super::{aarch64, guest, packages, programs};
use crate::{fuzz, minio, models, package, process, sim, stores, tidy, workspace};

/// Test programs of the binary that drive whole servers.
const END_TO_END: &str = "crates/firn/tests";
/// End-to-end tests with a step of their own.
const ROUNDS: [&str; 2] = ["kill_rounds", "ext4"];

/// All steps. First the builds that nothing waits for, then what is built for the tests, so that all lanes
/// have work beside what cargo does in front.
fn all_of() -> Vec<Vec<Step>> {
    vec![
        fast_steps(),
        build_steps(),
        test_steps(),
        vec![guest::step(), soak_step(), package_step()],
        round_steps(),
        vec![minio_step(), fuzz_step()],
        source_steps(),
        proof_steps(),
        simulator_steps(),
        aarch64::step().into_iter().collect(),
    ]
}

/// All steps, in order.
pub(super) fn all() -> Vec<Step> {
    all_of().into_iter().flatten().collect()
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
            lane: Lane::Front,
            after: None,
            output: Output::All,
            limit: minutes(10),
            run: Box::new(|_| Kind::Inside(packages::install_missing())),
        },
        Step {
            name: "tidy",
            what: "the house rules that a compiler does not know",
            quick: true,
            lane: Lane::Front,
            after: None,
            output: Output::All,
            limit: minutes(1),
            run: Box::new(|_| Kind::Inside(tidy_counts())),
        },
        Step {
            name: "fmt",
            what: "formatting",
            quick: true,
            lane: Lane::Front,
            after: None,
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
            lane: Lane::Programs,
            after: None,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|_| {
                let names = crate_tests();
                let tests = names.iter().flat_map(|name| ["--test", name.as_str()]);
                let arguments = ["--lib", "--bins"].into_iter().chain(tests);
                let programs = programs::build_programs(arguments);
                let command = programs.map(|programs| vec![programs::run_command(&programs)]);
                Kind::from_commands("tests", command)
            }),
        },
        Step {
            name: "e2e",
            what: "the shipped binary: bad input, HTTP, foreign clients, crash, loss, take-over",
            quick: false,
            lane: Lane::Programs,
            after: None,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|_| {
                let mut names = test_programs(&workspace::root().join(END_TO_END));
                names.retain(|name| {
                    !ROUNDS.contains(&name.as_str())
                        && !name.starts_with(guest::PREFIX)
                        && !name.starts_with(minio::TESTS)
                        && !stores::asks_named_store(name)
                });
                run_tests("e2e", &names, |_| {})
            }),
        },
    ]
}

/// What is built beside everything else. The first takes long where it is missing.
fn build_steps() -> Vec<Step> {
    let build = |name, what, run| Step {
        name,
        what,
        quick: false,
        lane: Lane::Builds,
        after: None,
        output: Output::Log,
        limit: minutes(40),
        run,
    };
    let minio = Box::new(|_| match process::own_path() {
        Ok(myself) if minio::is_available() => {
            let mut build = Command::new(myself);
            build.arg("minio");
            Kind::Commands(vec![build])
        }
        // The step `minio` says what is missing.
        _ => Kind::Inside(Counts::default()),
    });
    vec![
        build(
            "minio-build",
            "MinIO from its source, where it is missing",
            minio,
        ),
        build(
            "sim-build",
            "the simulator, optimized and with every assertion on",
            Box::new(|_| Kind::Commands(vec![sim::build_command()])),
        ),
        build(
            "fuzz-build",
            "the fuzz targets, instrumented",
            Box::new(|_| Kind::Commands(vec![fuzz::build_command()])),
        ),
        Step {
            lane: Lane::Front,
            ..build(
                "build",
                "all test programs, and what they drive",
                Box::new(|_| {
                    let mut build = workspace::cargo_for_tests("test");
                    build.arg("--no-run");
                    Kind::Commands(vec![build])
                }),
            )
        },
    ]
}

fn minio_step() -> Step {
    Step {
        name: "minio",
        what: "the store and the binary on MinIO, a real S3 server",
        quick: false,
        lane: Lane::Programs,
        after: Some("minio-build"),
        output: Output::Tests,
        limit: minutes(25),
        run: Box::new(|_| {
            if !minio::is_available() {
                return Kind::Inside(Counts {
                    skipped: vec!["tests with MinIO: go is not installed".to_owned()],
                    ..Counts::default()
                });
            }
            let names = ["minio", "minio_volume", "minio_outages"].map(str::to_owned);
            run_tests("minio", &names, minio::set_environment)
        }),
    }
}

fn round_steps() -> Vec<Step> {
    vec![
        Step {
            name: "e2e-kill",
            what: "50 rounds of kill -9 under load: every acknowledgement is found",
            quick: false,
            lane: Lane::Programs,
            after: None,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| run_rounds("e2e-kill", ROUNDS[0], times)),
        },
        Step {
            name: "e2e-ext4",
            what: "50 rounds of kill -9 below a mounted ext4: journal replay and e2fsck",
            quick: false,
            lane: Lane::Programs,
            after: None,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| run_rounds("e2e-ext4", ROUNDS[1], times)),
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
            lane: Lane::Front,
            after: None,
            output: Output::All,
            limit: minutes(15),
            run: Box::new(|_| {
                let mut clippy = workspace::cargo(["clippy", "--quiet", "--workspace"]);
                clippy.args(["--all-targets", "--", "-D", "warnings"]);
                // The models of the engine are behind a feature that the command before leaves off.
                let mut models = workspace::cargo(["clippy", "--quiet", "--package=volume"]);
                models.args(["--features=shuttle", "--lib", "--profile=test"]);
                models.args(["--", "-D", "warnings"]);
                Kind::Commands(vec![clippy, models])
            }),
        },
        Step {
            name: "rustdoc",
            what: "the documentation of all crates, warnings are errors",
            quick: false,
            lane: Lane::Front,
            after: None,
            output: Output::All,
            limit: minutes(10),
            run: Box::new(|_| {
                let mut rustdoc = workspace::cargo(["doc", "--quiet", "--workspace", "--no-deps"]);
                // With examples, what clippy has compiled has the features that are wanted here.
                rustdoc.args(["--lib", "--bins", "--examples"]);
                rustdoc.env("RUSTDOCFLAGS", "-D warnings");
                Kind::Commands(vec![rustdoc])
            }),
        },
        Step {
            name: "doc",
            what: "examples in the documentation",
            quick: true,
            lane: Lane::Front,
            after: None,
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
        lane: Lane::Guests,
        after: None,
        output: Output::GuestStatus,
        limit: minutes(15),
        run: Box::new(|times| {
            let soak = build_server().and_then(|program| {
                let mut soak = Command::new(process::own_path()?);
                soak.args(["soak", "--kernel", "recent", "--devices", "4"]);
                soak.args(["--seconds", &(10 * times).to_string()]);
                soak.args(["--rate", "1", "--span", "8", "--program"])
                    .arg(program);
                Ok(vec![soak])
            });
            Kind::from_commands("soak", soak)
        }),
    }
}

fn package_step() -> Step {
    Step {
        name: "package",
        what: "the Debian package under a systemd of its own: installed, killed, upgraded, purged",
        quick: false,
        lane: Lane::Programs,
        after: None,
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
            let package = build_server().and_then(|program| {
                let mut package = Command::new(process::own_path()?);
                package.args(["package", "--trial", "--program"]);
                package.arg(program);
                Ok(vec![package])
            });
            Kind::from_commands("package", package)
        }),
    }
}

fn fuzz_step() -> Step {
    Step {
        name: "fuzz",
        what: "every decoder for some seconds, from the committed seeds",
        quick: false,
        lane: Lane::Programs,
        after: Some("fuzz-build"),
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
            lane: Lane::Front,
            after: None,
            output: Output::Tests,
            limit: minutes(20),
            run: Box::new(|times| model_commands("blkmq", times)),
        },
        Step {
            name: "engine-models",
            what: "threads inside one host under shuttle: group commit, segments, waiters; planted bugs",
            quick: false,
            lane: Lane::Front,
            after: None,
            output: Output::Tests,
            limit: minutes(15),
            run: Box::new(|times| model_commands("volume", times)),
        },
        Step {
            name: "messenger",
            what: "sessions on a simulated bad network; the out-queue under loom",
            quick: false,
            lane: Lane::Front,
            after: None,
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
            lane: Lane::Front,
            after: None,
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
            lane: Lane::Front,
            after: None,
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
            lane: Lane::Front,
            after: None,
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
            lane: Lane::Front,
            after: None,
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

/// The server as tests have it, and built with one of them: alone its dependencies would have fewer features, and half
/// of it would be compiled again.
fn build_server() -> Result<PathBuf, crate::Failure> {
    programs::build_tests(&["limits".to_owned()])?;
    Ok(workspace::target().join("debug/firn"))
}

/// The integration tests of all rooms but the binary, and of what builds and simulates them.
fn crate_tests() -> Vec<String> {
    let rooms = std::fs::read_dir(workspace::root().join("crates"));
    let mut directories: Vec<_> = rooms
        .into_iter()
        .flatten()
        .flatten()
        .map(|room| room.path().join("tests"))
        .collect();
    directories.extend(["sim/tests", "xtask/tests"].map(|rest| workspace::root().join(rest)));
    directories.retain(|directory| !directory.ends_with(END_TO_END));
    directories.sort();
    directories
        .iter()
        .flat_map(|directory| test_programs(directory))
        .filter(|name| !name.starts_with(guest::PREFIX) && !name.starts_with(minio::TESTS))
        .filter(|name| !stores::asks_named_store(name))
        .collect()
}

/// Builds the integration tests of these names, and runs them in an environment.
fn run_tests(step: &str, names: &[String], environment: impl FnOnce(&mut Command)) -> Kind {
    let command = programs::build_tests(names).map(|programs| {
        let mut command = programs::run_command(&programs);
        environment(&mut command);
        vec![command]
    });
    Kind::from_commands(step, command)
}

fn run_rounds(step: &str, name: &str, times: u64) -> Kind {
    run_tests(step, &[name.to_owned()], |command| {
        command.env("FIRN_KILL_ROUNDS", (50 * times).to_string());
    })
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

fn fuzz_commands(seconds: u64) -> Kind {
    let commands = fuzz::targets().and_then(|targets| {
        let commands = targets.iter().map(|target| fuzz::command(target, seconds));
        commands.collect()
    });
    Kind::from_commands("fuzz", commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_own_tests_run_without_those_that_need_a_server() {
        let names = crate_tests();
        let has = |name: &str| names.iter().any(|there| there == name);
        assert!(has("stores") && has("fence"), "{names:?}");
        for absent in ["minio", "server_contract"] {
            let program = workspace::root().join(format!("crates/store/tests/{absent}.rs"));
            assert!(program.is_file(), "{absent} has another name now");
            assert!(!has(absent), "{names:?}");
        }
    }
}
