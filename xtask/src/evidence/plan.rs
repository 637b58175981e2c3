//! What a row of the evidence is: a published claim, its source, and the commands of ours that produce the figure.

use super::section::{Measured, Section};

/// A published claim beside ours.
pub(super) struct Row {
    /// How it is asked for.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What is published.
    pub(super) claim: &'static str,
    /// Where: a commit of the kernel, a patch, a pull request.
    pub(super) source: &'static str,
    pub(super) runs: &'static [Run],
    /// What these machines cannot show of it.
    pub(super) limits: &'static [Limit],
    /// Lays the figures out as the published ones are.
    pub(super) write: fn(&Measured, &mut Section),
}

/// What these machines cannot show.
pub(super) struct Limit {
    /// The run that it speaks of, if of one alone: it is left out where that has no figures.
    pub(super) of: Option<&'static str>,
    pub(super) text: &'static str,
}

impl Limit {
    pub(super) const fn always(text: &'static str) -> Limit {
        Limit { of: None, text }
    }

    pub(super) const fn of(run: &'static str, text: &'static str) -> Limit {
        Limit {
            of: Some(run),
            text,
        }
    }
}

/// A command that measures.
pub(super) struct Run {
    pub(super) name: &'static str,
    /// Its words after `cargo xtask`.
    pub(super) whole: &'static [&'static str],
    /// The same for a quick look; none: it takes too long for one.
    pub(super) quick: Option<&'static [&'static str]>,
    /// Minutes after which it is ended, whole and quick.
    pub(super) minutes: [u64; 2],
    /// Of how many rounds each figure is the middle, whole and quick.
    pub(super) rounds: [u32; 2],
}

impl Run {
    /// The words of this command.
    pub(super) fn words(&self, quick: bool) -> Option<&'static [&'static str]> {
        if quick { self.quick } else { Some(self.whole) }
    }

    pub(super) fn minutes(&self, quick: bool) -> u64 {
        self.minutes[usize::from(quick)]
    }

    pub(super) fn rounds(&self, quick: bool) -> u32 {
        self.rounds[usize::from(quick)]
    }
}
