//! Running programs: said aloud first, and judged by their exit status.

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, workspace};

/// Where this program is: what was built anew in its place while it runs serves as well.
pub(crate) fn own_path() -> std::io::Result<PathBuf> {
    Ok(without_deletion(std::env::current_exe()?))
}

/// The kernel's name of a program whose file was replaced, without what it says of that.
fn without_deletion(path: PathBuf) -> PathBuf {
    let text = path
        .to_str()
        .and_then(|text| text.strip_suffix(" (deleted)"));
    text.map_or(path.clone(), PathBuf::from)
}

/// How a command would be typed, without the paths of this machine.
pub(crate) fn command_line(command: &Command) -> String {
    let home = workspace::root().display().to_string();
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        let Some(value) = value else { continue };
        words.push(format!(
            "{}={}",
            name.to_string_lossy(),
            quoted(&value.to_string_lossy())
        ));
    }
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    words.push(name.to_string_lossy().into_owned());
    words.extend(
        command
            .get_args()
            .map(|word| quoted(&word.to_string_lossy())),
    );
    words.join(" ").replace(&format!("{home}/"), "")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs a command to its end with this terminal as its own.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let spelled = command_line(command);
    println!("$ {spelled}");
    let status = command
        .status()
        .map_err(|error| format!("cannot start {spelled}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{status}: {spelled}").into())
    }
}

/// The same without what it prints, unless it fails.
pub(crate) fn run_quietly(command: &mut Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}: {said}", output.status).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_built_anew_meanwhile_is_found() {
        let built = PathBuf::from("/target/debug/xtask");
        let replaced = PathBuf::from("/target/debug/xtask (deleted)");
        assert_eq!(without_deletion(replaced), built);
        assert_eq!(without_deletion(built.clone()), built);
    }

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["test", "-p", "volume", "--", "a b"]);
        command.env("RUSTFLAGS", "--cfg loom");
        command.env("CARGO_TARGET_DIR", workspace::root().join("target/loom"));
        assert_eq!(
            command_line(&command),
            "CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' cargo test -p volume -- 'a b'"
        );
    }
}
