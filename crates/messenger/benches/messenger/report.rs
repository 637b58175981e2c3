//! Tables of what was measured: medians over the rounds, with the smallest and the largest.

use std::collections::BTreeMap;

use messenger::outqueue::{LockStats, Site};

use crate::load::{Load, Measurement, Variant, add, is_caller_site};

#[derive(Debug)]
pub(crate) struct Report {
    /// Whether programs want the rows, too.
    figures: bool,
    runs: BTreeMap<(&'static str, Variant), Vec<Measurement>>,
}

const VARIANTS: [(Variant, &str); 3] = [
    (Variant::One, "one"),
    (Variant::Split, "split"),
    (Variant::SplitAgain, "split, again"),
];

impl Report {
    pub(crate) fn new(figures: bool) -> Self {
        Self {
            figures,
            runs: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, load: &Load, variant: Variant, measured: Measurement) {
        self.runs
            .entry((load.name, variant))
            .or_default()
            .push(measured);
    }

    pub(crate) fn print(&self, load: &Load) {
        println!("\n## {}\n", load.name);
        println!("Median (smallest..largest) of the rounds; times in microseconds.\n");
        println!("| | one | split | split, again |\n|---|---|---|---|");
        self.row(load, "callers' wait, ms per million sends", |m| {
            wait_per_million(m)
        });
        self.row(load, "callers' longest wait", longest_wait);
        self.row(load, "contended takes by callers, %", contended);
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            self.row(load, &format!("send() {name}"), |m| at(&m.sends, part));
        }
        for (name, part) in [("p99", 0.99), ("max", 1.0)] {
            self.row(load, &format!("keepalive() {name}"), |m| {
                at(&m.keepalives, part)
            });
        }
        for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
            self.row(load, &format!("round trip {name}"), |m| {
                at(&m.round_trips, part)
            });
        }
        self.row(load, "sent, thousand/s", |m| {
            m.sends.len() as f64 / m.seconds / 1e3
        });
        self.row(load, "refused as full, thousand/s", |m| {
            m.full as f64 / m.seconds / 1e3
        });
        self.row(load, "begun over 1 ms late, %", |m| {
            100.0 * m.late as f64 / m.sends.len().max(1) as f64
        });
        self.row(load, "senders' run-queue delay, ms/s", |m| {
            m.senders_delay_ns as f64 / 1e6 / m.seconds
        });
        self.row(load, "I/O threads' run-queue delay, ms/s", |m| {
            m.io_delay_ns as f64 / 1e6 / m.seconds
        });
        self.ratio(load);
        self.sites(load);
    }

    fn values(&self, load: &Load, variant: Variant, f: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        let runs = self
            .runs
            .get(&(load.name, variant))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut values: Vec<f64> = runs.iter().map(f).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn row(&self, load: &Load, name: &str, f: impl Fn(&Measurement) -> f64) {
        let cells: Vec<String> = VARIANTS
            .iter()
            .map(|(variant, _)| {
                let v = self.values(load, *variant, &f);
                match (v.first(), v.last()) {
                    (Some(min), Some(max)) => {
                        format!(
                            "{} ({}..{})",
                            format_short(v[v.len() / 2]),
                            format_short(*min),
                            format_short(*max)
                        )
                    }
                    _ => "-".to_owned(),
                }
            })
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
        if self.figures {
            let mut fields = String::new();
            for (variant, variant_name) in &VARIANTS {
                let v = self.values(load, *variant, &f);
                if let (Some(min), Some(max)) = (v.first(), v.last()) {
                    let median = v[v.len() / 2];
                    fields += &format!(",\"{variant_name}\":[{median:.6},{min:.6},{max:.6}]");
                }
            }
            print_figure(load, &format!("\"what\":\"{name}\"{fields}"), "messenger");
        }
    }

    /// P12: wait of callers, one lock over split: of the medians, and of the sums over all rounds,
    /// which a single round in which the machine was busy elsewhere can rule.
    fn ratio(&self, load: &Load) {
        let median = |variant| {
            let v = self.values(load, variant, wait_per_million);
            v.get(v.len() / 2).copied().unwrap_or(0.0)
        };
        let total = |variant| {
            self.values(load, variant, wait_per_million)
                .iter()
                .sum::<f64>()
        };
        let [one, split, again] = VARIANTS.map(|(v, _)| median(v));
        let [one_all, split_all, again_all] = VARIANTS.map(|(v, _)| total(v));
        println!("\n| callers' wait | of medians | of sums |\n|---|---|---|");
        println!(
            "| one / split | {} | {} |",
            format_ratio(one, (split + again) / 2.0),
            format_ratio(one_all, (split_all + again_all) / 2.0)
        );
        println!(
            "| control: split / split again | {} | {} |",
            format_ratio(split, again),
            format_ratio(split_all, again_all)
        );
    }

    /// Who waited for whom, and how long the locks were held.
    fn sites(&self, load: &Load) {
        println!(
            "\n| waits, ms per million sends | takes | contended | wait | longest us | mostly for | held p. sample us | longest us |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for (variant, name) in &VARIANTS[..2] {
            let Some(runs) = self.runs.get(&(load.name, *variant)) else {
                continue;
            };
            let sends: usize = runs.iter().map(|m| m.sends.len()).sum();
            let all = runs
                .iter()
                .fold(LockStats::default(), |all, m| add(all, m.locks));
            for site in Site::ALL {
                let s = all.0[site as usize];
                if s.takes == 0 {
                    continue;
                }
                if self.figures {
                    let fields = format!(
                        "\"variant\":\"{name}\",\"site\":\"{site:?}\",\"caller\":{},\"sends\":{sends},\
                         \"takes\":{},\"contended\":{},\"wait_ns\":{},\"wait_max_ns\":{}",
                        is_caller_site(site),
                        s.takes,
                        s.contended,
                        s.wait_ns,
                        s.wait_max_ns
                    );
                    print_figure(load, &fields, "messenger-locks");
                }
                let holder = (0..s.waited_for_ns.len()).max_by_key(|i| s.waited_for_ns[*i]);
                let holder = holder.filter(|_| s.contended > 0).map(|i| Site::ALL[i]);
                println!(
                    "| {name}: {site:?} | {} | {} | {} | {} | {} | {} | {} |",
                    s.takes,
                    s.contended,
                    format_short(s.wait_ns as f64 / sends.max(1) as f64),
                    format_short(s.wait_max_ns as f64 / 1e3),
                    holder.map_or("-".to_owned(), |h| format!("{h:?}")),
                    format_short(s.held_ns as f64 / s.held_samples.max(1) as f64 / 1e3),
                    format_short(s.held_max_ns as f64 / 1e3),
                );
            }
        }
    }
}

/// A row for a program; names have nothing in them that JSON would escape.
fn print_figure(load: &Load, fields: &str, table: &str) {
    let load = load.name;
    println!("@figure {{\"table\":\"{table}\",\"load\":\"{load}\",{fields}}}");
}

fn callers(m: &Measurement) -> impl Iterator<Item = messenger::outqueue::SiteStats> + '_ {
    Site::ALL
        .into_iter()
        .filter(|s| is_caller_site(*s))
        .map(|s| m.locks.0[s as usize])
}

/// Nanoseconds a send are milliseconds per million sends.
fn wait_per_million(m: &Measurement) -> f64 {
    callers(m).map(|s| s.wait_ns).sum::<u64>() as f64 / m.sends.len().max(1) as f64
}

fn longest_wait(m: &Measurement) -> f64 {
    callers(m).map(|s| s.wait_max_ns).max().unwrap_or(0) as f64 / 1e3
}

fn contended(m: &Measurement) -> f64 {
    let contended: u64 = callers(m).map(|s| s.contended).sum();
    100.0 * contended as f64 / m.sends.len().max(1) as f64
}

/// A quantile of sorted nanoseconds, in microseconds.
fn at(sorted: &[u64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let i = ((sorted.len() as f64 * part) as usize).min(last);
    sorted.get(i).map_or(0.0, |n| *n as f64 / 1e3)
}

fn format_short(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

fn format_ratio(a: f64, b: f64) -> String {
    if b > 0.0 {
        format!("{:.2}x", a / b)
    } else {
        format!("{} ms against none", format_short(a))
    }
}
