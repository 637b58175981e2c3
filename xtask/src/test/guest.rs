//! The step `ublk-guest`: test programs that need ublk, run under real kernels.
//!
//! They are two ordinary test programs, `crates/ublk/tests/guest_driver` and `crates/firn/tests/guest_server`, built
//! here and run in guests, each of their files in a process of its own and all of them in one boot per kernel, one
//! test at a time, for what they test is the kernel's and there is one. On this machine itself they are not run: it
//! rarely has ublk, and where it has, its devices are not theirs. What is called a program below is such a file.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::programs::{TestProgram, build_tests};
use super::step::{Kind, Lane, Output, Step, test_programs};
use crate::{Failure, process, workspace};

/// How the names of test programs begin that are for guests only.
pub(super) const PREFIX: &str = "guest_";

/// Where they are: cargo calls a folder's program as the folder is called.
const PROGRAM_FOLDERS: [&str; 2] = [
    "crates/ublk/tests/guest_driver",
    "crates/firn/tests/guest_server",
];

/// The servers that they drive.
const EXAMPLES: &str = "crates/ublk/examples";

/// Programs that a smoke run has; they read [`TABLE`].
const SMOKE_PROGRAMS: [&str; 2] = ["guest_smoke", "guest_servers"];

/// Programs that only the whole table has, minutes each under emulation, each in a boot of its own
/// there; and the seconds that it may take: about twice what was measured (`docs/testing-kernels.md`).
const LONG_PROGRAMS: [(&str, u64); 21] = [
    ("guest_blktests", 1800),
    ("guest_faulty", 1800),
    ("guest_flush", 900),
    ("guest_fs", 1800),
    ("guest_bad_handlers", 900),
    ("guest_modes", 1800),
    ("guest_nbd", 900),
    ("guest_neighbours", 900),
    ("guest_nfs", 900),
    ("guest_own_slots", 900),
    ("guest_power", 1800),
    ("guest_promises", 1800),
    ("guest_races", 1800),
    ("guest_recovery", 1800),
    ("guest_scenarios", 900),
    ("guest_selftests", 1800),
    ("guest_shared_queue", 900),
    ("guest_swap", 1800),
    ("guest_upgrade", 1800),
    ("guest_upgrade_faults", 1800),
    ("guest_volume", 1800),
];

/// Of those, what CI runs all the same: the cheapest of the bugs that others had in this place, zeroing
/// that was acknowledged and not done, and requests across extents, holes and what is cold. What the
/// next ones take under emulation differs by a factor of four from run to run.
const CI_LONG_TESTS: [(&str, &[&str]); 1] = [(
    "guest_modes",
    &["guest_modes::zero_copy::requests_of_every_kind_and_shape_do_what_they_say"],
)];

/// The variable that says how much of the table is run: `smoke`, `all`, or unset for what CI runs.
const TABLE: &str = "FIRN_UBLK_TABLE";

/// Runs what is named to it, in each argument a path, a file's name and the tests of it that are wanted, a line
/// each, or all of them; ends with the last bad status.
const GUEST_SCRIPT: &str = r#"modprobe ublk_drv || exit 1
modprobe -qa nbd loop dm-delay dm-flakey dm-log-writes
worst=0
set -f
IFS='
'
for lines; do
  set -- $lines
  program=$1 file=$2; shift 2
  echo "     Running tests/$file.rs ($program)"
  if [ $# -eq 0 ]; then set -- "$file::"; else set -- --exact "$@"; fi
  "$program" --test-threads=1 --show-output --color=never "$@" || worst=$?
done
exit $worst"#;

/// One boot.
#[derive(Clone, Copy, Debug)]
struct Boot {
    kernel: &'static str,
    /// Part of the table.
    table: &'static str,
    /// Only this program of [`LONG_PROGRAMS`].
    program: Option<&'static str>,
    /// How long it may take.
    seconds: u64,
}

impl Boot {
    const fn new(kernel: &'static str, table: &'static str, seconds: u64) -> Boot {
        Boot {
            kernel,
            table,
            program: None,
            seconds,
        }
    }

    fn has_all_of(&self, name: &str) -> bool {
        match (self.table, self.program) {
            ("smoke", _) => SMOKE_PROGRAMS.contains(&name),
            (_, Some(program)) => name == program,
            (_, None) => !LONG_PROGRAMS.iter().any(|(long, _)| *long == name),
        }
    }

    /// The tests that it has of a program of which it does not have all.
    fn selected_tests(&self, name: &str) -> Option<&'static [&'static str]> {
        let of = CI_LONG_TESTS.iter().find(|(of, _)| *of == name)?;
        self.table.is_empty().then_some(of.1)
    }

    /// Whether it runs anything of a program.
    fn runs(&self, name: &str) -> bool {
        self.has_all_of(name) || self.selected_tests(name).is_some()
    }
}

/// What CI runs, meant for eight minutes on a quiet machine. The deadlines end what hangs, and
/// leave room for a busy one.
const CI_BOOTS: [Boot; 3] = [
    Boot::new("recent", "", 900),
    Boot::new("stable", "", 900),
    Boot::new("real-time", "smoke", 300),
];

/// What of the whole table is wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableFilter {
    /// One kernel instead of all.
    pub(crate) kernel: Option<&'static str>,
    /// These programs instead of all.
    pub(crate) programs: Vec<String>,
}

/// Kernels that have the whole table, and half the factor of what it takes there. The real-time kernel
/// has it where it is named; else a smoke run, as in CI.
const TABLE_KERNELS: [(&str, u64); 2] = [("recent", 2), ("stable", 2)];
const REAL_TIME: (&str, u64) = ("real-time", 3);

/// Everything. What is late, or brings its kernel down, takes nothing else with it.
fn table_boots(kernel: Option<&'static str>) -> Vec<Boot> {
    let everything = |(kernel, halves): (&'static str, u64)| {
        let short = Boot::new(kernel, "all", 2400 * halves / 2);
        let long = LONG_PROGRAMS.into_iter().map(move |(name, seconds)| Boot {
            program: Some(name),
            ..Boot::new(kernel, "all", seconds * halves / 2)
        });
        std::iter::once(short).chain(long)
    };
    match kernel {
        Some(kernel) if kernel == REAL_TIME.0 => everything(REAL_TIME).collect(),
        Some(kernel) => everything((kernel, 2)).collect(),
        None => {
            let all = TABLE_KERNELS.into_iter().flat_map(everything);
            all.chain([Boot::new(REAL_TIME.0, "smoke", 240)]).collect()
        }
    }
}

/// Of these boots, what has one of the programs, and of each boot's programs only those.
fn select_boots(programs: &[String], kernel: Option<&'static str>) -> Result<Vec<Boot>, Failure> {
    let mut boots = table_boots(kernel);
    if programs.is_empty() {
        return Ok(boots);
    }
    let names = all_programs();
    if let Some(unknown) = programs.iter().find(|wanted| !names.contains(wanted)) {
        return Err(format!("no guest test {unknown}; there are: {}", names.join(", ")).into());
    }
    boots.retain(|boot| programs.iter().any(|name| boot.has_all_of(name)));
    Ok(boots)
}

/// Every guest test program.
fn all_programs() -> Vec<String> {
    let names = |directory: &&str| guest_programs(&workspace::root().join(directory));
    PROGRAM_FOLDERS.iter().flat_map(names).collect()
}

/// The longest that boots may take, and what is between them.
fn total_limit(boots: &[Boot]) -> Duration {
    let seconds: u64 = boots.iter().map(|boot| boot.seconds).sum();
    // Fetching and building come on top of the deadlines.
    Duration::from_secs(seconds + 15 * 60)
}

/// The step of `cargo xtask test`.
pub(super) fn step() -> Step {
    Step {
        name: "ublk-guest",
        what: "ublk under real kernels: recent, stable, and a smoke run of the real-time one",
        quick: false,
        lane: Lane::Guests,
        after: None,
        output: Output::Guest,
        limit: total_limit(&CI_BOOTS),
        run: Box::new(|_| boot_commands(&CI_BOOTS, &[])),
    }
}

/// The same with nothing left out but what is not wanted.
pub(super) fn whole_table(wanted: TableFilter) -> Result<Step, Failure> {
    let all = select_boots(&wanted.programs, wanted.kernel)?;
    Ok(Step {
        name: "ublk-guest-all",
        what: "ublk under real kernels, every row of the table",
        limit: total_limit(&all),
        run: Box::new(move |_| boot_commands(&all, &wanted.programs)),
        ..step()
    })
}

/// The boots with all of their programs, or with these of them.
fn boot_commands(boots: &[Boot], only: &[String]) -> Kind {
    let made = build(boots, only).and_then(|programs| {
        let commands = boots.iter().map(|boot| guest_command(&programs, *boot));
        commands.collect::<Result<Vec<_>, _>>()
    });
    Kind::from_commands("ublk-guest", made)
}

/// The guest's memory, where a program of [`LONG_PROGRAMS`] is about that: then nothing below the server may take
/// memory on its own account.
pub(crate) fn memory_arguments(program: &str) -> &'static [&'static str] {
    match program {
        "guest_swap" => &["--memory", "512M", "--no-journal"],
        _ => &[],
    }
}

/// One guest with its programs.
fn guest_command(programs: &[TestProgram], boot: Boot) -> Result<Command, Failure> {
    let (kernel, table, seconds) = (boot.kernel, boot.table, boot.seconds);
    let mut command = Command::new(process::own_path()?);
    command
        .args(["vm", "--kernel", kernel, "--deadline", &seconds.to_string()])
        .args(boot.program.map(memory_arguments).unwrap_or_default())
        .args(["--", "env", &format!("{TABLE}={table}")])
        .args(["sh", "-c", GUEST_SCRIPT, "guest"]);
    for program in programs {
        let tests: &[&str] = if boot.has_all_of(&program.name) {
            &[]
        } else if let Some(tests) = boot.selected_tests(&program.name) {
            tests
        } else {
            continue;
        };
        let mut lines = program.path.as_os_str().to_owned();
        for line in std::iter::once(program.name.as_str()).chain(tests.iter().copied()) {
            lines.push("\n");
            lines.push(line);
        }
        command.arg(lines);
    }
    command.current_dir(workspace::root());
    Ok(command)
}

/// Builds the programs of these boots, and the servers; answers the programs.
fn build(boots: &[Boot], only: &[String]) -> Result<Vec<TestProgram>, Failure> {
    let mut names = all_programs();
    names.retain(|name| only.is_empty() || only.contains(name));
    names.retain(|name| boots.iter().any(|boot| boot.runs(name)));
    let examples = test_programs(&workspace::root().join(EXAMPLES));
    if !examples.is_empty() {
        let mut command = workspace::cargo_for_tests("build");
        command.arg("--quiet");
        for name in &examples {
            command.args(["--example", name]);
        }
        process::run(&mut command)?;
    }
    let mut programs = Vec::new();
    for folder in PROGRAM_FOLDERS.map(Path::new) {
        let mut wanted = guest_programs(&workspace::root().join(folder));
        wanted.retain(|name| names.contains(name));
        if wanted.is_empty() {
            continue;
        }
        let folder = folder.file_name().unwrap_or_default().to_string_lossy();
        for built in build_tests(&[folder.into_owned()])? {
            programs.extend(wanted.iter().map(|name| built.for_file(name)));
        }
    }
    // The smoke test says first whether anything can work.
    programs.sort_by_key(|program| (program.name != SMOKE_PROGRAMS[0], program.name.clone()));
    Ok(programs)
}

/// The test programs for guests in a directory, by name.
fn guest_programs(directory: &Path) -> Vec<String> {
    let mut names = test_programs(directory);
    names.retain(|name| name.starts_with(PREFIX));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_program_with_named_tests_those_are_run_and_of_others_all() {
        let run = |arguments: &[&str]| {
            let mut shell = Command::new("sh");
            // The guest's modprobe is not this machine's.
            shell.args([
                "-c",
                &format!("modprobe() {{ :; }}\n{GUEST_SCRIPT}"),
                "guest",
            ]);
            let output = shell.args(arguments).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let ran = said.lines().filter(|line| line.starts_with("--"));
            (ran.map(str::to_owned).collect(), output.status.success())
        };
        let (ran, passed): (Vec<_>, _) = run(&["/bin/echo\nx", "/bin/echo\nx\none\ntwo"]);
        let all = "--test-threads=1 --show-output --color=never";
        assert_eq!(
            ran,
            [format!("{all} x::"), format!("{all} --exact one two")]
        );
        assert!(passed);
        let (_, passed): (Vec<_>, _) = run(&["/bin/false\nx\none", "/bin/echo\nx"]);
        assert!(!passed);
    }

    #[test]
    fn the_tests_that_ci_has_of_long_programs_are_there() {
        for (program, tests) in CI_LONG_TESTS {
            assert!(
                LONG_PROGRAMS.iter().any(|(long, _)| *long == program),
                "{program}"
            );
            let path = format!("crates/firn/tests/guest_server/{program}.rs");
            let text = std::fs::read_to_string(workspace::root().join(path)).unwrap();
            for test in tests {
                let name = test.rsplit("::").next().unwrap();
                assert!(text.contains(&format!("fn {name}()")), "{test}");
            }
        }
    }

    #[test]
    fn the_whole_table_has_every_program_once_on_every_kernel() {
        let names = all_programs();
        let boots = table_boots(None);
        for kernel in ["recent", "stable", "real-time", "uml"] {
            let alone = table_boots(Some(kernel));
            let here = boots.iter().filter(|boot| boot.kernel == kernel);
            let here: Vec<_> = if TABLE_KERNELS.iter().any(|(of, _)| *of == kernel) {
                here.collect()
            } else {
                alone.iter().collect()
            };
            for name in &names {
                let count = here.iter().filter(|boot| boot.has_all_of(name)).count();
                assert_eq!(count, 1, "{name} on {kernel}");
            }
            for boot in here {
                assert!(names.iter().any(|name| boot.has_all_of(name)), "{boot:?}");
            }
        }
    }

    #[test]
    fn of_the_whole_table_some_programs_are_chosen_by_name() {
        let names = |programs: &[&str], kernel| {
            let programs: Vec<_> = programs.iter().map(|&name| name.to_owned()).collect();
            let boots = select_boots(&programs, kernel)?;
            let of = boots.iter().map(|boot| (boot.kernel, boot.program));
            Ok::<_, Failure>(of.collect::<Vec<_>>())
        };
        let recovery = Some("guest_recovery");
        let both = names(&["guest_recovery"], None).unwrap();
        assert_eq!(both, [("recent", recovery), ("stable", recovery)]);
        let short = names(&["guest_recovery", "guest_control"], Some("real-time")).unwrap();
        assert_eq!(short, [("real-time", None), ("real-time", recovery)]);
        let unknown = names(&["guest_recover"], None).unwrap_err().to_string();
        assert!(unknown.contains("guest_recovery"), "{unknown}");
    }

    #[test]
    fn rows_for_a_smoke_run_are_in_programs_that_it_has() {
        for directory in PROGRAM_FOLDERS {
            let directory = workspace::root().join(directory);
            for name in guest_programs(&directory) {
                let path = directory.join(format!("{name}.rs"));
                let has_rows = std::fs::read_to_string(path)
                    .unwrap()
                    .contains("Table::Smoke");
                assert!(
                    !has_rows || SMOKE_PROGRAMS.contains(&name.as_str()),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn a_smoke_run_has_only_the_programs_that_know_of_it() {
        let programs =
            ["guest_smoke", "guest_control", "guest_scenarios"].map(TestProgram::for_test);
        let arguments = |boot| {
            let command = guest_command(&programs, boot).unwrap();
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>()
        };
        let ends = |boot, last: &str| arguments(boot).last().is_some_and(|word| word == last);
        assert!(ends(
            Boot::new("real-time", "smoke", 1),
            "/deps/guest_smoke-1\nguest_smoke"
        ));
        assert!(ends(
            Boot::new("recent", "", 1),
            "/deps/guest_control-1\nguest_control"
        ));
        let alone = Boot {
            program: Some("guest_scenarios"),
            ..Boot::new("real-time", "all", 1)
        };
        assert!(ends(alone, "/deps/guest_scenarios-1\nguest_scenarios"));
    }
}
