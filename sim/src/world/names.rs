//! Owns the names that volumes have, had and may get (S6): which volume is asked to get another name, and when; which
//! name it has, as its roots in the store say; and that it has one name and one root at every moment.
//!
//! A renaming whose end nobody heard took place or not, and if it was begun it is gone on with, by the same command or by a
//! pass of some collector. Until that is known, and for what was asked before, a host may answer that the volume is being
//! renamed, or has been. Names of before are free: the same volume gets them again, or another one. What the engine
//! says is never believed. Only worlds of several hosts have any of it.

use volume::object::root::{RenameStep, Root};
use volume::object::root_key;
use volume::units::VolumeId;

use super::{AttachmentPhase, Phase, World};
use crate::faults::Fault;
use crate::node::Failure;
use crate::rng::Rng;
use crate::store::Replacement;
use crate::trace::Violation;

/// Of so many turns of the operator at a volume one renames it, whoever has it, and some begin to want that or end.
const TURNS: u64 = 16;

/// A renaming that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Renaming {
    /// The name that the volume gets.
    pub(super) new: String,
    /// A process is at it.
    is_asked: bool,
    /// The next version of the store when the last one ended.
    ended: u64,
    /// Nobody knows what those that ended have sent.
    is_unsure: bool,
}

/// The names of one line.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// All that it has, had or may get.
    pub(super) all: Vec<String>,
    /// Its volumes, as their roots say, the newest last.
    pub(super) ids: Vec<VolumeId>,
    pub(super) renaming: Option<Renaming>,
    /// It was closed to get another one.
    is_wanted: bool,
    /// A host that has not let go of it has it still: somebody takes it over first, and closes it.
    is_held: bool,
    /// When it was last known whether a renaming took place.
    settled_at: u64,
}

impl Names {
    pub(super) fn new(name: &str) -> Names {
        Names {
            all: vec![name.to_owned()],
            ..Names::default()
        }
    }
}

/// What draws renamings.
#[derive(Clone, Debug)]
pub(super) struct Namer {
    rng: Rng,
    next: u64,
}

impl Namer {
    pub(super) fn new(seed: u64) -> Namer {
        Namer {
            rng: Rng::stream(seed, "renamings"),
            next: 1,
        }
    }
}

/// Where a volume is, as the store's roots say.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Under(String),
    Leaving,
    /// It was deleted, or never there.
    Nowhere,
}

/// Whether a host says so of a volume that has or gets another name.
pub(super) fn is_of_renaming(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Renamed { .. } | Failure::RenamedAndGone { .. } | Failure::Renaming { .. }
    )
}

impl World {
    /// The conditional writes of the roots of a line's volumes, under whatever names, in order.
    pub(super) fn root_writes(&self, line: usize) -> Vec<Replacement> {
        let names = &self.lines[line].names;
        let is_own = |write: &&Replacement| write.volume.is_some_and(|id| names.ids.contains(&id));
        let all = names.all.iter();
        let all = all.flat_map(|name| self.store.replacements(&root_key(name)));
        let mut writes: Vec<Replacement> = all.filter(is_own).copied().collect();
        if names.all.len() > 1 {
            writes.sort_unstable_by_key(|write| write.version);
        }
        writes
    }

    fn root_under(&self, name: &str) -> Option<Root> {
        let bytes = self.store.data(&root_key(name))?;
        Root::decode(bytes).ok()
    }

    /// A root was written under this name.
    pub(super) fn judge_name(&mut self, key: &str) -> Result<(), Violation> {
        let has = |name: &String| root_key(name) == key;
        let born = self.lines.iter().position(|line| has(&line.name));
        let Some(root) = self
            .store
            .data(key)
            .and_then(|data| Root::decode(data).ok())
        else {
            return Ok(());
        };
        let is_known = |id| self.lines.iter().any(|line| line.names.ids.contains(&id));
        if let Some(line) = born.filter(|_| !root.deleted && !is_known(root.volume)) {
            self.lines[line].names.ids.push(root.volume);
        }
        for line in 0..self.lines.len() {
            if self.lines[line].names.all.iter().any(has) {
                let place = self.place(line)?;
                self.settle_name(line, &place);
            }
        }
        Ok(())
    }

    /// Where the newest volume of a line is.
    fn place(&self, line: usize) -> Result<Place, Violation> {
        let names = &self.lines[line].names;
        let id = names.ids.last().filter(|_| self.set_back.is_none());
        let Some(id) = id else {
            return Ok(Place::Nowhere);
        };
        let roots = names.all.iter().filter_map(|name| self.root_under(name));
        let roots: Vec<Root> = roots.filter(|root| root.volume == *id).collect();
        let is_leaving = |root: &Root| {
            let mark = root.rename_mark();
            mark.is_some_and(|mark| mark.step == RenameStep::Leaving)
        };
        let wrong = |what: &str| {
            let found = roots.iter().map(|root| (&root.name, root.deleted));
            let found: Vec<_> = found.collect();
            let detail = format!("volume {id} has {what}: {found:?}");
            Err(Violation::new("S6 one name", detail))
        };
        let mut live = roots.iter().filter(|root| !root.deleted);
        match (live.next(), live.next()) {
            (Some(_), Some(_)) => wrong("two roots that can be opened"),
            (Some(root), None) => Ok(Place::Under(root.name.clone())),
            (None, _) if roots.iter().any(is_leaving) => Ok(Place::Leaving),
            (None, _) if roots.is_empty() => wrong("no root"),
            (None, _) => Ok(Place::Nowhere),
        }
    }

    /// Perhaps it is known by now whether a volume got its other name.
    fn settle_name(&mut self, line: usize, place: &Place) {
        let here = &self.lines[line];
        let (Some(renaming), Place::Under(name)) = (&here.names.renaming, place) else {
            return;
        };
        let has_arrived = *name == renaming.new;
        // Who renames it goes on from one version of its root.
        let root = self.store.version(&root_key(&here.name));
        let has_gone_on = root.is_some_and(|version| version >= renaming.ended);
        let is_over = !renaming.is_asked && (!renaming.is_unsure || has_gone_on);
        if !has_arrived && !is_over {
            return;
        }
        if has_arrived {
            self.lines[line].name.clone_from(name);
            self.lines[line].names.is_wanted = false;
        }
        self.lines[line].names.renaming = None;
        self.lines[line].names.settled_at = self.now;
        self.trace
            .log(self.now, || format!("line {line} has the name {name}"));
    }

    /// Whether it was not known all the time since `moment` which name a line has.
    pub(super) fn is_renamed_since(&self, line: usize, moment: u64) -> bool {
        let names = &self.lines[line].names;
        names.renaming.is_some() || names.settled_at > 0 && names.settled_at >= moment
    }

    /// A volume was closed: perhaps to get another name.
    pub(super) fn rename_closed(&mut self, line: usize) {
        self.lines[line].names.is_held = false;
        let is_due = self.namer.rng.draw_rate(self.profile.fleet.rename);
        self.lines[line].names.is_wanted |= is_due;
    }

    /// The operator looks at a volume on one machine: perhaps it is to get another name. True: that is all that he does now.
    pub(super) fn operate_names(&mut self, attachment: usize) -> bool {
        let here = &self.attachments[attachment];
        let (line, phase) = (here.line, here.phase);
        if self.profile.fleet.rename == 0 || !self.can_be_renamed(line) {
            return false;
        }
        let turn = self.namer.rng.below(TURNS);
        let names = &mut self.lines[line].names;
        match turn {
            // Whoever has it.
            0 => return self.rename(line),
            1 => names.is_wanted = false,
            2..5 => names.is_wanted = true,
            _ => {}
        }
        match phase {
            AttachmentPhase::Serving if names.is_wanted => {
                self.trace.log(self.now, || {
                    format!("v{attachment} is closed to be renamed")
                });
                self.attachments[attachment].phase = AttachmentPhase::Closing;
                true
            }
            // Now and then somebody opens it all the same. What was begun a pass goes on with, too.
            AttachmentPhase::Down if names.is_wanted && !names.is_held && turn < TURNS / 4 * 3 => {
                let here = self.attachments.iter().filter(|at| at.line == line);
                let is_closed = here.into_iter().all(|at| at.phase == AttachmentPhase::Down);
                !is_closed || self.rename(line)
            }
            _ => false,
        }
    }

    fn can_be_renamed(&self, line: usize) -> bool {
        let here = &self.lines[line];
        let is_there = here.created && !here.names.ids.is_empty() && !here.may_be_deleted;
        let is_idle = here.recreation.is_none() && !self.points.is_being_renamed(line);
        self.phase == Phase::Work && is_there && is_idle
    }

    /// Asks some machine for it, under the name that was begun with if there is one. False: that machine cannot be asked.
    fn rename(&mut self, line: usize) -> bool {
        let nth = self.namer.rng.below(self.machines.len() as u64) as usize;
        let there = &self.machines[nth];
        if !there.is_up || there.node.is_none() || there.paused_until > self.now {
            return false;
        }
        let begun = self.lines[line].names.renaming.as_ref();
        let new = begun.map(|renaming| renaming.new.clone());
        let new = new.unwrap_or_else(|| self.draw_name(line));
        self.begin_renaming(line, nth, new);
        true
    }

    /// A name for a line: one that nobody has had, or one of before that is free.
    fn draw_name(&mut self, line: usize) -> String {
        let used = self.lines.iter().flat_map(|line| &line.names.all);
        let mut free: Vec<String> = used
            .filter(|name| self.is_free(line, name))
            .cloned()
            .collect();
        free.sort();
        free.dedup();
        if free.is_empty() || self.namer.rng.below(3) == 0 {
            let fresh = format!("n{}", self.namer.next);
            self.namer.next += 1;
            return fresh;
        }
        self.namer.rng.pick(&free).clone()
    }

    /// Whether a name of before can be this line's: no volume has it or may get it, and nobody was asked for another by it.
    fn is_free(&self, line: usize, name: &String) -> bool {
        let others = self.lines.iter().enumerate();
        let mut others = others.filter(|(nth, at)| *nth != line && at.names.all.contains(name));
        let is_quiet = |nth: usize| {
            let here = self.attachments.iter().filter(|at| at.line == nth);
            let mut asked = here.filter(|at| {
                matches!(
                    at.phase,
                    AttachmentPhase::Opening | AttachmentPhase::Creating
                )
            });
            let is_idle = asked.next().is_none() && self.points.is_without_calls();
            is_idle && self.lines[nth].recreation.is_none()
        };
        let is_someones = self.lines.iter().any(|at| {
            let renaming = at.names.renaming.as_ref();
            at.name == *name || renaming.is_some_and(|renaming| renaming.new == *name)
        });
        let is_past = |names: &Names| names.renaming.is_none() && !names.ids.is_empty();
        !is_someones && others.all(|(nth, at)| is_past(&at.names) && is_quiet(nth))
    }

    fn begin_renaming(&mut self, line: usize, machine: usize, new: String) {
        let here = &mut self.lines[line];
        if !here.names.all.contains(&new) {
            here.names.all.push(new.clone());
        }
        let renaming = here.names.renaming.get_or_insert(Renaming {
            new: new.clone(),
            is_asked: false,
            ended: 0,
            is_unsure: false,
        });
        renaming.is_asked = true;
        self.ask_to_rename(machine, line, new);
    }

    /// A call to rename a volume ended, or died with its process.
    pub(super) fn on_renamed(
        &mut self,
        machine: usize,
        line: usize,
        new: &str,
        result: Option<&Result<(), Failure>>,
    ) -> Result<(), Violation> {
        let version = self.store.next_version();
        let is_refused = match result {
            Some(Ok(())) => {
                self.count(Fault::Renamed);
                if self.lines[line].name != new {
                    let detail = format!("line {line} was said to be {new} now, and is not");
                    return Err(Violation::new("S6 one name", detail));
                }
                false
            }
            Some(Err(failure)) => {
                self.lines[line].names.is_held |= matches!(failure, Failure::Held { .. });
                self.judge_refused_renaming(machine, line, failure)?;
                !matches!(
                    failure,
                    Failure::Store(_)
                        | Failure::Corrupt(_)
                        | Failure::Disk(_)
                        | Failure::HostStopped(_)
                )
            }
            None => false,
        };
        let Some(renaming) = &mut self.lines[line].names.renaming else {
            return Ok(());
        };
        renaming.is_asked = false;
        renaming.ended = version;
        if !is_refused {
            renaming.is_unsure = true;
            self.count(Fault::RenameUnsure);
        }
        let place = self.place(line)?;
        self.settle_name(line, &place);
        Ok(())
    }

    fn judge_refused_renaming(
        &self,
        machine: usize,
        line: usize,
        failure: &Failure,
    ) -> Result<(), Violation> {
        let attachment = self.attachment_of(machine, line);
        let here = &self.lines[line];
        let is_right = match failure {
            // What the log here has of it goes to the store first, if it goes on here.
            Failure::Invalid(_) => true,
            Failure::NoSuchVolume(_) => here.may_be_deleted || here.is_fork(),
            failure if is_of_renaming(failure) => true,
            _ => return self.judge_point_refusal(attachment, failure),
        };
        match is_right {
            true => Ok(()),
            false => {
                let detail = format!("renaming {} failed: {failure:?}", here.name);
                Err(Violation::new("S10 no invented errors", detail))
            }
        }
    }

    /// Whether no volume is on its way from one name to another.
    pub(super) fn names_are_at_rest(&self) -> Result<bool, Violation> {
        for line in 0..self.lines.len() {
            if self.lines[line].names.renaming.is_some() && self.place(line)? == Place::Leaving {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
