//! Random histories of snapshots that the log keeps: writes, discards, flushes, folds, compactions, outages, lost
//! answers, snapshots that are taken, deleted and forked, kills and losses of power at any step, and behind some of them the
//! volume is set back or goes through the trash before anybody opens it. Every snapshot
//! that was acknowledged is there at the end of each history, and in the middle, with what the volume was; none that was deleted is.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use blkmq::io::Op;
use volume::{CompactOptions, Durability, Volume};

use crate::support::hosts::{close, delete, elsewhere};
use crate::support::points::{delete_snapshot, done, fork, gc, read_blocks, snapshot_names};
use crate::support::{Environment, Fault, World, compacting};

const BLOCKS: usize = 128;
const HISTORIES: u64 = 120;
const STEPS: u64 = 60;

type Content = Vec<u8>;

/// What is known of a snapshot that is, or may be, there.
#[derive(Clone)]
struct Known {
    content: Content,
    /// It was acknowledged, and nobody has asked for its end.
    is_certain: bool,
}

struct History {
    random: fastrand::Rng,
    world: Option<World>,
    volume: Option<Volume>,
    /// Each state of the volume since the last flush; the last one is what it is.
    states: Vec<Content>,
    known: BTreeMap<String, Known>,
    drawn: u32,
    told: Vec<String>,
}

impl History {
    fn begin(seed: u64) -> History {
        let mut world = World::start(Environment {
            compact: (seed % 2 == 1).then(|| CompactOptions {
                live_percent: if seed % 4 == 1 { 95 } else { 50 },
                ..compacting()
            }),
            ..Environment::default()
        });
        world.create("demo", BLOCKS as u64 * 4096);
        let volume = world.open("demo");
        History {
            random: fastrand::Rng::with_seed(seed),
            world: Some(world),
            volume: Some(volume),
            states: vec![vec![0; BLOCKS]],
            known: BTreeMap::new(),
            drawn: 0,
            told: Vec::new(),
        }
    }

    fn world(&mut self) -> (&mut World, Volume) {
        let world = self.world.as_mut().expect("a host");
        (world, self.volume.clone().expect("open"))
    }

    fn content(&self) -> Content {
        self.states.last().expect("never empty").clone()
    }

    fn change(&mut self, range: std::ops::Range<usize>, fill: u8) {
        let mut content = self.content();
        content[range].fill(fill);
        self.states.push(content);
    }

    fn write(&mut self) {
        let (block, blocks) = (self.random.usize(..BLOCKS - 8), self.random.usize(1..8));
        let fill = self.random.u8(1..);
        self.told.push(format!("write {block}+{blocks} {fill}"));
        let (world, volume) = self.world();
        world.write(&volume, block as u64 * 8, fill, blocks * 4096);
        self.change(block..block + blocks, fill);
    }

    fn discard(&mut self) {
        let (block, blocks) = (self.random.usize(..BLOCKS - 16), self.random.usize(1..16));
        self.told.push(format!("discard {block}+{blocks}"));
        let op = Op::Discard {
            sector: block as u64 * 8,
            sectors: blocks as u64 * 8,
            fua: false,
        };
        let (world, volume) = self.world();
        world.request(&volume, op, &mut []).expect("discarded");
        self.change(block..block + blocks, 0);
    }

    fn flush(&mut self) {
        self.told.push("flush".into());
        let (world, volume) = self.world();
        world.flush(&volume);
        self.states.drain(..self.states.len() - 1);
    }

    fn pass(&mut self) {
        let ms = self.random.u64(10..3000);
        self.told.push(format!("pass {ms}"));
        self.world().0.pass(ms);
    }

    /// The store is away, or a few requests fail or are answered by nobody.
    fn disturb(&mut self) {
        let (kind, count) = (self.random.u8(..4), self.random.usize(..12));
        self.told.push(format!("disturb {kind} {count}"));
        let env = &mut self.world().0.env;
        match kind {
            0 => env.outage = !env.outage,
            1 => env.fault_after = Some((count, Fault::LostAnswer)),
            2 => env.failing_puts = count,
            _ => env.failing_creates = count,
        }
    }

    fn calm(&mut self) {
        let env = &mut self.world().0.env;
        (env.outage, env.fault_after) = (false, None);
        (env.failing_puts, env.failing_creates) = (0, 0);
    }

    fn take(&mut self) {
        if self.known.len() == 7 {
            return;
        }
        self.drawn += 1;
        let name = format!("demo@s{}", self.drawn % 12);
        let durability = match self.random.u8(..4) {
            0 => Durability::Store,
            _ => Durability::Log,
        };
        self.told.push(format!("take {name} {durability:?}"));
        let (content, is_killed) = (self.content(), self.random.u8(..6) == 0);
        let steps = self.random.usize(..12);
        let (world, _) = self.world();
        let answer = world.host.create_snapshot(&name, Vec::new(), durability);
        let answered = match is_killed {
            true => {
                for _ in 0..steps {
                    world.host.run_jobs();
                    world.one_step();
                }
                answer.try_take()
            }
            false => Some(world.wait(|_| answer.try_take())),
        };
        match answered {
            Some(Ok(_)) => {
                let is_certain = true;
                self.known.insert(
                    name,
                    Known {
                        content,
                        is_certain,
                    },
                );
                // What a frame names is durable with it.
                if durability == Durability::Log {
                    self.states.drain(..self.states.len() - 1);
                }
            }
            // It may be there, if there was none of that name.
            _ if !self.known.contains_key(&name) => {
                let is_certain = false;
                self.known.insert(
                    name,
                    Known {
                        content,
                        is_certain,
                    },
                );
            }
            _ => {}
        }
        if is_killed {
            self.restart();
        }
    }

    fn delete(&mut self) {
        let Some(name) = self.pick() else { return };
        self.told.push(format!("delete {name}"));
        let (world, _) = self.world();
        match delete_snapshot(world, &name) {
            Ok(()) => drop(self.known.remove(&name)),
            Err(_) => self.known.get_mut(&name).expect("known").is_certain = false,
        }
    }

    fn pick(&mut self) -> Option<String> {
        let nth = self.random.usize(..self.known.len().max(1));
        self.known.keys().nth(nth).cloned()
    }

    fn restart(&mut self) {
        let (world, power_fails) = self.start_again();
        self.open_again(world, power_fails);
    }

    /// The next process, which has opened nothing yet, and whether the power failed before it.
    fn start_again(&mut self) -> (World, bool) {
        let power_fails = self.random.bool();
        self.told.push(format!("restart {power_fails}"));
        self.volume = None;
        let mut env = self.world.take().expect("a host").kill();
        (env.outage, env.fault_after) = (false, None);
        (env.failing_puts, env.failing_creates) = (0, 0);
        env.boot += u8::from(power_fails);
        (World::start(env), power_fails)
    }

    fn open_again(&mut self, mut world: World, power_fails: bool) {
        let volume = world.open("demo");
        let found = read_all(&mut world, &volume);
        let at = self.states.iter().rposition(|state| *state == found);
        let is_newest = at == Some(self.states.len() - 1);
        assert!(
            is_newest || (power_fails && at.is_some()),
            "what is there after a restart was never there"
        );
        self.states = vec![found];
        (self.world, self.volume) = (Some(world), Some(volume));
    }

    /// Takes a snapshot of what the store has already, while it is away: then nothing but the snapshot is in the log alone.
    fn take_of_what_is_stored(&mut self) {
        self.calm();
        let (world, volume) = self.world();
        world.pass(20_000);
        world.sync(&volume);
        world.env.outage = true;
        self.take();
    }

    /// Sets the volume back before it is opened, if the store has all of it.
    fn set_back(&mut self) {
        let Some(name) = self.pick().filter(|_| self.known.len() < 6) else {
            return;
        };
        if self.random.bool() {
            self.take_of_what_is_stored();
        }
        self.drawn += 1;
        let kept = format!("demo@k{}", self.drawn);
        let (mut world, power_fails) = self.start_again();
        let answer = world.host.restore_volume(&name, &kept);
        let set_back = world.wait(|_| answer.try_take());
        self.told.push(format!("set back to {name}: {set_back:?}"));
        if set_back.is_ok() {
            let content = read_snapshot(&mut world, &kept);
            assert!(self.states.contains(&content), "{kept} was never there");
            self.states = vec![self.known[&name].content.clone()];
            let is_certain = true;
            self.known.insert(
                kept,
                Known {
                    content,
                    is_certain,
                },
            );
        }
        self.open_again(world, power_fails);
    }

    /// Moves the volume to the trash before it is opened, if the store has all of it, and has it back.
    fn go_through_the_trash(&mut self) {
        if self.random.bool() {
            self.take_of_what_is_stored();
        }
        let (mut world, power_fails) = self.start_again();
        let answer = world.host.trash_volume("demo", 3_600_000);
        let moved = world.wait(|_| answer.try_take());
        self.told.push(format!("to the trash: {moved:?}"));
        if moved.is_ok() {
            let answer = world.host.restore_from_trash("demo", None);
            done(&mut world, &answer);
        }
        self.open_again(world, power_fails);
    }

    /// All that is certain is there, and what is there is what it was; in the store, too, and for another host.
    fn verify(&mut self) {
        self.told.push("verify".into());
        self.calm();
        let known = self.known.clone();
        let (world, volume) = self.world();
        world.pass(40_000);
        world.sync(&volume);
        let names = snapshot_names(world, "demo");
        for (name, known) in &known {
            assert!(names.contains(name) || !known.is_certain, "{name} is gone");
        }
        let mut other = elsewhere(world);
        for name in &names {
            let known = known.get(name).unwrap_or_else(|| panic!("{name} is back"));
            for world in [&mut *world, &mut other] {
                let content = read_snapshot(world, name);
                assert!(content == known.content, "{name} is another");
            }
        }
        self.known.retain(|name, _| names.contains(name));
        self.known
            .values_mut()
            .for_each(|known| known.is_certain = true);
    }

    fn step(&mut self) {
        match self.random.u8(..45) {
            0..=13 => self.write(),
            14..=15 => self.discard(),
            16..=18 => self.flush(),
            19..=22 => self.pass(),
            23..=29 => self.take(),
            30..=31 => self.delete(),
            32..=34 => self.disturb(),
            35 => self.calm(),
            36..=37 => self.restart(),
            38 => self.verify(),
            39 => self.take_of_what_is_stored(),
            40..=41 => self.set_back(),
            42..=43 => self.go_through_the_trash(),
            _ => {
                self.calm();
                gc(self.world().0);
            }
        }
    }
}

fn read_all(world: &mut World, volume: &Volume) -> Content {
    read_blocks(world, volume, BLOCKS)
}

fn read_snapshot(world: &mut World, name: &str) -> Content {
    let fork = fork(world, name, "probe").unwrap_or_else(|error| panic!("{name}: {error}"));
    let content = read_all(world, &fork);
    close(world, &fork);
    delete(world, "probe");
    content
}

fn run(seed: u64) {
    let mut history = History::begin(seed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            history.step();
        }
        history.restart();
        history.verify();
    }));
    if let Err(panic) = outcome {
        println!("history {seed}:\n{}", history.told.join("\n"));
        std::panic::resume_unwind(panic);
    }
}

fn all_histories_keep_what_was_acknowledged() {
    (0..HISTORIES).for_each(run);
}

#[test]
fn whatever_happens_a_snapshot_that_was_acknowledged_stays_what_it_was() {
    all_histories_keep_what_was_acknowledged();
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn histories_see_planted_bugs() {
    canary::each_is_seen(&[
        (
            "recovery_forgets_points",
            all_histories_keep_what_was_acknowledged,
        ),
        (
            "checkpoint_forgets_snapshots",
            all_histories_keep_what_was_acknowledged,
        ),
        (
            "slice_spans_a_point",
            all_histories_keep_what_was_acknowledged,
        ),
        (
            "closed_volume_leaves_snapshots_in_the_log",
            all_histories_keep_what_was_acknowledged,
        ),
    ]);
}
