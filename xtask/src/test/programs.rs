//! Owns the test programs that run on this machine: how they are built and found, and the command that runs
//! some of them one after the other.
//!
//! They are built in front and then run without cargo: another build holds cargo's lock for minutes, and who
//! only wants to run something would wait for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Failure, process, workspace};

/// Takes a title, a directory and a program for each; ends with the last bad status.
const SCRIPT: &str = r#"worst=0
while [ $# -gt 0 ]; do
  echo "     Running $1 ($3)"
  (cd "$2" && exec "$3" --show-output --color=never) || worst=$?
  shift 3
done
exit $worst"#;

/// A test program that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// Of an integration test, that of its file; else that of its crate.
    pub(crate) name: String,
    /// What cargo calls it: `tests/NAME.rs`, or `unittests src/lib.rs`.
    title: String,
    pub(crate) path: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
    is_integration: bool,
}

impl TestProgram {
    /// The same, of which one file is meant.
    pub(super) fn for_file(&self, name: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
impl TestProgram {
    /// `/deps/NAME-1`, which is not there.
    pub(super) fn for_test(name: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            title: format!("tests/{name}.rs"),
            path: format!("/deps/{name}-1").into(),
            directory: "/".into(),
            is_integration: true,
        }
    }
}

/// Builds what `cargo test` runs with these arguments, and answers the test programs.
pub(crate) fn build_programs<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<TestProgram>, Failure> {
    let mut command = workspace::cargo_for_tests("test");
    command.args(["--quiet", "--no-run"]).args(arguments);
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::command_line(&command));
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the test programs do not build".into());
    }
    Ok(find_programs(&String::from_utf8(output.stdout)?))
}

/// Builds the integration tests of these names, and answers their programs.
pub(super) fn build_tests(names: &[String]) -> Result<Vec<TestProgram>, Failure> {
    let arguments = names.iter().flat_map(|name| ["--test", name.as_str()]);
    let mut programs = build_programs(arguments)?;
    programs.retain(|program| program.is_integration);
    let is_missing = |name: &&String| !programs.iter().any(|built| built.name == **name);
    match names.iter().find(is_missing) {
        Some(name) => Err(format!("cargo did not say where the test program {name} is").into()),
        None => Ok(programs),
    }
}

/// Runs them one after the other, each in its crate's directory.
pub(super) fn run_command(programs: &[TestProgram]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "tests"]);
    command.current_dir(workspace::root());
    for program in programs {
        command.arg(&program.title);
        command.arg(&program.directory).arg(&program.path);
    }
    command
}

/// The test programs in cargo's messages.
fn find_programs(messages: &str) -> Vec<TestProgram> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let target = &message["target"];
            let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
            let source = Path::new(target["src_path"].as_str()?);
            let source = source.strip_prefix(directory).unwrap_or(source).display();
            let is_integration = target["kind"][0] == "test";
            Some(TestProgram {
                name: target["name"].as_str()?.to_owned(),
                title: if is_integration {
                    source.to_string()
                } else {
                    format!("unittests {source}")
                },
                path: message["executable"].as_str()?.into(),
                directory: directory.to_owned(),
                is_integration,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str, kind: &str, source: &str) -> String {
        let is_test = kind != "example";
        format!(
            r#"{{"manifest_path":"/w/c/Cargo.toml","profile":{{"test":{is_test}}},"executable":"/deps/{name}-1",
            "target":{{"name":"{name}","kind":["{kind}"],"src_path":"/w/c/{source}"}}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let text = [
            message("one", "test", "tests/one.rs"),
            message("null", "example", "examples/null.rs"),
            "not json".to_owned(),
            message("c", "lib", "src/lib.rs"),
        ]
        .join("\n");
        let found = find_programs(&text);
        let titles: Vec<_> = found.iter().map(|found| found.title.as_str()).collect();
        assert_eq!(titles, ["tests/one.rs", "unittests src/lib.rs"]);
        assert!(found[0].is_integration && !found[1].is_integration);
        assert_eq!(found[0].directory, Path::new("/w/c"));
    }

    #[test]
    fn a_program_that_fails_does_not_keep_the_next_from_running() {
        let program = |path: &str| TestProgram {
            path: path.into(),
            ..TestProgram::for_test("x")
        };
        let output = run_command(&[program("/bin/false"), program("/bin/echo")])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.matches("Running tests/x.rs").count(), 2, "{said}");
        assert!(said.ends_with("--show-output --color=never\n"), "{said}");
        assert!(!output.status.success());
    }
}
