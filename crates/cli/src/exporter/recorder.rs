//! Where metrics are kept, and how they are written for Prometheus (text format 0.0.4).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// The labels of a metric as they are written, such as `state="users"`.
type Labels = String;
type Family<T> = BTreeMap<String, BTreeMap<Labels, Arc<T>>>;

/// Sum and count of what was observed.
#[derive(Debug, Default)]
struct Summary {
    observed: Mutex<(u64, f64)>,
}

impl HistogramFn for Summary {
    fn record(&self, value: f64) {
        let mut observed = locked(&self.observed);
        observed.0 += 1;
        observed.1 += value;
    }
}

#[derive(Debug, Default)]
struct Metrics {
    counters: Family<AtomicU64>,
    /// The bits of floating-point numbers.
    gauges: Family<AtomicU64>,
    summaries: Family<Summary>,
}

/// All metrics of the process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Registry {
    metrics: Arc<Mutex<Metrics>>,
}

/// What a mutex guards stays whole whoever panics: every change is one assignment.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find<T: Default>(family: &mut Family<T>, key: &Key) -> Arc<T> {
    let labels =
        key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
    let labels: Vec<String> = labels.collect();
    let of_name = family.entry(key.name().to_owned()).or_default();
    of_name.entry(labels.join(",")).or_default().clone()
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Recorder for Registry {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(find(&mut locked(&self.metrics).counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(find(&mut locked(&self.metrics).gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(find(&mut locked(&self.metrics).summaries, key))
    }
}

impl Registry {
    /// All metrics with their present values.
    pub(super) fn text(&self) -> String {
        let metrics = locked(&self.metrics);
        let mut text = String::new();
        write_family(&mut text, "counter", &metrics.counters, |text, name, labels, count| {
            line(text, name, "", labels, &count.load(Ordering::Relaxed).to_string());
        });
        write_family(&mut text, "gauge", &metrics.gauges, |text, name, labels, bits| {
            let value = f64::from_bits(bits.load(Ordering::Relaxed));
            line(text, name, "", labels, &value.to_string());
        });
        write_family(&mut text, "summary", &metrics.summaries, |text, name, labels, summary| {
            let (count, sum) = *locked(&summary.observed);
            line(text, name, "_sum", labels, &sum.to_string());
            line(text, name, "_count", labels, &count.to_string());
        });
        text
    }
}

fn write_family<T>(
    text: &mut String,
    kind: &str,
    family: &Family<T>,
    write: impl Fn(&mut String, &str, &str, &T),
) {
    for (name, metrics) in family {
        text.push_str(&format!("# TYPE {name} {kind}\n"));
        for (labels, metric) in metrics {
            write(text, name, labels, metric);
        }
    }
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &str, value: &str) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    text.push_str(&format!("{name}{suffix}{labels} {value}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || {
            metrics::counter!("commits_total").increment(2);
            metrics::counter!("commits_total").increment(1);
            metrics::gauge!("bytes", "state" => "a").set(1.5);
            metrics::gauge!("bytes", "state" => "q\"\\\n").set(7.0);
            metrics::histogram!("seconds", "step" => "fold").record(0.25);
            metrics::histogram!("seconds", "step" => "fold").record(0.5);
        });
        let expected = "\
# TYPE commits_total counter
commits_total 3
# TYPE bytes gauge
bytes{state=\"a\"} 1.5
bytes{state=\"q\\\"\\\\\\n\"} 7
# TYPE seconds summary
seconds_sum{step=\"fold\"} 0.75
seconds_count{step=\"fold\"} 2
";
        assert_eq!(registry.text(), expected);
    }
}
