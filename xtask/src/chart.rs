//! Bar charts as SVG: a group for each workload, a bar for each server.
//!
//! Only drawing lives here. A chart says on its face what was measured, in which lane and when,
//! because it will be looked at without its table.

use std::fmt::Write;

/// Pixels.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 78.0;
const BAR: f64 = 14.0;
const GAP: f64 = 12.0;

/// One colour per server, told apart by those who see colours differently, too.
const COLOURS: [&str; 4] = ["#4477aa", "#ee6677", "#228833", "#ccbb44"];

/// A chart of bars, read from left to right.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chart {
    /// What is measured, with its unit.
    pub(crate) title: String,
    /// Lane and date.
    pub(crate) note: String,
    /// The servers, in the order of their bars.
    pub(crate) series: Vec<String>,
    /// The workloads, each with a value per server where there is one.
    pub(crate) groups: Vec<(String, Vec<Option<f64>>)>,
}

/// Text that cannot end an element.
fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A value as it stands at the end of its bar.
fn format_value(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Chart {
    /// Adds the value of one server under one workload.
    pub(crate) fn put(&mut self, group: &str, series: &str, value: f64) {
        let known = self.series.iter().position(|name| name == series);
        let column = known.unwrap_or_else(|| {
            self.series.push(series.to_owned());
            self.series.len() - 1
        });
        let known = self.groups.iter().position(|(name, _)| name == group);
        let row = known.unwrap_or_else(|| {
            self.groups.push((group.to_owned(), Vec::new()));
            self.groups.len() - 1
        });
        let values = &mut self.groups[row].1;
        values.resize(values.len().max(column + 1), None);
        values[column] = Some(value);
    }

    /// The chart as a file.
    pub(crate) fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|(_, values)| values);
        let largest = values.flatten().fold(0.0_f64, |a, b| a.max(*b));
        let scale = (WIDTH - LEFT - RIGHT) / largest.max(f64::MIN_POSITIVE);
        let bars: usize = self.groups.iter().map(|(_, values)| values.len()).sum();
        let height = TOP + bars as f64 * BAR + self.groups.len() as f64 * GAP + 10.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n\
             <text x=\"10\" y=\"37\" fill=\"#555555\">{}</text>\n",
            escape_xml(&self.title),
            escape_xml(&self.note)
        );
        let mut x = LEFT;
        for (name, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"50\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"60\">{}</text>",
                x + 16.0,
                escape_xml(name)
            );
            x += 40.0 + 6.5 * name.len() as f64;
        }
        let mut y = TOP;
        for (name, values) in &self.groups {
            let middle = y + values.len() as f64 * BAR / 2.0 + 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                escape_xml(name)
            );
            for (value, colour) in values.iter().zip(COLOURS.iter().cycle()) {
                if let Some(value) = value {
                    let width = value * scale;
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                         <text x=\"{:.1}\" y=\"{}\">{}</text>",
                        y + 1.0,
                        BAR - 2.0,
                        LEFT + width + 4.0,
                        y + BAR - 3.0,
                        format_value(*value)
                    );
                }
                y += BAR;
            }
            y += GAP;
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_value_and_the_longest_fills_the_chart() {
        let mut chart = Chart::default();
        chart.put("reads", "one", 50.0);
        chart.put("reads", "two", 100.0);
        chart.put("writes", "two", 25.0);
        assert_eq!(chart.groups[1].1, [None, Some(25.0)]);
        let svg = chart.svg();
        let full = WIDTH - LEFT - RIGHT;
        for share in [1.0, 0.5, 0.25] {
            let width = format!("width=\"{:.1}\"", full * share);
            assert!(svg.contains(&width), "{width} in {svg}");
        }
    }

    #[test]
    fn names_cannot_break_out_of_their_element() {
        let mut chart = Chart {
            title: "a < b & c".to_owned(),
            ..Chart::default()
        };
        chart.put("<g>", "s", 0.0);
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("&lt;g&gt;"));
        assert!(svg.ends_with("</svg>\n"));
    }
}
