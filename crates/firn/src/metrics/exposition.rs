//! The page that Prometheus reads, in the OpenMetrics text format.
//!
//! The client library writes the text. Families are encoded when the page is asked for, from values
//! that others own; nothing is registered beforehand and nothing is kept.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The content type of the page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Name and value of each label of a sample.
pub(crate) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A histogram as it is written: its sum in seconds, and the count of each bucket by where it ends.
#[derive(Debug)]
pub(crate) struct HistogramSample {
    pub(crate) sum_seconds: f64,
    pub(crate) buckets: Vec<(f64, u64)>,
}

/// The page while it is written.
pub(crate) struct MetricsText<'a>(DescriptorEncoder<'a>);

impl MetricsText<'_> {
    /// Counters of one family. Their names end in `_total`, which is not said here.
    pub(crate) fn counters<'l, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, samples, |to, value| {
            to.encode_counter::<NoLabelSet, _, u64>(value, None)
        })
    }

    /// Gauges of one family.
    pub(crate) fn gauges<'l, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, samples, |to, value| {
            to.encode_gauge(value)
        })
    }

    /// Histograms of one family.
    pub(crate) fn histograms<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, HistogramSample)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram, samples, |to, value| {
            let count = value.buckets.iter().map(|(_, count)| count).sum();
            to.encode_histogram::<NoLabelSet>(value.sum_seconds, count, &value.buckets, None)
        })
    }

    fn family<'l, V>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
        write: impl Fn(&mut MetricEncoder<'_>, &V) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                write(&mut family, &value)?;
            } else {
                write(&mut family.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }
}

/// Writes the page.
pub(crate) fn page(
    write: impl Fn(&mut MetricsText<'_>) -> fmt::Result + Send + Sync + 'static,
) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(write)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

struct Page<F>(F);

impl<F> fmt::Debug for Page<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl<F> Collector for Page<F>
where
    F: Fn(&mut MetricsText<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut MetricsText(encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_of_its_quotes_and_a_bare_sample_has_no_braces() {
        let text = page(|text| {
            text.gauges("x", "A gauge.", [(vec![("volume", "a\"b\\c\nd")], 1.5)])?;
            text.counters("y", "A counter.", [(vec![], 3_u64)])
        });
        assert!(
            text.contains("x{volume=\"a\\\"b\\\\c\\nd\"} 1.5\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE y counter\ny_total 3\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
