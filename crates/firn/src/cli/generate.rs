//! `firn completions` and `firn man`: what shells and `man` know of this command line.
//!
//! Made from the same definitions that parse it, so that they cannot differ from it.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Cli;
use crate::failure::{Failure, Result};

/// Prints a completion script.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "firn", &mut script);
    super::output::raw(&script)
}

/// Writes a page for each command into a directory.
pub(crate) fn write_man_pages(dir: &Path) -> Result<()> {
    let failed = |source: std::io::Error| Failure::io("write the manual pages into", dir, &source);
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        write_man_pages(dir.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = page(&format!("firn-{}.1", command.get_name()));
            assert!(page.contains(".TH"), "{page}");
        }
        assert!(page("firn-volume-create.1").contains("block"));
    }

    #[test]
    fn every_command_is_completed_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "firn", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}");
            }
        }
    }
}
