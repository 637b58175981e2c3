//! Rows as they come, and the charts that are drawn of them.
//!
//! Charts leave the guest as lines of its output, the only way out there is.

use serde_json::{Value, json};

use crate::bench::measure::Sample;
use crate::bench::ublk::Options;
use crate::chart::Chart;
use crate::figures;

/// What a line that carries a chart begins with.
const CHART: &str = "@chart ";

/// One figure: what was asked of whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    /// What the devices were asked to do.
    pub(super) workload: &'a str,
    pub(super) server: &'a str,
    /// Transport, data mode, queues and depth as they were granted.
    pub(super) granted: &'a str,
}

/// What the bars of a part's chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bars {
    /// The rate, relative to the first of its group.
    Ratio,
    /// What a request costs, where there is nothing to compare it with.
    Cost,
}

/// What is told, and drawn at the end.
pub(super) struct Report {
    icount: bool,
    lane: String,
    charts: Vec<(String, Chart)>,
    bars: Bars,
    /// The rate of the workload's first server.
    base: Option<(String, f64)>,
}

impl Report {
    pub(super) fn new(options: &Options, lane: &str) -> Report {
        Report {
            icount: options.icount,
            lane: lane.to_owned(),
            charts: Vec::new(),
            bars: Bars::Ratio,
            base: None,
        }
    }

    /// Begins a part with a table and a chart of its own.
    pub(super) fn part(&mut self, name: &str, title: &str, bars: Bars) {
        let unit = self.unit();
        let drawn = match bars {
            Bars::Ratio => "requests/s relative to the first of each group",
            Bars::Cost => unit.split(';').next().unwrap_or(unit),
        };
        self.bars = bars;
        self.charts.push((
            name.to_owned(),
            Chart {
                title: format!("{title}: {drawn}"),
                note: self.lane.clone(),
                ..Chart::default()
            },
        ));
        self.base = None;
        println!("\n## {title}\n");
        println!(
            "| workload | server | granted | requests/s | ratio | {unit} | p50 | p99 | p99.9 |"
        );
        println!("|---|---|---|---:|---:|---:|---:|---:|---:|");
    }

    fn unit(&self) -> &'static str {
        if self.icount {
            "instructions/request; latencies in 1000"
        } else {
            "us/request; latencies in us"
        }
    }

    /// A figure. The ratio is to the first server of its workload.
    pub(super) fn row(&mut self, row: Row, sample: &Sample) {
        let rate = sample.per_second;
        if self
            .base
            .as_ref()
            .is_none_or(|(name, _)| name != row.workload)
        {
            self.base = Some((row.workload.to_owned(), rate));
        }
        let ratio = rate / self.base.as_ref().map_or(rate, |(_, base)| *base);
        // The emulated clock has a nanosecond per instruction.
        let each = if self.icount { 1e9 } else { 1e6 } / rate;
        let [p50, p99, p999] = sample.percentiles_us;
        println!(
            "| {} | {} | {} | {rate:.0} | {ratio:.2} | {each:.1} | {p50:.0} | {p99:.0} | {p999:.0} |",
            row.workload, row.server, row.granted
        );
        let part = self.charts.last().map(|(name, _)| name.as_str());
        let figure = json!({
            "part": part, "workload": row.workload, "server": row.server, "granted": row.granted,
            "per_second": rate, "each": each, "p50": p50, "p99": p99, "p999": p999,
        });
        figures::put("volume", &figure);
        if let Some((_, chart)) = self.charts.last_mut() {
            let value = match self.bars {
                Bars::Ratio => ratio,
                Bars::Cost => each,
            };
            chart.put(row.workload, row.server, value);
        }
    }

    /// Lets the charts out.
    pub(super) fn end(&self) {
        for (name, chart) in &self.charts {
            if chart.groups.is_empty() {
                continue;
            }
            let line = json!({
                "name": name, "title": chart.title, "note": chart.note,
                "series": chart.series, "groups": chart.groups,
            });
            println!("{CHART}{line}");
        }
    }
}

/// The chart that a line carries, with its name.
pub(super) fn chart(line: &str) -> Option<(String, Chart)> {
    let value: Value = serde_json::from_str(line.strip_prefix(CHART)?).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let groups = value["groups"].as_array()?.iter().filter_map(|group| {
        let values = group[1].as_array()?.iter().map(Value::as_f64).collect();
        Some((text(&group[0])?, values))
    });
    let chart = Chart {
        title: text(&value["title"])?,
        note: text(&value["note"])?,
        series: value["series"]
            .as_array()?
            .iter()
            .filter_map(text)
            .collect(),
        groups: groups.collect(),
    };
    Some((text(&value["name"])?, chart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_drawn_as_ratios_or_as_costs() {
        let options = Options {
            kernel: "uml".to_owned(),
            icount: true,
            seconds: 1.0,
            only: String::new(),
            rounds: 1,
        };
        let mut report = Report::new(&options, "lane");
        for bars in [Bars::Ratio, Bars::Cost] {
            report.part("name", "title", bars);
            for (server, per_second) in [("one", 1e6), ("two", 2e6)] {
                let row = Row {
                    workload: "reads",
                    server,
                    granted: "",
                };
                let sample = Sample {
                    per_second,
                    ..Sample::default()
                };
                report.row(row, &sample);
            }
        }
        let drawn = |at: usize| &report.charts[at].1;
        assert_eq!(drawn(0).groups[0].1, [Some(1.0), Some(2.0)]);
        assert_eq!(drawn(1).groups[0].1, [Some(1000.0), Some(500.0)]);
        assert_eq!(drawn(1).title, "title: instructions/request");
    }

    #[test]
    fn a_chart_comes_out_as_it_went_in_and_other_lines_are_none() {
        let mut drawn = Chart {
            title: "t".to_owned(),
            note: "n".to_owned(),
            ..Chart::default()
        };
        drawn.put("reads", "two", 0.5);
        let line = json!({
            "name": "hot", "title": "t", "note": "n",
            "series": drawn.series, "groups": drawn.groups,
        });
        let (name, found) = chart(&format!("{CHART}{line}")).unwrap();
        assert_eq!((name.as_str(), found), ("hot", drawn));
        assert_eq!(chart("| 1 | 2 |"), None);
        assert_eq!(chart("@chart {}"), None);
    }
}
