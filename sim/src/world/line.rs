//! Owns what the world knows of each name in the store: whose opening followed whose, and by that the
//! judgement of S7 when a volume comes up somewhere.
//!
//! A *tenure* is one host's hold of a volume, from the replacement of the root by which it opened it.
//! The order of those replacements, which the store saw, is the order of the tenures; nothing the engine
//! says is believed. Each tenure's history is a branch: it begins with what was found when the volume
//! came up, a prefix of its predecessor's branch that contains all that was acknowledged as stored. From
//! there on the predecessor's writes are not in the volume, and a sync of its that is acknowledged beyond
//! that point broke S7. A volume created again under a deleted name is another incarnation, with bytes of
//! its own.

use std::collections::BTreeSet;

use super::World;
use super::names::Names;
use crate::faults::Fault;
use crate::oracle::history::{History, Loss};
use crate::trace::Violation;

/// One host's hold of a volume.
#[derive(Clone, Debug)]
struct Tenure {
    /// The version of the root by which it began.
    order: u64,
    attachment: usize,
    /// What of its predecessor's branch was in the volume then.
    base: u64,
    /// Its branch, once the attachment goes by another; until then that of the attachment.
    left: Option<History>,
}

/// A volume of this name, from its creation to its deletion.
#[derive(Clone, Debug)]
struct Incarnation {
    /// Stamped on all its bytes.
    number: u64,
    /// Versions of the root from here on are its own.
    from_version: u64,
    /// What it began with, if that was not nothing: one of these.
    origins: Vec<History>,
    /// By order.
    tenures: Vec<Tenure>,
}

/// How a fork began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForkOrigin {
    /// Which machine made it.
    pub(super) maker: usize,
    /// Of which snapshot.
    pub(super) snapshot: Option<usize>,
    /// The store had it when its making ended.
    pub(super) is_stored: bool,
}

/// A fork that a log has, and the store perhaps not yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptFork {
    /// The attachment of its parent, on the machine whose log has it, and since which version of the parent's root that
    /// had been open.
    pub(super) parent: usize,
    pub(super) order: u64,
    /// It was acknowledged.
    pub(super) is_sure: bool,
    /// The store was seen to have it since.
    pub(super) is_brought: bool,
}

/// A name in the store.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    /// What it was called before, and may be called next.
    pub(super) names: Names,
    /// There is a volume of this name, or may be: a name for a fork waits for one.
    pub(super) is_used: bool,
    /// It is a fork that nobody has read yet.
    new_fork: Option<ForkOrigin>,
    pub(super) created: bool,
    incarnations: Vec<Incarnation>,
    /// It is a fork that was in a log alone when its making ended, or may have been.
    pub(super) kept: Option<KeptFork>,
    /// Somebody asked for its deletion, which may take effect late; or a fork was lost with the log that had it.
    pub(super) may_be_deleted: bool,
    /// It is being deleted and created again.
    pub(super) recreation: Option<super::fleet::Recreation>,
}

/// A history whose end a stale read may have hidden from a start.
#[derive(Clone, Debug)]
pub(super) struct HiddenHistory {
    /// As it was before that start.
    history: Box<History>,
    /// Where the last start settled it. Once the attachment's own history has gone on from there, it is over.
    settled: u64,
}

impl Line {
    /// The name of a volume, or of a fork that may come.
    pub(super) fn new(number: u64, is_fork: bool) -> Line {
        let first = Incarnation {
            number,
            from_version: 0,
            origins: Vec::new(),
            tenures: Vec::new(),
        };
        let name = format!("{}{number}", if is_fork { "f" } else { "v" });
        Line {
            names: Names::new(&name),
            name,
            is_used: !is_fork,
            new_fork: None,
            created: false,
            incarnations: vec![first],
            kept: None,
            may_be_deleted: false,
            recreation: None,
        }
    }

    /// The name is free: what is created now has bytes of its own.
    pub(super) fn begin_incarnation(&mut self, number: u64, from_version: u64) {
        self.incarnations.push(Incarnation {
            number,
            from_version,
            origins: Vec::new(),
            tenures: Vec::new(),
        });
    }

    /// There is a fork of this name, or may be.
    pub(super) fn begin_as_fork(
        &mut self,
        origins: Vec<History>,
        origin: ForkOrigin,
        kept: Option<KeptFork>,
        is_sure: bool,
    ) {
        (self.is_used, self.created) = (true, true);
        self.may_be_deleted = !is_sure;
        self.kept = kept;
        self.new_fork = Some(origin);
        if let Some(first) = self.incarnations.first_mut() {
            first.origins = origins;
        }
    }

    /// Whether a fork has the name, or had it.
    pub(super) fn is_fork(&self) -> bool {
        !self.incarnations[0].origins.is_empty()
    }

    /// How it began, if it is a fork that was read for the first time.
    pub(super) fn take_new_fork(&mut self) -> Option<ForkOrigin> {
        self.new_fork.take()
    }

    /// The histories that hosts held it by, and that their attachments go by no longer.
    pub(super) fn left_branches(&self) -> impl Iterator<Item = &History> {
        let tenures = self.incarnations.iter().flat_map(|one| &one.tenures);
        tenures.filter_map(|tenure| tenure.left.as_ref())
    }

    fn incarnation_of(&self, order: u64) -> usize {
        let later = |incarnation: &Incarnation| incarnation.from_version <= order;
        self.incarnations.partition_point(later) - 1
    }
}

impl World {
    pub(super) fn root_key(&self, attachment: usize) -> String {
        let line = self.attachments[attachment].line;
        volume::object::root_key(&self.lines[line].name)
    }

    /// A volume came up: its tenure begins with the last replacement of the root by this process.
    pub(super) fn note_opening(&mut self, attachment: usize) {
        if self.is_single() {
            return;
        }
        let process = self.machines[self.attachments[attachment].machine].process;
        let writes = self.root_writes(self.attachments[attachment].line);
        let mine = writes.iter().rev().find(|write| write.author == process);
        // Without one it goes on under its last.
        let order = mine.map_or(self.attachments[attachment].order, |write| write.version);
        self.attachments[attachment].order = order;
    }

    /// Whether another machine replaced the root after `since`, and up to `until`.
    pub(super) fn was_replaced_elsewhere(&self, attachment: usize, since: u64, until: u64) -> bool {
        let machine = self.attachments[attachment].machine;
        let writes = self.root_writes(self.attachments[attachment].line);
        writes.iter().any(|write| {
            write.version > since
                && write.version <= until
                && self.process_machines[write.author as usize] != machine
        })
    }

    /// Whether another host may have fenced this one, so that errors are in order.
    pub(super) fn is_challenged(&self, attachment: usize) -> bool {
        if self.has_gone_back() {
            return true;
        }
        let here = &self.attachments[attachment];
        let (since, machine) = (here.order, here.machine);
        if self.may_end_with_parent(here.line, machine) {
            return true;
        }
        // A host that met its copy's records in its log has stopped.
        self.machines[machine].shares_log
            || !self.is_single() && self.was_replaced_elsewhere(attachment, since, u64::MAX)
    }

    /// Judges the image of a volume that came up, and settles by which history it goes on. Answers the
    /// position found, and whether that was judged by what this host itself had promised.
    pub(super) fn judge_recovery(
        &mut self,
        attachment: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<(u64, bool), Violation> {
        if self.is_single() {
            return self.judge_only(attachment, image, unread);
        }
        let here = &self.attachments[attachment];
        let (order, line) = (here.order, here.line);
        let at = self.lines[line].incarnation_of(order);
        let incarnation = &self.lines[line].incarnations[at];
        let last = incarnation
            .tenures
            .iter()
            .rev()
            .find(|tenure| tenure.attachment == attachment && tenure.left.is_none());
        let continues = here.number == incarnation.number
            && last.is_some_and(|t| !self.was_replaced_elsewhere(attachment, t.order, order));
        if continues && self.may_end_with_parent(line, self.attachments[attachment].machine) {
            // What was written to it is kept for rescue.
            self.attachments[attachment]
                .history
                .record_loss(Loss::Cache);
        }
        let (found, is_from_store) = if continues {
            (self.judge_own(attachment, image, unread)?, false)
        } else {
            self.judge_after_another(attachment, at, image, unread)?
        };
        self.begin_tenure(attachment, at, found, is_from_store);
        Ok((found, continues))
    }

    /// There is no other host; but it may not be known whether the volume was set back.
    fn judge_only(
        &mut self,
        attachment: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<(u64, bool), Violation> {
        let restored = self.attachments[attachment].restored.take();
        match (self.judge_own(attachment, image, unread), restored) {
            (Ok(found), _) => Ok((found, true)),
            (Err(violation), None) => Err(violation),
            (Err(violation), Some(mut restored)) => {
                let found = restored
                    .judge_recovery(image, unread)
                    .map_err(|_| violation)?;
                self.trace
                    .log(self.now, || format!("v{attachment} was set back"));
                self.attachments[attachment].history = *restored;
                Ok((found, false))
            }
        }
    }

    /// Only this host held the volume. A disk that answers once with what a block held before may hide the last
    /// frame of a poisoned log from one start, and a later start finds it again: nothing may be written to such
    /// a log, so no start can settle where it ends. Power may take the mark that it is poisoned; what is committed
    /// after that is written behind what that start found, and nothing hidden comes back.
    fn judge_own(
        &mut self,
        attachment: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<u64, Violation> {
        let here = &mut self.attachments[attachment];
        let there = &self.machines[here.machine];
        if !(there.is_poisoned && there.disk.has_read_stale()) {
            here.hidden = None;
            return here.history.judge_recovery(image, unread);
        }
        let before = here.history.clone();
        let hidden = here.hidden.take();
        let hidden = hidden.filter(|hidden| hidden.settled == before.len());
        match (here.history.judge_recovery(image, unread), hidden) {
            (Ok(settled), hidden) => {
                let is_short = settled < before.len();
                let hidden = hidden.map(|hidden| hidden.history);
                let hidden = hidden.or_else(|| is_short.then(|| Box::new(before)));
                here.hidden = hidden.map(|history| HiddenHistory { history, settled });
                Ok(settled)
            }
            (Err(violation), None) => Err(violation),
            (Err(_), Some(hidden)) => {
                let mut history = hidden.history;
                history.record_loss(Loss::Cache);
                let found = history.judge_recovery(image, unread)?;
                here.history = *history;
                Ok(found)
            }
        }
    }

    /// Whether the attachment's history is that of the volume as this host opened it last. If a process died
    /// before anybody heard of its opening, the attachment goes by that one from now on.
    pub(super) fn is_history_current(&mut self, attachment: usize) -> bool {
        if self.is_single() {
            return true;
        }
        let here = &self.attachments[attachment];
        let (order, line, machine) = (here.order, here.line, here.machine);
        let writes = self.root_writes(self.attachments[attachment].line);
        let is_mine = |author: u64| self.process_machines[author as usize] == machine;
        let mine = writes.iter().rev().find(|write| is_mine(write.author));
        let mine = mine.map_or(order, |write| write.version);
        let is_last =
            |t: &Tenure| t.attachment == attachment && t.left.is_none() && t.order == order;
        let incarnations = &self.lines[line].incarnations;
        let is_known = incarnations
            .iter()
            .any(|one| one.tenures.iter().any(is_last))
            && !self.was_replaced_elsewhere(attachment, order, mine);
        if !is_known {
            self.attachments[attachment].order = mine;
        }
        is_known
    }

    /// A volume that served before it was looked at in the store is this host's there, too: its tenure goes on
    /// from the replacement of the root by which it was taken again.
    pub(super) fn go_on_as_checked(&mut self, attachment: usize) -> Result<(), Violation> {
        if self.is_single() {
            return Ok(());
        }
        self.note_opening(attachment);
        let here = &self.attachments[attachment];
        let (order, line, number) = (here.order, here.line, here.number);
        let at = self.lines[line].incarnation_of(order);
        let incarnation = &self.lines[line].incarnations[at];
        let last = incarnation
            .tenures
            .iter()
            .rev()
            .find(|tenure| tenure.attachment == attachment && tenure.left.is_none());
        let continues = number == incarnation.number
            && last.is_some_and(|t| !self.was_replaced_elsewhere(attachment, t.order, order));
        if !continues {
            let detail = format!(
                "v{attachment} was served before it was checked, and went on over what another host made of it"
            );
            return Err(Violation::new("S7 one writer", detail));
        }
        let base = self.attachments[attachment].history.len();
        self.begin_tenure(attachment, at, base, false);
        Ok(())
    }

    /// Somebody else held the volume meanwhile, or this host never did. Answers also whether all of the
    /// image came from the store.
    fn judge_after_another(
        &mut self,
        attachment: usize,
        at: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<(u64, bool), Violation> {
        let (order, line) = {
            let here = &self.attachments[attachment];
            (here.order, here.line)
        };
        let incarnation = &self.lines[line].incarnations[at];
        let number = incarnation.number;
        let before = incarnation.tenures.iter().rposition(|t| t.order < order);
        let mut branch = match before {
            None => self.origin_of(incarnation, image, unread),
            Some(nth) => self.branch(line, at, nth).clone(),
        };
        // A host that claimed it and never adopted it left no tenure: who had it before goes on with his own
        // tail then, of which the store may have nothing.
        let was_own = before.is_some_and(|nth| incarnation.tenures[nth].attachment == attachment);
        let may_have_tail = was_own && self.attachments[attachment].number == number;
        branch.record_loss(Loss::Cache);
        let end_of_last;
        let is_clone = self.machines[self.attachments[attachment].machine].is_clone;
        let mut is_from_store = !is_clone && !may_have_tail;
        let found = match branch.judge_recovery(image, unread) {
            Ok(found) => {
                end_of_last = found;
                found
            }
            Err(violation) => {
                let before = before.map(|nth| self.branch(line, at, nth));
                let other = self.settle_as_clone(attachment, number, before, image, unread);
                let (other, found, shared) = other.ok_or(violation)?;
                branch = other;
                end_of_last = found.min(shared);
                is_from_store = false;
                found
            }
        };
        if is_from_store && unread.is_empty() {
            // It came from the store alone.
            branch.on_flushed(found);
            branch.on_stored(found)?;
        }
        if let Some(nth) = before {
            let tenure = &self.lines[line].incarnations[at].tenures[nth];
            let holder = tenure.attachment;
            if holder != attachment && !self.attachments[holder].has_let_go {
                self.count(Fault::TakeOver);
            }
            self.branch_mut(line, at, nth).supersede(end_of_last)?;
        }
        self.keep_branch(attachment);
        let here = &mut self.attachments[attachment];
        here.hidden = None;
        here.history = branch;
        here.number = number;
        Ok((found, is_from_store))
    }

    /// What a volume began with, as its first image shows.
    fn origin_of(
        &self,
        incarnation: &Incarnation,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> History {
        let fits = |at: &&History| History::clone(at).judge_recovery(image, unread).is_ok();
        let origins = &incarnation.origins;
        let found = origins.iter().find(fits).or(origins.first());
        let new = || History::new(incarnation.number, self.profile.sectors);
        found.cloned().unwrap_or_else(new)
    }

    /// The attachment is about to go by another history: its tenure keeps the one it had.
    pub(super) fn keep_branch(&mut self, attachment: usize) {
        let here = &self.attachments[attachment];
        for incarnation in &mut self.lines[here.line].incarnations {
            for tenure in &mut incarnation.tenures {
                if tenure.attachment == attachment && tenure.left.is_none() {
                    tenure.left = Some(here.history.clone());
                }
            }
        }
    }

    /// Of a cloned log and its original either may go on, as long as nothing of the other's own was ever
    /// called stored. The branch on which the volume did, up to where, and how much of it is the last
    /// holder's too.
    fn settle_as_clone(
        &self,
        attachment: usize,
        number: u64,
        last: Option<&History>,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Option<(History, u64, u64)> {
        let line = self.attachments[attachment].line;
        let candidates = self.attachments.iter().enumerate();
        let candidates = candidates.filter(|(_, at)| at.line == line && at.number == number);
        candidates.into_iter().find_map(|(nth, candidate)| {
            let shared = last.map_or(0, |last| last.shared_with(&candidate.history));
            let mut branch = candidate.history.clone();
            if last.map_or(0, History::stored) > shared {
                return None;
            }
            if nth != attachment {
                branch.record_loss(Loss::Cache);
            }
            let found = branch.judge_recovery(image, unread).ok()?;
            Some((branch, found, shared))
        })
    }

    fn begin_tenure(&mut self, attachment: usize, at: usize, base: u64, is_from_store: bool) {
        let (order, line) = {
            let here = &self.attachments[attachment];
            (here.order, here.line)
        };
        let tenures = &mut self.lines[line].incarnations[at].tenures;
        // One that only goes on stands where its last opening puts it.
        tenures.retain(|t| t.attachment != attachment || t.left.is_some());
        let place = tenures.partition_point(|t| t.order < order);
        let next = tenures.get(place).map(|tenure| tenure.base);
        let tenure = Tenure {
            order,
            attachment,
            base,
            left: None,
        };
        tenures.insert(place, tenure);
        self.branches += 1;
        let here = &mut self.attachments[attachment];
        here.has_let_go = false;
        here.history.begin_branch(self.branches);
        if let Some(next) = next {
            // It was overtaken before it was looked at. What it found in the store was in the volume when
            // the next one opened it; the next one's base counts commits of another branch, where the
            // same bytes may stand at another position.
            let last = if is_from_store { base } else { next };
            here.history.note_overtaken(last);
        }
    }

    fn branch(&self, line: usize, at: usize, nth: usize) -> &History {
        let tenure = &self.lines[line].incarnations[at].tenures[nth];
        let live = || &self.attachments[tenure.attachment].history;
        tenure.left.as_ref().unwrap_or_else(live)
    }

    fn branch_mut(&mut self, line: usize, at: usize, nth: usize) -> &mut History {
        let tenure = &mut self.lines[line].incarnations[at].tenures[nth];
        let live = &mut self.attachments[tenure.attachment].history;
        tenure.left.as_mut().unwrap_or(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SECTOR;
    use crate::oracle::history::Value;
    use crate::oracle::stamp::Stamp;
    use crate::profile::Profile;
    use crate::world::Watch;

    /// What counts as stored once `opener` found one commit of the volume's last holder, attachment 0.
    fn stored_after_opening(opener: usize) -> u64 {
        let mut profile = Profile::draw(1);
        (profile.hosts, profile.volumes) = (2, 1);
        profile.points = Default::default();
        let sectors = profile.sectors;
        let mut world = World::with(1, profile, Watch::default());
        let number = world.lines[0].incarnations[0].number;
        let holder = &mut world.attachments[0];
        (holder.order, holder.number) = (1, number);
        holder.history = History::new(number, sectors);
        world.begin_tenure(0, 0, 0, true);
        let history = &mut world.attachments[0].history;
        history.issue(1, 0..1);
        let position = history.commit(0..1, Value::Write(1));
        history.complete(position);

        let mut image = Vec::new();
        let stamp = Stamp {
            volume: number,
            sector: 0,
            client: 0,
            write: 1,
            generation: 0,
        };
        stamp.write_to(&mut image);
        image.resize(sectors as usize * SECTOR, 0);
        world.attachments[opener].order = 2;
        let found = world.judge_after_another(opener, 0, &image, &BTreeSet::new());
        assert_eq!(found.map(|(found, _)| found).ok(), Some(position));
        world.attachments[opener].history.stored()
    }

    /// The image of a volume that has these writes, each in the sector of its number.
    fn image_of(writes: &[u64], sectors: u64) -> Vec<u8> {
        let mut image = vec![0; sectors as usize * SECTOR];
        for write in writes {
            let stamp = Stamp {
                volume: 0,
                sector: *write,
                client: 0,
                write: *write,
                generation: 0,
            };
            let mut bytes = Vec::new();
            stamp.write_to(&mut bytes);
            let at = *write as usize * SECTOR;
            image[at..at + SECTOR].copy_from_slice(&bytes);
        }
        image
    }

    /// A host whose log is poisoned and whose disk has answered with old bytes, before its first commit.
    fn poisoned_world() -> World {
        let mut profile = Profile::draw(1);
        (profile.hosts, profile.volumes) = (1, 1);
        profile.points = Default::default();
        let mut world = World::with(1, profile, Watch::default());
        world.machines[0].is_poisoned = true;
        world.machines[0].disk.counts.count(Fault::StaleRead);
        world
    }

    fn commit(world: &mut World, writes: &[u64]) {
        let history = &mut world.attachments[0].history;
        for write in writes {
            history.issue(*write, *write..*write + 1);
            let position = history.commit(*write..*write + 1, Value::Write(*write));
            history.complete(position);
        }
    }

    /// The host starts, and its volume has these writes.
    fn start(world: &mut World, writes: &[u64]) -> Result<u64, Violation> {
        let image = image_of(writes, world.profile.sectors);
        world.attachments[0].history.record_loss(Loss::Host);
        world.judge_own(0, &image, &BTreeSet::new())
    }

    #[test]
    fn what_a_stale_read_hid_from_one_start_may_be_there_for_the_next_and_be_hidden_again() {
        let mut world = poisoned_world();
        commit(&mut world, &[1, 2]);
        assert_eq!(start(&mut world, &[1]).ok(), Some(1));
        assert_eq!(start(&mut world, &[1, 2]).ok(), Some(2));
        assert_eq!(start(&mut world, &[1]).ok(), Some(1));
        assert_eq!(start(&mut world, &[1, 2]).ok(), Some(2));
        assert!(start(&mut world, &[2]).is_err(), "no prefix");
    }

    #[test]
    fn what_is_hidden_after_a_volume_went_on_is_looked_for_in_the_history_that_went_on() {
        let mut world = poisoned_world();
        commit(&mut world, &[1, 2]);
        assert_eq!(start(&mut world, &[1]).ok(), Some(1));
        // Power took the mark of the first poisoning.
        commit(&mut world, &[3, 4]);
        assert_eq!(start(&mut world, &[1, 3]).ok(), Some(2));
        assert_eq!(start(&mut world, &[1, 3, 4]).ok(), Some(3));
    }

    #[test]
    fn what_was_hidden_before_a_volume_went_on_does_not_come_back() {
        let mut world = poisoned_world();
        commit(&mut world, &[1, 2]);
        assert_eq!(start(&mut world, &[1]).ok(), Some(1));
        commit(&mut world, &[3]);
        assert!(start(&mut world, &[1, 2]).is_err(), "another history");
    }

    #[test]
    fn what_a_host_found_in_its_own_tail_was_not_promised_to_be_in_the_store() {
        assert_eq!(stored_after_opening(0), 0);
        assert_eq!(stored_after_opening(1), 1);
    }
}
