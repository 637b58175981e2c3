//! What a row of the evidence writes of its figures: tables, charts, and how ours stand to the published ones.
//!
//! A figure that is not among the results is `not measured`; nothing here makes one up, and a verdict is of like figures
//! or withheld.

use serde_json::Value;

use super::results::{Results, RunResult};
use crate::chart::Chart;

/// Where a figure should stand that this run does not have.
pub(super) const NOT_MEASURED: &str = "not measured";

/// Stands in the text for the directory of the charts.
pub(super) const CHARTS: &str = "@charts";

/// The bars of a chart that are not ours.
pub(super) const PUBLISHED: &str = "published";

/// By how much two figures differ at most that are called equal.
const EQUAL_WITHIN: f64 = 0.05;

/// The results of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<'a> {
    pub(super) row: &'a str,
    pub(super) results: &'a Results,
}

impl<'a> Measured<'a> {
    /// The run of this name.
    pub(super) fn run(&self, name: &str) -> Option<&'a RunResult> {
        self.results.runs.get(&format!("{}/{name}", self.row))
    }

    /// Whether this run has figures.
    pub(super) fn has(&self, run: &str) -> bool {
        self.run(run).is_some_and(RunResult::has_figures)
    }

    /// The rows of a run's table.
    pub(super) fn rows(&self, run: &str, table: &str) -> Vec<&'a Value> {
        let figures = self.run(run).map_or(&[][..], |run| &run.figures);
        let is_of = |row: &&Value| row["table"] == table;
        figures.iter().filter(is_of).collect()
    }

    /// The row of a run's table that has these words and numbers.
    pub(super) fn find(&self, run: &str, table: &str, what: &[(&str, Value)]) -> Option<&'a Value> {
        let has = |row: &&Value| what.iter().all(|(name, value)| row[*name] == *value);
        self.rows(run, table).into_iter().find(has)
    }
}

/// A number of a row, if the row is there and has it.
pub(super) fn number(row: Option<&Value>, name: &str) -> Option<f64> {
    row?[name].as_f64()
}

/// A number as it stands in a table, with so many digits behind the point.
pub(super) fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or(NOT_MEASURED.to_owned(), |value| grouped(value, digits))
}

/// A factor as it stands in a table.
pub(super) fn factor(value: Option<f64>) -> String {
    value.map_or(NOT_MEASURED.to_owned(), |value| match value {
        100.0.. => format!("{}x", grouped(value, 0)),
        10.0.. => format!("{value:.1}x"),
        _ => format!("{value:.2}x"),
    })
}

/// A number with commas between its thousands.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole
        .strip_prefix('-')
        .map_or(("", whole), |whole| ("-", whole));
    let mut out = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// One figure by another, if both are there.
pub(super) fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let ratio = a? / b?;
    ratio.is_finite().then_some(ratio)
}

/// How ours stands to what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Better,
    Equal,
    Worse,
}

impl Standing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Standing::Better => "better",
            Standing::Equal => "equal",
            Standing::Worse => "worse",
        }
    }

    /// Of how many times as good ours is.
    fn of(times: f64) -> Standing {
        if times > 1.0 + EQUAL_WITHIN {
            Standing::Better
        } else if times < 1.0 - EQUAL_WITHIN {
            Standing::Worse
        } else {
            Standing::Equal
        }
    }
}

/// What is concluded of two figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Stands(Standing),
    /// They were measured, and are not fit to be compared; why.
    Withheld(String),
    NotMeasured,
}

/// A line of the page's first table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) what: String,
    /// The run that ours is of.
    pub(super) run: &'static str,
    pub(super) published: String,
    pub(super) ours: String,
    pub(super) judgement: Judgement,
}

impl Verdict {
    /// Concludes nothing where there is a reason not to; what was not measured stays that.
    pub(super) fn withhold(&mut self, why: Option<String>) {
        if let (Judgement::Stands(_), Some(why)) = (&self.judgement, why) {
            self.judgement = Judgement::Withheld(why);
        }
    }
}

/// A chart, and what it is of.
#[derive(Clone, Debug)]
pub(super) struct DrawnChart {
    /// The name of its file.
    pub(super) name: &'static str,
    /// The runs whose figures it shows.
    pub(super) runs: &'static [&'static str],
    pub(super) chart: Chart,
}

/// What a row writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub(super) text: String,
    pub(super) charts: Vec<DrawnChart>,
    pub(super) verdicts: Vec<Verdict>,
}

impl Section {
    pub(super) fn paragraph(&mut self, text: &str) {
        self.text += text;
        self.text += "\n\n";
    }

    /// A table; the first `words` columns are words, the others numbers.
    pub(super) fn table(&mut self, words: usize, header: &[&str], rows: &[Vec<String>]) {
        let ruler: Vec<&str> = (0..header.len())
            .map(|at| if at < words { "---" } else { "---:" })
            .collect();
        self.text += &format!("| {} |\n|{}|\n", header.join(" | "), ruler.join("|"));
        for row in rows {
            self.text += &format!("| {} |\n", row.join(" | "));
        }
        self.text.push('\n');
    }

    /// A chart of figures of these runs, here in the text; none where nothing of it was measured.
    pub(super) fn chart(
        &mut self,
        name: &'static str,
        runs: &'static [&'static str],
        chart: Chart,
    ) {
        if chart.series.iter().any(|name| name != PUBLISHED) {
            self.text += &format!("![{}]({CHARTS}/{name}.svg)\n\n", chart.title);
            self.charts.push(DrawnChart { name, runs, chart });
        }
    }

    /// Sets ours of this run beside what is published, both as words; `times` is how many times as good ours is.
    pub(super) fn verdict(
        &mut self,
        run: &'static str,
        what: &str,
        published: &str,
        ours: String,
        times: Option<f64>,
    ) -> &mut Verdict {
        let judgement = times.map(Standing::of);
        self.verdicts.push_mut(Verdict {
            what: what.to_owned(),
            run,
            published: published.to_owned(),
            ours,
            judgement: judgement.map_or(Judgement::NotMeasured, Judgement::Stands),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_what_is_missing_is_said() {
        assert_eq!(cell(Some(7_853_358.5), 0), "7,853,358");
        assert_eq!(cell(Some(-1234.56), 1), "-1,234.6");
        assert_eq!(cell(Some(0.5), 2), "0.50");
        assert_eq!(cell(None, 2), NOT_MEASURED);
        assert_eq!(factor(ratio(Some(70.0), Some(2.0))), "35.0x");
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
        assert_eq!(ratio(None, Some(1.0)), None);
    }

    #[test]
    fn ours_is_better_equal_or_worse_and_nothing_where_it_was_not_measured() {
        let mut section = Section::default();
        for times in [Some(1.2), Some(1.04), Some(0.96), Some(0.5), None] {
            section.verdict("uml", "exit", "1 s", cell(times, 2), times);
        }
        let verdicts = section.verdicts.iter();
        let judgements: Vec<_> = verdicts.map(|one| one.judgement.clone()).collect();
        assert_eq!(
            judgements,
            [
                Judgement::Stands(Standing::Better),
                Judgement::Stands(Standing::Equal),
                Judgement::Stands(Standing::Equal),
                Judgement::Stands(Standing::Worse),
                Judgement::NotMeasured
            ]
        );
        assert_eq!(section.verdicts[4].ours, NOT_MEASURED);
    }

    #[test]
    fn a_verdict_is_withheld_for_a_reason_alone_and_not_where_nothing_was_measured() {
        let mut section = Section::default();
        let why = || Some("noise".to_owned());
        for (times, why, judgement) in [
            (Some(2.0), None, Judgement::Stands(Standing::Better)),
            (Some(2.0), why(), Judgement::Withheld("noise".to_owned())),
            (None, why(), Judgement::NotMeasured),
        ] {
            let verdict = section.verdict("uml", "exit", "1 s", cell(times, 2), times);
            verdict.withhold(why);
            assert_eq!(verdict.judgement, judgement);
        }
    }
}
