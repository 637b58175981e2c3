//! Random histories of forks that the log keeps: writes, discards and flushes of a volume and its forks, folds, compactions, outages,
//! lost answers, forks that are taken, opened, forked again, closed and deleted, kills and losses of power at any step. At
//! the end of each history, and in the middle, each volume that was acknowledged is what it was, on this host and on another one.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use blkmq::io::Op;
use volume::{CompactOptions, Durability, Volume};

use crate::support::hosts::elsewhere;
use crate::support::points::{gc, read_blocks, snapshot};
use crate::support::{Environment, Fault, World, compacting};

const BLOCKS: usize = 96;
const HISTORIES: u64 = 40;
const STEPS: u64 = 60;
const FORKS_MAX: usize = 4;

type Content = Vec<u8>;

/// What is known of a volume.
struct Known {
    /// Each state since the last flush; the last one is what it is.
    states: Vec<Content>,
    open: Option<Volume>,
    /// It was acknowledged, and nobody has asked for its end.
    is_certain: bool,
}

impl Known {
    fn of(content: Content, is_certain: bool) -> Known {
        Known {
            states: vec![content],
            open: None,
            is_certain,
        }
    }

    fn content(&self) -> Content {
        self.states.last().expect("never empty").clone()
    }

    fn flushed(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }
}

struct History {
    random: fastrand::Rng,
    world: World,
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
        let mut demo = Known::of(vec![0; BLOCKS], true);
        demo.open = Some(world.open("demo"));
        History {
            random: fastrand::Rng::with_seed(seed),
            world,
            known: [("demo".to_owned(), demo)].into(),
            drawn: 0,
            told: Vec::new(),
        }
    }

    /// One that is open.
    fn pick_open(&mut self) -> Option<String> {
        let open = self.known.iter().filter(|(_, known)| known.open.is_some());
        let open: Vec<&String> = open.map(|(name, _)| name).collect();
        let nth = self.random.usize(..open.len().max(1));
        open.get(nth).map(|name| (*name).clone())
    }

    fn write(&mut self) {
        let Some(name) = self.pick_open() else { return };
        let (block, blocks) = (self.random.usize(..BLOCKS - 8), self.random.usize(1..8));
        let fill = match self.random.u8(..5) {
            0 => 0,
            _ => self.random.u8(1..),
        };
        self.told.push(format!("{name}: {block}+{blocks} {fill}"));
        let known = self.known.get_mut(&name).expect("known");
        let volume = known.open.clone().expect("open");
        match fill {
            0 => {
                let op = Op::Discard {
                    sector: block as u64 * 8,
                    sectors: blocks as u64 * 8,
                    fua: false,
                };
                let discarded = self.world.request(&volume, op, &mut []);
                discarded.expect("discarded");
            }
            _ => self
                .world
                .write(&volume, block as u64 * 8, fill, blocks * 4096),
        }
        let mut content = known.content();
        content[block..block + blocks].fill(fill);
        known.states.push(content);
    }

    fn flush(&mut self) {
        let Some(name) = self.pick_open() else { return };
        self.told.push(format!("{name}: flush"));
        let known = self.known.get_mut(&name).expect("known");
        self.world.flush(known.open.as_ref().expect("open"));
        known.flushed();
    }

    fn pass(&mut self) {
        let ms = self.random.u64(10..3000);
        self.told.push(format!("pass {ms}"));
        self.world.pass(ms);
    }

    /// The store is away, or a few requests fail or are answered by nobody.
    fn disturb(&mut self) {
        let (kind, count) = (self.random.u8(..4), self.random.usize(..12));
        self.told.push(format!("disturb {kind} {count}"));
        let env = &mut self.world.env;
        match kind {
            0 => env.outage = !env.outage,
            1 => {
                let all = [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind];
                env.fault_after = Some((count, all[count % 3]));
            }
            2 => env.failing_puts = count,
            _ => env.failing_creates = count,
        }
    }

    fn calm(&mut self) {
        let env = &mut self.world.env;
        (env.outage, env.fault_after) = (false, None);
        (env.failing_puts, env.failing_creates) = (0, 0);
    }

    fn take(&mut self) {
        let Some(parent) = self.pick_open() else {
            return;
        };
        if self.known.len() > FORKS_MAX {
            return;
        }
        self.drawn += 1;
        let name = format!("f{}", self.drawn);
        let is_killed = self.random.u8(..6) == 0;
        let steps = self.random.usize(..12);
        self.told.push(format!("{parent}: fork {name}"));
        let content = self.known[&parent].content();
        let (world, host) = (&mut self.world, Durability::Log);
        let answer = world.host.fork_volume(&parent, &name, host);
        let mut answered = None;
        // A fork of a fork waits for the store.
        for step in 0..20_000 {
            world.host.run_jobs();
            world.one_step();
            answered = answer.try_take();
            if answered.is_some() || (is_killed && step > steps) {
                break;
            }
            if step % 100 == 99 {
                world.pass(100);
            }
            if step == 5_000 {
                let env = &mut world.env;
                (env.outage, env.fault_after) = (false, None);
            }
        }
        match answered {
            Some(Ok(_)) => {
                self.known.insert(name, Known::of(content, true));
                self.known.get_mut(&parent).expect("known").flushed();
            }
            answered => {
                self.told.push(format!("{answered:?}"));
                self.known.insert(name, Known::of(content, false));
            }
        }
        if is_killed {
            self.restart();
        }
    }

    fn open(&mut self) {
        let closed = self.known.iter().filter(|(_, known)| known.open.is_none());
        let closed: Vec<String> = closed.map(|(name, _)| name.clone()).collect();
        let nth = self.random.usize(..closed.len().max(1));
        if let Some(name) = closed.get(nth) {
            self.try_open(name);
        }
    }

    /// Opens one, if that is possible now.
    fn try_open(&mut self, name: &str) {
        let opened = self.world.try_open(name, false);
        let known = self.known.get_mut(name).expect("known");
        self.told
            .push(format!("open {name}: {:?}", opened.as_ref().err()));
        if let Ok(volume) = opened {
            (known.open, known.is_certain) = (Some(volume), true);
        }
    }

    /// Closes one, or deletes it.
    fn end(&mut self) {
        let Some(name) = self.pick_open() else { return };
        if name == "demo" {
            return;
        }
        self.told.push(format!("close {name}"));
        self.calm();
        self.world.pass(5_000);
        let volume = self.known.get_mut(&name).expect("known").open.take();
        let answer = self.world.host.close_volume(&volume.expect("open"));
        self.world.wait(|_| answer.try_take()).expect("closed");
        self.known.get_mut(&name).expect("known").flushed();
        if self.random.bool() {
            self.told.push(format!("delete {name}"));
            let answer = self.world.host.delete_volume(&name);
            self.world.wait(|_| answer.try_take()).expect("deleted");
            self.known.remove(&name);
        }
    }

    fn restart(&mut self) {
        self.restart_after(false);
    }

    /// `power_failed`: since anybody has looked at what is there.
    fn restart_after(&mut self, power_failed: bool) {
        let power_fails = self.random.bool();
        self.told.push(format!("restart {power_fails}"));
        self.known.values_mut().for_each(|known| known.open = None);
        let mut env = std::mem::replace(&mut self.world, World::new()).kill();
        (env.outage, env.fault_after) = (self.random.u8(..4) == 0, None);
        (env.failing_puts, env.failing_creates) = (0, 0);
        env.boot += u8::from(power_fails);
        self.world = World::start(env);
        let is_killed_again = self.random.u8(..5) == 0;
        let mut names: Vec<String> = self.known.keys().cloned().collect();
        self.random.shuffle(&mut names);
        if !self.world.env.outage {
            for name in &names {
                self.try_open(name);
            }
        }
        if is_killed_again {
            return self.restart_after(power_fails || power_failed);
        }
        self.calm();
        // One whose parent is not open waits for that.
        for _ in 0..self.known.len() {
            for name in &names {
                if self.known[name].open.is_none() {
                    self.try_open(name);
                }
            }
            self.world.pass(15_000);
            if self.known.values().all(|known| known.open.is_some()) {
                break;
            }
        }
        for name in names {
            self.look_after_restart(&name, power_fails || power_failed);
        }
    }

    fn look_after_restart(&mut self, name: &str, power_fails: bool) {
        let known = self.known.get_mut(name).expect("known");
        let Some(volume) = &known.open else {
            assert!(!known.is_certain, "{name} is gone");
            self.known.remove(name);
            return;
        };
        let found = read_all(&mut self.world, volume);
        let at = known.states.iter().rposition(|state| *state == found);
        let is_newest = at == Some(known.states.len() - 1);
        assert!(
            is_newest || (power_fails && at.is_some()),
            "what {name} is after a restart it never was"
        );
        known.states = vec![found];
    }

    /// Everything is in the store, and for another host what it was.
    fn verify(&mut self) {
        self.told.push("verify".into());
        self.calm();
        self.world.pass(40_000);
        for (name, known) in &mut self.known {
            if let Some(volume) = &known.open {
                let found = read_all(&mut self.world, volume);
                assert!(found == known.content(), "{name} is another");
                assert!(!volume.is_unchecked(), "{name} has no root");
                self.world.sync(volume);
                known.flushed();
            }
        }
        let mut other = elsewhere(&self.world);
        for (name, known) in &self.known {
            let Ok(volume) = other.try_open(name, true) else {
                assert!(!known.is_certain, "{name} is gone");
                continue;
            };
            let found = read_all(&mut other, &volume);
            assert!(known.states.contains(&found), "{name} is another elsewhere");
        }
    }

    fn step(&mut self) {
        match self.random.u8(..44) {
            0..=15 => self.write(),
            16..=18 => self.flush(),
            19..=22 => self.pass(),
            23..=27 => self.take(),
            28..=32 => self.open(),
            33..=35 => self.disturb(),
            36 => self.calm(),
            37..=38 => self.restart(),
            39 => self.verify(),
            40..=41 => self.end(),
            42 => {
                self.calm();
                self.drawn += 1;
                let name = format!("demo@s{}", self.drawn);
                snapshot(&mut self.world, &name).expect("taken");
                self.known.get_mut("demo").expect("known").flushed();
            }
            _ => {
                self.calm();
                gc(&mut self.world);
            }
        }
    }
}

fn read_all(world: &mut World, volume: &Volume) -> Content {
    read_blocks(world, volume, BLOCKS)
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
fn whatever_happens_a_fork_and_its_parent_stay_what_they_were() {
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
            "served_fork_has_no_holder",
            all_histories_keep_what_was_acknowledged,
        ),
    ]);
}
